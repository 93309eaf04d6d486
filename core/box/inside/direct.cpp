// Theory of operation. The box polls a UDP socket that the duck has made and connected to one client: no address is ever given to recvfrom() or
// sendto(), and the filter lets through nothing else of them. One packet asks, one answers. Each call has a number; the last answer is kept as it
// was sent, and sent again when its call comes again, so a call runs once and a number seals one text. A packet with a number below the last
// one, of another session, cut, or not sealed with this session's key is dropped: the client asks again, and in the end over its connection.
// Like all of the loop, this runs with the program's thread pointer; the program may spoil it, and its own session with it.
#include "box/inside/direct.hpp"

#include <duck.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "box/box.hpp"
#include "box/inside/gate.hpp"
#include "box/inside/seal.hpp"
#include "duck/direct_packet.hpp"

namespace teal::box {
namespace {

using namespace duck;

constexpr std::time_t longest_sleep_s = 10;
constexpr std::size_t ask_at = sizeof(DirectHead), args_at = sizeof(DirectHead) + sizeof(DirectAsk);
constexpr std::size_t text_at = sizeof(DirectHead) + sizeof(DirectAnswer);

alignas(64) std::byte in[2 * most_direct_packet];
alignas(64) std::byte out[most_direct_packet];
std::size_t kept_bytes = 0;            // of `out`: the answer to `kept_number`
std::uint64_t kept_number = 0;
std::uint64_t last_number = 0;         // of the last call that ran
std::int64_t last_result = 0;
std::uint64_t id = 0, ob_offset = 0, ob_bytes = 0, ticks_a_second = 1;
std::uint32_t client_cpu = 0;
bool there = false;

DirectLine& line() noexcept { return reinterpret_cast<ControlPage*>(layout::control)->direct; }

void send(const std::byte* packet, std::size_t bytes) noexcept {
    // What does not leave is asked for again.
    raw(SYS_sendto, direct_socket, reinterpret_cast<long>(packet), static_cast<long>(bytes), MSG_DONTWAIT, 0, 0);
}

void keep_and_send(std::uint64_t number, const DirectAnswer& answer, std::size_t text) noexcept {
    const std::size_t bytes = text_at + text + seal_bytes();
    const DirectHead head{direct_answer, direct_version, 0, static_cast<std::uint32_t>(bytes), id, number};
    std::memcpy(out, &head, sizeof head);
    std::memcpy(out + sizeof head, &answer, sizeof answer);
    if (text != 0) std::memcpy(out + text_at, reinterpret_cast<const std::byte*>(layout::control + ob_offset), text);
    seal(number, out, sizeof head, sizeof answer + text);
    kept_bytes = bytes;
    kept_number = number;
    send(out, bytes);
}

void say_there() noexcept {
    std::byte packet[text_at + direct_tag_bytes] = {};
    const std::size_t bytes = text_at + seal_bytes();
    const DirectHead head{direct_answer, direct_version, 0, static_cast<std::uint32_t>(bytes), id, 0};
    std::memcpy(packet, &head, sizeof head);
    seal(0, packet, sizeof head, sizeof(DirectAnswer));
    send(packet, bytes);
}

std::int64_t run_counted(std::uint64_t number, const void* args, std::uint64_t bytes, RunCall run) noexcept {
    DirectLine& counts = line();
    counts.begun.store(counts.begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);   // the yard's thread looks at both now and then
    last_result = run(args, bytes);
    last_number = number;
    counts.done.store(counts.done.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return last_result;
}

void run_direct(std::uint64_t number, std::size_t args, RunCall run) noexcept {
    const std::uint64_t began = duck_ticks();
    const std::int64_t result = run_counted(number, in + args_at, args, run);
    DirectAnswer answer{result, 0, 0, 0};
    const std::uint64_t took = duck_ticks() - began;
    answer.took_ns = static_cast<std::uint64_t>(static_cast<double>(took) * 1e9 / static_cast<double>(ticks_a_second));
    std::uint64_t text = result > 0 ? static_cast<std::uint64_t>(result) : 0;
    if (text > ob_bytes) text = ob_bytes;
    if (text > direct_result_room) {
        answer.flags = direct_long;
        text = 0;
    }
    keep_and_send(number, answer, text);
}

}  // namespace

int prepare_direct(const BecomeMessage& message) noexcept {
    id = message.direct_id;
    ob_offset = message.ob_offset;
    ob_bytes = message.ob_bytes;
    ticks_a_second = message.tsc_hz == 0 ? 1 : message.tsc_hz;
    there = true;
    return prepare_seals(message.direct_cipher, message.direct_keys);
}

bool has_direct() noexcept { return there; }
std::uint32_t direct_cpu() noexcept { return client_cpu; }

bool take_direct(RunCall run) noexcept {
    const long got = raw(SYS_recvfrom, direct_socket, reinterpret_cast<long>(in), sizeof in, MSG_DONTWAIT, 0, 0);
    if (got < 0) return false;
    DirectHead head;
    const std::size_t bytes = static_cast<std::size_t>(got), tag = seal_bytes();
    if (bytes < args_at + tag) return true;
    std::memcpy(&head, in, sizeof head);
    if (head.kind != direct_ask || head.version != direct_version || head.zero != 0 || head.bytes != bytes || bytes > most_direct_packet || head.id != id) return true;
    if (head.number != 0 && head.number < last_number) return true;
    if (!unseal(head.number, in, sizeof head, bytes - sizeof head - tag)) return true;
    DirectAsk ask;
    std::memcpy(&ask, in + ask_at, sizeof ask);
    client_cpu = ask.cpu;
    if (head.number == 0) {
        say_there();
    } else if (head.number == last_number) {
        if (kept_number == last_number) send(out, kept_bytes);   // else it ran over the connection, and is answered there
    } else if (ask.op == static_cast<std::uint32_t>(AskOp::call)) {
        run_direct(head.number, bytes - args_at - tag, run);
    }
    return true;
}

std::int64_t run_once(std::uint64_t number, const void* args, std::uint64_t bytes, RunCall run) noexcept {
    if (number == 0 || number < last_number) return -EINVAL;   // no client of ours
    return number == last_number ? last_result : run_counted(number, args, bytes, run);
}

void sleep_direct() noexcept {
    pollfd both[2] = {{direct_socket, POLLIN, 0}, {box_socket, POLLIN, 0}};
    timespec nap{longest_sleep_s, 0};
    raw(SYS_ppoll, reinterpret_cast<long>(both), 2, reinterpret_cast<long>(&nap), 0, 0);
}

}  // namespace teal::box
