// The few things that Teal takes from OpenSSL: AEAD, HKDF, HMAC, SHA-256 (of handshakes; blobs have base/sha256.hpp), X25519.
//
// Theory of operation. libcrypto.so.3 is loaded when it is first needed (dlopen), so that a Teal without keys needs no OpenSSL at all; the
// prototypes we use are declared in crypto.cpp. Nothing here is cryptography of our own: each function is one or a few calls of
// libcrypto's EVP interface. Whatever fails there (out of memory) throws internal_error, except open(), which answers false.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace teal::duck {

using Bytes32 = std::array<std::byte, 32>;

// Throws not_found, with what to install, unless libcrypto can be used. The rest throws the same.
void need_libcrypto(const char* what_for);

void random_bytes(std::span<std::byte> out);                      // of the operating system; needs no libcrypto
Bytes32 hmac_sha256(std::span<const std::byte> key, std::span<const std::span<const std::byte>> parts);
void hkdf_sha256(std::span<const std::byte> secret, std::span<const std::byte> salt, std::span<const std::byte> info, std::span<std::byte> out);
[[nodiscard]] bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;  // in constant time

// An ephemeral X25519 key pair.
class KeyShare {
public:
    KeyShare();
    ~KeyShare();
    KeyShare(const KeyShare&) = delete;
    KeyShare& operator=(const KeyShare&) = delete;
    [[nodiscard]] const Bytes32& share() const noexcept { return share_; }
    // False for a share that gives away the secret (all-zero result).
    [[nodiscard]] bool agree(const Bytes32& other, Bytes32& secret) const;

private:
    void* key_ = nullptr;
    Bytes32 share_{};
};

Bytes32 sha256_of(std::span<const std::span<const std::byte>> parts);

enum class Cipher : std::uint32_t { none = 0, aes_256_gcm = 1, chacha20_poly1305 = 2 };
[[nodiscard]] bool has_fast_aes() noexcept;  // of this CPU

inline constexpr std::size_t tag_bytes = 16;

// One direction of one connection: seals or opens packets; the packet number makes the nonce (xor with the IV, as TLS 1.3 does). One thread.
class Aead {
public:
    Aead(Cipher cipher, bool sealing, std::span<const std::byte, 32> key, std::span<const std::byte, 12> iv);
    ~Aead();
    Aead(const Aead&) = delete;
    Aead& operator=(const Aead&) = delete;
    // In place; the tag goes to text + bytes.
    void seal(std::uint64_t number, std::span<const std::byte> head, std::byte* text, std::size_t bytes) noexcept;
    // False: not sealed with this key, number and head; `text` is then worthless.
    [[nodiscard]] bool open(std::uint64_t number, std::span<const std::byte> head, std::byte* text, std::size_t bytes) noexcept;

private:
    void nonce(std::uint64_t number, unsigned char* out) const noexcept;
    void* context_ = nullptr;
    std::array<std::byte, 12> iv_{};
};

}  // namespace teal::duck
