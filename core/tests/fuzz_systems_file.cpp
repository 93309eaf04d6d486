// Fuzzing of the reader of model files: read_model(), and the network of whatever it lets through.
//
// With TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives it with mutations of valid files from a fixed seed, so
// that it runs everywhere:
//
//     fuzz_systems_file [rounds [seed]]
#include <cstdlib>
#include <string>
#include <vector>

#include "systems/network.hpp"
#include "systems_file.hpp"

using namespace teal;
using namespace teal::systems;

namespace {

// What is let through runs on any input; nothing beyond the file is read (a sanitizer would see it).
bool use(const std::vector<std::byte>& contents) {
    const Bytes bytes(contents);
    ModelFile file;
    std::string error;
    if (!read_model(bytes.span(), file, error)) {
        for (const char c : error)
            if (c < ' ' || c > '~') std::abort();  // an error that could not be shown
        if (error.empty()) std::abort();
        return false;
    }
    const std::vector<std::byte> x(3 * file.load->columns * dtype_info(file.load->input).size, std::byte{0xA5});
    std::vector<std::byte> scores(3 * file.load->classes * dtype_info(file.load->weights).size);
    std::int32_t verdict[3];
    make_network(file, Isa::baseline)->run(x.data(), scores.data(), verdict, 3);
    return true;
}

}  // namespace

#if defined(TEAL_LIBFUZZER)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto* first = reinterpret_cast<const std::byte*>(data);
    use({first, first + size});
    return 0;
}

#else

int main(int argc, char** argv) {
    const long rounds = argc > 1 ? std::atol(argv[1]) : 30'000;
    std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    const std::vector<std::byte> seeds[] = {random_model(*find_load("mllb"), 1, 0), random_model(*find_load("kml"), 2, 0)};
    long accepted = 0;
    for (long round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = seeds[random() % 2];
        std::uint64_t header = 0;
        std::memcpy(&header, file.data(), 8);
        const std::uint64_t changes = random() % 5;
        for (std::uint64_t i = 0; i < changes && file.size() > 16; ++i) {
            const std::size_t reach = random() % 8 == 0 ? file.size() : std::min<std::size_t>(file.size(), 8 + header);
            const auto at = static_cast<std::ptrdiff_t>(random() % reach);
            const auto some = static_cast<std::ptrdiff_t>(random() % 24);
            switch (random() % 6) {
                case 0: file[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1U << (random() % 8)); break;
                case 1: file[static_cast<std::size_t>(at)] = static_cast<std::byte>("{}[]\":,0129 \\u"[random() % 14]); break;
                case 2: file.erase(file.begin() + at, std::min(file.end(), file.begin() + at + some)); break;
                case 3: file.insert(file.begin() + at, file.begin(), file.begin() + std::min<std::ptrdiff_t>(some, static_cast<std::ptrdiff_t>(file.size()))); break;
                case 4: file.resize(static_cast<std::size_t>(at)); break;
                default:  // a digit to another: the numbers of shapes and offsets
                    for (std::size_t j = static_cast<std::size_t>(at); j < file.size(); ++j)
                        if (file[j] >= std::byte{'0'} && file[j] <= std::byte{'9'}) {
                            file[j] = static_cast<std::byte>('0' + random() % 10);
                            break;
                        }
            }
        }
        accepted += use(file) ? 1 : 0;
    }
    std::printf("%ld rounds, %ld accepted\n", rounds, accepted);
    return accepted > rounds / 100 && accepted < rounds ? 0 : 1;
}

#endif
