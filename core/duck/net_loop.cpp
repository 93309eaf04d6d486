// The loop of the duck's network: receive, answer, send, sleep. See net.hpp.
#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>
#include <unistd.h>

#include "cpu/clock.hpp"
#include "duck/net_impl.hpp"
#include "queue/wait.hpp"

namespace teal::duck {
namespace {

constexpr unsigned datagrams_a_turn = 64;
constexpr std::uint64_t small_blob = 64 << 10;    // hashed here, at once
constexpr std::uint64_t wrong_key_each_ns = 10'000'000'000;

}  // namespace

std::uint64_t Net::Impl::clock() noexcept { return static_cast<std::uint64_t>(ticks_to_ns(ticks())); }

void Net::Impl::watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

Peer* Net::Impl::find(std::uint64_t id) noexcept {
    if (last_ != nullptr && last_->connection.own_id() == id) return last_;
    const auto found = peers_.find(id);
    return found == peers_.end() ? nullptr : (last_ = found->second.get());
}

void Net::Impl::turn(bool may_sleep) {
    now_ = clock();
    if (ordered.load(std::memory_order_acquire)) take_orders();   // SYNC: pairs with the store in order()
    active_ = receive_datagrams();
    if (listener >= 0 && now_ >= next_streams_) active_ = receive_streams() || active_;
    if (!groups_.empty()) active_ = receive_groups() || active_;
    if (poll_desks()) active_ = worked_ = true;
    if (!dirty_.empty()) serve_dirty();
    if (now_ >= next_timer_) run_timers();
    if (active_) {
        // Heartbeats do not keep the loop awake: two peers with nothing to say would keep each other from sleeping.
        if (worked_) last_activity_ = now_;
        worked_ = false;
        quiet_turns_ = 0;
    } else if (may_sleep && now_ > last_activity_ + options.idle_ns) {
        sleep();
    } else if (hasher_.busy() || in_the_way() || (!busy_.empty() && ++quiet_turns_ % 64 == 0)) {  // a box that woke up here has not said so yet
        give_way();
    }
}

// Of those that answer us, or were asked last, does one poll on this CPU?
bool Net::Impl::in_the_way() const noexcept {
    if (!busy_.empty()) return std::any_of(busy_.begin(), busy_.end(), [](const Desk* desk) { return desk->in_the_way(); });
    return last_ != nullptr && std::any_of(last_->desks.begin(), last_->desks.end(), [](const auto& each) { return each.second->in_the_way(); });
}

bool Net::Impl::receive_datagrams() {
    if (udp.fd() < 0) return false;
    for (unsigned i = 0; i < datagrams_a_turn; ++i) {
        const std::ptrdiff_t bytes = udp.receive(in_, from_);
        if (bytes == 0) return i != 0;
        if (bytes < 0) continue;
        if (i != 0 && i % 8 == 0) now_ = clock();
        datagram({in_.data(), static_cast<std::size_t>(bytes)}, from_);
    }
    return true;
}

// Several packets when the kernel has put them together.
void Net::Impl::datagram(std::span<std::byte> bytes, const Address& from) {
    while (!bytes.empty()) {
        PacketStart start;
        if (!load(std::span<const std::byte>(bytes), start) || start.bytes < sizeof start || start.bytes > bytes.size()) {
            ++figures_.dropped_malformed;
            return;
        }
        packet(bytes.first(start.bytes), from, nullptr);
        bytes = bytes.subspan(start.bytes);
    }
}

void Net::Impl::packet(std::span<std::byte> bytes, const Address& from, Stream* stream) {
    DataHead head;
    if (static_cast<PacketKind>(bytes[0]) != PacketKind::data || !load(std::span<const std::byte>(bytes), head)) return hello(bytes, from, stream);
    Peer* peer = find(head.to);
    if (peer == nullptr || peer->stream.get() != stream) {
        ++figures_.dropped_unknown;
        return;
    }
    const std::uint64_t worked = peer->connection.worked();
    const Verdict verdict = peer->connection.receive(bytes, now_, *peer);
    if (verdict == Verdict::forged) wrong_key(from);
    if (verdict != Verdict::taken) return;
    if (peer->connection.worked() != worked) worked_ = true;
    if (stream == nullptr && !options.key.empty() && !(from == peer->address)) peer->address = from;  // it has moved; only who has the keys can say so
    if (peer->connection.urgent()) serve(*peer);
    else if (!peer->dirty) {
        peer->dirty = true;
        dirty_.push_back(head.to);
    }
}

void Net::Impl::hello(std::span<std::byte> bytes, const Address& from, Stream* stream) {
    const std::optional<Hello> asked = Door::hello_in(bytes);
    if (!asked) {
        ++figures_.dropped_malformed;
        return;
    }
    ++figures_.hellos;
    for (const auto& [id, peer] : peers_) {
        if (peer->hello.client != asked->client || peer->hello.random != asked->random || peer->hello.cookie != asked->cookie) continue;
        return reply_raw(peer->welcome, from, stream);  // its welcome was lost
    }
    std::byte reply[256];
    std::size_t reply_bytes = 0;
    ConnectionOptions made;
    const auto second = now_ / 1'000'000'000;
    const auto what = door->read(bytes, from.key(), second, peers_.size() >= options.most_connections, reply, reply_bytes, made);
    if (what == Door::What::dropped) ++figures_.dropped_malformed;
    if (what == Door::What::wrong) {
        ++figures_.hellos_refused;
        wrong_key(from);
    }
    if (what == Door::What::dropped || what == Door::What::wrong) return;
    if (what == Door::What::welcome) {
        made.most_item_bytes = options.most_message_bytes;
        made.reliable = stream != nullptr;
        auto peer = std::make_unique<Peer>(*this, made, from, now_);
        peer->hello = *asked;
        peer->welcome.assign(reply, reply + reply_bytes);
        if (stream != nullptr) {
            const auto found = strangers_.find(stream->fd());
            if (found == strangers_.end()) return;  // it has its connection
            peer->stream = std::move(found->second);
            strangers_.erase(found);
            stream_peers_[stream->fd()] = peer.get();
        }
        NetEvent event;
        event.kind = NetEventKind::opened;
        event.connection = made.own_id;
        event.text = from.text();
        tell(std::move(event));
        peers_.emplace(made.own_id, std::move(peer));
        ++figures_.connections_opened;
        next_timer_ = 0;
    }
    reply_raw({reply, reply_bytes}, from, stream);
}

// Whoever tries keys is heard of at once, and then every ten seconds: no flood of packets makes one of lines.
void Net::Impl::wrong_key(const Address& from) {
    ++figures_.wrong_key;
    ++wrong_keys_;
    wrong_key_from_ = from.text();
    if (now_ >= next_wrong_key_) tell_of_wrong_keys();
    else next_timer_ = std::min(next_timer_, next_wrong_key_);
}

void Net::Impl::tell_of_wrong_keys() {
    NetEvent event;
    event.kind = NetEventKind::wrong_key;
    event.id = std::exchange(wrong_keys_, 0);
    event.text = wrong_key_from_;
    next_wrong_key_ = now_ + wrong_key_each_ns;
    tell(std::move(event));
}

void Net::Impl::reply_raw(std::span<const std::byte> bytes, const Address& to, Stream* stream) {
    if (stream == nullptr) {
        udp.send(bytes, bytes.size(), &to);
    } else {
        stream->put(bytes);
        stream->flush();
    }
}

bool Net::Impl::poll_desks() {
    bool any = false;
    for (std::size_t i = 0; i < busy_.size();) {
        Desk* desk = busy_[i];
        const bool answered = desk->poll();
        if (desk->running()) {
            ++i;
        } else {  // also one that was cancelled
            busy_[i] = busy_.back();
            busy_.pop_back();
        }
        if (!answered) continue;
        any = true;
        if (const auto found = sessions_.find(desk->id()); found != sessions_.end()) serve(*found->second);
    }
    return any;
}

void Net::Impl::serve_dirty() {
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
        Peer* peer = find(dirty_[i]);
        if (peer == nullptr) continue;
        peer->dirty = false;
        serve(*peer);
    }
    dirty_.clear();
}

