#include "duck/box_sink.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cpu/clock.hpp"

namespace teal::duck {
namespace {

bool refuse(Answer& answer, int error) noexcept {
    answer.outcome = Outcome::refused;
    answer.result = error;
    return false;
}

}  // namespace

BoxSink::BoxSink(std::shared_ptr<box::Session> session)
    : session_(std::move(session)), caller_(session_->control_fd(), session_->fate_fd(), session_->facts()) {
    caller_.set_bell(session_->bell_fd());
}

// A call that was sent to the box before has its number in front.
box::Outcome BoxSink::start(const Ask& ask) noexcept {
    const auto op = static_cast<box::AskOp>(static_cast<std::uint16_t>(ask.op));
    std::uint64_t number = 0;
    if (op != box::AskOp::once) return caller_.submit(ask.args.data(), ask.args.size(), op);
    if (ask.args.size() < sizeof number) return box::Outcome::too_long;
    std::memcpy(&number, ask.args.data(), sizeof number);
    return caller_.submit_once(number, ask.args.data() + sizeof number, ask.args.size() - sizeof number);
}

bool BoxSink::submit(const Ask& ask, Answer& refusal) noexcept {
    if (ask.op < 1 || ask.op > 4) return refuse(refusal, EINVAL);
    switch (start(ask)) {
        case box::Outcome::busy: return refuse(refusal, EAGAIN);
        case box::Outcome::too_long: return refuse(refusal, E2BIG);
        case box::Outcome::ended:
        case box::Outcome::lost: ended(refusal); return false;
        default: return true;
    }
}

bool BoxSink::poll(Answer& answer) noexcept {
    box::Answer found = caller_.poll();
    if (found.outcome == box::Outcome::pending) {
        if ((++looks_ & 63U) != 0 || caller_.ending().fate == box::Fate::running) return false;
        found = caller_.poll();  // it may have answered before it ended
    }
    if (found.outcome != box::Outcome::done) {
        ended(answer);
        return true;
    }
    answer.outcome = Outcome::ran;
    answer.result = found.result;
    const std::uint64_t took = found.done - found.began;  // ticks of the box's: for people only
    answer.took_ns = static_cast<std::int64_t>(took) < 0 ? 0 : static_cast<std::uint64_t>(ticks_to_ns(took));
    if (found.result > 0) answer.bytes = {caller_.output(), std::min<std::uint64_t>(static_cast<std::uint64_t>(found.result), caller_.facts().ob_bytes)};
    return true;
}

void BoxSink::ended(Answer& answer) noexcept {
    const box::Ending ending = caller_.ending();
    const box::Fate fate = ending.fate == box::Fate::running ? box::Fate::lost : ending.fate;
    answer.outcome = Outcome::fate;
    answer.result = static_cast<std::int64_t>(static_cast<std::uint64_t>(fate) << 32 | static_cast<std::uint32_t>(ending.detail));
}

}  // namespace teal::duck
