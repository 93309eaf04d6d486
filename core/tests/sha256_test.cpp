// SHA-256 against the standard's own examples, in any cut, with and without the CPU's own instructions.
#include <span>
#include <string>
#include <string_view>

#include "base/sha256.hpp"
#include "check.hpp"

namespace {

std::string of(std::string_view text, std::size_t step) {
    teal::Sha256 digest;
    for (std::size_t at = 0; at < text.size(); at += step) digest.add(std::as_bytes(std::span(text.substr(at, step))));
    return digest.hex();
}

void test_examples() {
    CHECK_EQ(of("", 1), std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    CHECK_EQ(of("abc", 3), std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    CHECK_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56), std::string("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    const std::string million(1'000'000, 'a');
    for (const std::size_t step : {std::size_t{1'000'000}, std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{1}})
        CHECK_EQ(of(million, step), std::string("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

// Every length around the ends of a block, of bytes that are all different.
std::string of_all_lengths() {
    std::string text;
    teal::Sha256 all;
    for (int i = 0; i < 200; ++i) {
        const std::string hex = of(text, text.size() + 1);
        all.add(std::as_bytes(std::span(hex)));
        text += static_cast<char>(i * 37 + 11);
    }
    return all.hex();
}

}  // namespace

int main() {
    test_examples();
    const std::string best = of_all_lengths();
    teal::Sha256::use_plain_code();
    test_examples();
    CHECK_EQ(of_all_lengths(), best);
    return teal::check::summary();
}
