#include "duck/pour.hpp"

#include <algorithm>

namespace teal::duck {
namespace {

constexpr std::size_t most_packets = 64, most_run = 65000;  // that one call may hand to the kernel

bool pour_held(Connection& connection, UdpSocket& socket, const Address* to, HeldPackets& held) {
    if (held.bytes.empty()) return true;
    const Sent sent = socket.send(held.bytes, held.each, to);
    if (sent == Sent::full) return false;
    if (sent == Sent::too_long) connection.too_long(held.each);
    held.bytes.clear();
    return true;
}

}  // namespace

bool pour(Connection& connection, Above& above, std::uint64_t now, UdpSocket& socket, const Address* to, std::span<std::byte> space, HeldPackets& held) {
    for (bool more = true; more;) {
        if (!pour_held(connection, socket, to, held)) return false;
        std::size_t filled = 0, each = 0, last = 0;
        for (std::size_t count = 0; count < most_packets && filled + each <= most_run; ++count) {
            if (count != 0 && (last != each || !connection.has_more() || connection.probing())) break;  // a shorter one ends the run; a probe wants all the space
            last = connection.send(space.subspan(filled, std::min(most_packet, space.size() - filled)), now, above);
            more = last != 0;
            if (!more) break;
            if (each == 0) each = last;
            if (last > each) {  // a longer one cannot follow
                held.bytes.assign(space.begin() + static_cast<std::ptrdiff_t>(filled), space.begin() + static_cast<std::ptrdiff_t>(filled + last));
                held.each = last;
                break;
            }
            filled += last;
        }
        if (filled == 0) continue;
        const Sent sent = socket.send(space.first(filled), each, to);
        if (sent == Sent::too_long) connection.too_long(each);
        if (sent == Sent::full) {  // before what was held since
            if (held.bytes.empty()) held.each = each;
            else if (held.each != each) return false;  // lost: two lengths cannot wait as one
            held.bytes.insert(held.bytes.begin(), space.begin(), space.begin() + static_cast<std::ptrdiff_t>(filled));
            return false;
        }
        if (each != 0 && !connection.has_more() && held.bytes.empty()) break;
    }
    return true;
}

}  // namespace teal::duck
