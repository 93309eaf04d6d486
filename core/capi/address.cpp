#include "capi/address.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "capi/failure.hpp"

namespace teal::capi {
namespace {

constexpr std::size_t longest = 100;

bool is_name(std::string_view name) noexcept {
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
    if (name.empty() || name.size() > 64 || !letter(name[0])) return false;
    for (const char c : name)
        if (!letter(c) && c != '.' && c != '_' && c != '-') return false;
    return true;
}

std::string own_address(std::string_view name) { return "@teal/" + std::to_string(::getuid()) + "/" + std::string(name); }

std::string system_words(int number) { return ::strerrordesc_np(number) != nullptr ? ::strerrordesc_np(number) : "unknown error"; }

// An interrupted connect() of a UNIX socket has not connected: it may be called again.
int connect_again(int fd, const sockaddr_un& name, socklen_t length) noexcept {
    int result;
    do { result = ::connect(fd, reinterpret_cast<const sockaddr*>(&name), length); } while (result != 0 && errno == EINTR);
    return result;
}

void check_owner(int fd, const std::string& address, bool by_default) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        throw Failure(LAIKA_ERR_NO_HOST, "who listens at " + address + " cannot be told: " + system_words(errno));
    const bool ours = address.starts_with(own_address(""));  // anybody may bind that name; only we and root may mean it
    if (!(by_default || ours) || peer.uid == ::getuid() || peer.uid == 0) return;
    throw Failure(LAIKA_ERR_NO_HOST, "the host at " + address + " belongs to user " + std::to_string(peer.uid) + ", not to you; " +
                  (ours ? "start yours under another --name" : "give its address by hand if you trust it"));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = other.take();
    }
    return *this;
}

Fd::~Fd() {
    if (fd_ >= 0) ::close(fd_);
}

std::string choose_address(const char* given) {
    std::string address;
    if (given == nullptr) {
        const char* environment = ::secure_getenv("TEAL_HOST");
        address = environment != nullptr && *environment != '\0' ? environment : own_address("default");
    } else {
        address.assign(given, ::strnlen(given, longest + 1));
        if (is_name(address)) address = own_address(address);
    }
    if (address.empty() || address.size() > longest)
        throw Failure(LAIKA_ERR_INVALID, "address '" + address.substr(0, 60) + "': expected a name, @… or a path of 1 to 100 bytes");
    return address;
}

Fd connect_to(const std::string& address, bool by_default) {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!fd) throw Failure(LAIKA_ERR_NO_HOST, "making a socket: " + system_words(errno));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    if (address[0] == '@') name.sun_path[0] = '\0';
    const timeval bound{patience_s, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + (address[0] == '@' ? 0 : 1));
    if (connect_again(fd.get(), name, length) != 0) {
        if (errno == EAGAIN)
            throw Failure(LAIKA_ERR_HOST_GONE, "something listens at " + address + " and took no connection within " + std::to_string(patience_s) + " s");
        throw Failure(LAIKA_ERR_NO_HOST, "no host listens at " + address + " (" + system_words(errno) + "); start one with `teal serve`");
    }
    check_owner(fd.get(), address, by_default);
    const timeval unbounded{};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &unbounded, sizeof unbounded);
    return fd;
}

}  // namespace teal::capi
