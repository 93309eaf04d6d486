// Locks a process in: what an agent can still do to the machine once its policy has been imported.
//
// Theory of operation. A policy is somebody's code. Before it sees a pool it gives up, for good and for all of its threads:
//   - everything that a parent could give it later (no_new_privs, capabilities);
//   - system calls, by a seccomp filter that allows a list and answers EPERM to the rest: nothing that opens, creates, connects,
//     starts, signals or traces anything is on the list. It answers instead of killing, so that a policy that imports a module
//     too late gets an exception with the name of what failed, and the host an audit line that says so;
//   - memory that can be executed (mmap and mprotect with PROT_EXEC);
//   - the file system and TCP, by Landlock where the kernel offers it: a second wall behind the filter.
// What stays: memory, threads that run already, clocks, futexes, and reading and writing on the descriptors that it holds.
//
// The filter is a page of BPF made here: libseccomp is a native library that slim containers do not have, for one list.
#pragma once

#include <cstdint>
#include <string>

namespace teal {

struct Walls {
    bool filter = false;        // system calls
    bool capabilities = false;  // none are left
    int landlock = 0;           // version of its interface; 0: the kernel has none, or it is switched off
    std::string missing;        // what could not be had and why, for people; empty: nothing
};

// What this kernel offers. Changes nothing.
Walls walls_offered();

// Raises the walls around this process, all of its threads, for good. What the kernel does not offer is in `missing`.
// Throws internal_error when something that was offered is refused half-way.
Walls confine();

}  // namespace teal
