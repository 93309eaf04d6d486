// The box of a session as the network loop calls it.
//
// Theory of operation. A session that is called over the network has a caller on the same control memory that a client on this machine would map,
// used by the loop's thread alone.
#pragma once

#include <cstdint>
#include <memory>

#include "box/caller.hpp"
#include "box/yard.hpp"
#include "duck/sink.hpp"

namespace teal::duck {

class BoxSink final : public CallSink {
public:
    explicit BoxSink(std::shared_ptr<box::Session> session);
    bool submit(const Ask& ask, Answer& refusal) noexcept override;
    bool poll(Answer& answer) noexcept override;
    [[nodiscard]] bool in_the_way() const noexcept override { return caller_.in_the_way(); }

private:
    box::Outcome start(const Ask& ask) noexcept;
    void ended(Answer& answer) noexcept;

    std::shared_ptr<box::Session> session_;
    box::Caller caller_;
    std::uint32_t looks_ = 0;
};

}  // namespace teal::duck
