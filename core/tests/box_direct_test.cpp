// Direct calls: a client, a duck's loop and real boxes, and between client and box a relay that loses, repeats, reorders, forges and cuts.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.hpp"
#include "check.hpp"
#include "duck/box_sink.hpp"
#include "duck/direct.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"
#include "made_yard.hpp"
#include "sim/random.hpp"

namespace {

using namespace teal;
using namespace teal::box::test;
using duck::CallAnswer;

constexpr std::uint64_t second = 1'000'000'000;
using Packet = std::vector<std::byte>;

// Sits between a client's path and a box; `up` is towards the box. Packets that passed are kept for replays.
class Relay {
public:
    explicit Relay(std::uint64_t seed) : random_(seed) {
        front_ = duck::direct_socket_at(duck::Address::parse("127.0.0.1:0", true));
        back_ = duck::direct_socket_at(duck::Address::parse("127.0.0.1:0", true));
    }
    ~Relay() {
        stop_.store(true);
        if (thread_.joinable()) thread_.join();
        ::close(front_);
        ::close(back_);
    }
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;
    static std::uint16_t port(int fd) {
        duck::Address at;
        at.bytes = sizeof at.raw;
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&at.raw), &at.bytes);
        return at.port();
    }
    [[nodiscard]] std::uint16_t front() const { return port(front_); }
    [[nodiscard]] std::uint16_t back() const { return port(back_); }
    void start(std::uint16_t client, std::uint16_t box) {
        point(front_, client);
        point(back_, box);
        thread_ = std::thread([this] { run(); });
    }
    void send(std::span<const std::byte> packet, bool up) { (void)::send(up ? back_ : front_, packet.data(), packet.size(), MSG_DONTWAIT); }
    std::vector<Packet> seen(bool up) {
        const std::lock_guard lock(mutex_);
        return up ? up_ : down_;
    }
    std::atomic<double> loss{0};
    std::atomic<bool> cut{false};

