// Fuzzing of what a worker reads from a client: read_descriptor(), read_output() and check_bytes_table().
//
// One input = a few bytes that lay out the regions, then the regions' contents. Whatever read_descriptor() lets through is then
// used as a worker would use it: every byte of every tensor and of the message is touched, in buffers of exactly the right size,
// so that a sanitizer sees the first byte out of place. With TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives
// it with mutations of valid blocks from a fixed seed, so that it runs everywhere:
//
//     fuzz_descriptor [rounds [seed]]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "memory/descriptor.hpp"

namespace {

struct Layout {  // at the head of an input
    std::uint8_t regions;       // 1..4
    std::uint8_t descriptor;    // region of the block
    std::uint16_t missing;      // bit i: region i was returned
    std::uint32_t offset;       // of the block
    std::uint16_t lines[4];     // size of each region, in units of 16 bytes
};
static_assert(sizeof(Layout) == 16);

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "fuzz_descriptor: %s\n", what);
    std::abort();
}

// Reads and writes every byte, as an engine may.
void touch(std::byte* bytes, std::uint64_t size) {
    volatile std::byte* at = bytes;
    for (std::uint64_t i = 0; i < size; ++i) at[i] = at[i];
}

void use_bytes_table(const std::byte* at, const teal::TensorDesc& tensor) {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (!teal::tensor_bytes(teal::Dtype::bytes, tensor.shape, tensor.rank, count, bytes)) fail("a shape that was let through has no size");
    std::vector<std::uint64_t> offsets(count + 1);
    std::memcpy(offsets.data(), at, offsets.size() * sizeof(std::uint64_t));
    std::string error;
    if (!teal::check_bytes_table(offsets.data(), count, tensor.nbytes, error)) return;
    const std::byte* strings = at + bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::string text(reinterpret_cast<const char*>(strings + offsets[i]), offsets[i + 1] - offsets[i]);
        if (text.size() > tensor.nbytes) fail("a string longer than its tensor");
    }
}

void follow(const std::vector<teal::RegionView>& regions, const teal::TensorDesc& chained) {
    teal::ChainLink link;
    if (!teal::link_of(chained, link)) fail("a chained input without a link");
    for (const bool reshaped : {false, true}) {
        teal::TensorDesc found{};
        std::string error;
        if (!teal::read_output(regions, link, reshaped, found, error)) continue;
        if (found.flags != 0 || found.nbytes > found.capacity) fail("an output that is no input");
        touch(regions[found.region].base + found.offset, found.capacity);
    }
}

void use(const std::vector<teal::RegionView>& regions, const teal::Descriptor& d) {
    touch(d.block + d.message_offset, d.message_capacity);
    for (const auto* list : {&d.inputs, &d.outputs}) {
        for (const teal::TensorDesc& tensor : *list) {
            if ((tensor.flags & teal::tensor_absent) != 0) continue;
            std::byte* at = regions[tensor.region].base + tensor.offset;
            if (reinterpret_cast<std::uintptr_t>(at) % std::min<std::size_t>(teal::dtype_info(static_cast<teal::Dtype>(tensor.dtype)).size, 8) != 0)
                fail("a tensor that is not aligned for its dtype");
            touch(at, tensor.capacity);
            if ((tensor.flags & teal::tensor_unplanned) != 0) continue;
            if ((tensor.flags & teal::tensor_chained) != 0) {
                follow(regions, tensor);
                continue;
            }
            touch(at, tensor.nbytes);
            if (list == &d.inputs && static_cast<teal::Dtype>(tensor.dtype) == teal::Dtype::bytes) use_bytes_table(at, tensor);
        }
    }
}

// The raw input as an offset table: any count and size, in a buffer that holds what check_bytes_table() may look at.
void check_table(const std::uint8_t* data, std::size_t size) {
    std::uint64_t count = 0;
    std::uint64_t nbytes = 0;
    std::memcpy(&count, data, sizeof count);
    std::memcpy(&nbytes, data + 8, sizeof nbytes);
    std::vector<std::uint64_t> offsets((size - 16) / 8);
    if (!offsets.empty()) std::memcpy(offsets.data(), data + 16, offsets.size() * 8);
    // A caller has the whole table in hand: its size follows from nbytes, never from count alone.
    nbytes = std::min<std::uint64_t>(nbytes, offsets.size() * 8);
    std::string error;
    (void)teal::check_bytes_table(offsets.data(), count, nbytes, error);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < sizeof(Layout)) return 0;
    check_table(data, size);
    Layout layout;
    std::memcpy(&layout, data, sizeof layout);
    data += sizeof layout;
    size -= sizeof layout;
    std::vector<std::unique_ptr<std::byte[]>> memory;
    std::vector<teal::RegionView> regions;
    for (std::size_t i = 0; i < layout.regions % 4U + 1U; ++i) {
        const std::size_t bytes = layout.lines[i] % 256U * 16U;
        memory.push_back(std::make_unique<std::byte[]>(bytes));  // zeroed; 16-byte aligned like the regions' pages
        const std::size_t given = std::min(size, bytes);
        if (given > 0) std::memcpy(memory.back().get(), data, given);
        data += given;
        size -= given;
        if ((layout.missing >> i & 1) != 0) regions.push_back({nullptr, bytes});
        else regions.push_back({memory.back().get(), bytes});
    }
    teal::Descriptor descriptor;
    std::string error;
    if (teal::read_descriptor(regions, layout.descriptor, layout.offset, descriptor, error)) {
        if (!error.empty()) fail("success with an error message");
        use(regions, descriptor);
    } else if (error.empty() || (error[0] != '$' && error.compare(0, 5, "BYTES") != 0)) {
        fail("a refusal that does not say where");
    }
    return 0;
}

