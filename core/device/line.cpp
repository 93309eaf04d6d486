#include "device/line.hpp"

#include <algorithm>
#include <ctime>

#include "device/fence.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

// What the reply line says about a generation; false: nothing yet.
bool answered(const ReplyLine& reply, std::uint32_t generation, Answer& answer) noexcept {
    // SYNC: pairs with the kernel's release of reply.generation: its outputs and status are visible after this.
    if (reply.generation.load(std::memory_order_acquire) == generation) {
        const std::uint32_t status = reply.status.load(std::memory_order_relaxed);
        answer = status <= 2 ? static_cast<Answer>(status) : Answer::failed;  // the client itself may have scribbled here
        return true;
    }
    // SYNC: pairs with the kernel's release of reply.state: its last answer, stored before it parked, is visible after this.
    const std::uint32_t state = reply.state.load(std::memory_order_acquire);
    if (state == static_cast<std::uint32_t>(LineState::resident)) return false;
    if (reply.generation.load(std::memory_order_acquire) == generation) return answered(reply, generation, answer);
    answer = state == static_cast<std::uint32_t>(LineState::parked) ? Answer::parked : Answer::lost;
    return true;
}

void nap(std::uint64_t ns) noexcept {
    const timespec time{0, static_cast<long>(ns)};
    ::nanosleep(&time, nullptr);
}

}  // namespace

std::uint32_t ask(DeviceLine& line) noexcept {
    const std::uint32_t generation = line.request.generation.load(std::memory_order_relaxed) + 1;
    // SYNC: pairs with the kernel's acquire of request.generation: the inputs are visible to the run.
    line.request.generation.store(generation, std::memory_order_release);
    // SYNC: Dekker with the parking kernel (parked, fence, look at requests); await() looks at reply.state after this.
    full_fence();
    return generation;
}

Answer await(const DeviceLine& line, std::uint32_t generation, std::uint64_t timeout_ns, std::uint64_t spin_ns) noexcept {
    Answer answer = Answer::late;
    const auto ready = [&] { return answered(line.reply, generation, answer); };
    const std::uint64_t start = ticks();
    if (spin_for(std::min(spin_ns, timeout_ns), ready)) return answer;
    // A device does not wake a sleeper: naps that grow from 2 µs, so that a long task costs little CPU and little latency.
    for (std::uint64_t ns = 2'000;; ns = std::min<std::uint64_t>(ns + ns / 4, 200'000)) {
        if (ready()) return answer;
        const auto passed = static_cast<std::uint64_t>(ticks_to_ns(ticks() - start));
        if (passed >= timeout_ns) return Answer::late;
        nap(std::min(ns, timeout_ns - passed));
    }
}

}  // namespace teal
