#include "bench/open_loop.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr unsigned most_submits = 8;  // of one step: whoever shares the core is not to wait for a burst

}  // namespace

OpenLoop::OpenLoop(std::vector<OpenKind> kinds, std::vector<OpenArrival> arrivals, std::uint32_t most_out)
    : kinds_(std::move(kinds)), arrivals_(std::move(arrivals)), most_out_(most_out), free_(kinds_.size()) {
    if (most_out == 0) throw Error(Code::invalid_argument, "open loop: most_out is 0, expected at least 1");
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        if (kinds_[kind].slots.empty()) throw Error(Code::invalid_argument, "open loop: kind " + std::to_string(kind) + " has no slots");
        for (OpenSlot& slot : kinds_[kind].slots) {
            if (kinds_[kind].writes && (slot.slot->inputs.empty() || slot.slot->inputs[0].nbytes < sizeof(std::int64_t)))
                throw Error(Code::invalid_argument, "open loop: kind " + std::to_string(kind) + " has no 8 bytes of input for a value");
            free_[kind].push_back(&slot);
        }
    }
    std::uint64_t before = 0;
    for (const OpenArrival& arrival : arrivals_) {
        if (arrival.kind >= kinds_.size() || arrival.at_ns < before)
            throw Error(Code::invalid_argument, "open loop: an arrival of kind " + std::to_string(arrival.kind) + " at " + std::to_string(arrival.at_ns) +
                        " ns; expected one of " + std::to_string(kinds_.size()) + " kinds, in order of time");
        before = arrival.at_ns;
    }
    out_.reserve(most_out);
    result_.latency_ns.assign(arrivals_.size(), UINT64_MAX);
    result_.ended_ns.assign(arrivals_.size(), 0);
}

bool OpenLoop::step() {
    const std::uint64_t now = ticks();
    if (start_ == 0) {
        start_ = now;
        result_.started_ns = static_cast<std::uint64_t>(monotonic_ns());
    }
    for (unsigned i = 0; i < most_submits; ++i)
        if (!submit(now)) break;
    if (!out_.empty()) take();
    return ended_ < arrivals_.size();
}

// True when there may be another one.
bool OpenLoop::submit(std::uint64_t now) {
    if (next_ == arrivals_.size()) return false;
    const OpenArrival& arrival = arrivals_[next_];
    const auto since = static_cast<std::uint64_t>(ticks_to_ns(now - start_));
    if (arrival.at_ns > since) return false;
    std::deque<OpenSlot*>& free = free_[arrival.kind];
    if (out_.size() >= most_out_ || free.empty() || !ClientSession::quiescent(*free.front()->slot)) {
        held_up_ = true;
        return false;
    }
    if (!held_up_) result_.most_late_ns = std::max(result_.most_late_ns, since - arrival.at_ns);
    held_up_ = false;
    OpenSlot* slot = free.front();
    free.pop_front();
    const auto index = static_cast<std::uint32_t>(next_++);
    if (kinds_[arrival.kind].writes) std::memcpy(slot->slot->address(0, false), &arrival.value, sizeof arrival.value);
    try {
        slot->session->submit(*slot->slot, slot->model, slot->version, 0, 0);
        out_.push_back({slot, arrival.kind, index});
    } catch (const Error& error) {
        free.push_back(slot);
        fail(index, error.what());
    }
    return true;
}

void OpenLoop::take() {
    for (std::size_t i = 0; i < out_.size();) {
        if (!ClientSession::ended(*out_[i].slot->slot)) {
            ++i;
            continue;
        }
        end(out_[i], ticks());  // the clock after the look: this thread may have lost its core since the step began
        out_[i] = out_.back();
        out_.pop_back();
    }
}

void OpenLoop::end(const Out& out, std::uint64_t now) {
    const std::uint64_t word = out.slot->slot->line->word.load(std::memory_order_acquire);
    free_[out.kind].push_back(out.slot);
    if (state_of(word) != State::done) {
        fail(out.arrival, "ended in state " + std::to_string(static_cast<unsigned>(state_of(word))) + ", reason " +
                          std::to_string(static_cast<unsigned>(reason_of(word))));
        return;
    }
    const auto since = static_cast<std::uint64_t>(ticks_to_ns(now - start_));
    result_.ended_ns[out.arrival] = since;
    result_.latency_ns[out.arrival] = since - arrivals_[out.arrival].at_ns;
    ++ended_;
}

void OpenLoop::fail(std::uint32_t arrival, std::string why) {
    if (result_.failed++ == 0) result_.failure = "request " + std::to_string(arrival) + ": " + std::move(why);
    ++ended_;
}

void run_open_loop(OpenLoop& loop, const std::function<void()>& between, std::uint64_t patience_ns, std::uint64_t nap_ns) {
    std::size_t ended = 0;
    std::uint64_t since = ticks();
    const std::uint64_t patience = ns_to_ticks(static_cast<std::int64_t>(patience_ns));
    for (unsigned turn = 0; loop.step(); ++turn) {
        if (between) between();
        if (nap_ns != 0) {
            const timespec nap{static_cast<time_t>(nap_ns / 1'000'000'000), static_cast<long>(nap_ns % 1'000'000'000)};
            ::nanosleep(&nap, nullptr);
        } else if (turn % 1024 != 0) {
            continue;
        }
        if (loop.ended() != ended || loop.out() == 0) {
            ended = loop.ended();
            since = ticks();
        } else if (ticks() - since > patience) {
            throw Error(Code::peer_died, "open loop: no request has ended for " + std::to_string(patience_ns / 1'000'000) + " ms, " +
                        std::to_string(loop.out()) + " are out");
        }
    }
}

}  // namespace teal
