// A duck and its client over real sockets with a relay between them that loses, repeats, holds back and cuts; several threads at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include <poll.h>
#include <unistd.h>

#include "base/error.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"
#include "duck/socket.hpp"
#include "duck_sinks.hpp"
#include "sim/random.hpp"

namespace {

using namespace teal;
using namespace teal::duck;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed = 1) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
    return out;
}

// Between one client and the duck. Packets are taken apart (GRO), so that each meets its own fate.
class Relay {
public:
    Relay(std::uint16_t duck_port, double loss, std::uint64_t seed) : loss_(loss), random_(seed) {
        front_.listen(Address::parse("127.0.0.1:0", true));
        back_.connect(Address::parse("127.0.0.1:" + std::to_string(duck_port), false));
        thread_ = std::thread([this] { run(); });
    }
    ~Relay() {
        stop_.store(true);
        thread_.join();
    }
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;
    [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(front_.local().port()); }
    void cut(bool now) { cut_.store(now); }
    void cut_after(std::uint64_t bytes) { cut_after_.store(bytes); }
    [[nodiscard]] std::uint64_t lost() const { return lost_.load(); }

private:
    void run() {
        std::vector<std::byte> buffer(datagram_buffer);
        while (!stop_.load()) {
            pollfd both[2] = {{front_.fd(), POLLIN, 0}, {back_.fd(), POLLIN, 0}};
            ::poll(both, 2, held_.empty() ? 20 : 1);
            Address from;
            std::ptrdiff_t bytes = 0;
            while ((bytes = front_.receive(buffer, from)) > 0) {
                client_ = from;
                passed_ += static_cast<std::uint64_t>(bytes);
                if (passed_ > cut_after_.load()) cut_.store(true);
                each(std::span(buffer).first(static_cast<std::size_t>(bytes)), true);
            }
            while ((bytes = back_.receive(buffer)) > 0) each(std::span(buffer).first(static_cast<std::size_t>(bytes)), false);
            while (held_.size() > 3 || (!held_.empty() && random_.chance(0.5))) {
                send(held_.front().second, held_.front().first);
                held_.pop_front();
            }
        }
    }
    void each(std::span<const std::byte> datagram, bool up) {
        PacketStart start;
        while (load(datagram, start) && start.bytes >= sizeof start && start.bytes <= datagram.size()) {
            const auto packet = datagram.first(start.bytes);
            datagram = datagram.subspan(start.bytes);
            if (cut_.load() || random_.chance(loss_)) {
                lost_.fetch_add(1);
                continue;
            }
            if (random_.chance(loss_ / 4)) held_.emplace_back(up, std::vector<std::byte>(packet.begin(), packet.end()));
            else send(packet, up);
            if (random_.chance(loss_ / 4)) send(packet, up);
        }
    }
    void send(std::span<const std::byte> packet, bool up) {
        if (up) back_.send(packet, packet.size(), nullptr);
        else front_.send(packet, packet.size(), &client_);
    }
    double loss_;
    Random random_;
    UdpSocket front_, back_;
    Address client_;
    std::uint64_t passed_ = 0;
    std::deque<std::pair<bool, std::vector<std::byte>>> held_;
    std::atomic<bool> stop_{false}, cut_{false};
    std::atomic<std::uint64_t> lost_{0}, cut_after_{~0ULL};
    std::thread thread_;
};

