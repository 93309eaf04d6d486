// What a call over the network costs beside a bare datagram: measured in one run, on two cores of this machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "box/yard.hpp"

namespace teal {

struct DuckEchoSpec {
    std::uint32_t calls = 20'000;      // of each kind
    std::size_t bytes = 64;            // arguments, and result
    int client_core = 0, duck_core = 1;
    std::string near = {}, far = {};   // network namespaces of client and duck, as files; empty: this one
    std::string host = "127.0.0.1";    // the duck's address in its own
};

// Round trips in ns, taken in turns of a few hundred so that a disturbed moment disturbs all alike.
struct DuckEchoTimes {
    std::vector<std::uint32_t> bare;   // recvfrom and sendto, send and recv: the same sizes as the packets of a call without a key
    std::vector<std::uint32_t> bare_small;  // datagrams of `bytes` alone
    std::vector<std::uint32_t> call;   // resident call, inline sink, no key
    std::vector<std::uint32_t> sealed; // the same with a key
};

// Throws invalid_argument (numbers, a core that may not be used), peer_died.
DuckEchoTimes measure_duck_echo(const DuckEchoSpec& spec);

struct DuckDirectSpec {
    box::Yard* yard = nullptr;         // of boxes that take direct calls
    box::Yard* sealed = nullptr;       // of boxes that take sealed ones; null: those are not measured
    box::Image image;                  // of a program that answers with its arguments
    std::uint32_t calls = 20'000;
    std::size_t bytes = 64;
    int client_core = 0, box_core = 1;
    std::string near = {}, far = {};   // as of DuckEchoSpec
    std::string host = "127.0.0.1";    // beyond the loopback only sealed calls are measured
};

struct DuckDirectTimes {
    std::vector<std::uint32_t> bare;   // the same sizes as the packets of a direct call without a key
    std::vector<std::uint32_t> bare_small;
    std::vector<std::uint32_t> call;   // a real box on its core, the network loop asleep
    std::vector<std::uint32_t> sealed;
};

// Throws as measure_duck_echo(), and what opening a session throws.
DuckDirectTimes measure_duck_direct(const DuckDirectSpec& spec);

struct DuckBlobSpec {
    std::uint64_t bytes = 64 << 20;
    std::uint32_t times = 5;
    int client_core = 0, duck_core = 1;
    std::string near = {}, far = {};
    std::string host = "127.0.0.1";
};

// Bytes per second, one a time.
struct BlobRates {
    std::vector<double> there;         // until all of it was the client's to use
    std::vector<double> checked;       // until its SHA-256 was compared as well
};
struct DuckBlobRates {
    std::vector<double> bare_udp, bare_tcp;              // into memory that is new to the receiver
    std::vector<double> bare_udp_huge, bare_tcp_huge;    // the same with huge pages, where there are any
    std::vector<double> bare_udp_small, bare_tcp_small;  // into one buffer of 256 KiB, again and again
    BlobRates udp, tcp;                // without a key; empty beyond the loopback
    BlobRates udp_sealed, tcp_sealed;
};

DuckBlobRates measure_duck_blob(const DuckBlobSpec& spec);

}  // namespace teal
