// Sockets for direct calls, on the duck's side. See direct.hpp.
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.hpp"
#include "duck/direct.hpp"
#include "duck/net_impl.hpp"

namespace teal::duck {
namespace {

// At the duck's own address, connected to the client's host and this port: nobody else's packets come in.
int connected_socket(const Address& local, const Address& client, std::uint16_t port) {
    Address to = client;
    if (to.raw.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(to.raw).sin6_port = htons(port);
    else reinterpret_cast<sockaddr_in&>(to.raw).sin_port = htons(port);
    const int fd = direct_socket_at(local);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&to.raw), to.bytes) != 0) {
        const int error = errno;
        ::close(fd);
        throw Error(Code::invalid_argument, system_message(("direct calls from " + to.text()).c_str(), error));
    }
    // What came before it was connected may be anybody's.
    std::byte stray[1];
    while (::recv(fd, stray, sizeof stray, MSG_DONTWAIT) >= 0) {
    }
    return fd;
}

}  // namespace

DirectOffer Net::direct(std::uint64_t connection, std::uint16_t port) {
    DirectOffer offer;
    impl_->order_and_wait([&] {
        Peer* peer = impl_->find(connection);
        if (peer == nullptr) {
            offer.refused = "the client is gone";
        } else if (peer->stream != nullptr) {
            offer.refused = "the client came over TCP";
        } else if (port == 0) {
            offer.refused = "the client has no port for them";
        } else {
            try {
                do random_bytes(std::as_writable_bytes(std::span(&offer.id, 1)));
                while (offer.id == 0);
                offer.cipher = peer->connection.cipher();
                if (offer.cipher != Cipher::none) offer.keys = direct_keys(peer->connection.exporter(), offer.id);
                offer.fd = connected_socket(impl_->udp.local(), peer->address, port);
                Address here;
                here.bytes = sizeof here.raw;
                ::getsockname(offer.fd, reinterpret_cast<sockaddr*>(&here.raw), &here.bytes);
                offer.port = here.port();
                ++impl_->figures_.directs;
            } catch (const Error& error) {
                offer.refused = error.what();
            }
        }
    });
    if (!offer.refused.empty()) impl_->order([impl = impl_.get()] { ++impl->figures_.directs_refused; });
    return offer;
}

}  // namespace teal::duck