struct Duck {
    Duck() : net(options()) { net.start(); }
    static NetOptions options() {
        NetOptions options;
        options.key.assign(32, std::byte{9});
        return options;
    }
    NetEvent next(NetEventKind kind) {
        for (;;) {
            NetEvent event;
            if (!net.next_event(event)) {
                pollfd wait{net.event_fd(), POLLIN, 0};
                if (::poll(&wait, 1, 30'000) == 0) return {};
                continue;
            }
            if (event.kind == kind) return event;
            if (event.fd >= 0) ::close(event.fd);
        }
    }
    std::shared_ptr<Remote> reach(const std::string& address, std::uint64_t dead_after_ns) {
        RemoteOptions ours;
        ours.key = options().key;
        ours.dead_after_ns = dead_after_ns;
        ours.connect_timeout_ns = 20'000'000'000;
        return Remote::connect(address, ours);
    }
    std::string address() const { return "127.0.0.1:" + std::to_string(net.udp_port()); }
    Net net;
};

void test_bad_weather() {
    Duck duck;
    Relay relay(duck.net.udp_port(), 0.15, 3);
    const auto remote = duck.reach(relay.address(), 20'000'000'000);
    const NetEvent opened = duck.next(NetEventKind::opened);
    const auto sink = std::make_shared<EchoSink>();
    std::vector<std::byte> ob(1 << 20);
    const auto session = remote->session(duck.net.attach(opened.connection, sink, {}), ob, nullptr);
    for (std::size_t i = 0; i < 150; ++i) {
        const auto args = pattern(i % 10 == 9 ? 20'000 : 64, static_cast<unsigned>(i));
        const CallAnswer answer = session->call(args, 60'000'000'000);
        CHECK_EQ(answer.result, args.size());
        CHECK(std::equal(args.begin(), args.end(), ob.begin()));
    }
    CHECK_EQ(sink->ran.load(), 150);
    CHECK_EQ(sink->out_of_order.load(), 0);
    const auto blob = pattern(500'000, 8);
    CHECK_EQ(remote->put(sha256(blob), blob, 60'000'000'000).sent_bytes, blob.size());
    CHECK(duck.next(NetEventKind::blob).digest == sha256(blob));
    CHECK(relay.lost() > 0);
    CHECK(remote->figures().packets_lost > 0);
}

// A cut that heals is not noticed by those who wait; one that does not is a death, and says that the call may have run.
void test_cuts() {
    Duck duck;
    Relay relay(duck.net.udp_port(), 0, 4);
    const auto remote = duck.reach(relay.address(), 1'500'000'000);
    const auto sink = std::make_shared<EchoSink>();
    std::vector<std::byte> ob(4096);
    const auto session = remote->session(duck.net.attach(duck.next(NetEventKind::opened).connection, sink, {}), ob, nullptr);
    CHECK_EQ(session->call(pattern(64), 20'000'000'000).result, 64);
    relay.cut(true);
    std::thread healer([&] {
        ::usleep(300'000);
        relay.cut(false);
    });
    CHECK_EQ(session->call(pattern(65), 20'000'000'000).result, 65);
    healer.join();
    CHECK_EQ(sink->ran.load(), 2);
    relay.cut(true);
    std::string text;
    const std::int64_t start = monotonic_ns();
    try {
        session->call(pattern(66), 20'000'000'000);
    } catch (const Error& error) {
        CHECK_EQ(error.code(), Code::peer_died);
        text = error.what();
    }
    CHECK(monotonic_ns() - start >= 1'000'000'000);
    CHECK(text.find("nothing heard for") != std::string::npos);
    CHECK(text.find("the call may have run") != std::string::npos);
    CHECK(!remote->alive());
    CHECK(duck.next(NetEventKind::lost).connection != 0);
    CHECK_EQ(duck.net.figures().sessions_now, 0);
}

void test_blob_goes_on() {
    Duck duck;
    const auto blob = pattern(8'000'000, 5);
    {
        Relay relay(duck.net.udp_port(), 0, 5);
        relay.cut_after(4'000'000);
        const auto remote = duck.reach(relay.address(), 300'000'000);
        bool died = false;
        try {
            remote->put(sha256(blob), blob, 20'000'000'000);
        } catch (const Error& error) {
            died = error.code() == Code::peer_died;
        }
        CHECK(died);
    }
    CHECK(duck.next(NetEventKind::lost).connection != 0);
    const auto remote = duck.reach(duck.address(), 5'000'000'000);
    const PutResult second = remote->put(sha256(blob), blob, 20'000'000'000);
    CHECK(!second.had);
    CHECK(second.sent_bytes < blob.size());
    CHECK(second.sent_bytes > 0);
    CHECK_EQ(duck.next(NetEventKind::blob).size, blob.size());
}

// A put() that is given up is gone on with by the next one: the budget has no room for two.
void test_blob_again() {
    NetOptions options;
    options.blob_budget_bytes = 60'000'000;
    Net net(options);
    net.start();
    const auto remote = Remote::connect("127.0.0.1:" + std::to_string(net.udp_port()), {});
    const auto blob = pattern(50'000'000, 6);
    bool late = false;
    try {
        remote->put(sha256(blob), blob, 2'000'000);
    } catch (const Error& error) {
        late = error.code() == Code::deadline_exceeded;
    }
    CHECK(late);
    const PutResult second = remote->put(sha256(blob), blob, 60'000'000'000, true);
    CHECK(!second.had);
    CHECK(second.sent_bytes <= blob.size());
    CHECK_EQ(net.figures().blobs_received, 1);
}

// Four threads on one connection, each with a session of its own; two more clients beside them that come and go.
void test_crowd() {
    Duck duck;
    const auto remote = duck.reach(duck.address(), 20'000'000'000);
    const std::uint64_t connection = duck.next(NetEventKind::opened).connection;
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> right{0};
    for (unsigned t = 0; t < 4; ++t) {
        const std::uint32_t number = duck.net.attach(connection, std::make_shared<EchoSink>(), {});
        threads.emplace_back([&, t, number] {
            std::vector<std::byte> ob(40'000);
            const auto session = remote->session(number, ob, nullptr);
            for (unsigned i = 0; i < 100; ++i) {
                const auto args = pattern(i % 20 == 0 ? 30'000 : 64 + t, i * 7 + t);
                const CallAnswer answer = session->call(args, 60'000'000'000);
                if (answer.result == static_cast<std::int64_t>(args.size()) && std::equal(args.begin(), args.end(), ob.begin())) right.fetch_add(1);
            }
        });
    }
    for (int i = 0; i < 2; ++i)
        threads.emplace_back([&] {
            for (int j = 0; j < 3; ++j) (void)duck.reach(duck.address(), 20'000'000'000)->ping(20'000'000'000);
        });
    for (auto& thread : threads) thread.join();
    CHECK_EQ(right.load(), 400);
    CHECK_EQ(duck.net.figures().calls, 400);
}

void test_cancelled() {
    Duck duck;
    const auto remote = duck.reach(duck.address(), 20'000'000'000);
    const auto sink = std::make_shared<EchoSink>();
    sink->hold.store(true);
    std::vector<std::byte> ob(4096);
    const auto session = remote->session(duck.net.attach(duck.next(NetEventKind::opened).connection, sink, {}), ob, nullptr);
    const std::uint64_t first = session->submit(pattern(8)), second = session->submit(pattern(9)), third = session->submit(pattern(10));
    session->cancel(second);
    CallAnswer answer;
    CHECK(!session->wait(first, 20'000'000, answer));
    (void)remote->ping(20'000'000'000);  // the cancellation is there, before the first call ends
    sink->hold.store(false);
    CHECK(session->wait(third, 20'000'000'000, answer));
    CHECK_EQ(answer.result, 10);
    CHECK(session->wait(second, 20'000'000'000, answer));
    CHECK_EQ(answer.outcome, Outcome::cancelled);
    CHECK(session->wait(first, 20'000'000'000, answer));
    CHECK_EQ(answer.result, 8);
    CHECK_EQ(sink->ran.load(), 2);
}

}  // namespace

int main() {
    test_bad_weather();
    test_cuts();
    test_blob_goes_on();
    test_blob_again();
    test_crowd();
    test_cancelled();
    return check::summary();
}
