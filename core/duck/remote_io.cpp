// Receiving, sending and sleeping of a Remote, and the thread that does so while nobody waits.
#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cpu/clock.hpp"
#include "duck/remote_impl.hpp"

namespace teal::duck {
namespace {

constexpr unsigned datagrams_a_turn = 64;
constexpr std::uint64_t first_ask_ns = 2'000'000, longest_ask_ns = 20'000'000;
constexpr std::uint64_t callers_about_ns = 20'000'000;     // the keeper leaves the socket to callers for so long
constexpr std::uint64_t refused_for_ns = 100'000'000;      // nobody listens there: not a restart, not a stray ICMP

}  // namespace

std::uint64_t Remote::Impl::clock() noexcept { return static_cast<std::uint64_t>(ticks_to_ns(ticks())); }

void Remote::Impl::fail(const std::string& what) const {
    const bool duck_said = connection && connection->closed_by_peer();
    if (closed) throw Error(Code::closed, "the connection to the duck is closed");
    throw Error(Code::peer_died, "duck " + address + ": " + (duck_said ? "it closed the connection: " : "") + (connection ? connection->why() : "no connection") + "; " + what);
}

void Remote::Impl::check_alive(const char* what) const {
    if (connection->closed() || closed) [[unlikely]] fail(what);
}

bool Remote::Impl::pump(std::uint64_t now) {
    if (!direct_out.empty()) {
        // Two sockets to look at cost a short call more than it has: the connection gets its turn now and then, for its heartbeats.
        const bool answered = turn_direct(now);
        if (answered || (now < main_at && calls_out == 0 && replies.empty() && puts.empty())) return answered;
    }
    main_at = now + main_each_ns;
    heart_at = now + heart_each_ns;
    const bool came = receive(now);
    if (!came && now < due && !connection->has_more()) return false;
    if (now >= next_ask) ask_again(now);
    send(now);
    if (connection->closed()) dead.store(true, std::memory_order_relaxed);
    due = next_timer();
    return came;
}

bool Remote::Impl::receive(std::uint64_t now) {
    if (stream != nullptr) {
        const bool open = stream->fill();
        bool came = false;
        for (std::span<std::byte> bytes = stream->next(); !bytes.empty(); bytes = stream->next()) {
            came = true;
            connection->receive(bytes, now, *this);
        }
        if (!open) connection->close(1, "its TCP connection ended");
        return came;
    }
    const bool calling = calls_out != 0;
    for (unsigned i = 0; i < datagrams_a_turn; ++i) {
        const std::ptrdiff_t bytes = udp.receive(in);
        if (bytes < 0) continue;
        if (bytes == 0) {
            if (i != 0) refused_at = 0;
            else if (udp.refused() != refused_seen) {
                refused_seen = udp.refused();
                if (refused_at == 0 || refused_at < connection->last_received()) refused_at = now;
                else if (now > refused_at + refused_for_ns) connection->close(1, "nobody listens there any more");
            }
            return i != 0;
        }
        take({in.data(), static_cast<std::size_t>(bytes)}, now);
        if (calling && calls_out == 0) return true;  // the answer that a call waits for: what else came can wait too
    }
    return true;
}

void Remote::Impl::take(std::span<std::byte> datagram, std::uint64_t now) {
    PacketStart start;
    while (load(std::span<const std::byte>(datagram), start) && start.bytes >= sizeof start && start.bytes <= datagram.size()) {
        if (static_cast<PacketKind>(start.kind) == PacketKind::data) connection->receive(datagram.first(start.bytes), now, *this);
        datagram = datagram.subspan(start.bytes);
    }
}

void Remote::Impl::send(std::uint64_t now) {
    if (stream == nullptr) {
        (void)pour(*connection, *this, now, udp, nullptr, out, held);
        return;
    }
    bool open = stream->flush();
    while (open && !stream->blocked()) {
        const std::size_t bytes = connection->send(std::span(out).first(most_packet), now, *this);
        if (bytes == 0) break;
        stream->put(std::span<const std::byte>(out).first(bytes));
        open = stream->flush();
    }
    if (!open) connection->close(1, "its TCP connection ended");
}

void Remote::Impl::ask_again(std::uint64_t now) {
    next_ask = ~0ULL;
    if (calls_out == 0) return;
    for (const auto& [id, session] : sessions) {
        if (session->out == 0) continue;
        for (RemoteSession::State::Pending& pending : session->pending) {
            if (pending.seq == 0 || pending.answered) continue;
            if (now >= pending.ask_at) {
                connection->poll(id, pending.seq);
                ++figures.calls_asked_again;
                pending.ask_each = std::min(pending.ask_each * 2, longest_ask_ns);
                pending.ask_at = now + pending.ask_each;
            }
            next_ask = std::min(next_ask, pending.ask_at);
        }
    }
}

std::uint64_t Remote::Impl::next_timer() const noexcept {
    std::uint64_t next = std::min(connection->next_timer(), next_ask);
    for (const RemoteSession::State* session : direct_out) next = std::min(next, session->path->resend_at());
    if (!held.bytes.empty() || (stream != nullptr && stream->blocked())) next = std::min(next, clock() + 100'000);
    return next;
}

std::uint64_t Remote::Impl::send_call(RemoteSession::State& session, std::span<const std::byte> args, std::uint32_t op) {
    check_alive("the call was not sent");
    if (session.path != nullptr && send_direct(session, args, op)) return session.direct.seq;
    return queue_call(session, {}, args, op);
}

// `head`: goes before the arguments.
std::uint64_t Remote::Impl::queue_call(RemoteSession::State& session, std::span<const std::byte> head_bytes, std::span<const std::byte> args, std::uint32_t op) {
    if (args.size() > connection->most_item_bytes())
        throw Error(Code::invalid_argument, "duck: arguments of " + std::to_string(args.size()) + " bytes are too long for a call: put them into a blob");
    RemoteSession::State::Pending& pending = session.of(session.next_seq);
    if (pending.seq != 0) throw Error(Code::busy, "duck: session " + std::to_string(session.id) + " has 8 calls without a waited-for answer: wait for the first");
    const CallHead head{session.id, op, session.next_seq};
    if (head_bytes.empty()) {
        connection->queue(ItemKind::call, bytes_of(head), args);
    } else {
        std::byte both[sizeof head + sizeof(std::uint64_t)];
        std::memcpy(both, &head, sizeof head);
        std::memcpy(both + sizeof head, head_bytes.data(), std::min(head_bytes.size(), sizeof(std::uint64_t)));
        connection->queue(ItemKind::call, both, args);
    }
    const std::uint64_t now = clock(), patience = std::max(first_ask_ns, connection->pto_ns());
    pending = {session.next_seq++, false, false, now + patience, patience, {}};
    next_ask = std::min(next_ask, pending.ask_at);
    ++session.out;
    ++calls_out;
    ++figures.calls;
    return head.seq;
}

void Remote::Impl::answered(const AnswerHead& head, std::span<const std::byte> bytes) {
    if (last_session == nullptr || last_session->id != head.session) {
        const auto found = sessions.find(head.session);
        if (found == sessions.end()) return;
        last_session = found->second.get();
    }
    RemoteSession::State& session = *last_session;
    RemoteSession::State::Pending& pending = session.of(head.seq);
    if (pending.seq != head.seq || pending.answered) return;  // said twice
    if (head.outcome > static_cast<std::uint32_t>(Outcome::forgotten)) return;
    const std::size_t fits = std::min(bytes.size(), session.ob.size());
    if (fits != 0 && !pending.forsaken) std::memcpy(session.ob.data(), bytes.data(), fits);
    pending.answer = {static_cast<Outcome>(head.outcome), head.result, head.took_ns};
    pending.answered = true;
    session.long_results = head.result > static_cast<std::int64_t>(direct_result_room);
    if (pending.forsaken) pending.seq = 0;
    --session.out;
    --calls_out;
    if (session.moved == head.seq) moved_answered(session, pending.answer);
}

void Remote::Impl::item(ItemKind kind, std::uint64_t, std::span<const std::byte> bytes) {
    switch (kind) {
        case ItemKind::answer: {
            AnswerHead head;
            if (!load(bytes, head)) return;
            return answered(head, bytes.subspan(sizeof head));
        }
        case ItemKind::reply: {
            MessageHead head;
            if (!load(bytes, head)) return;
            const auto found = replies.find(head.id);
            if (found == replies.end()) return;  // nobody waits any more
            found->second.bytes.assign(bytes.begin() + sizeof head, bytes.end());
            found->second.here = true;
            return;
        }
        case ItemKind::blob_state: {
            BlobState state;
            if (!load(bytes, state)) return;
            const auto found = puts.find(state.transfer);
            if (found == puts.end()) return;
            found->second.state = state;
            Range range;
            if (state.answer != static_cast<std::uint32_t>(BlobAnswer::want)) return;
            for (auto rest = bytes.subspan(sizeof state); load(rest, range); rest = rest.subspan(sizeof range))
                if (range.begin < range.end) found->second.there.add(range.begin, range.end);
            return;
        }
        default: return connection->close(2, "an item that a duck does not send");
    }
}

void Remote::Impl::sleep(std::uint64_t until, int also) noexcept {
    const std::uint64_t now = clock();
    if (until <= now) return;
    const std::uint64_t nap = std::min<std::uint64_t>(until - now, 1'000'000'000);
    const timespec wait{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
    pollfd both[2] = {{fd(), POLLIN, 0}, {also, POLLIN, 0}};
    ::ppoll(both, also >= 0 ? 2 : 1, &wait, nullptr);
}

void Remote::Impl::keep() noexcept {
    ::pthread_setname_np(::pthread_self(), "teal-duck-keep");
    while (!stopping.load(std::memory_order_relaxed)) {
        const std::uint64_t now = clock();
        const bool about = callers.load(std::memory_order_relaxed) != 0 || now < last_call.load(std::memory_order_relaxed) + callers_about_ns;
        std::uint64_t until = now + callers_about_ns;
        if (!about) {
            const std::lock_guard lock(mutex);
            try {
                pump(now);
            } catch (const std::exception&) {
                connection->close(1, "out of memory here");
            }
            until = connection->closed() ? ~0ULL : next_timer();
        }
        const std::uint64_t nap = until > now ? std::min<std::uint64_t>(until - now, 1'000'000'000) : 0;
        const timespec wait{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        pollfd both[2] = {{wake, POLLIN, 0}, {fd(), POLLIN, 0}};
        ::ppoll(both, about || dead.load(std::memory_order_relaxed) ? 1 : 2, &wait, nullptr);
    }
}

void Remote::Impl::stop_keeper() noexcept {
    stopping.store(true, std::memory_order_relaxed);
    if (!keeper.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake, &one, sizeof one);
    keeper.join();
}

Remote::Impl::~Impl() {
    stop_keeper();
    if (wake >= 0) ::close(wake);
}

}  // namespace teal::duck