void Net::Impl::serve(Peer& peer) {
    if (peer.stream != nullptr) return serve_stream(peer);
    const bool all = pour(peer.connection, peer, now_, udp, &peer.address, out_, peer.held);
    peer.next_timer = all ? peer.connection.next_timer() : now_ + 100'000;
    next_timer_ = std::min(next_timer_, peer.next_timer);
}

void Net::Impl::run_timers() {
    next_timer_ = now_ + 100'000'000;
    std::vector<Peer*> dead;
    for (const auto& [id, peer] : peers_) {
        if (now_ >= peer->next_timer || peer->connection.closed()) serve(*peer);
        next_timer_ = std::min(next_timer_, peer->next_timer);
        if (peer->connection.closed()) dead.push_back(peer.get());
    }
    for (Peer* peer : dead) bury(*peer);
    blobs_.expire(now_);
    if (wrong_keys_ != 0 && now_ >= next_wrong_key_) tell_of_wrong_keys();
}

NetFigures Net::Impl::count() const {
    NetFigures figures = figures_;
    figures.connections_now = peers_.size();
    figures.sessions_now = sessions_.size();
    const auto add = [&](const ConnectionFigures& from) {
        figures.packets_in += from.packets_in;
        figures.packets_out += from.packets_out;
        figures.bytes_in += from.bytes_in;
        figures.bytes_out += from.bytes_out;
        figures.packets_lost += from.packets_lost;
        figures.packets_probed += from.packets_probed;
        figures.dropped_malformed += from.malformed;
        figures.dropped_forged += from.forged;
        figures.dropped_replayed += from.replayed;
    };
    add(buried_);
    for (const auto& [id, peer] : peers_) add(peer->connection.figures());
    return figures;
}

