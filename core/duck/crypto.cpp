#include "duck/crypto.hpp"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <sys/random.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/error.hpp"

namespace teal::duck {
namespace {

constexpr int x25519_id = 1034;                                // EVP_PKEY_X25519

struct Parameter {  // OSSL_PARAM
    const char* key;
    unsigned type;
    void* data;
    std::size_t size, returned;
};
constexpr unsigned text_parameter = 4, bytes_parameter = 5;    // OSSL_PARAM_UTF8_STRING, _OCTET_STRING

struct Libcrypto {
    const void* (*aes_256_gcm)();
    const void* (*chacha20_poly1305)();
    const void* (*sha256)();
    void* (*cipher_new)();
    void (*cipher_free)(void*);
    int (*cipher_init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
    int (*cipher_update)(void*, unsigned char*, int*, const unsigned char*, int);
    int (*cipher_final)(void*, unsigned char*, int*);
    int (*cipher_get)(void*, Parameter*);
    int (*cipher_set)(void*, const Parameter*);
    void* (*digest_new)();
    void (*digest_free)(void*);
    int (*digest_init)(void*, const void*, void*);
    int (*digest_update)(void*, const void*, std::size_t);
    int (*digest_final)(void*, unsigned char*, unsigned*);
    void* (*mac_fetch)(void*, const char*, const char*);
    void* (*mac_new)(void*);
    void (*mac_free)(void*);
    int (*mac_init)(void*, const unsigned char*, std::size_t, const Parameter*);
    int (*mac_update)(void*, const unsigned char*, std::size_t);
    int (*mac_final)(void*, unsigned char*, std::size_t*, std::size_t);
    void* (*kdf_fetch)(void*, const char*, const char*);
    void* (*kdf_new)(void*);
    void (*kdf_free)(void*);
    int (*kdf_derive)(void*, unsigned char*, std::size_t, const Parameter*);
    void* (*key_private)(int, void*, const unsigned char*, std::size_t);
    void* (*key_public)(int, void*, const unsigned char*, std::size_t);
    int (*key_share)(const void*, unsigned char*, std::size_t*);
    void (*key_free)(void*);
    void* (*agree_new)(void*, void*);
    void (*agree_free)(void*);
    int (*agree_init)(void*);
    int (*agree_peer)(void*, void*);
    int (*agree_derive)(void*, unsigned char*, std::size_t*);
    int (*same)(const void*, const void*, std::size_t);
    void* mac = nullptr;
    void* kdf = nullptr;
    std::string missing;  // empty, or why none of it can be used
};

Libcrypto load() {
    Libcrypto lib{};
    void* handle = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* why = ::dlerror();
        lib.missing = why != nullptr ? why : "libcrypto.so.3 cannot be loaded";
        return lib;
    }
    const auto take = [&](auto& function, const char* name) {
        void* found = ::dlsym(handle, name);
        if (found == nullptr && lib.missing.empty()) lib.missing = std::string("libcrypto.so.3 has no ") + name;
        std::memcpy(&function, &found, sizeof found);
    };
    take(lib.aes_256_gcm, "EVP_aes_256_gcm");
    take(lib.chacha20_poly1305, "EVP_chacha20_poly1305");
    take(lib.sha256, "EVP_sha256");
    take(lib.cipher_new, "EVP_CIPHER_CTX_new");
    take(lib.cipher_free, "EVP_CIPHER_CTX_free");
    take(lib.cipher_init, "EVP_CipherInit_ex");
    take(lib.cipher_update, "EVP_CipherUpdate");
    take(lib.cipher_final, "EVP_CipherFinal_ex");
    take(lib.cipher_get, "EVP_CIPHER_CTX_get_params");
    take(lib.cipher_set, "EVP_CIPHER_CTX_set_params");
    take(lib.digest_new, "EVP_MD_CTX_new");
    take(lib.digest_free, "EVP_MD_CTX_free");
    take(lib.digest_init, "EVP_DigestInit_ex");
    take(lib.digest_update, "EVP_DigestUpdate");
    take(lib.digest_final, "EVP_DigestFinal_ex");
    take(lib.mac_fetch, "EVP_MAC_fetch");
    take(lib.mac_new, "EVP_MAC_CTX_new");
    take(lib.mac_free, "EVP_MAC_CTX_free");
    take(lib.mac_init, "EVP_MAC_init");
    take(lib.mac_update, "EVP_MAC_update");
    take(lib.mac_final, "EVP_MAC_final");
    take(lib.kdf_fetch, "EVP_KDF_fetch");
    take(lib.kdf_new, "EVP_KDF_CTX_new");
    take(lib.kdf_free, "EVP_KDF_CTX_free");
    take(lib.kdf_derive, "EVP_KDF_derive");
    take(lib.key_private, "EVP_PKEY_new_raw_private_key");
    take(lib.key_public, "EVP_PKEY_new_raw_public_key");
    take(lib.key_share, "EVP_PKEY_get_raw_public_key");
    take(lib.key_free, "EVP_PKEY_free");
    take(lib.agree_new, "EVP_PKEY_CTX_new");
    take(lib.agree_free, "EVP_PKEY_CTX_free");
    take(lib.agree_init, "EVP_PKEY_derive_init");
    take(lib.agree_peer, "EVP_PKEY_derive_set_peer");
    take(lib.agree_derive, "EVP_PKEY_derive");
    take(lib.same, "CRYPTO_memcmp");
    if (!lib.missing.empty()) return lib;
    lib.mac = lib.mac_fetch(nullptr, "HMAC", nullptr);
    lib.kdf = lib.kdf_fetch(nullptr, "HKDF", nullptr);
    if (lib.mac == nullptr || lib.kdf == nullptr) lib.missing = "libcrypto.so.3 offers no HMAC or no HKDF";
    return lib;
}

const Libcrypto& found() {
    static const Libcrypto lib = load();  // never unloaded
    return lib;
}

const Libcrypto& libcrypto(const char* what_for = "this") {
    const Libcrypto& lib = found();
    if (!lib.missing.empty())
        throw Error(Code::not_found, std::string("duck: ") + what_for + " needs OpenSSL 3's libcrypto.so.3 (packages: libssl3, or openssl-libs): " + lib.missing);
    return lib;
}

void must(bool ok, const char* what) {
    if (!ok) throw Error(Code::internal_error, std::string("duck: libcrypto failed at ") + what);
}

const unsigned char* raw(const std::byte* at) noexcept { return reinterpret_cast<const unsigned char*>(at); }
unsigned char* raw(std::byte* at) noexcept { return reinterpret_cast<unsigned char*>(at); }

char sha256_name[] = "SHA256";

}  // namespace

void need_libcrypto(const char* what_for) { (void)libcrypto(what_for); }

void random_bytes(std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t n = ::getrandom(out.data(), out.size(), 0);
        if (n < 0 && errno != EINTR) throw Error(Code::internal_error, system_message("getrandom", errno));
        if (n > 0) out = out.subspan(static_cast<std::size_t>(n));
    }
}

