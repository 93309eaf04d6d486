// Net as other threads see it; the loop is in net_loop.cpp.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.hpp"
#include "duck/net_impl.hpp"

namespace teal::duck {
namespace {

void bump(int fd) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
}

Address allowed(const std::string& text, bool keyed) {
    const Address address = Address::parse(text, true);
    if (!keyed && !address.loopback())
        throw Error(Code::invalid_argument, "duck: it listens beyond this machine (" + address.text() + ") only with a key: make one with `teal duck key`, or listen on 127.0.0.1");
    return address;
}

}  // namespace

Net::Impl::Impl(NetOptions given) : options(std::move(given)), blobs_(options.most_blob_bytes, options.blob_budget_bytes, options.resume_ns) {
    const bool keyed = !options.key.empty();
    check_key(options.key);
    if (options.udp.empty() && options.tcp.empty()) throw Error(Code::invalid_argument, "duck: neither a UDP nor a TCP address to listen on");
    if (!options.udp.empty()) udp.listen(allowed(options.udp, keyed));
    if (!options.tcp.empty()) listener = tcp_listener(allowed(options.tcp, keyed));
    epoll = ::epoll_create1(EPOLL_CLOEXEC);
    wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    events = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll < 0 || wake < 0 || events < 0) throw Error(Code::quota_exceeded, "duck: " + system_message("eventfd", errno));
    watch(wake);
    if (udp.fd() >= 0) watch(udp.fd());
    if (listener >= 0) watch(listener);
    door.emplace(options.key, udp.fd() >= 0 ? udp.window() : Stream::window);
    in_.resize(datagram_buffer);
    out_.resize(pour_space);
}

Net::Impl::~Impl() {
    hasher_.stop();  // it tells of blobs as long as it runs
    for (const int fd : {listener, epoll, wake, events})
        if (fd >= 0) ::close(fd);
    for (NetEvent& event : told)
        if (event.fd >= 0) ::close(event.fd);
}

void Net::Impl::order(std::function<void()> what) {
    {
        std::unique_lock lock(mutex);
        if (!ended) {
            orders.push_back(std::move(what));
            ordered.store(true, std::memory_order_seq_cst);  // SYNC: pairs with the look at it after `asleep` was set, in sleep()
            lock.unlock();
            if (asleep.load(std::memory_order_seq_cst)) bump(wake);
            return;
        }
    }
    const std::lock_guard lock(after);
    what();
}

void Net::Impl::order_and_wait(std::function<void()> what) {
    if (!thread.joinable() && !stopping.load(std::memory_order_relaxed)) return what();  // turned by hand: by this very thread
    struct Done {
        std::mutex mutex;
        std::condition_variable changed;
        bool done = false;
    };
    const auto done = std::make_shared<Done>();
    order([what = std::move(what), done] {
        what();
        const std::lock_guard lock(done->mutex);
        done->done = true;
        done->changed.notify_all();
    });
    std::unique_lock lock(done->mutex);
    done->changed.wait(lock, [&] { return done->done; });
}

void Net::Impl::tell(NetEvent&& event) {
    {
        const std::lock_guard lock(mutex);
        told.push_back(std::move(event));
    }
    bump(events);
}

void Net::Impl::run() noexcept {
    ::pthread_setname_np(::pthread_self(), "teal-duck-net");
    if (options.core >= 0 && options.core < CPU_SETSIZE) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(options.core), &one);
        ::sched_setaffinity(0, sizeof one, &one);
    }
    while (!stopping.load(std::memory_order_relaxed)) turn(true);
    {
        const std::lock_guard lock(mutex);
        ended = true;
    }
    take_orders();  // the last ones
    for (auto& [id, peer] : peers_) {
        peer->connection.close(1, "the duck is stopping");
        serve(*peer);
    }
}

Net::Net(NetOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Net::~Net() { stop(); }

void Net::start() {
    if (impl_->thread.joinable()) throw Error(Code::busy, "duck: its network loop runs already");
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->ended = false;
    }
    impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

void Net::stop() noexcept {
    impl_->stopping.store(true, std::memory_order_seq_cst);
    bump(impl_->wake);
    if (impl_->thread.joinable()) impl_->thread.join();
}

void Net::turn() noexcept { impl_->turn(false); }

std::uint16_t Net::udp_port() const noexcept { return impl_->udp.fd() < 0 ? std::uint16_t{0} : impl_->udp.local().port(); }

std::uint16_t Net::tcp_port() const noexcept {
    if (impl_->listener < 0) return 0;
    Address address;
    address.bytes = sizeof address.raw;
    ::getsockname(impl_->listener, reinterpret_cast<sockaddr*>(&address.raw), &address.bytes);
    return address.port();
}

int Net::event_fd() const noexcept { return impl_->events; }

bool Net::next_event(NetEvent& event) {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->told.empty()) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t n = ::read(impl_->events, &count, sizeof count);
        return false;
    }
    event = std::move(impl_->told.front());
    impl_->told.pop_front();
    return true;
}

void Net::reply(std::uint64_t connection, std::uint64_t id, std::span<const std::byte> bytes) {
    impl_->order([impl = impl_.get(), connection, id, own = std::vector<std::byte>(bytes.begin(), bytes.end())] {
        Peer* peer = impl->find(connection);
        if (peer == nullptr) return;
        peer->replied(id);
        const MessageHead head{id};
        peer->connection.queue(ItemKind::reply, bytes_of(head), own);
        impl->serve(*peer);
    });
}

std::uint32_t Net::attach(std::uint64_t connection, std::shared_ptr<CallSink> sink, SessionLimits limits) {
    std::uint32_t session = 0;
    impl_->order_and_wait([&] {
        Peer* peer = impl_->find(connection);
        if (peer == nullptr) return;
        while (impl_->next_session_ == 0 || impl_->sessions_.contains(impl_->next_session_)) ++impl_->next_session_;
        session = impl_->next_session_++;
        peer->desks.emplace(session, std::make_unique<Desk>(session, peer->connection, std::move(sink), limits, impl_->figures_));
        impl_->sessions_.emplace(session, peer);
    });
    if (session == 0) throw Error(Code::peer_died, "client: it is gone");
    return session;
}

void Net::detach(std::uint32_t session) {
    impl_->order_and_wait([&] {
        const auto found = impl_->sessions_.find(session);
        if (found == impl_->sessions_.end()) return;
        const auto desk = found->second->desks.find(session);
        std::erase(impl_->busy_, desk->second.get());
        found->second->desks.erase(desk);
        impl_->sessions_.erase(found);
    });
}

void Net::drop(std::uint64_t connection, std::string why) {
    impl_->order([impl = impl_.get(), connection, why = std::move(why)] {
        if (Peer* peer = impl->find(connection)) {
            peer->connection.close(1, why);
            impl->serve(*peer);
            impl->next_timer_ = 0;
        }
    });
}

void Net::hold(const BlobDigest& digest) {
    impl_->order([impl = impl_.get(), digest] { impl->blobs_.hold(digest); });
}

void Net::forget(const BlobDigest& digest) {
    impl_->order([impl = impl_.get(), digest] { impl->blobs_.forget(digest); });
}

NetFigures Net::figures() const {
    NetFigures figures{};
    impl_->order_and_wait([&] { figures = impl_->count(); });
    return figures;
}

}  // namespace teal::duck
