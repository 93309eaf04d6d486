// Whose time is lent: a word for each worker of a pool that lends (lent.cpp), in a page of its own, because those who change it are workers of
// other pools and have nothing to write in this one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/region.hpp"

namespace teal {

class Loans {
public:
    static std::shared_ptr<Loans> create();
    static std::shared_ptr<Loans> attach(int fd);  // takes the descriptor

    // One process at a time. False: another one has it.
    [[nodiscard]] bool take(std::uint32_t worker, std::uint32_t pid) noexcept {
        std::uint32_t nobodys = 0;
        return words_[worker].compare_exchange_strong(nobodys, pid, std::memory_order_relaxed);
    }
    void give_back(std::uint32_t worker, std::uint32_t pid) noexcept { words_[worker].compare_exchange_strong(pid, 0, std::memory_order_relaxed); }
    [[nodiscard]] std::uint32_t holder(std::uint32_t worker) const noexcept { return words_[worker].load(std::memory_order_relaxed); }
    [[nodiscard]] int fd() const noexcept { return region_->fd(); }

private:
    explicit Loans(std::shared_ptr<Region> region) noexcept
        : region_(std::move(region)), words_(reinterpret_cast<std::atomic<std::uint32_t>*>(region_->base() + page_bytes)) {}

    std::shared_ptr<Region> region_;
    std::atomic<std::uint32_t>* words_;  // process, or 0: nobody's
};

}  // namespace teal
