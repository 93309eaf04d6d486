// The duck's network over real sockets of this machine: connect, call, ask, put; keys that differ; a duck that freezes or goes.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "check.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"
#include "duck_sinks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace teal;
using namespace teal::duck;

std::vector<std::byte> key_of(unsigned char with) { return std::vector<std::byte>(32, std::byte{with}); }

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed = 1) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
    return out;
}

// A duck whose upper half is this thread: answers one event at a time.
struct Duck {
    explicit Duck(NetOptions options) : net(std::move(options)) { net.start(); }
    NetEvent next(NetEventKind kind) {
        for (;;) {
            NetEvent event;
            if (!net.next_event(event)) {
                pollfd wait{net.event_fd(), POLLIN, 0};
                if (::poll(&wait, 1, 20'000) == 0) return {};
                continue;
            }
            if (event.kind == kind) return event;
            if (event.fd >= 0) ::close(event.fd);
        }
    }
    Net net;
};

NetOptions listening(bool tcp, std::vector<std::byte> key) {
    NetOptions options;
    options.udp = tcp ? "" : "127.0.0.1:0";
    options.tcp = tcp ? "127.0.0.1:0" : "";
    options.key = std::move(key);
    return options;
}

std::shared_ptr<Remote> reach(const Net& net, bool tcp, std::vector<std::byte> key, std::uint64_t dead_after_ns = 20'000'000'000) {
    RemoteOptions options;
    options.tcp = tcp;
    options.key = std::move(key);
    options.dead_after_ns = dead_after_ns;
    return Remote::connect("127.0.0.1:" + std::to_string(tcp ? net.tcp_port() : net.udp_port()), options);
}

void test_calls(bool tcp, bool keyed) {
    Duck duck(listening(tcp, keyed ? key_of(7) : std::vector<std::byte>{}));
    const auto remote = reach(duck.net, tcp, keyed ? key_of(7) : std::vector<std::byte>{});
    const NetEvent opened = duck.next(NetEventKind::opened);
    const auto sink = std::make_shared<EchoSink>();
    const std::uint32_t number = duck.net.attach(opened.connection, sink, {});
    std::vector<std::byte> ob(1 << 20);
    {
        const auto session = remote->session(number, ob, nullptr);
        for (const std::size_t bytes : {0UL, 1UL, 64UL, 900UL, 1200UL, 5000UL, 100'000UL, 1'000'000UL}) {
            const auto args = pattern(bytes, static_cast<unsigned>(bytes));
            const CallAnswer answer = session->call(args, 10'000'000'000);
            CHECK_EQ(answer.outcome, Outcome::ran);
            CHECK_EQ(answer.result, bytes);
            CHECK(std::equal(args.begin(), args.end(), ob.begin()));
        }
        for (int i = 0; i < 1000; ++i) CHECK_EQ(session->call(pattern(64), 10'000'000'000).result, 64);
        // Eight at once, in order.
        std::uint64_t seqs[RemoteSession::most_in_flight];
        for (auto& seq : seqs) seq = session->submit(pattern(100));
        bool refused = false;
        try {
            session->submit(pattern(1));
        } catch (const Error& error) {
            refused = error.code() == Code::busy;
        }
        CHECK(refused);
        for (const auto seq : seqs) {
            CallAnswer answer;
            CHECK(session->wait(seq, 10'000'000'000, answer));
            CHECK_EQ(answer.result, 100);
        }
        CHECK_EQ(sink->ran.load(), 1016);
        CHECK_EQ(sink->out_of_order.load(), 0);
        // Too long for this session, then gone.
        const CallAnswer refusal = session->call(pattern((1 << 20) + 1), 10'000'000'000);
        CHECK_EQ(refusal.outcome, Outcome::refused);
        CHECK_EQ(refusal.result, E2BIG);
        duck.net.detach(number);
        CHECK_EQ(session->call(pattern(1), 10'000'000'000).outcome, Outcome::unknown);
    }
    CHECK(remote->ping(5'000'000'000) < 5'000'000'000);
    remote->close();
    CHECK_EQ(duck.next(NetEventKind::lost).text, std::string("closed by the client"));
}

void test_messages_and_blobs(bool tcp) {
    Duck duck(listening(tcp, key_of(1)));
    const auto remote = reach(duck.net, tcp, key_of(1));
    for (const std::size_t bytes : {3UL, 3000UL, 300'000UL}) {
        std::thread above([&] {
            const NetEvent event = duck.next(NetEventKind::message);
            auto back = event.bytes;
            std::reverse(back.begin(), back.end());
            duck.net.reply(event.connection, event.id, back);
        });
        auto sent = pattern(bytes);
        auto got = remote->request(sent, 10'000'000'000);
        std::reverse(got.begin(), got.end());
        CHECK(got == sent);
        above.join();
    }
    for (const std::size_t bytes : {1UL, 4096UL, 5'000'001UL, 30'000'000UL}) {
        const auto blob = pattern(bytes, 3);
        const BlobDigest digest = sha256(blob);
        const PutResult first = remote->put(digest, blob, 20'000'000'000);
        CHECK_EQ(first.sent_bytes, bytes);
        const NetEvent event = duck.next(NetEventKind::blob);
        CHECK(event.digest == digest);
        CHECK_EQ(event.size, bytes);
        CHECK(::pwrite(event.fd, "x", 1, 0) < 0);  // not even now
        if (event.id == 0) {
            const NetEvent checked = duck.next(NetEventKind::checked);
            CHECK(checked.digest == digest);
            CHECK_EQ(checked.id, 1);
            CHECK_EQ(checked.connection, event.connection);
        }
        CHECK_EQ(event.id == 1, bytes <= 65'536);
        CHECK_EQ(::fcntl(event.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | 0x10 /* F_SEAL_FUTURE_WRITE */ | F_SEAL_SEAL);
        void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, event.fd, 0);
        if (CHECK(at != MAP_FAILED)) {
            CHECK(std::memcmp(at, blob.data(), bytes) == 0);
            ::munmap(at, bytes);
        }
        ::close(event.fd);
        const PutResult again = remote->put(digest, blob, 20'000'000'000);
        CHECK(again.had);
        CHECK_EQ(again.sent_bytes, 0);
        duck.net.forget(digest);
    }
    auto wrong = sha256(pattern(10));
    wrong[0] ^= std::byte{1};
    bool bad = false;
    try {
        remote->put(wrong, pattern(10), 10'000'000'000);
    } catch (const Error& error) {
        bad = error.code() == Code::invalid_argument;
    }
    CHECK(bad);
    const NetFigures figures = duck.net.figures();
    CHECK_EQ(figures.blobs_had, 4);
    CHECK_EQ(figures.blobs_received, 4);
    CHECK_EQ(figures.blobs_bad, 1);
}

// A long blob is its sender's before its SHA-256 is known. Whoever sent something else is thrown out.
void test_a_long_lie(bool tcp) {
    Duck duck(listening(tcp, key_of(1)));
    const auto liar = reach(duck.net, tcp, key_of(1)), other = reach(duck.net, tcp, key_of(1));
    const auto bytes = pattern(3'000'000);
    auto digest = sha256(bytes);
    digest[3] ^= std::byte{1};
    std::string text;
    try {
        CHECK(!liar->put(digest, bytes, 20'000'000'000).checked);
        liar->request(pattern(10), 20'000'000'000);
    } catch (const Error& error) {
        text = error.what();
    }
    CHECK(text.find("the SHA-256 is not that of the 3000000 bytes") != std::string::npos);
    const NetEvent here = duck.next(NetEventKind::blob), known = duck.next(NetEventKind::checked);
    CHECK_EQ(here.id, 0);
    CHECK_EQ(known.id, 0);
    CHECK(known.digest == digest);
    ::close(here.fd);
    CHECK_EQ(duck.next(NetEventKind::lost).connection, here.connection);
    bool had = false;  // it is not offered to anybody: this one, who lies as well, sends all of it …
    try {
        had = other->put(digest, bytes, 20'000'000'000).had;
    } catch (const Error& error) {  // … and may hear what became of it before it hears that it arrived
        CHECK(std::string(error.what()).find("the SHA-256 is not that of the 3000000 bytes") != std::string::npos);
    }
    CHECK(!had);
    CHECK_EQ(duck.net.figures().blobs_bad >= 1, true);
    bool bad = false;
    try {
        (void)reach(duck.net, tcp, key_of(1))->put(digest, bytes, 20'000'000'000, true);
    } catch (const Error&) {
        bad = true;
    }
    CHECK(bad);
    CHECK(reach(duck.net, tcp, key_of(1))->put(sha256(bytes), bytes, 20'000'000'000, true).checked);
}

Code refusal_of(const Net& net, std::vector<std::byte> key, std::string& text) {
    try {
        reach(net, false, std::move(key));
    } catch (const Error& error) {
        text = error.what();
        return error.code();
    }
    return Code::internal_error;
}

void test_keys() {
    std::string text;
    {
        Duck duck(listening(false, key_of(1)));
        CHECK_EQ(refusal_of(duck.net, key_of(2), text), Code::invalid_argument);
        CHECK(text.find("wrong key?") != std::string::npos);
        CHECK_EQ(refusal_of(duck.net, {}, text), Code::invalid_argument);
        CHECK(text.find("wants a key") != std::string::npos);
        CHECK_EQ(duck.net.figures().connections_opened, 0);
        CHECK(duck.net.figures().hellos_refused > 0);
        // One is told of at once, the others ten seconds later at the earliest.
        const std::uint64_t start = ticks();
        const NetEvent told = duck.next(NetEventKind::wrong_key);
        CHECK_EQ(told.id, 1);
        CHECK(told.text.starts_with("127.0.0.1:"));
        CHECK_EQ(duck.net.figures().wrong_key, duck.net.figures().hellos_refused);
        CHECK_EQ(refusal_of(duck.net, key_of(3), text), Code::invalid_argument);
        std::int64_t lines = 0;
        for (NetEvent event; duck.net.next_event(event);) lines += event.kind == NetEventKind::wrong_key ? 1 : 0;
        CHECK(lines <= 1 + ticks_to_ns(ticks() - start) / 10'000'000'000);
        CHECK(duck.net.figures().wrong_key >= 2);
    }
    {
        Duck duck(listening(false, {}));
        CHECK_EQ(refusal_of(duck.net, key_of(2), text), Code::invalid_argument);
        CHECK(text.find("has no key") != std::string::npos);
    }
    bool refused = false;
    try {
        NetOptions options;
        options.udp = "0.0.0.0:0";
        Net net(options);
    } catch (const Error& error) {
        refused = error.code() == Code::invalid_argument;
    }
    CHECK(refused);
}

void test_deaths() {
    std::string text;
    const auto dies = [&](const std::shared_ptr<Remote>& remote) {
        try {
            remote->request(pattern(3), 20'000'000'000);
        } catch (const Error& error) {
            text = error.what();
            return error.code();
        }
        return Code::internal_error;
    };
    {
        Duck duck(listening(false, key_of(1)));
        const auto remote = reach(duck.net, false, key_of(1));
        duck.net.stop();
        CHECK_EQ(dies(remote), Code::peer_died);
        CHECK(text.find("the duck is stopping") != std::string::npos);
        CHECK(!remote->alive());
    }
    {   // A loop that turns only by hand is a duck that freezes.
        Net net(listening(false, {}));
        std::atomic<bool> go_on{true};
        std::thread loop([&] {
            while (go_on.load()) net.turn();
        });
        const auto remote = reach(net, false, {}, 200'000'000);
        go_on.store(false);
        loop.join();
        CHECK_EQ(dies(remote), Code::peer_died);
        CHECK(text.find("nothing heard for") != std::string::npos);
    }
}

}  // namespace

int main() {
    for (const bool tcp : {false, true})
        for (const bool keyed : {false, true}) test_calls(tcp, keyed);
    test_messages_and_blobs(false);
    test_messages_and_blobs(true);
    test_a_long_lie(false);
    test_a_long_lie(true);
    test_keys();
    test_deaths();
    return check::summary();
}
