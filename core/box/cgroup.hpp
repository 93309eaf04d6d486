// Groups of processes (cgroup v2) around boxes, where this process may make them: the kernel then bounds a box as a whole.
//
// Theory of operation. A box's limits (RLIMIT_DATA, its filter) bound what it maps; a group bounds what it *uses*: memory of every kind, tasks,
// CPU time a period. Groups can be made below a group that was delegated to this user and has no processes of its own: this process's
// own, or the one above it (systemd: Delegate=yes with DelegateSubgroup=), whichever takes the controllers. Each yard makes one there
// (teal-PID-N), and in it one for each box of a session, before anybody needs it: what opening adds is the limits. They are removed when they
// are empty, those that a killed yard left behind by the next yard that comes there. Nothing of it is needed: where there is no such group, boxes do without, and Yard::report() says why.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace teal::box {

struct GroupLimits {
    std::uint64_t memory_bytes = 0, tasks = 0, cores = 0;
};

// One box's group; gone with it.
class Cgroup {
public:
    Cgroup() = default;
    explicit Cgroup(std::string path) noexcept : path_(std::move(path)) {}
    ~Cgroup() { remove(); }
    Cgroup(Cgroup&& other) noexcept : path_(std::exchange(other.path_, {})) {}
    Cgroup& operator=(Cgroup&& other) noexcept {
        std::swap(path_, other.path_);
        return *this;
    }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }   // empty: none
    void limit(const GroupLimits& limits) const noexcept;
    [[nodiscard]] bool ran_out_of_memory() const noexcept;   // the kernel has ended a process of it for that
    void remove() noexcept;                                  // once its processes are gone

private:
    std::string path_;
};

class CgroupHome {
public:
    // `proc` and `mounts`: other files than /proc/self/cgroup and /proc/self/mounts, for tests.
    explicit CgroupHome(const std::string& own = "/proc/self/cgroup", const std::string& mounts = "/proc/self/mounts");
    ~CgroupHome();
    CgroupHome(const CgroupHome&) = delete;
    CgroupHome& operator=(const CgroupHome&) = delete;
    [[nodiscard]] bool usable() const noexcept { return !path_.empty(); }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const std::string& why() const noexcept { return why_; }   // not, or which controllers it has
    // Puts a process into a group of its own, without limits yet. None where it cannot be: a box does without.
    [[nodiscard]] Cgroup hold(std::uint32_t pid) const noexcept;

private:
    bool settle(const std::string& parent);
    std::string path_, why_;
};

}  // namespace teal::box