#ifndef TEAL_LIBFUZZER
namespace {

class Mutator {
public:
    explicit Mutator(std::uint32_t seed) : random_(seed) {}

    // A valid input: one or two regions, up to three tensors each way.
    std::vector<std::uint8_t> valid() {
        Layout layout{static_cast<std::uint8_t>(pick(3)), 0, 0, static_cast<std::uint32_t>(64 * pick(4)), {200, 100, 60, 255}};
        std::vector<std::uint8_t> bytes(sizeof layout + 200 * 16 + 100 * 16 + 60 * 16 + 255 * 16);
        std::memcpy(bytes.data(), &layout, sizeof layout);
        teal::DescriptorHeader header{};
        header.magic = teal::descriptor_magic;
        header.n_in = static_cast<std::uint16_t>(pick(4));
        header.n_out = static_cast<std::uint16_t>(pick(4));
        header.message_capacity = pick(2) * 128;
        std::uint8_t* at = bytes.data() + sizeof layout + layout.offset;
        std::memcpy(at, &header, sizeof header);
        at += sizeof header;
        for (std::uint32_t i = 0; i < std::uint32_t{header.n_in} + header.n_out; ++i, at += sizeof(teal::TensorDesc)) {
            const teal::TensorDesc tensor = valid_tensor(i >= header.n_in, layout.regions % 4U + 1U);
            std::memcpy(at, &tensor, sizeof tensor);
        }
        return bytes;
    }

    void mutate(std::vector<std::uint8_t>& bytes) {
        static constexpr std::uint64_t odd[] = {0, 1, 2, 7, 8, 9, 15, 255, 256, 1023, 1024, 4096, 65535, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
        for (std::uint32_t turns = 1 + pick(4); turns > 0; --turns) {
            const std::size_t reach = pick(3) != 0 ? std::min<std::size_t>(bytes.size(), 900) : bytes.size();
            const std::size_t size = std::size_t{1} << pick(4);
            const std::size_t at = pick(static_cast<std::uint32_t>(reach)) / size * size;
            if (at + size > bytes.size()) continue;
            std::uint64_t value = 0;
            std::memcpy(&value, &bytes[at], size);
            switch (pick(4)) {
                case 0: value = odd[pick(std::size(odd))]; break;
                case 1: value += pick(33) - std::uint64_t{16}; break;
                case 2: value ^= std::uint64_t{1} << pick(64); break;
                default: value = std::uint64_t{random_()} << 32 | random_(); break;
            }
            std::memcpy(&bytes[at], &value, size);
        }
        if (pick(16) == 0) bytes.resize(pick(static_cast<std::uint32_t>(bytes.size())));
    }

private:
    std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

    teal::TensorDesc valid_tensor(bool output, std::uint32_t regions) {
        static constexpr std::uint64_t sizes[] = {200 * 16, 100 * 16, 60 * 16, 255 * 16};
        teal::TensorDesc tensor{};
        tensor.dtype = static_cast<std::uint8_t>(1 + pick(teal::dtype_count - 1));
        tensor.rank = static_cast<std::uint8_t>(pick(4));
        for (std::size_t i = 0; i < tensor.rank; ++i) tensor.shape[i] = pick(4);
        if (pick(8) == 0) tensor.flags = teal::tensor_absent;
        else if (output && pick(4) == 0) tensor.flags = teal::tensor_unplanned;
        tensor.region = pick(regions);
        std::uint64_t count = 0;
        (void)teal::tensor_bytes(static_cast<teal::Dtype>(tensor.dtype), tensor.shape, tensor.rank, count, tensor.nbytes);
        tensor.capacity = tensor.nbytes + pick(3) * 16;
        const std::uint64_t room = sizes[tensor.region] > tensor.capacity ? sizes[tensor.region] - tensor.capacity : 0;
        tensor.offset = pick(room / 16 + 1) * 16;
        if (!output && tensor.flags == 0 && pick(4) == 0) teal::set_link(tensor, {pick(3), pick(4), pick(regions + 1), 64 * pick(8)});
        return tensor;
    }

    std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
    const unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 300'000;
    Mutator mutator(argc > 2 ? static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 1);
    std::vector<std::uint8_t> bytes;
    for (unsigned long round = 0; round < rounds; ++round) {
        if (round % 8 == 0 || bytes.size() < sizeof(Layout)) bytes = mutator.valid();  // then eight mutations deep
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        mutator.mutate(bytes);
    }
    std::printf("%lu inputs\n", rounds);
    return 0;
}
#endif