Bytes32 hmac_sha256(std::span<const std::byte> key, std::span<const std::span<const std::byte>> parts) {
    const Libcrypto& lib = libcrypto();
    const std::unique_ptr<void, void (*)(void*)> context(lib.mac_new(lib.mac), lib.mac_free);
    const Parameter parameters[] = {{"digest", text_parameter, sha256_name, 6, 0}, {nullptr, 0, nullptr, 0, 0}};
    must(context != nullptr && lib.mac_init(context.get(), raw(key.data()), key.size(), parameters) == 1, "EVP_MAC_init");
    for (const auto& part : parts) must(lib.mac_update(context.get(), raw(part.data()), part.size()) == 1, "EVP_MAC_update");
    Bytes32 out{};
    std::size_t n = 0;
    must(lib.mac_final(context.get(), raw(out.data()), &n, out.size()) == 1 && n == out.size(), "EVP_MAC_final");
    return out;
}

void hkdf_sha256(std::span<const std::byte> secret, std::span<const std::byte> salt, std::span<const std::byte> info, std::span<std::byte> out) {
    const Libcrypto& lib = libcrypto();
    const std::unique_ptr<void, void (*)(void*)> context(lib.kdf_new(lib.kdf), lib.kdf_free);
    Parameter parameters[5] = {{"digest", text_parameter, sha256_name, 6, 0}, {}, {}, {}, {}};
    std::size_t count = 1;
    const auto add = [&](const char* name, std::span<const std::byte> of) {  // libcrypto only reads them, and takes no empty ones
        if (!of.empty()) parameters[count++] = {name, bytes_parameter, const_cast<std::byte*>(of.data()), of.size(), 0};
    };
    add("key", secret);
    add("salt", salt);
    add("info", info);
    must(context != nullptr && lib.kdf_derive(context.get(), raw(out.data()), out.size(), parameters) == 1, "EVP_KDF_derive");
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
    if (a.size() != b.size()) return false;
    const Libcrypto& lib = found();
    if (lib.missing.empty()) return lib.same(a.data(), b.data(), a.size()) == 0;
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
    return difference == 0;
}

KeyShare::KeyShare() {
    const Libcrypto& lib = libcrypto("a key");
    Bytes32 secret;
    random_bytes(secret);
    key_ = lib.key_private(x25519_id, nullptr, raw(secret.data()), secret.size());
    must(key_ != nullptr, "EVP_PKEY_new_raw_private_key");
    std::size_t n = share_.size();
    const bool ok = lib.key_share(key_, raw(share_.data()), &n) == 1 && n == share_.size();
    if (!ok) lib.key_free(key_);
    must(ok, "EVP_PKEY_get_raw_public_key");
}

