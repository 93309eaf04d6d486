// MessagePack as control messages use it: what is written is read back, in the shortest form; what does not fit is refused.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capi/msgpack.hpp"
#include "../check.hpp"

namespace {

using teal::capi::Reader;
using teal::capi::Writer;

std::vector<std::byte> raw(std::initializer_list<unsigned> values) {
    std::vector<std::byte> bytes;
    for (const unsigned value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
}

void test_numbers() {
    const std::uint64_t values[] = {0, 1, 127, 128, 255, 256, 65535, 65536, 0xffffffff, 0x100000000, INT64_MAX, UINT64_MAX};
    const std::size_t sizes[] = {1, 1, 1, 2, 2, 3, 3, 5, 5, 9, 9, 9};
    for (std::size_t i = 0; i < std::size(values); ++i) {
        Writer out;
        out.number(values[i]);
        CHECK_EQ(out.bytes().size(), sizes[i]);
        Reader in(out.bytes());
        std::uint64_t value = 1;
        CHECK(in.number(value) && value == values[i] && in.at_end());
        Reader again(out.bytes());
        std::int64_t narrow = 0;
        CHECK_EQ(again.signed_number(narrow), values[i] <= INT64_MAX);
    }
    const auto negatives = raw({0xff, 0xe0, 0xd0, 0x80, 0xd1, 0x80, 0, 0xd2, 0x80, 0, 0, 0, 0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xd0, 5});
    Reader in(negatives);
    for (const std::int64_t expected : {std::int64_t{-1}, std::int64_t{-32}, std::int64_t{-128}, std::int64_t{-32768}, std::int64_t{INT32_MIN}, INT64_MIN, std::int64_t{5}}) {
        std::int64_t value = 0;
        CHECK(in.signed_number(value));
        CHECK_EQ(value, expected);
    }
    CHECK(in.at_end());
    const auto one = raw({0xff});
    Reader unsigned_only(one);
    std::uint64_t value = 0;
    CHECK(!unsigned_only.number(value));
    CHECK(!unsigned_only.ok());
}

void test_texts_and_containers() {
    for (const std::size_t size : {0u, 1u, 31u, 32u, 255u, 256u, 65535u, 65536u}) {
        Writer out;
        out.map(1);
        out.text("key");
        out.array(3);
        out.text(std::string(size, 'x'));
        out.boolean(true);
        out.nil();
        Reader in(out.bytes());
        std::uint32_t count = 0;
        std::string_view text;
        bool flag = false;
        CHECK(in.map(count) && count == 1 && in.text(text) && text == "key" && in.array(count) && count == 3);
        CHECK(in.text(text) && text.size() == size && in.boolean(flag) && flag && in.nil() && in.at_end());
        Reader over(out.bytes());
        std::span<const std::byte> passed;
        CHECK(over.skip(&passed) && over.at_end() && passed.size() == out.bytes().size());
    }
    Writer wide;
    wide.map(70000);
    wide.array(70000);
    CHECK_EQ(wide.bytes().size(), 10u);
}

void test_wrong_kinds() {
    Writer out;
    out.text("five");
    const auto refuses = [&](auto&& read) {
        Reader in(out.bytes());
        CHECK(!read(in));
        CHECK(!in.ok() && !in.at_end() && in.next() == Reader::Kind::nothing);
        CHECK(!in.skip());  // nothing works after the first mistake
    };
    std::uint32_t count = 0;
    std::uint64_t number = 0;
    bool flag = false;
    refuses([&](Reader& in) { return in.map(count); });
    refuses([&](Reader& in) { return in.array(count); });
    refuses([&](Reader& in) { return in.number(number); });
    refuses([&](Reader& in) { return in.boolean(flag); });
    refuses([&](Reader& in) { return in.nil(); });
}

void test_cut_short() {
    Writer out;
    out.map(2);
    out.text("a rather long key that takes more than thirty-one bytes");
    out.number(1u << 20);
    out.text("b");
    out.array(2);
    out.number(UINT64_MAX);
    out.text(std::string(300, 'y'));
    for (std::size_t size = 0; size < out.bytes().size(); ++size) {
        const std::vector<std::byte> part(out.bytes().begin(), out.bytes().begin() + static_cast<std::ptrdiff_t>(size));  // the exact size, for sanitizers
        Reader in(part);
        CHECK(!in.skip());
        CHECK(!in.at_end());
    }
}

void test_lies() {
    std::uint32_t count = 0;
    std::string_view text;
    for (const auto& bytes : {raw({0xdd, 0xff, 0xff, 0xff, 0xff}), raw({0xdf, 0xff, 0xff, 0xff, 0xff}), raw({0x9f}), raw({0x8f, 1}), raw({0xdb, 0xff, 0xff, 0xff, 0xff, 'x'}),
                              raw({0xc6, 0xff, 0xff, 0xff, 0xff}), raw({0xc9, 0xff, 0xff, 0xff, 0xff, 1}), raw({0xc1}), raw({0xd8, 0, 1}), raw({0xcb, 0})}) {
        Reader in(bytes);
        CHECK(!in.skip());
        Reader other(bytes);
        CHECK(!other.map(count) && !other.array(count) && !other.text(text));
    }
    const std::vector<std::byte> deep(1000, std::byte{0x91});  // [[[[…
    Reader in(deep);
    CHECK(!in.skip());
    std::vector<std::byte> level(20, std::byte{0x91});
    level.push_back(std::byte{0xc0});
    Reader fine(level);
    CHECK(fine.skip() && fine.at_end());
}

}  // namespace

int main() {
    test_numbers();
    test_texts_and_containers();
    test_wrong_kinds();
    test_cut_short();
    test_lies();
    return teal::check::summary();
}
