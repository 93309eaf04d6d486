// Does this kernel let us do what Teal lives on? Answered by doing it, in this process, and undoing it: a version number says
// nothing about seccomp filters, containers or sysctls.
//
// Each probe returns 0 or the errno of the step that failed; none throws, blocks, or leaves a descriptor or thread behind.
#pragma once

#include <string_view>

namespace teal {

int probe_memfd_seals() noexcept;   // memfd_create, reserve pages, seal against shrinking, and see a shrink refused
int probe_memfd_huge() noexcept;    // the same region in 2 MiB pages of the hugetlb pool; ENOMEM or ENOSPC: the pool is empty
int probe_futex_waitv() noexcept;   // wait for several words at once (Linux 5.16)
int probe_pidfd() noexcept;         // pidfd_open: hear of a process that ends without racing its pid (Linux 5.3)
int probe_robust_futex() noexcept;  // the kernel passes a lock on when its holder dies: EOWNERDEAD
int probe_fd_passing() noexcept;    // a descriptor through a UNIX socket (SCM_RIGHTS)
int probe_peer_identity() noexcept; // SO_PEERCRED says who is at the other end, and says our own pid and uid

struct Probe {
    std::string_view name;
    int (*run)() noexcept;
};

// All of them, in the order above.
inline constexpr Probe probes[] = {
    {"memfd_seals", probe_memfd_seals},   {"memfd_huge", probe_memfd_huge},
    {"futex_waitv", probe_futex_waitv},   {"pidfd_open", probe_pidfd},
    {"robust_futex", probe_robust_futex}, {"fd_passing", probe_fd_passing},
    {"peer_identity", probe_peer_identity},
};

}  // namespace teal
