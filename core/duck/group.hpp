// One blob to many ducks at once, by multicast. Opt-in on both sides.
//
// Theory of operation. The blob's bytes leave once, to an IPv4 group on one link, sealed with a key of their own that each duck was told over its
// connection. Nothing is acknowledged there. Then each duck gets what it lacks by unicast, through the same put() as ever: the duck says which
// ranges it has. A duck that listens to no groups gets everything that way.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "duck/remote.hpp"

namespace teal::duck {

struct GroupOptions {
    std::string group = "239.255.84.76:9976";
    std::string interface;                          // IPv4 address of the interface by which it leaves
    std::uint64_t bytes_per_second = 100'000'000;   // what the slowest of link and ducks takes; too fast costs repairs, nothing else
    std::size_t datagram_bytes = 1452;              // 1200 to 8952
    std::uint64_t timeout_ns = 60'000'000'000;      // for each duck
    std::function<bool(std::uint64_t)> lost;        // of tests: does the packet with this number get lost on its way?
};

struct GroupPut {
    std::uint64_t group_bytes = 0;   // of the blob, by multicast
    std::vector<PutResult> ducks;    // as put() of each: `sent_bytes` are repairs
};

// `bytes` stay as they are until it returns. Connections all have a key, or none has. Throws what put() throws, and invalid_argument.
GroupPut put_group(std::span<const std::shared_ptr<Remote>> ducks, const BlobDigest& digest, std::span<const std::byte> bytes, const GroupOptions& options);

}  // namespace teal::duck
