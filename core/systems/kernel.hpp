// A systems load as a resident kernel: no Python on the path of a call.
//
// Theory of operation: the host hands over the sealed file of the model. It is mapped read-only and checked once; the network uses
// the weights where they lie (what it rearranges for the vector unit, it rearranges once, here). A binding checks dtypes and
// shapes once a slot; a run is then one call of the network.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cpu/features.hpp"
#include "kernel/kernel.hpp"
#include "systems/file.hpp"
#include "systems/network.hpp"

namespace teal::systems {

// A file's bytes, read-only; faults on a write. Keeps nothing of the descriptor.
class Mapping {
public:
    // Throws invalid_argument when `fd` is no file that can be mapped, or could still be written to or cut off by somebody.
    explicit Mapping(int fd);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {base_, size_}; }

private:
    const std::byte* base_ = nullptr;
    std::size_t size_ = 0;
};

class SystemsKernel final : public Kernel {
public:
    // Takes a sealed file. Throws invalid_argument, with what is wrong with it.
    SystemsKernel(int fd, Isa isa);
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override;
    [[nodiscard]] const Load& load() const noexcept { return *file_.load; }

private:
    Mapping mapping_;
    ModelFile file_;
    std::unique_ptr<Network> network_;
};

}  // namespace teal::systems
