#include "box/cgroup.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"

namespace teal::box {
namespace {

constexpr const char* controllers[] = {"memory", "pids", "cpu"};
constexpr std::uint64_t period_us = 100'000;
std::atomic<std::uint64_t> homes{0};   // relaxed: a number for each in this process

std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int write(const std::string& path, const std::string& text) noexcept {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);   // none can be made there; in a folder that stands for one it can
    if (fd < 0) return errno;
    const ssize_t n = ::write(fd, text.data(), text.size());
    const int error = n == static_cast<ssize_t>(text.size()) ? 0 : errno;
    ::close(fd);
    return error;
}

bool has_word(const std::string& text, const std::string& word) {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const bool begins = at == 0 || text[at - 1] == ' ', ends = at + word.size() == text.size() || text[at + word.size()] == ' ' || text[at + word.size()] == '\n';
        if (begins && ends) return true;
    }
    return false;
}

// Where cgroup2 is mounted; empty: nowhere.
std::string mount_of(const std::string& mounts) {
    std::ifstream file(mounts);
    std::string device, place, type, rest;
    while (file >> device >> place >> type && std::getline(file, rest))
        if (type == "cgroup2") return place;
    return {};
}

// The line "0::/path".
std::string group_of(const std::string& own) {
    std::ifstream file(own);
    std::string line;
    while (std::getline(file, line))
        if (line.starts_with("0::/")) return line.substr(3);
    return {};
}

void remove_tree(const std::string& home) {
    if (DIR* inner = ::opendir(home.c_str()); inner != nullptr) {
        while (const dirent* box = ::readdir(inner))
            if (std::strncmp(box->d_name, "box-", 4) == 0) ::rmdir((home + "/" + box->d_name).c_str());
        ::closedir(inner);
    }
    ::rmdir(home.c_str());
}

// Groups of yards that were killed: their processes are gone, and so are they.
void sweep(const std::string& parent) {
    DIR* folder = ::opendir(parent.c_str());
    if (folder == nullptr) return;
    while (const dirent* entry = ::readdir(folder)) {
        if (std::strncmp(entry->d_name, "teal-", 5) != 0) continue;
        const long pid = std::strtol(entry->d_name + 5, nullptr, 10);
        if (pid <= 0 || ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) continue;
        remove_tree(parent + "/" + entry->d_name);
    }
    ::closedir(folder);
}

}  // namespace

CgroupHome::CgroupHome(const std::string& own, const std::string& mounts) {
    const std::string mount = mount_of(mounts), group = group_of(own);
    if (mount.empty() || group.empty()) {
        why_ = "no cgroup v2 is mounted here";
        return;
    }
    const std::string mine = mount + (group == "/" ? "" : group);
    if (settle(mine)) return;
    if (group == "/") return;
    const std::string first = why_;
    if (!settle(mine.substr(0, mine.rfind('/')))) why_ = first;
}

bool CgroupHome::settle(const std::string& parent) {
    const std::string offered = read(parent + "/cgroup.controllers");
    std::string wanted, names;
    for (const char* controller : controllers)
        if (has_word(offered, controller)) {
            wanted += (wanted.empty() ? "+" : " +") + std::string(controller);
            names += (names.empty() ? "" : ", ") + std::string(controller);
        }
    if (wanted.empty()) {
        why_ = "cgroup v2 offers none of memory, pids and cpu at " + parent;
        return false;
    }
    sweep(parent);
    const std::string made = parent + "/teal-" + std::to_string(::getpid()) + "-" + std::to_string(homes.fetch_add(1, std::memory_order_relaxed));
    int error = write(parent + "/cgroup.subtree_control", wanted);
    if (error == 0 && ::mkdir(made.c_str(), 0755) != 0) error = errno;
    if (error == 0 && (error = write(made + "/cgroup.subtree_control", wanted)) != 0) ::rmdir(made.c_str());
    if (error != 0) {
        const char* hint = error == EBUSY ? " (it has processes of its own: give the duck a subgroup, as systemd's DelegateSubgroup= does)" : "";
        why_ = system_message(("not delegated: " + parent).c_str(), error) + hint;
        return false;
    }
    path_ = made;
    why_ = names + " of each session, below " + parent;
    return true;
}

CgroupHome::~CgroupHome() {
    if (!path_.empty()) remove_tree(path_);
}

Cgroup CgroupHome::hold(std::uint32_t pid) const noexcept {
    if (path_.empty() || pid == 0) return {};
    try {
        const std::string group = path_ + "/box-" + std::to_string(pid);
        if (::mkdir(group.c_str(), 0755) != 0 && errno != EEXIST) return {};
        Cgroup made(group);
        if (write(group + "/cgroup.procs", std::to_string(pid)) == 0) return made;
    } catch (const std::exception&) {   // no memory: without
    }
    return {};
}

void Cgroup::limit(const GroupLimits& limits) const noexcept {
    if (path_.empty()) return;
    try {   // a controller that is not here has no such file: then the others hold
        write(path_ + "/memory.max", std::to_string(limits.memory_bytes));
        write(path_ + "/memory.swap.max", "0");
        write(path_ + "/pids.max", std::to_string(limits.tasks));
        write(path_ + "/cpu.max", std::to_string(limits.cores * period_us) + " " + std::to_string(period_us));
    } catch (const std::exception&) {
        return;
    }
}

bool Cgroup::ran_out_of_memory() const noexcept {
    if (path_.empty()) return false;
    try {
        const std::string events = read(path_ + "/memory.events");
        const std::size_t at = events.find("oom_kill ");
        return at != std::string::npos && std::strtoull(events.c_str() + at + 9, nullptr, 10) != 0;
    } catch (const std::exception&) {
        return false;
    }
}

void Cgroup::remove() noexcept {
    if (!path_.empty()) ::rmdir(path_.c_str());   // what fails is swept by the next yard
    path_.clear();
}

}  // namespace teal::box
