// Theory of operation. Direct calls of a duck with a key are sealed and opened by the box itself, with libcrypto and nothing else. teal-box is linked
// statically and has none: teal-sealed-box is the same code, linked dynamically (TEAL_SEALS), whose zygote loads libcrypto.so.3 before it
// locks itself up, and sets up a context for each cipher and direction, so that a box only gives them its keys: no call that allocates,
// looks for a provider or reads a file comes after the filter.
//
// The program's thread pointer is not libc's, and libcrypto's errors and allocations are a thread's: around each call the thread pointer is
// the one that libc gave this process. The program may read the keys: they are its own session's, and from them no others can be made.
#include "box/inside/seal.hpp"

#include <cerrno>

#if defined(TEAL_SEALS)
#include <dlfcn.h>
#include <sys/auxv.h>
#include <sys/syscall.h>

#include <cstring>

#include "box/inside/gate.hpp"
#include "box/inside/thread_pointer.hpp"
#endif

namespace teal::box {

#if defined(TEAL_SEALS)
namespace {

struct Parameter {   // OSSL_PARAM
    const char* key;
    unsigned type;
    void* data;
    std::size_t size, returned;
};
constexpr unsigned bytes_parameter = 5;   // OSSL_PARAM_OCTET_STRING
constexpr std::size_t key_bytes = 32, iv_bytes = 12;

struct Libcrypto {
    void* (*new_context)();
    int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
    int (*update)(void*, unsigned char*, int*, const unsigned char*, int);
    int (*final)(void*, unsigned char*, int*);
    int (*get)(void*, Parameter*);
    int (*set)(void*, const Parameter*);
} lib;
void* made[3][2];             // by cipher and direction: 0 opens, 1 seals
void* opens = nullptr;
void* seals = nullptr;
unsigned char open_iv[iv_bytes], seal_iv[iv_bytes];
std::uint64_t own_pointer = 0;
[[maybe_unused]] bool quick_pointer = false;   // x86-64: the CPU has instructions for it, and Linux allows them

template <class Function>
bool take(void* library, Function& function, const char* name) noexcept {
    void* found = ::dlsym(library, name);
    std::memcpy(&function, &found, sizeof found);
    return found != nullptr;
}

class OwnPointer {
public:
    OwnPointer() noexcept : program_(thread_pointer(quick_pointer)) { set_thread_pointer(own_pointer, quick_pointer); }
    ~OwnPointer() { set_thread_pointer(program_, quick_pointer); }
    OwnPointer(const OwnPointer&) = delete;
    OwnPointer& operator=(const OwnPointer&) = delete;

private:
    std::uint64_t program_;
};

// As TLS 1.3 does.
void nonce(std::uint64_t number, const unsigned char* iv, unsigned char* out) noexcept {
    std::memcpy(out, iv, iv_bytes);
    for (unsigned i = 0; i < 8; ++i) out[11 - i] = static_cast<unsigned char>(out[11 - i] ^ static_cast<unsigned char>(number >> 8 * i));
}

}  // namespace

int load_seals() noexcept {
    void* library = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return ENOENT;
    const void* (*ciphers[3])() = {nullptr, nullptr, nullptr};
    const bool all = take(library, lib.new_context, "EVP_CIPHER_CTX_new") && take(library, lib.init, "EVP_CipherInit_ex") &&
                     take(library, lib.update, "EVP_CipherUpdate") && take(library, lib.final, "EVP_CipherFinal_ex") &&
                     take(library, lib.get, "EVP_CIPHER_CTX_get_params") && take(library, lib.set, "EVP_CIPHER_CTX_set_params") &&
                     take(library, ciphers[1], "EVP_aes_256_gcm") && take(library, ciphers[2], "EVP_chacha20_poly1305");
    if (!all) return ENOENT;
    const unsigned char zeros[key_bytes] = {};
    for (int cipher = 1; cipher <= 2; ++cipher)
        for (int direction = 0; direction < 2; ++direction) {
            void* context = made[cipher][direction] = lib.new_context();
            if (context == nullptr || lib.init(context, ciphers[cipher](), nullptr, zeros, zeros, direction) != 1) return ENOENT;
        }
    return 0;
}

int prepare_seals(std::uint32_t cipher, const duck::DirectKeys& keys) noexcept {
    if (cipher == 0) return 0;
    if (cipher > 2 || made[cipher][0] == nullptr || made[cipher][1] == nullptr) return EINVAL;
    const auto* bytes = reinterpret_cast<const unsigned char*>(keys.data());
    std::memcpy(open_iv, bytes + key_bytes, iv_bytes);
    std::memcpy(seal_iv, bytes + key_bytes + iv_bytes + key_bytes, iv_bytes);
    void *in = made[cipher][0], *out = made[cipher][1];
    if (lib.init(in, nullptr, nullptr, bytes, open_iv, 0) != 1 || lib.init(out, nullptr, nullptr, bytes + key_bytes + iv_bytes, seal_iv, 1) != 1) return EINVAL;
#if defined(__x86_64__)
    quick_pointer = (::getauxval(AT_HWCAP2) & 2) != 0;   // HWCAP2_FSGSBASE
#endif
    own_pointer = thread_pointer(quick_pointer);
    opens = in;
    seals = out;
    return 0;
}

std::size_t seal_bytes() noexcept { return seals == nullptr ? 0 : duck::direct_tag_bytes; }

void seal(std::uint64_t number, std::byte* packet, std::size_t head, std::size_t bytes) noexcept {
    if (seals == nullptr) return;
    const OwnPointer own;
    auto* at = reinterpret_cast<unsigned char*>(packet);
    unsigned char iv[iv_bytes];
    nonce(number, seal_iv, iv);
    int n = 0;
    Parameter tag[2] = {{"tag", bytes_parameter, at + head + bytes, duck::direct_tag_bytes, 0}, {nullptr, 0, nullptr, 0, 0}};
    const bool sealed = lib.init(seals, nullptr, nullptr, nullptr, iv, 1) == 1 && lib.update(seals, nullptr, &n, at, static_cast<int>(head)) == 1 &&
                        lib.update(seals, at + head, &n, at + head, static_cast<int>(bytes)) == 1 && lib.final(seals, at + head + bytes, &n) == 1 &&
                        lib.get(seals, tag) == 1;
    if (!sealed) std::memset(at + head, 0, bytes + duck::direct_tag_bytes);   // never in the clear; the client drops it
}

bool unseal(std::uint64_t number, std::byte* packet, std::size_t head, std::size_t bytes) noexcept {
    if (opens == nullptr) return true;
    const OwnPointer own;
    auto* at = reinterpret_cast<unsigned char*>(packet);
    unsigned char iv[iv_bytes], none[16];
    nonce(number, open_iv, iv);
    int n = 0;
    const Parameter tag[2] = {{"tag", bytes_parameter, at + head + bytes, duck::direct_tag_bytes, 0}, {nullptr, 0, nullptr, 0, 0}};
    return lib.init(opens, nullptr, nullptr, nullptr, iv, 0) == 1 && lib.update(opens, nullptr, &n, at, static_cast<int>(head)) == 1 &&
           lib.update(opens, at + head, &n, at + head, static_cast<int>(bytes)) == 1 && lib.set(opens, tag) == 1 && lib.final(opens, none, &n) == 1;
}

#else

int load_seals() noexcept { return ENOSYS; }
int prepare_seals(std::uint32_t cipher, const duck::DirectKeys&) noexcept { return cipher == 0 ? 0 : EINVAL; }
std::size_t seal_bytes() noexcept { return 0; }
void seal(std::uint64_t, std::byte*, std::size_t, std::size_t) noexcept {}
bool unseal(std::uint64_t, std::byte*, std::size_t, std::size_t) noexcept { return true; }

#endif

}  // namespace teal::box
