// Where a host listens, and a connection to it. The rules are those of src/teal/host/address.py.
//
// Theory of operation: the default is the abstract name @teal/<uid>/default, or what the environment's TEAL_HOST says. Anybody on
// the machine may bind an abstract name, so the kernel is asked whose process listens there (SO_PEERCRED): only this user's or
// root's will do, unless a foreign address was given by hand.
#pragma once

#include <string>

namespace teal::capi {

// A descriptor that closes itself.
class Fd {
public:
    explicit Fd(int fd = -1) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(other.take()) {}
    Fd& operator=(Fd&& other) noexcept;
    ~Fd();
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] int take() noexcept { const int fd = fd_; fd_ = -1; return fd; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_;
};

inline constexpr int patience_s = 5;  // for a host that takes a connection, or says hello

// `given`: null for the default, a name, an abstract address or a path. Throws Failure.
std::string choose_address(const char* given);

// Connected, SOCK_SEQPACKET, close-on-exec. Throws Failure: no_host, host_gone (it does not answer).
Fd connect_to(const std::string& address, bool by_default);

}  // namespace teal::capi
