// What callers do with a Remote: call, request, put. Receiving and sending are in remote_io.cpp, connecting in remote_connect.cpp.
#include "duck/remote.hpp"

#include <algorithm>

#include "base/sha256.hpp"
#include "duck/remote_impl.hpp"

namespace teal::duck {
namespace {

std::uint64_t after(std::uint64_t now, std::uint64_t timeout_ns) noexcept { return timeout_ns > ~0ULL - now ? ~0ULL : now + timeout_ns; }

}  // namespace

BlobDigest sha256(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.add(bytes);
    const Sha256::Digest found = hash.finish();
    BlobDigest out;
    std::memcpy(out.data(), found.data(), out.size());
    return out;
}

Remote::Remote() = default;
Remote::~Remote() { close(); }

std::shared_ptr<Remote> Remote::connect(const std::string& address, RemoteOptions options) {
    std::shared_ptr<Remote> remote(new Remote);
    remote->impl_ = std::make_unique<Impl>(std::move(options));
    remote->impl_->connect(address);
    return remote;
}

void Remote::close() noexcept {
    if (impl_ == nullptr) return;
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->closed = true;
        if (impl_->connection && !impl_->connection->closed()) {
            impl_->connection->close(1, "closed by the client");
            impl_->send(Impl::clock());
        }
        impl_->dead.store(true, std::memory_order_relaxed);
    }
    impl_->stop_keeper();
}

bool Remote::alive() const noexcept { return !impl_->dead.load(std::memory_order_relaxed); }

bool Remote::keyed() const noexcept { return !impl_->options.key.empty(); }

std::string Remote::address() const { return impl_->address; }

std::vector<std::byte> Remote::request(std::span<const std::byte> message, std::uint64_t timeout_ns) {
    std::unique_lock lock(impl_->mutex);
    impl_->check_alive("nothing was asked");
    const std::uint64_t id = impl_->next_message++;
    const MessageHead head{id};
    impl_->connection->queue(ItemKind::message, bytes_of(head), message);
    ++impl_->figures.requests;
    Impl::Reply& reply = impl_->replies[id];
    struct Forget {
        Impl& impl;
        std::uint64_t id;
        ~Forget() { impl.replies.erase(id); }
    } forget{*impl_, id};
    if (!impl_->wait(lock, after(Impl::clock(), timeout_ns), "a request may have been carried out", [&] { return reply.here; }))
        throw Error(Code::deadline_exceeded, "duck " + impl_->address + ": no reply within " + std::to_string(timeout_ns / 1'000'000) + " ms");
    return std::move(reply.bytes);
}

PutResult Remote::put(const BlobDigest& digest, std::span<const std::byte> bytes, std::uint64_t timeout_ns, bool checked) {
    std::unique_lock lock(impl_->mutex);
    impl_->check_alive("no blob was sent");
    if (bytes.empty()) throw Error(Code::invalid_argument, "duck: an empty blob, expected at least one byte");
    Connection& connection = *impl_->connection;
    const std::uint64_t transfer = connection.reserve();
    const BlobAsk ask{digest, bytes.size(), transfer};
    connection.queue(ItemKind::blob_ask, bytes_of(ask), {});
    Impl::Put& put = impl_->puts[transfer];
    const BlobState& state = put.state;
    struct Forget {
        Impl& impl;
        std::uint64_t transfer;
        ~Forget() {
            impl.connection->drop_blob(transfer);  // its bytes are the caller's again
            impl.puts.erase(transfer);
        }
    } forget{*impl_, transfer};
    const std::uint64_t until = after(Impl::clock(), timeout_ns);
    const auto await = [&](std::uint32_t than) {
        if (!impl_->wait(lock, until, "a blob was on its way", [&] { return state.answer != than; }, true))
            throw Error(Code::deadline_exceeded, "duck " + impl_->address + ": a blob of " + std::to_string(bytes.size()) + " bytes was not there within " +
                                                     std::to_string(timeout_ns / 1'000'000) + " ms; what has arrived is kept for the next try");
    };
    await(0);
    PutResult result;
    const auto want = static_cast<std::uint32_t>(BlobAnswer::want), arrived = static_cast<std::uint32_t>(BlobAnswer::arrived);
    if (state.answer == want && (put.there.empty() || put.there.back().end <= bytes.size())) {
        std::uint64_t there = 0;
        for (std::size_t i = 0; i < put.there.count(); ++i) there += put.there[i].end - put.there[i].begin;
        connection.queue_blob(transfer, bytes, put.there);
        await(want);
        result.sent_bytes = bytes.size() - there;
        impl_->figures.blob_bytes_sent += result.sent_bytes;
    } else if (state.answer == static_cast<std::uint32_t>(BlobAnswer::have)) {
        ++impl_->figures.blobs_had;
        result.had = true;
        return result;
    }
    if (state.answer == arrived && checked) await(arrived);
    result.checked = state.answer == static_cast<std::uint32_t>(BlobAnswer::done);
    if (result.checked || state.answer == arrived) return result;
    if (state.answer == static_cast<std::uint32_t>(BlobAnswer::bad))
        throw Error(Code::invalid_argument, "duck " + impl_->address + ": the SHA-256 is not that of the " + std::to_string(bytes.size()) + " bytes that were sent");
    throw Error(Code::quota_exceeded, "duck " + impl_->address + ": no room for a blob of " + std::to_string(bytes.size()) + " bytes");
}

