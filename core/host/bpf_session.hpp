// The memory of a BPF session: a session region, what BPF programs keep their side in, and tensors, in one BPF map.
//
// Layout of the map's one value:
//   session region (host/session.hpp) | teal_bpf_producer | teal_bpf_slot[slots] | BpfStages | tensor region
// each part on its own pages. teal_bpf.h is what programs see of it; bpf_session.cpp holds the two against each other. Host and
// workers believe nothing in the producer block: to them the session is one like any other, whose client may write whatever
// it likes, wherever it likes.
#pragma once

#include <cstdint>
#include <memory>

#include "host/session.hpp"
#include "teal_bpf.h"

namespace teal {

struct BpfSpan {  // offsets from the start of the map's value
    std::uint64_t producer;
    std::uint64_t slots;
    std::uint64_t stages;
    std::uint64_t tensors;
};

// Where the time of its requests went, as the workers saw it: a BPF program has no clock of ours, and nothing to keep numbers in. For
// people, as ClientStages are: whoever maps the memory may write here.
struct alignas(64) BpfStages {
    Histogram queue;  // taken from the ring → kernel entered
    Histogram run;    // in the kernel
};

// `slots`: a power of two, 1..1024 (throws invalid_argument).
BpfSpan bpf_span(std::uint32_t slots);

// Host, worker, client: maps the memory of a session (takes the descriptor). `bytes`: as memory_map_bytes() said on this
// machine. The tensor part becomes region 0.
std::unique_ptr<SessionMap> map_bpf_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t bytes);

// Host: writes headers, an empty ring and a producer block that is not open yet.
void format_bpf_session(SessionMap& map);

teal_bpf_producer* producer_of(const SessionMap& map) noexcept;
teal_bpf_slot* slots_of(const SessionMap& map) noexcept;

// Anyone who maps it: from now on take() refuses.
void shut_producer(const SessionMap& map) noexcept;

}  // namespace teal
