// Tests of what a worker reads from a client: descriptor blocks field by field, sizes of tensors, offset tables.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "memory/descriptor.hpp"
#include "tests/check.hpp"

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Two regions in private memory, and a valid block: input float32[2,3], output int64[4], at region 0, offset 128.
struct Fixture {
    std::vector<std::byte> bytes = std::vector<std::byte>(3 * 4096);
    std::vector<teal::RegionView> regions;
    teal::DescriptorHeader header{};
    teal::TensorDesc in{};
    teal::TensorDesc out{};
    teal::Descriptor read;
    std::string error;

    Fixture() : regions{{bytes.data(), 8192}, {bytes.data() + 8192, 4096}, {nullptr, 4096}} {
        header.magic = teal::descriptor_magic;
        header.n_in = 1;
        header.n_out = 1;
        header.message_capacity = 512;
        in = {static_cast<std::uint8_t>(teal::Dtype::f32), 2, 0, 1, 256, 64, 24, {2, 3}};
        out = {static_cast<std::uint8_t>(teal::Dtype::i64), 1, 0, 0, 4096, 32, 32, {4}};
    }
    bool parse(std::uint32_t region = 0, std::uint64_t offset = 128) {
        std::byte* at = bytes.data() + 128;
        std::memcpy(at, &header, sizeof header);
        std::memcpy(at + sizeof header, &in, sizeof in);
        std::memcpy(at + sizeof header + sizeof in, &out, sizeof out);
        error.clear();
        return teal::read_descriptor(regions, region, offset, read, error);
    }
};

void test_descriptor_good() {
    Fixture f;
    CHECK(f.parse());
    CHECK_EQ(f.read.inputs.size(), 1);
    CHECK_EQ(f.read.outputs[0].nbytes, 32);
    CHECK_EQ(f.read.message_offset, 64 + 2 * 96);
    CHECK_EQ(f.read.message_capacity, 512);
    CHECK(f.read.block == f.bytes.data() + 128);
    std::memset(f.bytes.data() + 128, 0xff, 256);  // a later change changes nothing
    CHECK_EQ(f.read.inputs[0].offset, 256);
    Fixture edges;
    edges.in = {static_cast<std::uint8_t>(teal::Dtype::u8), 0, 0, 1, 4095, 1, 1, {}};  // rank 0, the last byte
    edges.out = {static_cast<std::uint8_t>(teal::Dtype::f64), 8, 0, 0, 8192, 0, 0, {1, 1, 0, INT64_MAX, 1, 1, 1, 1}};  // nothing, at the end
    CHECK(edges.parse());
    edges.in.flags = teal::tensor_absent;
    edges.in.region = 99;
    edges.out = {static_cast<std::uint8_t>(teal::Dtype::f64), 0, teal::tensor_unplanned, 0, 4096, 4096, 12345, {}};
    CHECK(edges.parse());
    edges.out = {static_cast<std::uint8_t>(teal::Dtype::bytes), 1, 0, 0, 4096, 100, 32, {3}};  // as little as the table
    CHECK(edges.parse());
    edges.header.n_in = edges.header.n_out = 0;
    CHECK(edges.parse());
    CHECK(edges.read.inputs.empty() && edges.read.outputs.empty());
}

struct Fault {
    const char* says;  // what the message must contain
    void (*make)(Fixture&);
};

const Fault faults[] = {
    {"$.descriptor.magic", [](Fixture& f) { f.header.magic ^= 1; }},
    {"$.descriptor: 1025", [](Fixture& f) { f.header.n_in = 1024; }},
    {"$.descriptor: 131070", [](Fixture& f) { f.header.n_in = f.header.n_out = 65535; }},
    {"message_capacity", [](Fixture& f) { f.header.message_capacity = 4097; }},
    {"leaves its region", [](Fixture& f) { f.header.n_in = 100; }},
    {"$.inputs[0].flags: unknown", [](Fixture& f) { f.in.flags = 8; }},
    {"$.inputs[0].flags: an input", [](Fixture& f) { f.in.flags = teal::tensor_unplanned; }},
    {"$.inputs[0].dtype", [](Fixture& f) { f.in.dtype = 0; }},
    {"$.inputs[0].dtype", [](Fixture& f) { f.in.dtype = teal::dtype_count; }},
    {"$.inputs[0].rank", [](Fixture& f) { f.in.rank = 9; }},
    {"$.inputs[0].region", [](Fixture& f) { f.in.region = 3; }},
    {"$.inputs[0].region", [](Fixture& f) { f.in.region = UINT32_MAX; }},
    {"$.inputs[0].region", [](Fixture& f) { f.in.region = 2; }},  // returned: no longer mapped
    {"$.inputs[0].offset: 4096", [](Fixture& f) { f.in.offset = 4096; }},
    {"$.inputs[0].offset", [](Fixture& f) { f.in.offset = UINT64_MAX - 16; }},
    {"$.inputs[0].offset", [](Fixture& f) { f.in.capacity = UINT64_MAX; }},
    {"$.inputs[0].offset: 258 is not aligned", [](Fixture& f) { f.in.offset = 258; }},
    {"$.inputs[0].shape", [](Fixture& f) { f.in.shape[0] = -1; }},
    {"$.inputs[0].shape", [](Fixture& f) { f.in.shape[0] = f.in.shape[1] = INT64_MAX; }},
    {"$.inputs[0].nbytes", [](Fixture& f) { f.in.nbytes = 25; }},
    {"$.inputs[0].nbytes", [](Fixture& f) { f.in.shape[1] = 4; }},
    {"$.inputs[0].nbytes: 24 exceed", [](Fixture& f) { f.in.capacity = 23; }},
    {"$.outputs[0].nbytes", [](Fixture& f) { f.out.shape[0] = 5; }},
    {"$.outputs[0].offset", [](Fixture& f) { f.out.offset = 8192 - 24; }},
    {"$.outputs[0].offset", [](Fixture& f) { f.out.flags = teal::tensor_unplanned; f.out.capacity = 8192; }},
};