bool Remote::offer_group(const GroupAsk& offer, std::uint64_t timeout_ns, bool& had) {
    std::unique_lock lock(impl_->mutex);
    impl_->check_alive("no blob was sent");
    GroupAsk ask = offer;
    ask.blob.transfer = impl_->connection->reserve();
    impl_->connection->queue(ItemKind::group_ask, bytes_of(ask), {});
    const BlobState& state = impl_->puts[ask.blob.transfer].state;
    struct Forget {
        Impl& impl;
        std::uint64_t transfer;
        ~Forget() { impl.puts.erase(transfer); }
    } forget{*impl_, ask.blob.transfer};
    if (!impl_->wait(lock, after(Impl::clock(), timeout_ns), "no blob was sent", [&] { return state.answer != 0; }))
        throw Error(Code::deadline_exceeded, "duck " + impl_->address + ": no reply within " + std::to_string(timeout_ns / 1'000'000) + " ms");
    had = state.answer == static_cast<std::uint32_t>(BlobAnswer::have);
    return had || state.answer == static_cast<std::uint32_t>(BlobAnswer::want);
}

std::uint64_t Remote::ping(std::uint64_t timeout_ns) {
    std::unique_lock lock(impl_->mutex);
    impl_->check_alive("nothing was asked");
    const std::uint64_t before = impl_->connection->acked_pings(), start = Impl::clock();
    impl_->connection->ping();
    if (!impl_->wait(lock, after(start, timeout_ns), "nothing was asked", [&] { return impl_->connection->acked_pings() != before; }))
        throw Error(Code::deadline_exceeded, "duck " + impl_->address + ": no answer to a ping within " + std::to_string(timeout_ns / 1'000'000) + " ms");
    return Impl::clock() - start;
}

std::unique_ptr<RemoteSession> Remote::session(std::uint32_t session, std::span<std::byte> ob, std::shared_ptr<void> owner) {
    return this->session(session, ob, std::move(owner), nullptr, 0, 0);
}

std::unique_ptr<RemoteSession> Remote::session(std::uint32_t session, std::span<std::byte> ob, std::shared_ptr<void> owner, std::unique_ptr<DirectPath> path,
                                               std::uint16_t port, std::uint64_t id) {
    auto state = std::make_shared<RemoteSession::State>();
    state->id = session;
    state->ob = ob;
    state->owner = std::move(owner);
    const std::lock_guard lock(impl_->mutex);
    impl_->check_alive("there is no session");
    if (path != nullptr) impl_->reach_box(*path, port, id);
    state->path = std::move(path);
    if (!impl_->sessions.try_emplace(session, state).second)
        throw Error(Code::busy, "duck " + impl_->address + ": session " + std::to_string(session) + " is open here already");
    return std::unique_ptr<RemoteSession>(new RemoteSession(shared_from_this(), std::move(state)));
}