void Net::Impl::bury(Peer& peer) {
    const ConnectionFigures& last = peer.connection.figures();
    for (auto field : {&ConnectionFigures::packets_in, &ConnectionFigures::packets_out, &ConnectionFigures::bytes_in, &ConnectionFigures::bytes_out,
                       &ConnectionFigures::packets_lost, &ConnectionFigures::packets_probed, &ConnectionFigures::malformed, &ConnectionFigures::forged,
                       &ConnectionFigures::replayed, &ConnectionFigures::no_room})
        buried_.*field += last.*field;
    for (auto& [transfer, blob] : peer.arriving) {
        if (const Ranges* there = peer.connection.blob_there(transfer)) blob->there = *there;
        blobs_.stopped(std::move(blob), now_);
    }
    for (const auto& [id, desk] : peer.desks) {
        std::erase(busy_, desk.get());
        sessions_.erase(id);
    }
    if (peer.stream != nullptr) stream_peers_.erase(peer.stream->fd());
    if (last_ == &peer) last_ = nullptr;
    ++figures_.connections_lost;
    NetEvent event;
    event.kind = NetEventKind::lost;
    event.connection = peer.connection.own_id();
    event.text = peer.connection.why();
    peers_.erase(peer.connection.own_id());
    tell(std::move(event));
}

void Net::Impl::message(Peer& peer, std::uint64_t id, std::span<const std::byte> bytes) {
    NetEvent event;
    event.kind = NetEventKind::message;
    event.connection = peer.connection.own_id();
    event.id = id;
    event.bytes.assign(bytes.begin(), bytes.end());
    tell(std::move(event));
}

