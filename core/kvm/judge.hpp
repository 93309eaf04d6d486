// A judged run in a guest: the KVM back end of box/judge.hpp.
//
// Theory of operation. The calling thread is the guest's core. The program begins in ring 3 with a prepared bench, leaves by traps and
// system calls, and is stopped by a fuse. Times are those of this thread's CPU clock, in which the guest's time counts like our own. Pages
// are counted by the bits of the guest's page tables, so also those that were only read. A run costs no new process: the bench restores
// what the last run wrote.
#pragma once

#include <cstdint>
#include <memory>

#include "box/judge.hpp"

namespace teal::kvm {

struct BenchStatistics;

class Judge {
public:
    Judge();
    ~Judge();
    Judge(const Judge&) = delete;
    Judge& operator=(const Judge&) = delete;

    // Never throws for what the program or this machine does: the record says. `image_id`: see Bench::prepare().
    box::RunRecord run(const box::RunOrder& order, std::uint64_t image_id = 0) noexcept;
    [[nodiscard]] BenchStatistics statistics() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace teal::kvm
