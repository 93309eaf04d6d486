#include "bench/duck_echo.hpp"

#include "bench/bare_echo.hpp"
#include "bench/namespace.hpp"
#include "bench/on_core.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

using namespace duck;

constexpr std::uint32_t most_calls = 10'000'000, a_turn = 500;

// Answers with its arguments: the shortest program there is.
class Mirror final : public CallSink {
public:
    bool submit(const Ask& ask, Answer&) noexcept override {
        bytes_ = ask.args.size() < sizeof ob_ ? ask.args.size() : sizeof ob_;
        std::memcpy(ob_, ask.args.data(), bytes_);
        return true;
    }
    bool poll(Answer& answer) noexcept override {
        answer = {Outcome::ran, static_cast<std::int64_t>(bytes_), 0, {ob_, bytes_}};
        return true;
    }

private:
    std::byte ob_[2048];
    std::size_t bytes_ = 0;
};

// A duck with its loop on a core, and a client of it.
class Pair {
public:
    Pair(const DuckEchoSpec& spec, bool keyed) {
        NetOptions options;
        options.udp = spec.host + ":0";
        options.core = spec.duck_core;
        options.idle_ns = 2'000'000;  // out of the way while others are measured
        if (keyed) options.key.assign(32, std::byte{42});
        {
            const InNamespace there(spec.far);
            net_ = std::make_unique<Net>(options);
        }
        net_->start();
        RemoteOptions ours;
        ours.key = options.key;
        ours.dead_after_ns = patience_ns;
        {
            const InNamespace there(spec.near);
            remote_ = Remote::connect(spec.host + ":" + std::to_string(net_->udp_port()), ours);
        }
        NetEvent opened;
        while (!net_->next_event(opened)) ::usleep(100);
        session_ = remote_->session(net_->attach(opened.connection, std::make_shared<Mirror>(), {}), ob_, nullptr);
    }
    ~Pair() {
        session_.reset();
        remote_->close();
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;
    void turn(std::span<const std::byte> args) { (void)session_->call(args, patience_ns); }
    Remote& remote() noexcept { return *remote_; }
    Net& net() noexcept { return *net_; }

private:
    std::unique_ptr<Net> net_;
    std::shared_ptr<Remote> remote_;
    std::unique_ptr<RemoteSession> session_;
    std::vector<std::byte> ob_ = std::vector<std::byte>(4096);
};

}  // namespace

DuckEchoTimes measure_duck_echo(const DuckEchoSpec& spec) {
    if (spec.calls == 0 || spec.calls > most_calls || spec.bytes < 4 || spec.bytes > 900)
        throw Error(Code::invalid_argument, "duck echo: " + std::to_string(spec.calls) + " calls of " + std::to_string(spec.bytes) + " bytes, expected 1 to 10000000 of 4 to 900");
    const OnCore here(spec.client_core);
    BareEcho echo(spec.duck_core, spec.host, spec.near, spec.far);
    Pair sealed(spec, true);
    std::optional<Pair> plain;  // without a key nobody listens beyond the loopback
    if (spec.host.starts_with("127.")) plain.emplace(spec, false);
    const std::vector<std::byte> args(spec.bytes, std::byte{1});
    DuckEchoTimes times;
    // The packets of a call: heads, an acknowledgement each way, arguments and result.
    const std::size_t up = 24 + 32 + 16 + spec.bytes, down = 24 + 32 + 8 + 32 + spec.bytes;
    for (std::uint32_t done = 0; done < spec.calls; done += a_turn) {
        const std::uint32_t count = spec.calls - done < a_turn ? spec.calls - done : a_turn;
        settle();
        echo.rest(false);
        measure(times.bare, count, [&] { echo.turn(up, down); });
        measure(times.bare_small, count, [&] { echo.turn(spec.bytes, spec.bytes); });
        echo.rest(true);
        settle();
        if (plain) {
            measure(times.call, count, [&] { plain->turn(args); });
            settle();
        }
        measure(times.sealed, count, [&] { sealed.turn(args); });
    }
    return times;
}

}  // namespace teal
