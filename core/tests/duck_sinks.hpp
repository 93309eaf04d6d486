// Sessions for the tests of the duck's network, without any program.
#pragma once

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "duck/sink.hpp"

namespace teal::duck {

// Answers with its arguments, and counts how often each seq ran.
class EchoSink final : public CallSink {
public:
    bool submit(const Ask& ask, Answer&) noexcept override {
        if (ask.seq != last + 1) out_of_order.fetch_add(1, std::memory_order_relaxed);
        last = ask.seq;
        ob.assign(ask.args.begin(), ask.args.end());
        pending_ = true;
        ran.fetch_add(1, std::memory_order_relaxed);
        return true;
    }
    bool poll(Answer& answer) noexcept override {
        if (!pending_ || hold.load(std::memory_order_relaxed)) return false;
        pending_ = false;
        answer = {Outcome::ran, static_cast<std::int64_t>(ob.size()), 0, ob};
        return true;
    }
    bool cancel() noexcept override { return may_cancel && std::exchange(pending_, false); }
    std::uint64_t last = 0;
    std::vector<std::byte> ob;
    std::atomic<std::uint64_t> ran{0}, out_of_order{0};  // relaxed: read after the call was answered
    std::atomic<bool> hold{false};
    bool may_cancel = false;

private:
    bool pending_ = false;
};

}  // namespace teal::duck
