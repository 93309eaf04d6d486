// How a client and a duck come to share a connection: hello, retry, hello with cookie, welcome. No I/O.
//
// Theory of operation. The first hello only proves that the client's address is its own: the duck answers with a cookie (an HMAC over
// address and hello under a secret of its own that nobody else knows) and keeps nothing. The second hello carries the cookie and an HMAC under
// a key made from the pre-shared one, and an X25519 share. Only then does the duck spend work and memory, and welcomes with a share and an HMAC of
// its own over both. Both then make the keys of the connection, one for each direction, from the pre-shared key and the X25519 secret: who
// learns the pre-shared key later can open nothing that was recorded. A hello with a wrong HMAC gets no answer.
// Without a key (loopback only) there are no HMACs and no shares; cookie, ids and randoms remain.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "duck/connection.hpp"

namespace teal::duck {

inline constexpr std::size_t least_key_bytes = 16;
inline constexpr std::uint64_t cookie_life_s = 10;
inline constexpr std::uint64_t least_dead_after_ns = 50'000'000, most_dead_after_ns = 600'000'000'000;

// Throws invalid_argument for a key that is too short, not_found without libcrypto.
void check_key(std::span<const std::byte> key);

class ClientHello {
public:
    ClientHello(std::span<const std::byte> key, std::uint64_t dead_after_ns, std::uint64_t window);
    // least_packet bytes.
    void write(std::span<std::byte> out);
    // What came back. `again`: call write() once more, now. `failed`: throw failure().
    enum class Step : std::uint8_t { ignored, again, done, failed };
    Step read(std::span<const std::byte> packet);
    [[nodiscard]] const ConnectionOptions& options() const noexcept { return options_; }  // after `done`
    [[nodiscard]] bool was_answered() const noexcept { return answered_; }                // there is a duck
    [[noreturn]] void fail(const std::string& address) const;

private:
    Step read_retry(std::span<const std::byte> packet);
    Step read_welcome(std::span<const std::byte> packet);

    std::vector<std::byte> key_;
    std::optional<KeyShare> share_;
    Hello hello_{};
    ConnectionOptions options_;
    bool answered_ = false;
    unsigned writes_ = 0;  // since the last cookie
    std::optional<Refuse> refused_;
    bool keys_differ_ = false, duck_is_keyed_ = false;
};

// The duck's side: stateless.
class Door {
public:
    Door(std::span<const std::byte> key, std::uint64_t window);
    enum class What : std::uint8_t { dropped, wrong, answered, welcome };
    // `wrong`: its HMAC says another key. `answered`: send `out` (reply_bytes). `welcome`: the same, and make a connection of `options`.
    What read(std::span<const std::byte> packet, std::span<const std::byte> address, std::uint64_t second, bool full, std::span<std::byte> out, std::size_t& reply_bytes,
              ConnectionOptions& options);
    // A well-formed hello, for the duck to see whether it has welcomed it already.
    [[nodiscard]] static std::optional<Hello> hello_in(std::span<const std::byte> packet) noexcept;

private:
    Bytes32 cookie(const Hello& hello, std::span<const std::byte> address, std::uint64_t second) const;
    void welcome(const Hello& hello, std::span<std::byte> out, ConnectionOptions& options);

    std::vector<std::byte> key_;
    Bytes32 secret_{};
    std::uint64_t window_;
};

}  // namespace teal::duck
