// Several requests of one version in one run: memory that their inputs are gathered in and their outputs scattered from.
//
// Theory of operation: requests go together when each of their tensors counts rows in its first dimension, the same number in all of
// one request, and everything else about them is equal. A Together is the memory for requests of such a kind, private to the worker,
// with room for as many rows as the pool takes at once; for each number of rows that came up it has the kernel's binding. Both are
// kept, the ones used last. What cannot be had (memory, a binding) is an empty answer: the requests then run one by one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernel/kernel.hpp"

namespace teal {

inline constexpr std::uint32_t most_batch = 256;

// Rows of a request; 0: it runs alone.
std::int64_t rows_of(const Descriptor& request) noexcept;
// May they run together? Both have rows.
bool go_together(const Descriptor& a, const Descriptor& b) noexcept;

class Together {
public:
    // Null: too large, or no memory.
    static std::unique_ptr<Together> make(const Descriptor& like, std::uint32_t most_rows);

    struct Bound {
        Descriptor descriptor;
        std::vector<std::byte> block;  // where a kernel writes that outputs have other shapes than planned
        std::unique_ptr<Binding> binding;
    };
    // For that many rows; null, with `error`, when the kernel does not bind.
    Bound* bind(Kernel& kernel, std::int64_t rows, std::string& error);
    void attach(Run& run, const Bound& bound) const noexcept;

    // Copies a request's inputs in before row `at`, or its outputs out. Returns bytes; `copies` counts tensors.
    std::uint64_t gather(const Run& from, std::int64_t at, std::uint32_t& copies) const noexcept;
    std::uint64_t scatter(const Run& to, std::int64_t at, std::uint32_t& copies) const noexcept;

    [[nodiscard]] const Descriptor& like() const noexcept { return like_; }
    [[nodiscard]] std::uint32_t most_rows() const noexcept { return most_rows_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return views_[0].size; }

private:
    Descriptor like_;                  // of one row
    std::uint32_t most_rows_ = 0;
    std::vector<std::uint64_t> offsets_;  // of each input, then of each output
    std::vector<RegionView> views_;    // the one region
    std::vector<std::shared_ptr<Region>> owners_;
    std::map<std::int64_t, Bound> bound_;
};

// What a worker keeps of these, over all versions.
class Gatherings {
public:
    Together* find(std::uint32_t version_line, std::uint32_t generation, const Descriptor& like, std::uint32_t most_rows);
    void drop(std::uint32_t version_line) noexcept;

private:
    struct Entry {
        std::uint32_t version_line;
        std::uint32_t generation;
        std::unique_ptr<Together> together;
    };
    std::vector<Entry> entries_;       // used last at the end
};

}  // namespace teal
