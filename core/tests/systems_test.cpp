// The systems loads: every width of the vector unit against the definition written out, and what a kernel refuses.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "memory/region.hpp"
#include "systems/kernel.hpp"
#include "systems_file.hpp"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

using namespace teal;
using namespace teal::systems;

namespace {

std::vector<Isa> rungs() {
    std::vector<Isa> all{Isa::baseline};
    const Isa widest = widest_isa(cpu_features());
    for (const Isa isa : {Isa::avx2, Isa::avx512})
        if (isa <= widest) all.push_back(isa);
    return all;
}

// The sum of a layer in 128 bits, so that a wrap in 64 would show.
std::vector<std::int64_t> linnos_layer(const ModelFile& file, std::size_t layer, const std::vector<std::int64_t>& x) {
    const std::size_t layers = file.load->tensors.size() / 2;
    const TensorShape& shape = file.load->tensors[layers + layer];
    const auto* w = file.tensor<std::int64_t>(shape.name);
    const auto* b = file.tensor<std::int64_t>(file.load->tensors[layer].name);
    std::vector<std::int64_t> out(shape.columns);
    for (std::uint32_t j = 0; j < shape.columns; ++j) {
        __extension__ __int128 sum = b[j];
        for (std::uint32_t k = 0; k < shape.rows; ++k) sum += static_cast<__int128>(x[k]) * w[std::size_t{k} * shape.columns + j];
        CHECK(sum <= INT64_MAX && sum >= INT64_MIN);
        out[j] = static_cast<std::int64_t>(layer + 1 < layers && sum < 0 ? 0 : sum);
    }
    return out;
}

void test_linnos(std::string_view name, std::int64_t size, std::uint64_t seed) {
    const Bytes bytes(random_model(*find_load(name), seed, size));
    ModelFile file;
    std::string error;
    if (!CHECK(read_model(bytes.span(), file, error))) return;
    std::mt19937_64 random(seed);
    for (const std::uint64_t batch : {0, 1, 2, 3, 5, 15, 16, 17, 35}) {
        std::vector<std::uint8_t> x(batch * 31);
        for (std::uint8_t& digit : x) digit = static_cast<std::uint8_t>(random() % (batch == 17 ? 256 : 10));
        for (const Isa isa : rungs()) {
            std::vector<std::int64_t> scores(batch * 2);
            std::vector<std::int32_t> verdict(batch);
            make_network(file, isa)->run(reinterpret_cast<const std::byte*>(x.data()), reinterpret_cast<std::byte*>(scores.data()), verdict.data(), batch);
            for (std::uint64_t item = 0; item < batch; ++item) {
                std::vector<std::int64_t> h(x.begin() + static_cast<std::ptrdiff_t>(item * 31), x.begin() + static_cast<std::ptrdiff_t>(item * 31 + 31));
                for (std::size_t layer = 0; layer < file.load->tensors.size() / 2; ++layer) h = linnos_layer(file, layer, h);
                CHECK_EQ(scores[item * 2], h[0]);
                CHECK_EQ(scores[item * 2 + 1], h[1]);
                CHECK_EQ(verdict[item], h[1] > h[0] ? 1 : 0);
            }
        }
    }
}

// Widths agree with each other, and what is not wanted is not written.
void test_floats(std::string_view name) {
    const Load& load = *find_load(name);
    const Bytes bytes(random_model(load, 3, 0));
    ModelFile file;
    std::string error;
    if (!CHECK(read_model(bytes.span(), file, error))) return;
    std::mt19937_64 random(4);
    for (const std::uint64_t batch : {0, 1, 2, 4, 7, 16, 19, 33}) {
        std::vector<std::byte> x(batch * load.columns * 4);
        for (std::size_t i = 0; i < x.size(); i += 4) {
            const float value = std::normal_distribution<float>()(random);
            const auto page = static_cast<std::int32_t>(random() % 640) - 5;
            if (load.input == Dtype::f32) std::memcpy(x.data() + i, &value, 4);
            else std::memcpy(x.data() + i, &page, 4);
        }
        const Bytes exact(x);  // nothing may be read beyond its end
        std::vector<float> first;
        for (const Isa isa : rungs()) {
            std::vector<float> scores(batch * load.classes);
            std::vector<std::int32_t> verdict(batch);
            const auto network = make_network(file, isa);
            network->run(exact.span().data(), reinterpret_cast<std::byte*>(scores.data()), verdict.data(), batch);
            if (first.empty()) first = scores;
            for (std::size_t i = 0; i < scores.size(); ++i) CHECK(std::fabs(scores[i] - first[i]) < 1e-5F);
            std::vector<std::int32_t> again(batch);
            network->run(exact.span().data(), nullptr, again.data(), batch);
            CHECK(again == verdict);
            network->run(exact.span().data(), nullptr, nullptr, batch);
        }
    }
}

TensorDesc tensor(Dtype dtype, std::vector<std::int64_t> shape) {
    TensorDesc desc{};
    desc.dtype = static_cast<std::uint8_t>(dtype);
    desc.rank = static_cast<std::uint8_t>(shape.size());
    desc.nbytes = dtype_info(dtype).size;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        desc.shape[i] = shape[i];
        desc.nbytes *= static_cast<std::uint64_t>(shape[i]);
    }
    desc.capacity = desc.nbytes;
    return desc;
}

