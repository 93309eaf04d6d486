#include "host/measure.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

constexpr std::uint32_t warm_up_trips = 4096;
constexpr std::uint64_t patience_ns = 10'000'000'000;

std::uint32_t interval_ns(std::uint64_t start, std::uint64_t end) noexcept {
    const std::int64_t ns = ticks_to_ns(end - start);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(ns, UINT32_MAX));
}

// Moves the calling thread to a core for as long as it lives.
class Pinned {
public:
    explicit Pinned(int core) {
        if (core < 0 || core >= CPU_SETSIZE) throw Error(Code::invalid_argument, "core " + std::to_string(core) + " does not exist");
        ::sched_getaffinity(0, sizeof before_, &before_);
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(core), &one);
        if (::sched_setaffinity(0, sizeof one, &one) != 0)
            throw Error(Code::invalid_argument, "core " + std::to_string(core) + ": " + system_message("sched_setaffinity", errno));
    }
    ~Pinned() { ::sched_setaffinity(0, sizeof before_, &before_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

private:
    cpu_set_t before_{};
};

struct EchoFlags {
    alignas(64) std::atomic<std::uint32_t> sent{0};
    alignas(64) std::atomic<std::uint32_t> answered{0};
    alignas(64) std::atomic<bool> refused{false};
};

void echo_side(EchoFlags& flags, const std::byte* from, std::byte* to, std::uint64_t nbytes, std::uint32_t trips, int core) noexcept {
    try {
        const Pinned pinned(core);
        for (std::uint32_t i = 1; i <= trips; ++i) {
            // SYNC: acquire pairs with the sender's release store of `sent`; release with its acquire load of `answered`.
            while (flags.sent.load(std::memory_order_acquire) != i) cpu_relax();
            std::memcpy(to, from, nbytes);
            flags.answered.store(i, std::memory_order_release);
        }
    } catch (const Error&) {
        flags.refused.store(true, std::memory_order_seq_cst);
    }
}

struct AlignedDelete {
    void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{4096}); }
};
using Buffer = std::unique_ptr<std::byte[], AlignedDelete>;

Buffer buffer_of(std::uint64_t nbytes) {
    Buffer buffer(static_cast<std::byte*>(::operator new[](nbytes, std::align_val_t{4096})));
    std::memset(buffer.get(), 0, nbytes);
    return buffer;
}

// Reads every line of the answer, as a caller that uses it would.
std::uint64_t read_lines(const std::byte* bytes, std::uint64_t nbytes) noexcept {
    std::uint64_t sum = 0;
    for (std::uint64_t at = 0; at < nbytes; at += 64) sum += std::to_integer<std::uint64_t>(bytes[at]);
    return sum;
}

}  // namespace

std::vector<std::uint32_t> measure_echo(std::uint64_t nbytes, std::uint32_t n, int core_a, int core_b) {
    if (nbytes == 0 || nbytes > (std::uint64_t{1} << 30)) throw Error(Code::invalid_argument, "echo of " + std::to_string(nbytes) + " bytes: expected 1 to 2^30");
    const Buffer from = buffer_of(nbytes);
    const Buffer to = buffer_of(nbytes);
    EchoFlags flags;
    // Large payloads need fewer trips until caches and clocks have settled.
    const std::uint32_t warm_up = nbytes <= 4096 ? warm_up_trips : 64;
    std::vector<std::uint32_t> times;
    times.reserve(n);
    const Pinned pinned(core_a);
    std::thread other(echo_side, std::ref(flags), from.get(), to.get(), nbytes, warm_up + n, core_b);
    volatile std::uint64_t sink = 0;
    for (std::uint32_t i = 1; i <= warm_up + n; ++i) {
        const std::uint64_t start = ticks();
        std::memset(from.get(), static_cast<int>(i & 0xff), nbytes);
        flags.sent.store(i, std::memory_order_release);  // SYNC: pairs with echo_side()'s acquire
        while (flags.answered.load(std::memory_order_acquire) != i) {
            if (flags.refused.load(std::memory_order_relaxed)) {
                other.join();
                throw Error(Code::invalid_argument, "core " + std::to_string(core_b) + " does not exist or may not be used by this process");
            }
            cpu_relax();
        }
        sink = sink + read_lines(to.get(), nbytes);
        const std::uint64_t end = ticks();
        if (i > warm_up) times.push_back(interval_ns(start, end));
    }
    other.join();
    return times;
}

std::vector<std::uint32_t> measure_call(ClientSession& session, ClientSlot& slot, std::uint32_t model, std::uint32_t version, std::uint32_t n) {
    if (slot.inputs.empty() || slot.outputs.empty()) throw Error(Code::invalid_argument, "measure_call: the slot has no input or no output");
    std::byte* from = slot.base + slot.inputs[0].offset;
    const std::byte* to = slot.base + slot.outputs[0].offset;
    const std::size_t nbytes = std::min<std::uint64_t>({64, slot.inputs[0].nbytes, slot.outputs[0].capacity});
    std::vector<std::uint32_t> times;
    times.reserve(n);
    std::byte payload[64];
    for (std::uint32_t i = 0; i < n; ++i) {
        std::memset(payload, static_cast<int>(i & 0xff), sizeof payload);
        const std::uint64_t start = ticks();
        std::memcpy(from, payload, nbytes);
        session.submit(slot, model, version, 0, 0);
        if (!session.spin(slot, patience_ns)) throw Error(Code::peer_died, "worker: no answer within 10 s");
        const bool equal = std::memcmp(to, payload, nbytes) == 0;
        const std::uint64_t end = ticks();
        const std::uint64_t word = slot.line->word.load(std::memory_order_acquire);
        if (state_of(word) != State::done || !equal)
            throw Error(Code::kernel_failed, "measure_call: call " + std::to_string(i) + " ended in state " + std::to_string(static_cast<unsigned>(state_of(word))) +
                        ", reason " + std::to_string(static_cast<unsigned>(reason_of(word))) + (equal ? "" : ", with other bytes than were sent"));
        times.push_back(interval_ns(start, end));
    }
    return times;
}

}  // namespace teal
