// Direct calls: from a client straight to the box that runs its program, beside the connection to the duck.
//
// Theory of operation. The duck makes a UDP socket for the box and connects it to the client's; both know its number, and make its keys from the
// connection's (direct_keys()). A call is then one packet to the box and one back, and the duck's loop sleeps. Everything that is not such a
// call stays on the connection, and so does everything that goes wrong: a call that is not answered after four timeouts, that the box's
// port refuses, or whose result fits no packet is *moved*, that is sent over the connection with its number, and the box runs it unless it has. So
// the fate of a program, of a duck and of the way to it are told by the connection, as for any other call.
//
// States of a path: probing (the box has not been heard: probes go out with the calls that take the connection) → ready → probing again
// after three calls in a row of which the box was not heard.
//
// DirectPath is the client's end, without locks: RemoteSession has it under its Remote's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "duck/direct_packet.hpp"
#include "duck/socket.hpp"

namespace teal::duck {

// What the duck gives: the descriptor to the box, the rest (without the keys) to the client.
struct DirectOffer {
    int fd = -1;                       // the receiver's to close; -1: refused
    std::uint16_t port = 0;
    std::uint64_t id = 0;
    Cipher cipher = Cipher::none;
    DirectKeys keys{};
    std::string refused;               // why not
};

// Both ends make the same ones from the connection's exporter secret.
DirectKeys direct_keys(const Bytes32& exporter, std::uint64_t id);

// A plain UDP socket at the host of `local`, any port. Throws quota_exceeded, invalid_argument.
int direct_socket_at(const Address& local);

struct DirectFigures {
    std::uint64_t again = 0, dropped = 0;
};

class DirectPath {
public:
    explicit DirectPath(const Address& local);
    ~DirectPath();
    DirectPath(const DirectPath&) = delete;
    DirectPath& operator=(const DirectPath&) = delete;
    [[nodiscard]] std::uint16_t port() const;
    // Once, with what the duck said. Throws invalid_argument.
    void reach(const Address& box, std::uint64_t id, Cipher cipher, const DirectKeys& keys);

    [[nodiscard]] bool ready() const noexcept { return ready_; }
    [[nodiscard]] bool out() const noexcept { return number_ != 0; }      // a call is under way
    [[nodiscard]] std::uint64_t number() const noexcept { return last_; } // of the last call
    [[nodiscard]] int fd() const noexcept { return fd_; }
    [[nodiscard]] std::uint64_t resend_at() const noexcept { return resend_at_; }
    [[nodiscard]] std::span<const std::byte> args() const noexcept { return {args_, args_bytes_}; }   // of the last call
    [[nodiscard]] const DirectFigures& figures() const noexcept { return figures_; }
    [[nodiscard]] std::uint64_t rtt_ns() const noexcept { return srtt_; }

    void probe(std::uint64_t now) noexcept;                                // when it is time, and it is not ready
    void ask(std::span<const std::byte> args, std::uint64_t now) noexcept; // at most direct_args_room bytes
    // Sends it again when it is time; false: it has been sent often enough.
    bool ask_again(std::uint64_t now) noexcept;
    enum class Look : std::uint8_t { nothing, answered, refused /* nobody has the box's port */ };
    // Takes what has come, 16 packets at most. `answered`: of the call under way, which is over then; `bytes` are valid until the next look().
    Look look(std::uint64_t now, DirectAnswer& answer, std::span<const std::byte>& bytes) noexcept;
    // The call under way is given up here, and goes on over the connection.
    void move() noexcept { number_ = 0; }
    void missed() noexcept;                                                // it was answered there, and the box was not heard

private:
    std::size_t make(std::byte* packet, std::uint64_t number, const DirectAsk& ask, std::span<const std::byte> args) noexcept;
    bool send(const std::byte* packet, std::size_t bytes) noexcept;
    bool open(std::size_t bytes) noexcept;
    void learn(std::uint64_t taken, std::uint64_t took) noexcept;

    int fd_ = -1;
    std::uint64_t id_ = 0;
    std::optional<Aead> seal_, open_;
    bool reached_ = false, ready_ = false, near_ = false;
    std::uint64_t probe_at_ = 0, probe_each_ = 0;
    std::uint64_t last_ = 0, number_ = 0;
    std::uint64_t sent_at_ = 0, resend_at_ = 0, resend_each_ = 0;
    unsigned resends_ = 0, misses_ = 0;
    std::uint64_t srtt_ = 0, rttvar_ = 0;
    std::size_t packet_bytes_ = 0, args_bytes_ = 0;
    DirectFigures figures_;
    alignas(64) std::byte packet_[most_direct_packet];
    alignas(64) std::byte in_[2 * most_direct_packet];
    std::byte args_[direct_args_room];
};

}  // namespace teal::duck