KeyShare::~KeyShare() { found().key_free(key_); }

bool KeyShare::agree(const Bytes32& other, Bytes32& secret) const {
    const Libcrypto& lib = libcrypto();
    const std::unique_ptr<void, void (*)(void*)> peer(lib.key_public(x25519_id, nullptr, raw(other.data()), other.size()), lib.key_free);
    const std::unique_ptr<void, void (*)(void*)> context(lib.agree_new(key_, nullptr), lib.agree_free);
    must(peer != nullptr && context != nullptr && lib.agree_init(context.get()) == 1, "EVP_PKEY_derive_init");
    std::size_t n = secret.size();
    return lib.agree_peer(context.get(), peer.get()) == 1 && lib.agree_derive(context.get(), raw(secret.data()), &n) == 1 && n == secret.size();
}

Bytes32 sha256_of(std::span<const std::span<const std::byte>> parts) {
    const Libcrypto& lib = libcrypto();
    const std::unique_ptr<void, void (*)(void*)> context(lib.digest_new(), lib.digest_free);
    must(context != nullptr && lib.digest_init(context.get(), lib.sha256(), nullptr) == 1, "EVP_DigestInit_ex");
    for (const auto& part : parts) must(lib.digest_update(context.get(), part.data(), part.size()) == 1, "EVP_DigestUpdate");
    Bytes32 out{};
    unsigned n = 0;
    must(lib.digest_final(context.get(), raw(out.data()), &n) == 1 && n == out.size(), "EVP_DigestFinal_ex");
    return out;
}

bool has_fast_aes() noexcept {
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
    return (::getauxval(AT_HWCAP) & (1UL << 3)) != 0;  // HWCAP_AES
#else
    return false;
#endif
}

Aead::Aead(Cipher cipher, bool sealing, std::span<const std::byte, 32> key, std::span<const std::byte, 12> iv) {
    const Libcrypto& lib = libcrypto("a key");
    std::memcpy(iv_.data(), iv.data(), iv.size());
    context_ = lib.cipher_new();
    const void* chosen = cipher == Cipher::chacha20_poly1305 ? lib.chacha20_poly1305() : lib.aes_256_gcm();
    must(context_ != nullptr && lib.cipher_init(context_, chosen, nullptr, raw(key.data()), raw(iv.data()), sealing ? 1 : 0) == 1, "EVP_CipherInit_ex");
}

Aead::~Aead() { found().cipher_free(context_); }

void Aead::nonce(std::uint64_t number, unsigned char* out) const noexcept {
    std::memcpy(out, iv_.data(), iv_.size());
    for (unsigned i = 0; i < 8; ++i) out[11 - i] = static_cast<unsigned char>(out[11 - i] ^ static_cast<unsigned char>(number >> 8 * i));
}

void Aead::seal(std::uint64_t number, std::span<const std::byte> head, std::byte* text, std::size_t bytes) noexcept {
    const Libcrypto& lib = found();
    unsigned char iv[12];
    nonce(number, iv);
    int n = 0;
    Parameter tag[2] = {{"tag", bytes_parameter, text + bytes, tag_bytes, 0}, {nullptr, 0, nullptr, 0, 0}};
    const bool ok = lib.cipher_init(context_, nullptr, nullptr, nullptr, iv, 1) == 1 &&
                    lib.cipher_update(context_, nullptr, &n, raw(head.data()), static_cast<int>(head.size())) == 1 &&
                    lib.cipher_update(context_, raw(text), &n, raw(text), static_cast<int>(bytes)) == 1 && lib.cipher_final(context_, raw(text + bytes), &n) == 1 &&
                    lib.cipher_get(context_, tag) == 1;
    if (!ok) std::memset(text, 0, bytes + tag_bytes);  // never in the clear; the peer drops it
}

bool Aead::open(std::uint64_t number, std::span<const std::byte> head, std::byte* text, std::size_t bytes) noexcept {
    const Libcrypto& lib = found();
    unsigned char iv[12];
    nonce(number, iv);
    int n = 0;
    unsigned char none[16];
    const Parameter tag[2] = {{"tag", bytes_parameter, text + bytes, tag_bytes, 0}, {nullptr, 0, nullptr, 0, 0}};
    return lib.cipher_init(context_, nullptr, nullptr, nullptr, iv, 0) == 1 &&
           lib.cipher_update(context_, nullptr, &n, raw(head.data()), static_cast<int>(head.size())) == 1 &&
           lib.cipher_update(context_, raw(text), &n, raw(text), static_cast<int>(bytes)) == 1 &&
           lib.cipher_set(context_, tag) == 1 && lib.cipher_final(context_, none, &n) == 1;
}

}  // namespace teal::duck