private:
    static void point(int fd, std::uint16_t to) {
        const duck::Address at = duck::Address::parse("127.0.0.1:" + std::to_string(to), false);
        ::connect(fd, reinterpret_cast<const sockaddr*>(&at.raw), at.bytes);
    }
    void run() {
        std::byte buffer[4096];
        while (!stop_.load()) {
            pollfd both[2] = {{front_, POLLIN, 0}, {back_, POLLIN, 0}};
            ::poll(both, 2, held_.empty() ? 20 : 1);
            for (const bool up : {true, false}) {
                ssize_t got = 0;
                while ((got = ::recv(up ? front_ : back_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) pass({buffer, buffer + got}, up);
            }
            while (held_.size() > 2 || (!held_.empty() && random_.chance(0.5))) {
                send(held_.front().second, held_.front().first);
                held_.pop_front();
            }
        }
    }
    void pass(const Packet& packet, bool up) {
        const double chance = loss.load();
        {
            const std::lock_guard lock(mutex_);
            (up ? up_ : down_).push_back(packet);
        }
        if (cut.load() || random_.chance(chance)) return;
        if (random_.chance(chance / 2)) held_.emplace_back(up, packet);
        else send(packet, up);
        if (random_.chance(chance / 2)) send(packet, up);
    }
    Random random_;
    int front_ = -1, back_ = -1;
    std::deque<std::pair<bool, Packet>> held_;
    std::mutex mutex_;
    std::vector<Packet> up_, down_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// A duck with one client and one session that is called directly through a relay.
struct Line {
    Line(const Loaded& actor, bool sealed, const std::function<void(box::SessionOrder&)>& change = {}) : yard(options(sealed)), net(net_options(sealed)), relay(7) {
        net.start();
        duck::RemoteOptions ours;
        ours.key = net_options(sealed).key;
        ours.dead_after_ns = 10 * second;
        remote = duck::Remote::connect("127.0.0.1:" + std::to_string(net.udp_port()), ours);
        const std::uint64_t connection = next(duck::NetEventKind::opened).connection;
        auto path = remote->direct();
        CHECK(path != nullptr);
        const duck::DirectOffer offer = net.direct(connection, relay.back());
        CHECK_EQ(offer.refused, std::string());
        relay.start(path->port(), offer.port);
        box::SessionOrder order = order_of(actor);
        order.direct = {offer.fd, offer.id, static_cast<std::uint32_t>(offer.cipher), offer.keys};
        if (change) change(order);
        resident = yard.open(order);
        ::close(offer.fd);
        duck::SessionLimits limits;
        limits.args_bytes = resident->facts().args_bytes + 8;
        limits.result_bytes = resident->facts().ob_bytes;
        const std::uint32_t number = net.attach(connection, std::make_shared<duck::BoxSink>(resident), limits);
        session = remote->session(number, ob, nullptr, std::move(path), relay.front(), offer.id);
    }
    static box::YardOptions options(bool sealed) {
        box::YardOptions options;
        options.program = sealed ? TEAL_SEALED_BOX : TEAL_BOX;
        return options;
    }
    static duck::NetOptions net_options(bool sealed) {
        duck::NetOptions options;
        if (sealed) options.key.assign(32, std::byte{5});
        return options;
    }
    duck::NetEvent next(duck::NetEventKind kind) {
        for (;;) {
            duck::NetEvent event;
            if (net.next_event(event)) {
                if (event.kind == kind) return event;
                continue;
            }
            pollfd wait{net.event_fd(), POLLIN, 0};
            if (::poll(&wait, 1, 30'000) == 0) return {};
        }
    }
    CallAnswer call(std::initializer_list<std::uint64_t> words) { return session->call(std::as_bytes(std::span(words.begin(), words.size())), 30 * second); }
    std::uint64_t word() const {
        std::uint64_t value = 0;
        std::memcpy(&value, ob.data(), sizeof value);
        return value;
    }
    bool count_is(std::uint64_t expected) {
        const CallAnswer answer = call({act_count});
        return answer.outcome == duck::Outcome::ran && answer.result == 8 && word() == expected;
    }
    // Calls until they go directly; how many it took.
    std::uint64_t warm() {
        std::uint64_t calls = 0;
        for (; !session->direct() && calls < 100'000; ++calls) CHECK(count_is(calls + 1));
        CHECK(session->direct());
        return calls;
    }

    box::Yard yard;
    duck::Net net;
    Relay relay;
    std::shared_ptr<duck::Remote> remote;
    std::shared_ptr<box::Session> resident;
    std::vector<std::byte> ob = std::vector<std::byte>(1 << 20);
    std::unique_ptr<duck::RemoteSession> session;
};

void goes_past_the_duck(const Loaded& actor, bool sealed) {
    Line line(actor, sealed);
    std::uint64_t count = line.warm();
    const std::uint64_t loop = line.net.figures().calls, direct = line.session->direct_calls(), said = line.resident->direct_calls();
    const std::uint64_t passed = line.remote->figures().direct_passed;
    for (int i = 0; i < 500; ++i) CHECK(line.count_is(++count));
    const duck::RemoteFigures figures = line.remote->figures();
    CHECK_EQ(line.net.figures().calls, loop + figures.direct_moved);   // none, unless this machine is so busy that answers take 14 ms
    CHECK_EQ(line.session->direct_calls() + figures.direct_passed, direct + passed + 500);
    CHECK_EQ(figures.direct_calls, line.session->direct_calls());
    CHECK_EQ(line.resident->direct_calls() + figures.direct_passed, said + passed + 500);
    CHECK_EQ(line.call({act_result, static_cast<std::uint64_t>(-7)}).result, -7);
    CHECK_EQ(line.call({act_echo, 1, 2, 3}).result, 24);
    CHECK_EQ(line.word(), 1);
    CHECK(line.call({act_echo, 1}).took_ns < second);
    line.session.reset();
}

void test_nothing_is_lost_or_runs_twice(const Loaded& actor, bool sealed) {
    Line line(actor, sealed);
    std::uint64_t count = line.warm();
    line.relay.loss.store(0.2);
    for (int i = 0; i < 300; ++i) CHECK(line.count_is(++count));
    CHECK(line.session->direct_calls() > 0);
    CHECK(line.remote->figures().direct_again > 0);
    line.relay.loss.store(0);
    CHECK(line.count_is(++count));
}

// What came before comes again, and what was never sent comes too: nothing runs twice, nothing else runs, and the client sees its own answers.
void test_strangers_are_dropped(const Loaded& actor, bool sealed) {
    Line line(actor, sealed);
    std::uint64_t count = line.warm();
    for (int i = 0; i < 20; ++i) CHECK(line.count_is(++count));
    const std::vector<Packet> asks = line.relay.seen(true), answers = line.relay.seen(false);
    CHECK(asks.size() >= 20);
    for (const Packet& packet : asks) line.relay.send(packet, true);   // replays
    for (const Packet& packet : answers) line.relay.send(packet, false);
    for (const Packet& packet : asks)
        for (std::size_t bytes = 0; bytes < packet.size(); bytes += 5) line.relay.send(std::span(packet).first(bytes), true);   // cut
    Packet forged = asks.back();
    const std::uint64_t next = count + 1000;
    std::memcpy(forged.data() + offsetof(duck::DirectHead, number), &next, sizeof next);
    if (sealed) line.relay.send(forged, true);   // a number that was never sealed
    forged = asks.back();
    forged.back() ^= std::byte{1};
    if (sealed) line.relay.send(forged, true);
    forged = asks.back();
    forged[offsetof(duck::DirectHead, id)] ^= std::byte{1};
    line.relay.send(forged, true);
    for (std::size_t bytes : {std::size_t{1}, std::size_t{40}, std::size_t{1300}, std::size_t{4000}}) {
        const Packet junk(bytes, std::byte{0xd6});
        line.relay.send(junk, true);
        line.relay.send(junk, false);
    }
    for (int i = 0; i < 20; ++i) CHECK(line.count_is(++count));
    CHECK(line.remote->figures().direct_dropped > 0);
}

void another_sessions_keys_open_nothing(const Loaded& actor) {
    Line one(actor, true), other(actor, true);
    std::uint64_t count = one.warm();
    other.warm();
    for (Packet packet : other.relay.seen(true)) {
        const Packet mine = one.relay.seen(true).back();
        std::memcpy(packet.data() + offsetof(duck::DirectHead, id), mine.data() + offsetof(duck::DirectHead, id), 8);
        const std::uint64_t next = count + 50;
        std::memcpy(packet.data() + offsetof(duck::DirectHead, number), &next, sizeof next);
        one.relay.send(packet, true);
    }
    for (int i = 0; i < 5; ++i) CHECK(one.count_is(++count));
}

void what_does_not_fit_goes_the_other_way(const Loaded& actor, bool sealed) {
    Line line(actor, sealed, [](box::SessionOrder& order) { order.args_bytes = 64 << 10; });
    std::uint64_t count = line.warm();
    std::vector<std::uint64_t> words(2000);
    for (std::size_t i = 1; i < words.size(); ++i) words[i] = i * 3;
    words[0] = act_echo;
    const std::uint64_t passed = line.remote->figures().direct_passed;
    CHECK_EQ(line.session->call(std::as_bytes(std::span(words)), 30 * second).result, static_cast<std::int64_t>(words.size() * 8 - 8));
    CHECK(std::memcmp(line.ob.data(), words.data() + 1, words.size() * 8 - 8) == 0);
    CHECK_EQ(line.remote->figures().direct_passed, passed + 1);
    CHECK(line.count_is(++count));   // the result before did not fit: over the connection once more
    CHECK(line.count_is(++count));
    // Short arguments, a long result: it ran once, and comes in pieces.
    const std::uint64_t moved = line.remote->figures().direct_moved;
    CHECK_EQ(line.call({act_result, 5000}).result, 5000);
    CHECK(std::memcmp(line.ob.data() + 8, words.data() + 2, 5000 - 8) == 0);   // what lies there
    CHECK_EQ(line.remote->figures().direct_moved, moved + 1);
    CHECK_EQ(line.remote->figures().direct_long, 1);
    CHECK(line.count_is(++count));
    const std::uint64_t direct = line.session->direct_calls();
    CHECK(line.count_is(++count));
    CHECK_EQ(line.session->direct_calls(), direct + 1);
    CHECK_EQ(line.call({act_result, UINT64_MAX >> 1}).result, static_cast<std::int64_t>(line.resident->facts().ob_bytes));   // absurd: clamped
    CHECK(line.count_is(++count));
}

void a_cut_path_is_done_without(const Loaded& actor, bool sealed) {
    Line line(actor, sealed);
    std::uint64_t count = line.warm();
    line.relay.cut.store(true);
    for (int i = 0; i < 8; ++i) CHECK(line.count_is(++count));
    CHECK(!line.session->direct());
    CHECK(line.remote->figures().direct_moved >= 3);
    line.relay.cut.store(false);
    for (int i = 0; i < 100'000 && !line.session->direct(); ++i) CHECK(line.count_is(++count));
    CHECK(line.session->direct());
    const std::uint64_t before = line.session->direct_calls();
    CHECK(line.count_is(++count));
    CHECK_EQ(line.session->direct_calls(), before + 1);
}

box::Fate fate_of(const CallAnswer& answer) {
    return answer.outcome == duck::Outcome::fate ? static_cast<box::Fate>(static_cast<std::uint64_t>(answer.result) >> 32) : box::Fate::running;
}

void test_ends_are_told(const Loaded& actor, bool sealed) {
    {
        Line line(actor, sealed);
        line.warm();
        CHECK_EQ(fate_of(line.call({act_crash, 16})), box::Fate::killed);
        CHECK_EQ(fate_of(line.call({act_count})), box::Fate::killed);
    }
    {
        Line line(actor, sealed, [](box::SessionOrder& order) { order.call_limit_ns = 200'000'000; });
        line.warm();
        CHECK_EQ(fate_of(line.call({act_loop})), box::Fate::overdue);
    }
    {
        Line line(actor, sealed);
        line.warm();
        const std::uint64_t words[] = {act_loop};
        const std::uint64_t seq = line.session->submit(std::as_bytes(std::span(words)));
        CallAnswer answer;
        CHECK(!line.session->wait(seq, 50'000'000, answer));
        CHECK_EQ(line.resident->ending().fate, box::Fate::running);
        line.resident->kill();
        CHECK(line.session->wait(seq, 30 * second, answer));
        CHECK_EQ(fate_of(answer), box::Fate::closed);
    }
    {
        Line line(actor, sealed);   // the duck goes
        line.warm();
        line.net.stop();
        Code code = Code::internal_error;
        try {
            for (int i = 0; i < 100'000; ++i) line.call({act_count});
        } catch (const Error& error) {
            code = error.code();
        }
        CHECK_EQ(code, Code::peer_died);
    }
}

// A call that is slow to end goes on over the connection, and ran once.
void slow_calls_run_once(const Loaded& actor) {
    Line line(actor, false);
    std::uint64_t count = line.warm();
    const std::uint64_t words[] = {act_allocate, 100 << 20};   // some milliseconds
    for (int i = 0; i < 3; ++i) CHECK_EQ(line.session->call(std::as_bytes(std::span(words)), 30 * second).result, 8);
    CHECK(line.count_is(++count));
    // Several at a time begin in their order.
    const std::uint64_t one[] = {act_count};
    std::uint64_t seqs[6];
    for (std::uint64_t& seq : seqs) seq = line.session->submit(std::as_bytes(std::span(one)));
    for (const std::uint64_t seq : seqs) {
        CallAnswer answer;
        CHECK(line.session->wait(seq, 30 * second, answer));
        ++count;
        CHECK_EQ(answer.result, 8);
    }
    CHECK(line.count_is(++count));
}

template <class Done>
bool until(Done&& done) {
    for (int i = 0; i < 30'000; ++i) {
        if (done()) return true;
        ::usleep(1000);
    }
    return false;
}

void sleeps_and_wakes(const Loaded& actor, bool sealed) {
    Line line(actor, sealed, [](box::SessionOrder& order) {
        order.idle_ns = 1'000'000;
        order.args_bytes = 8192;
    });
    std::uint64_t count = line.warm();
    void* at = ::mmap(nullptr, line.resident->facts().region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, line.resident->control_fd(), 0);
    CHECK(at != MAP_FAILED);
    const auto asleep = [&] { return static_cast<box::ControlPage*>(at)->ask.sleeps.load() == 2; };
    CHECK(until(asleep));
    CHECK(line.count_is(++count));   // by a packet
    CHECK(until(asleep));
    std::vector<std::uint64_t> words(300, 1);
    words[0] = act_echo;
    CHECK_EQ(line.session->call(std::as_bytes(std::span(words)), 30 * second).result, static_cast<std::int64_t>(words.size() * 8 - 8));   // through the duck
    CHECK(until(asleep));
    line.resident->unmap();          // by an order
    CHECK(until(asleep));
    CHECK(line.count_is(++count));
    ::munmap(at, line.resident->facts().region_bytes);
    line.resident->close(5 * second);
    CHECK_EQ(line.resident->ending().fate, box::Fate::closed);
}

// Of its socket a program has recvfrom() and sendto() without an address, and nothing else.
void the_socket_takes_two_calls(const Loaded& actor) {
    Line line(actor, false);
    line.warm();
    const std::uint64_t ob = box::layout::control + line.resident->facts().ob_offset;
    const auto result = [&](std::initializer_list<std::uint64_t> words) {
        line.call(words);
        return static_cast<std::int64_t>(line.word());
    };
    const std::uint64_t plain = MSG_DONTWAIT;
    CHECK_EQ(result({act_syscall, SYS_sendto, 4, ob, 32, plain, 0, 0}), 32);          // junk to its own client
    const std::int64_t taken = result({act_syscall, SYS_recvfrom, 4, ob, 32, plain, 0, 0});
    CHECK(taken == -EAGAIN || taken == 32);   // its own call, sent again on a busy machine
    CHECK_EQ(result({act_syscall, SYS_sendto, 4, ob, 32, plain, ob, 16}), -ENOSYS);   // to somebody else
    CHECK_EQ(result({act_syscall, SYS_sendto, 4, ob, 32, plain, std::uint64_t{1} << 40, 16}), -ENOSYS);
    CHECK_EQ(result({act_syscall, SYS_recvfrom, 4, ob, 32, plain, ob, ob}), -ENOSYS);
    CHECK_EQ(result({act_syscall, SYS_sendto, 4, ob, 32, 0, 0, 0}), -ENOSYS);         // any other flag
    CHECK_EQ(result({act_syscall, SYS_sendto, 3, ob, 32, plain, 0, 0}), -ENOSYS);     // the yard's socket
    CHECK_EQ(result({act_syscall, SYS_connect, 4, ob, 16, 0, 0, 0}), -ENOSYS);
    CHECK_EQ(result({act_syscall, SYS_setsockopt, 4, 1, 2, ob, 4, 0}), -ENOSYS);
    CHECK_EQ(result({act_syscall, SYS_sendmsg, 4, ob, 0, 0, 0, 0}), -ENOSYS);
    CHECK_EQ(result({act_syscall, SYS_recvmsg, 4, ob, plain, 0, 0, 0}), -EBADF);
    CHECK_EQ(result({act_syscall, SYS_write, 4, ob, 8, 0, 0, 0}), -EBADF);
    CHECK_EQ(result({act_syscall, SYS_ppoll, ob, 1000, 0, 0, 0, 0}), -ENOSYS);
    std::uint64_t count = line.word();
    line.call({act_count});
    count = line.word();
    CHECK(line.count_is(count + 1));
}

void cores_meet(const Loaded& actor) {
    Line line(actor, false, [](box::SessionOrder& order) { order.cores = 2; });
    for (int i = 0; i < 100'000 && !line.session->direct(); ++i) CHECK_EQ(line.call({act_cores}).result, 8);
    const std::uint64_t before = line.session->direct_calls();
    for (int i = 0; i < 20; ++i) {
        CHECK_EQ(line.call({act_cores}).result, 8);
        CHECK_EQ(line.word(), 3);
    }
    CHECK_EQ(line.session->direct_calls(), before + 20);
}

void tcp_has_none() {
    duck::NetOptions options;
    options.tcp = "127.0.0.1:0";
    duck::Net net(options);
    net.start();
    duck::RemoteOptions ours;
    ours.tcp = true;
    const auto remote = duck::Remote::connect("127.0.0.1:" + std::to_string(net.tcp_port()), ours);
    CHECK(remote->direct() == nullptr);
    duck::NetEvent event;
    CHECK(until([&] { return net.next_event(event); }));
    CHECK_EQ(net.direct(event.connection, 4711).refused, std::string("the client came over TCP"));
    CHECK_EQ(net.direct(event.connection + 1, 4711).fd, -1);
}

}  // namespace

int main() {
    const Loaded actor = load_resident("box_actor");
    const box::Yard probe(Line::options(true));
    const std::string missing = probe.refuses_direct(true);
    if (!missing.empty()) std::printf("sealed direct calls: not tried: %s\n", missing.c_str());
    CHECK(!box::Yard(Line::options(false)).refuses_direct(true).empty() || missing.empty());
    for (const bool sealed : {false, true}) {
        if (sealed && !missing.empty()) continue;
        goes_past_the_duck(actor, sealed);
        test_nothing_is_lost_or_runs_twice(actor, sealed);
        test_strangers_are_dropped(actor, sealed);
        what_does_not_fit_goes_the_other_way(actor, sealed);
        a_cut_path_is_done_without(actor, sealed);
        test_ends_are_told(actor, sealed);
        sleeps_and_wakes(actor, sealed);
    }
    if (missing.empty()) another_sessions_keys_open_nothing(actor);
    slow_calls_run_once(actor);
    the_socket_takes_two_calls(actor);
    cores_meet(actor);
    tcp_has_none();
    return check::summary();
}