RemoteFigures Remote::figures() const {
    const std::lock_guard lock(impl_->mutex);
    RemoteFigures out = impl_->figures;
    if (!impl_->connection) return out;
    const Connection& connection = *impl_->connection;
    const ConnectionFigures& from = connection.figures();
    out.packets_in = from.packets_in;
    out.packets_out = from.packets_out;
    out.bytes_in = from.bytes_in;
    out.bytes_out = from.bytes_out;
    out.packets_lost = from.packets_lost;
    out.packets_probed = from.packets_probed;
    out.dropped_malformed = from.malformed;
    out.dropped_forged = from.forged;
    out.dropped_replayed = from.replayed;
    out.rtt_ns = connection.rtt_ns();
    out.datagram_bytes = connection.datagram_bytes();
    out.window_bytes = connection.window();
    for (const auto& [id, session] : impl_->sessions) {
        if (session->path == nullptr) continue;
        out.direct_again += session->path->figures().again;
        out.direct_dropped += session->path->figures().dropped;
    }
    return out;
}

RemoteSession::RemoteSession(std::shared_ptr<Remote> remote, std::shared_ptr<State> state) : remote_(std::move(remote)), state_(std::move(state)) {}

RemoteSession::~RemoteSession() {
    Remote::Impl& impl = *remote_->impl_;
    const std::lock_guard lock(impl.mutex);
    if (impl.last_session == state_.get()) impl.last_session = nullptr;
    impl.calls_out -= state_->out;
    impl.forget_direct(*state_);
    impl.sessions.erase(state_->id);
}

std::span<std::byte> RemoteSession::ob() const noexcept { return state_->ob; }

std::uint64_t RemoteSession::submit(std::span<const std::byte> args, std::uint32_t op) {
    Remote::Impl& impl = *remote_->impl_;
    const std::lock_guard lock(impl.mutex);
    const std::uint64_t seq = impl.send_call(*state_, args, op);
    const std::uint64_t now = Remote::Impl::clock();
    if (impl.direct_out.empty() || now >= impl.heart_at) impl.pump(now);
    return seq;
}

bool RemoteSession::wait(std::uint64_t seq, std::uint64_t timeout_ns, CallAnswer& answer) {
    Remote::Impl& impl = *remote_->impl_;
    std::unique_lock lock(impl.mutex);
    State::Pending& pending = state_->of(seq);
    if (seq == 0 || pending.seq != seq || pending.forsaken)
        throw Error(Code::invalid_argument, "duck: call " + std::to_string(seq) + " of session " + std::to_string(state_->id) + " is not waited for (its answer is given once)");
    if (!impl.wait(lock, after(Remote::Impl::clock(), timeout_ns), "the call may have run", [&] { return pending.answered; }, false, state_.get())) return false;
    answer = pending.answer;
    pending.seq = 0;
    return true;
}

CallAnswer RemoteSession::call(std::span<const std::byte> args, std::uint64_t timeout_ns, std::uint32_t op) {
    Remote::Impl& impl = *remote_->impl_;
    std::unique_lock lock(impl.mutex);
    const std::uint64_t seq = impl.send_call(*state_, args, op);
    State::Pending& pending = state_->of(seq);
    if (!impl.wait(lock, after(Remote::Impl::clock(), timeout_ns), "the call may have run", [&] { return pending.answered; }, false, state_.get())) {
        pending.forsaken = true;
        throw Error(Code::deadline_exceeded, "duck " + impl.address + ": call " + std::to_string(seq) + " has no answer after " + std::to_string(timeout_ns / 1'000'000) +
                                                 " ms, and may still run");
    }
    pending.seq = 0;
    return pending.answer;
}

void RemoteSession::cancel(std::uint64_t seq) {
    Remote::Impl& impl = *remote_->impl_;
    const std::lock_guard lock(impl.mutex);
    if (state_->of(seq).seq != seq || state_->of(seq).answered || impl.connection->closed()) return;
    if ((seq & State::direct_bit) != 0) return;   // it has begun, or will at once
    const CallHead head{state_->id, 0, seq};
    impl.connection->queue(ItemKind::cancel, bytes_of(head), {});
    impl.pump(Remote::Impl::clock());
}

}  // namespace teal::duck