void Net::Impl::finish(Peer& peer, std::uint64_t transfer, const std::shared_ptr<Blob>& blob) {
    const std::uint64_t id = peer.connection.own_id();
    figures_.blob_bytes += blob->bytes();
    if (!blob->arrived()) return peer.blob_refused(transfer);
    if (blob->bytes() <= small_blob) {
        const bool good = blob->finish();
        if (good) blob_here(id, *blob, true);
        return peer.blob_finished(transfer, good);
    }
    const bool early = !blob->of_a_group;  // every duck of a group could have sent pieces of it
    if (early) {
        blob_here(id, *blob, false);
        peer.blob_here(transfer, blob->digest());
    }
    hasher_.finish(blob, [this, id, transfer, blob, early](bool good) {
        order([this, id, transfer, blob, early, good] {
            if (early) return blob_checked(id, transfer, *blob, good);
            if (good) blob_here(id, *blob, true);
            blob_finished(id, transfer, good);
        });
    });
}

void Net::Impl::blob_here(std::uint64_t connection, Blob& blob, bool checked) {
    NetEvent event;
    event.kind = NetEventKind::blob;
    event.connection = connection;
    event.id = checked ? 1 : 0;
    event.digest = blob.digest();
    event.size = blob.bytes();
    event.fd = blob.take_fd();
    if (checked) blobs_.hold(event.digest);
    tell(std::move(event));
}

Peer* Net::Impl::blob_finished(std::uint64_t connection, std::uint64_t transfer, bool good) {
    Peer* known = find(connection);
    if (known == nullptr) {  // it will ask again, and hear whether it is there
        ++(good ? figures_.blobs_received : figures_.blobs_bad);
        return nullptr;
    }
    known->blob_finished(transfer, good);
    serve(*known);
    return known;
}

void Net::Impl::blob_checked(std::uint64_t connection, std::uint64_t transfer, const Blob& blob, bool good) {
    NetEvent event;
    event.kind = NetEventKind::checked;
    event.connection = connection;
    event.id = good ? 1 : 0;
    event.digest = blob.digest();
    event.size = blob.bytes();
    if (good) blobs_.hold(event.digest);
    tell(std::move(event));
    Peer* known = blob_finished(connection, transfer, good);
    if (good || known == nullptr) return;
    // He may use it by now: whatever he does with it ends with him.
    known->connection.close(3, "the SHA-256 is not that of the " + std::to_string(blob.bytes()) + " bytes of a blob that were sent");
    serve(*known);
    next_timer_ = 0;
}

void Net::Impl::take_orders() {
    std::vector<std::function<void()>> taken;
    {
        const std::lock_guard lock(mutex);
        taken.swap(orders);
        ordered.store(false, std::memory_order_relaxed);
    }
    for (const auto& what : taken) what();
}

void Net::Impl::sleep() {
    asleep.store(true, std::memory_order_seq_cst);
    // SYNC: pairs with the store in order(): either it sees us asleep, or we see its order.
    if (!ordered.load(std::memory_order_seq_cst) && !stopping.load(std::memory_order_seq_cst)) {
        std::uint64_t nap = next_timer_ > now_ ? next_timer_ - now_ : 0;
        // No descriptor tells of an answer line: look at it again soon, the less often the longer it takes.
        if (!busy_.empty()) nap = std::min<std::uint64_t>(nap, std::clamp<std::uint64_t>((now_ - last_activity_) / 64, 50'000, 500'000));
        const timespec wait{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        epoll_event woken[16];
        ++figures_.sleeps;
        int count = ::epoll_pwait2(epoll, woken, 16, &wait, nullptr);
        if (count < 0 && errno == ENOSYS) count = ::epoll_wait(epoll, woken, 16, static_cast<int>(nap / 1'000'000) + 1);
        for (int i = 0; i < count; ++i) {
            if (woken[i].data.fd != wake && woken[i].data.fd != udp.fd()) next_streams_ = next_accept_ = 0;
            std::uint64_t drained = 0;
            if (woken[i].data.fd == wake) [[maybe_unused]] const ssize_t n = ::read(wake, &drained, sizeof drained);
        }
    }
    asleep.store(false, std::memory_order_relaxed);
}

}  // namespace teal::duck
