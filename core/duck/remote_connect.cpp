// How a Remote comes about: sockets, hellos until the welcome, the keeper.
#include <algorithm>
#include <poll.h>
#include <sys/eventfd.h>

#include "duck/remote_impl.hpp"

namespace teal::duck {
namespace {

constexpr std::uint64_t hello_each_ns = 200'000'000;
constexpr std::uint64_t answered_for_ns = 2'500'000'000;  // a duck that is there, but takes no hello for so long, will take none
constexpr std::uint64_t refused_times = 3;

}  // namespace

void Remote::Impl::connect(const std::string& to) {
    address = to;
    if (options.dead_after_ns < least_dead_after_ns || options.dead_after_ns > most_dead_after_ns)
        throw Error(Code::invalid_argument, "duck: dead_after of " + std::to_string(options.dead_after_ns / 1'000'000) + " ms, expected 50 ms to 600 s");
    const Address target = Address::parse(to, false);
    if (options.key.empty() && !target.loopback())
        throw Error(Code::invalid_argument, "duck " + to + ": it is on another machine, which takes a key");
    if (options.tcp) stream = std::make_unique<Stream>(Stream::connect(target, options.connect_timeout_ns));
    else udp.connect(target);
    in.resize(datagram_buffer);
    out.resize(pour_space);
    ClientHello hello(options.key, options.dead_after_ns, options.tcp ? Stream::window : udp.window());
    shake_hands(hello);
    wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake < 0) throw Error(Code::quota_exceeded, "duck: no descriptor for an eventfd");
    keeper = std::thread([this] { keep(); });
}

void Remote::Impl::shake_hands(ClientHello& hello) {
    const std::uint64_t start = clock(), end = start + options.connect_timeout_ns;
    std::uint64_t next = start, sent_at = start, answered_at = 0;
    for (std::uint64_t now = start; now < end; now = clock()) {
        if (now >= next) {
            hello.write(out);
            sent_at = now;
            next = now + hello_each_ns;
            if (stream != nullptr) {
                stream->put(std::span<const std::byte>(out).first(least_packet));
                stream->flush();
            } else {
                udp.send(std::span<const std::byte>(out).first(least_packet), least_packet, nullptr);
            }
        }
        sleep(std::min(next, end));
        std::span<std::byte> packet;
        if (stream != nullptr) {
            if (!stream->fill()) break;
            packet = stream->next();
        } else if (const std::ptrdiff_t bytes = udp.receive(in); bytes > 0) {
            packet = std::span(in).first(static_cast<std::size_t>(bytes));
        }
        if (!packet.empty()) {
            const ClientHello::Step step = hello.read(packet);
            if (step == ClientHello::Step::failed) break;
            if (step == ClientHello::Step::again) next = 0;
            if (step == ClientHello::Step::done) {
                ConnectionOptions made = hello.options();
                made.first_rtt_ns = std::max<std::uint64_t>(clock() - sent_at, 1000);
                made.reliable = stream != nullptr;
                made.most_item_bytes = options.most_message_bytes;
                connection.emplace(made, clock());
                return;
            }
        }
        if (hello.was_answered() && answered_at == 0) answered_at = now;
        if (answered_at != 0 && now > answered_at + answered_for_ns) break;
        if (udp.refused() >= refused_times) break;
    }
    hello.fail(address);
}

}  // namespace teal::duck
