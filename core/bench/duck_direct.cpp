// Direct calls beside a bare echo: client and box on a core each, nobody in between.
#include <algorithm>
#include <memory>
#include <string>

#include "bench/bare_echo.hpp"
#include "bench/duck_echo.hpp"
#include "bench/namespace.hpp"
#include "duck/box_sink.hpp"
#include "duck/direct.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

using namespace duck;

constexpr std::uint32_t most_calls = 10'000'000, a_turn = 500;
constexpr std::uint64_t idle_ns = 2'000'000;   // out of the way while others are measured

// A duck, a client, and a box that answers it.
class Trio {
public:
    Trio(const DuckDirectSpec& spec, bool keyed) {
        NetOptions options;
        options.udp = spec.host + ":0";
        options.idle_ns = idle_ns;
        if (keyed) options.key.assign(32, std::byte{42});
        {
            const InNamespace there(spec.far);
            net_ = std::make_unique<Net>(options);
            net_->start();  // its thread makes the boxes' sockets
        }
        RemoteOptions ours;
        ours.key = options.key;
        ours.dead_after_ns = patience_ns;
        std::unique_ptr<DirectPath> path;
        {
            const InNamespace there(spec.near);
            remote_ = Remote::connect(spec.host + ":" + std::to_string(net_->udp_port()), ours);
            path = remote_->direct();
        }
        NetEvent opened;
        while (!net_->next_event(opened)) ::usleep(100);
        const DirectOffer offer = net_->direct(opened.connection, path->port());
        if (!offer.refused.empty()) throw Error(Code::invalid_argument, "direct calls: " + offer.refused);
        box::SessionOrder order;
        order.image = spec.image;
        order.pin = {spec.box_core};
        order.idle_ns = idle_ns;
        order.direct = {offer.fd, offer.id, static_cast<std::uint32_t>(offer.cipher), offer.keys};
        try {
            box_ = (keyed ? spec.sealed : spec.yard)->open(order);
        } catch (...) {
            ::close(offer.fd);
            throw;
        }
        ::close(offer.fd);
        session_ = remote_->session(net_->attach(opened.connection, std::make_shared<BoxSink>(box_), {}), ob_, nullptr, std::move(path), offer.port, offer.id);
    }
    ~Trio() {
        session_.reset();
        remote_->close();
    }
    Trio(const Trio&) = delete;
    Trio& operator=(const Trio&) = delete;
    void turn(std::span<const std::byte> args) { (void)session_->call(args, patience_ns); }
    // Throws peer_died when calls go another way.
    void warm(std::span<const std::byte> args) {
        for (int i = 0; i < 100'000 && !session_->direct(); ++i) turn(args);
        if (!session_->direct()) throw Error(Code::peer_died, "direct calls: the box was not heard");
    }

private:
    std::unique_ptr<Net> net_;
    std::shared_ptr<Remote> remote_;
    std::shared_ptr<box::Session> box_;
    std::unique_ptr<RemoteSession> session_;
    std::vector<std::byte> ob_ = std::vector<std::byte>(4096);
};

}  // namespace

DuckDirectTimes measure_duck_direct(const DuckDirectSpec& spec) {
    if (spec.yard == nullptr || spec.calls == 0 || spec.calls > most_calls || spec.bytes < 4 || spec.bytes > 900)
        throw Error(Code::invalid_argument, "duck direct: " + std::to_string(spec.calls) + " calls of " + std::to_string(spec.bytes) + " bytes, expected 1 to 10000000 of 4 to 900");
    const OnCore here(spec.client_core);
    BareEcho echo(spec.box_core, spec.host, spec.near, spec.far);
    const std::vector<std::byte> args(spec.bytes, std::byte{1});
    std::unique_ptr<Trio> plain, sealed;
    if (spec.host.starts_with("127.")) {  // without a key nobody listens beyond the loopback
        plain = std::make_unique<Trio>(spec, false);
        plain->warm(args);
    }
    if (spec.sealed != nullptr) {
        sealed = std::make_unique<Trio>(spec, true);
        sealed->warm(args);
    }
    const std::size_t up = sizeof(DirectHead) + sizeof(DirectAsk) + spec.bytes, down = sizeof(DirectHead) + sizeof(DirectAnswer) + spec.bytes;
    DuckDirectTimes times;
    for (std::uint32_t done = 0; done < spec.calls; done += a_turn) {
        const std::uint32_t count = std::min(spec.calls - done, a_turn);
        settle();
        echo.rest(false);
        measure(times.bare, count, [&] { echo.turn(up, down); });
        measure(times.bare_small, count, [&] { echo.turn(spec.bytes, spec.bytes); });
        echo.rest(true);
        settle();
        if (plain) measure(times.call, count, [&] { plain->turn(args); });
        settle();
        if (sealed) measure(times.sealed, count, [&] { sealed->turn(args); });
    }
    return times;
}

}  // namespace teal