void test_descriptor_faults() {
    for (const Fault& fault : faults) {
        Fixture f;
        fault.make(f);
        CHECK(!f.parse());
        if (!CHECK(contains(f.error, fault.says))) std::fprintf(stderr, "    said: %s, expected: %s\n", f.error.c_str(), fault.says);
    }
    Fixture f;
    CHECK(!f.parse(3, 128));
    CHECK(!f.parse(2, 128));
    CHECK(!f.parse(UINT32_MAX, 128));
    CHECK(!f.parse(0, 132));
    CHECK(!f.parse(0, 8192));
    CHECK(!f.parse(0, 8192 - 64));
    CHECK(!f.parse(0, UINT64_MAX - 63));
}

void test_tensor_bytes() {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    const std::int64_t huge[] = {std::int64_t{1} << 62, 1};
    CHECK(teal::tensor_bytes(teal::Dtype::u8, huge, 2, count, bytes));
    CHECK_EQ(bytes, std::uint64_t{1} << 62);
    CHECK(!teal::tensor_bytes(teal::Dtype::i16, huge, 2, count, bytes));  // 2^63
    CHECK(!teal::tensor_bytes(teal::Dtype::c128, huge, 2, count, bytes));
    CHECK(!teal::tensor_bytes(teal::Dtype::bytes, huge, 2, count, bytes));
    const std::int64_t zero[] = {0, INT64_MAX, INT64_MAX};
    CHECK(!teal::tensor_bytes(teal::Dtype::u8, zero, 3, count, bytes));  // huge * huge is refused, zero or not
    CHECK(teal::tensor_bytes(teal::Dtype::c128, zero, 2, count, bytes));
    CHECK_EQ(bytes, 0);
    CHECK(teal::tensor_bytes(teal::Dtype::f32, nullptr, 0, count, bytes));
    CHECK_EQ(count, 1);
    CHECK_EQ(bytes, 4);
    CHECK(teal::tensor_bytes(teal::Dtype::bytes, zero, 1, count, bytes));
    CHECK_EQ(bytes, 8);  // an empty BYTES tensor still has offsets[0]
    for (std::uint8_t i = 1; i < teal::dtype_count; ++i) {
        const auto dtype = static_cast<teal::Dtype>(i);
        CHECK(teal::dtype_from_name(teal::dtype_info(dtype).name) == dtype);
        CHECK(teal::dtype_info(dtype).size > 0);
    }
    CHECK(teal::dtype_from_name("none") == teal::Dtype::none);
}

void test_bytes_table() {
    std::string error;
    const std::uint64_t good[] = {0, 3, 3, 10};
    CHECK(teal::check_bytes_table(good, 3, 32 + 10, error));
    CHECK(teal::check_bytes_table(good, 0, 8, error));
    CHECK(!teal::check_bytes_table(good, 3, 32 + 9, error));
    CHECK(contains(error, "offsets[3] = 10"));
    CHECK(!teal::check_bytes_table(good, 3, 31, error));
    CHECK(!teal::check_bytes_table(good, 0, 7, error));
    CHECK(!teal::check_bytes_table(good, UINT64_MAX, 8, error));
    CHECK(!teal::check_bytes_table(good, UINT64_MAX / 8, UINT64_MAX, error));
    const std::uint64_t back[] = {0, 5, 4, 10};
    CHECK(!teal::check_bytes_table(back, 3, 100, error));
    CHECK(contains(error, "offsets[2]"));
    const std::uint64_t late[] = {1, 5};
    CHECK(!teal::check_bytes_table(late, 1, 100, error));
    const std::uint64_t wild[] = {0, UINT64_MAX};
    CHECK(!teal::check_bytes_table(wild, 1, 100, error));
}

}  // namespace

int main() {
    test_descriptor_good();
    test_descriptor_faults();
    test_tensor_bytes();
    test_bytes_table();
    return teal::check::summary();
}
