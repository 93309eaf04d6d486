// Direct calls of a Remote's sessions: sent, answered, moved to the connection. See direct.hpp; all of it under the Remote's mutex.
#include <algorithm>

#include "duck/remote_impl.hpp"

namespace teal::duck {
namespace {

constexpr std::uint32_t call_op = 1, once_op = 4;   // box::AskOp

}  // namespace

std::unique_ptr<DirectPath> Remote::direct() {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stream != nullptr) return nullptr;
    return std::make_unique<DirectPath>(impl_->udp.local());
}

std::uint64_t RemoteSession::direct_calls() const noexcept {
    const std::lock_guard lock(remote_->impl_->mutex);
    return state_->direct_calls;
}

bool RemoteSession::direct() const noexcept {
    const std::lock_guard lock(remote_->impl_->mutex);
    return state_->path != nullptr && state_->path->ready();
}

void Remote::Impl::reach_box(DirectPath& path, std::uint16_t port, std::uint64_t id) {
    Address box;
    box.bytes = sizeof box.raw;
    ::getpeername(udp.fd(), reinterpret_cast<sockaddr*>(&box.raw), &box.bytes);
    if (box.raw.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(box.raw).sin6_port = htons(port);
    else reinterpret_cast<sockaddr_in&>(box.raw).sin_port = htons(port);
    const Cipher cipher = connection->cipher();
    path.reach(box, id, cipher, cipher == Cipher::none ? DirectKeys{} : direct_keys(connection->exporter(), id));
    path.probe(clock());
}

bool Remote::Impl::send_direct(RemoteSession::State& session, std::span<const std::byte> args, std::uint32_t op) {
    DirectPath& path = *session.path;
    if (path.out()) move_direct(session);   // calls begin in their order
    const std::uint64_t now = clock();
    if (!path.ready()) {
        DirectAnswer none;
        std::span<const std::byte> bytes;
        (void)path.look(now, none, bytes);
        path.probe(now);
    }
    if (!path.ready() || op != call_op || args.size() > direct_args_room || session.long_results || session.out != 0 || session.direct.seq != 0 ||
        session.of(session.next_seq).seq != 0 /* no room to move it to */) {
        if (op == call_op) ++figures.direct_passed;
        return false;
    }
    path.ask(args, now);
    session.direct = {RemoteSession::State::direct_bit | path.number(), false, false, 0, 0, {}};
    session.moved = 0;
    direct_out.push_back(&session);
    main_at = now >= heart_at ? now : now + main_each_ns;
    ++session.direct_calls;
    ++figures.calls;
    ++figures.direct_calls;
    return true;
}

bool Remote::Impl::turn_direct(std::uint64_t now) {
    bool answered = false;
    for (std::size_t i = 0; i < direct_out.size();) {
        RemoteSession::State& session = *direct_out[i];
        DirectAnswer answer;
        std::span<const std::byte> bytes;
        const DirectPath::Look seen = session.path->look(now, answer, bytes);
        if (seen == DirectPath::Look::answered) {
            answered = true;
            direct_answered(session, answer, bytes);   // takes it off the list, or moves it
        } else if (seen == DirectPath::Look::refused || !session.path->ask_again(now)) {
            move_direct(session);
        } else {
            ++i;
        }
    }
    return answered;
}

void Remote::Impl::direct_answered(RemoteSession::State& session, const DirectAnswer& answer, std::span<const std::byte> bytes) {
    if ((answer.flags & direct_long) != 0) {
        ++figures.direct_long;
        session.long_results = true;
        return move_direct(session);   // it has run, and its result comes in pieces
    }
    std::erase(direct_out, &session);
    const std::size_t fits = std::min(bytes.size(), session.ob.size());
    if (fits != 0 && !session.direct.forsaken) std::memcpy(session.ob.data(), bytes.data(), fits);
    session.direct.answer = {Outcome::ran, std::min(answer.result, static_cast<std::int64_t>(fits)), answer.took_ns};
    session.direct.answered = true;
    if (session.direct.forsaken) session.direct.seq = 0;
}

void Remote::Impl::move_direct(RemoteSession::State& session) {
    const std::uint64_t number = session.path->number();
    session.path->move();
    std::erase(direct_out, &session);
    session.moved = queue_call(session, bytes_of(number), session.path->args(), once_op);
    --figures.calls;   // the same one
    ++figures.direct_moved;
    due = 0;
}

void Remote::Impl::moved_answered(RemoteSession::State& session, const CallAnswer& answer) {
    session.pending[session.moved % RemoteSession::most_in_flight].seq = 0;
    session.moved = 0;
    session.direct.answer = answer;
    session.direct.answered = true;
    if (session.direct.forsaken) session.direct.seq = 0;
    // Has the box been heard meanwhile, late? Then the path is good, and the program took its time.
    DirectAnswer late;
    std::span<const std::byte> bytes;
    session.path->missed();
    (void)session.path->look(clock(), late, bytes);
}

void Remote::Impl::forget_direct(RemoteSession::State& session) noexcept { std::erase(direct_out, &session); }

}  // namespace teal::duck