void test_kernel() {
    const std::vector<std::byte> contents = random_model(*find_load("mllb"), 1, 0);
    const int fd = sealed_file("teal:test", contents);
    SystemsKernel kernel(fd, isa());
    ::close(fd);  // the mapping stays
    CHECK_EQ(kernel.load().name, std::string_view("mllb"));
    alignas(64) static std::byte memory[4096];
    const std::vector<RegionView> regions{{memory, sizeof memory}};
    Descriptor good;
    good.inputs = {tensor(Dtype::f32, {2, 15})};
    good.outputs = {tensor(Dtype::f32, {2, 1}), tensor(Dtype::i32, {2})};
    good.outputs[0].offset = 256;
    good.outputs[1].offset = 512;
    std::string error;
    const auto refused = [&](const char* words, auto change) {
        Descriptor bad = good;
        change(bad);
        Run run;
        run.descriptor = &bad;
        run.regions = &regions;
        error.clear();
        CHECK(kernel.bind(run, error) == nullptr);
        if (!CHECK(error.find(words) != std::string::npos)) std::fprintf(stderr, "    %s\n", error.c_str());
    };
    refused("expected one input and two outputs", [](Descriptor& d) { d.inputs.clear(); });
    refused("expected one input and two outputs", [](Descriptor& d) { d.outputs.pop_back(); });
    refused("$.inputs[0]: dtype float64, expected float32", [](Descriptor& d) { d.inputs[0] = tensor(Dtype::f64, {2, 15}); });
    refused("$.inputs[0]: expected a shape of (batch, 15)", [](Descriptor& d) { d.inputs[0] = tensor(Dtype::f32, {2, 14}); });
    refused("$.inputs[0]: expected a shape of (batch, 15)", [](Descriptor& d) { d.inputs[0] = tensor(Dtype::f32, {30}); });
    refused("$.inputs[0]: must be given", [](Descriptor& d) { d.inputs[0].flags = tensor_absent; });
    refused("$.outputs[0]: must be given", [](Descriptor& d) { d.outputs[0].flags = tensor_unplanned; });
    refused("$.outputs[0]: a batch of 3, the input's is 2", [](Descriptor& d) { d.outputs[0] = tensor(Dtype::f32, {3, 1}); });
    refused("$.outputs[1]: a batch of 1, the input's is 2", [](Descriptor& d) { d.outputs[1] = tensor(Dtype::i32, {1}); });
    refused("$.outputs[1]: expected a shape of (batch)", [](Descriptor& d) { d.outputs[1] = tensor(Dtype::i32, {2, 1}); });
    for (unsigned absent = 0; absent < 4; ++absent) {  // bit i: output i is not wanted
        Descriptor some = good;
        for (std::size_t i = 0; i < 2; ++i)
            if ((absent >> i & 1) != 0) some.outputs[i].flags = tensor_absent;
        Run run;
        run.descriptor = &some;
        run.regions = &regions;
        std::memset(memory + 256, 0x55, 512);
        const auto binding = kernel.bind(run, error);
        if (!CHECK(binding != nullptr)) continue;
        CHECK(binding->run(run));
        CHECK_EQ(memory[256] == std::byte{0x55}, (absent & 1) != 0);
        CHECK_EQ(memory[512] == std::byte{0x55}, (absent & 2) != 0);
        CHECK(memory[256 + 8] == std::byte{0x55} && memory[512 + 8] == std::byte{0x55});
    }
}

template <typename Make>
void throws(const char* words, Make make) {
    try {
        make();
        CHECK(!"an error was expected");
    } catch (const Error& error) {
        if (!CHECK(std::string(error.what()).find(words) != std::string::npos)) std::fprintf(stderr, "    %s\n", error.what());
    }
}

void test_mapping() {
    throws("not a file with contents", [] { Mapping{-1}; });
    int ends[2];
    CHECK_EQ(::pipe(ends), 0);
    throws("not a file with contents", [&] { Mapping{ends[0]}; });
    ::close(ends[0]);
    ::close(ends[1]);
    const std::byte one[] = {std::byte{1}};
    const int fd = sealed_file("teal:test", one);
    CHECK_EQ(Mapping(fd).bytes().size(), 1U);
    const pid_t child = ::fork();
    if (child == 0) {  // a write to the weights, by whatever mistake, ends the process that makes it
        ::signal(SIGSEGV, SIG_DFL);
        const Mapping mapping(fd);
        *const_cast<volatile std::byte*>(mapping.bytes().data()) = std::byte{2};
        ::_exit(0);
    }
    int status = 0;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    throws("not a safetensors file", [&] { SystemsKernel(fd, isa()); });
    ::close(fd);
}

}  // namespace

int main() {
    test_linnos("linnos", 400, 1);
    test_linnos("linnos", 40'000, 2);            // too wide for int16
    test_linnos("linnos", 1'000'000, 3);
    test_linnos("linnos+1", 200, 4);
    test_linnos("linnos+1", 4'000, 5);       // nearly all of int64
    test_linnos("linnos+2", 30, 6);
    test_linnos("linnos+2", 120, 7);         // nearly all of int64
    test_floats("mllb");
    test_floats("kml");
    test_floats("kleio");
    test_kernel();
    test_mapping();
    return check::summary();
}
