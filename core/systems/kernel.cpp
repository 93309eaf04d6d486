#include "systems/kernel.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.hpp"

namespace teal::systems {
namespace {

constexpr int needed_seals = F_SEAL_WRITE | F_SEAL_SHRINK;

bool refuse(std::string& error, const char* path, const std::string& text) {
    error = std::string(path) + ": " + text;
    return false;
}

// A tensor of (batch) or (batch, columns); columns 0: a vector.
bool check(const TensorDesc& tensor, const char* path, Dtype dtype, std::uint32_t columns, std::string& error) {
    if ((tensor.flags & (tensor_absent | tensor_unplanned)) != 0) return refuse(error, path, "must be given with its shape");
    if (static_cast<Dtype>(tensor.dtype) != dtype)
        return refuse(error, path, "dtype " + std::string(dtype_info(static_cast<Dtype>(tensor.dtype)).name) + ", expected " + std::string(dtype_info(dtype).name));
    const bool vector = columns == 0;
    if (tensor.rank != (vector ? 1 : 2) || (!vector && tensor.shape[1] != static_cast<std::int64_t>(columns)))
        return refuse(error, path, vector ? "expected a shape of (batch)" : "expected a shape of (batch, " + std::to_string(columns) + ")");
    return true;
}

struct SystemsBinding final : Binding {
    Network* network = nullptr;
    const std::byte* x = nullptr;
    std::byte* scores = nullptr;
    std::int32_t* verdict = nullptr;
    std::uint64_t batch = 0;

    bool run(Run&) noexcept override {
        network->run(x, scores, verdict, batch);
        return true;
    }
};

}  // namespace

Mapping::Mapping(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0)
        throw Error(Code::invalid_argument, "the model's descriptor is not a file with contents");
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & needed_seals) != needed_seals)
        throw Error(Code::invalid_argument, "the model's file is not sealed against writing and shrinking: load it through a host, which seals a copy");
    size_ = static_cast<std::size_t>(status.st_size);
    void* base = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) throw Error(Code::invalid_argument, system_message("mapping the model's file", errno));
    base_ = static_cast<const std::byte*>(base);
}

Mapping::~Mapping() { ::munmap(const_cast<std::byte*>(base_), size_); }

SystemsKernel::SystemsKernel(int fd, Isa isa) : mapping_(fd) {
    std::string error;
    if (!read_model(mapping_.bytes(), file_, error)) throw Error(Code::invalid_argument, error);
    network_ = make_network(file_, isa);
}

std::unique_ptr<Binding> SystemsKernel::bind(const Run& run, std::string& error) {
    const Descriptor& d = *run.descriptor;
    const Load& load = *file_.load;
    if (d.inputs.size() != 1 || d.outputs.size() != 2) {
        refuse(error, "$.inputs", "expected one input and two outputs");
        return nullptr;
    }
    if (!check(d.inputs[0], "$.inputs[0]", load.input, load.columns, error)) return nullptr;
    const std::int64_t batch = d.inputs[0].shape[0];
    auto binding = std::make_unique<SystemsBinding>();
    for (std::size_t i = 0; i < 2; ++i) {
        const TensorDesc& output = d.outputs[i];
        const char* path = i == 0 ? "$.outputs[0]" : "$.outputs[1]";
        if ((output.flags & tensor_absent) != 0) continue;
        if (!check(output, path, i == 0 ? load.weights : Dtype::i32, i == 0 ? load.classes : 0, error)) return nullptr;
        if (output.shape[0] != batch) {
            refuse(error, path, "a batch of " + std::to_string(output.shape[0]) + ", the input's is " + std::to_string(batch));
            return nullptr;
        }
        if (i == 0) binding->scores = run.address(output);
        else binding->verdict = reinterpret_cast<std::int32_t*>(run.address(output));
    }
    binding->path = Path::cpu;
    binding->network = network_.get();
    binding->x = run.address(d.inputs[0]);
    binding->batch = static_cast<std::uint64_t>(batch);
    return binding;
}

}  // namespace teal::systems
