#include "memory/bpf_map.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.hpp"
#include "memory/region.hpp"

namespace teal {
namespace {

// From linux/bpf.h, whose copy on a build machine may be older than these.
constexpr int map_create = 0;
constexpr std::uint32_t type_array = 2;
constexpr std::uint32_t type_ringbuf = 27;
constexpr std::uint32_t flag_mmapable = 1U << 10;
constexpr std::uint64_t most_bytes = 1U << 28;     // of a map: the verifier's offsets end at 2^29

struct CreateAttributes {
    std::uint32_t type, key_bytes, value_bytes, entries, flags, inner, node;
    char name[16];
    std::uint32_t pad;
};
static_assert(sizeof(CreateAttributes) == 48);

int create(CreateAttributes attributes, const char* what) {
    const long fd = ::syscall(SYS_bpf, map_create, &attributes, sizeof attributes);
    if (fd >= 0) return static_cast<int>(fd);
    const bool refused = errno == EPERM || errno == EACCES || errno == ENOSYS;
    throw Error(refused ? Code::not_found : Code::quota_exceeded,
                system_message(what, errno) + (refused ? "; this process may not use bpf(2): it takes CAP_BPF (root), and a container that allows it" : ""));
}

bool is_map(int fd) {
    char path[64];
    char target[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t size = ::readlink(path, target, sizeof target);
    return size > 0 && std::string(target, static_cast<std::size_t>(size)) == "anon_inode:bpf-map";
}

// What the map or its descriptor is allowed to be used for is not in fdinfo: one page tells.
bool can_be_written(int fd) noexcept {
    void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) return false;
    ::munmap(page, page_bytes);
    return true;
}

}  // namespace

MapFacts map_facts(int fd) {
    // The name first: only the kernel gives names that begin so, and only such descriptors have the lines below.
    if (!is_map(fd)) throw Error(Code::invalid_argument, "the descriptor is not that of a BPF map");
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) throw Error(Code::invalid_argument, system_message("reading what a BPF map is", errno));
    MapFacts facts;
    const struct { const char* key; std::uint32_t* to; } wanted[] = {
        {"map_type:", &facts.type}, {"key_size:", &facts.key_bytes}, {"value_size:", &facts.value_bytes},
        {"max_entries:", &facts.entries}, {"map_flags:", &facts.flags}};
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr)
        for (const auto& one : wanted)
            if (std::strncmp(line, one.key, std::strlen(one.key)) == 0) *one.to = static_cast<std::uint32_t>(std::strtoul(line + std::strlen(one.key), nullptr, 0));
    std::fclose(file);
    return facts;
}

std::uint64_t memory_map_bytes(int fd) {
    const MapFacts facts = map_facts(fd);
    if (facts.type != type_array || facts.entries != 1 || (facts.flags & flag_mmapable) == 0)
        throw Error(Code::invalid_argument, "BPF map of type " + std::to_string(facts.type) + " with " + std::to_string(facts.entries) +
                    " entries: expected a memory-mappable array (type 2, BPF_F_MMAPABLE) of one");
    if (facts.value_bytes % page_bytes != 0 || facts.value_bytes == 0 || facts.value_bytes > most_bytes)
        throw Error(Code::invalid_argument, "BPF map with values of " + std::to_string(facts.value_bytes) + " bytes: expected whole pages, at most 256 MiB");
    if (!can_be_written(fd)) throw Error(Code::invalid_argument, "the BPF map is frozen or read-only: nobody could answer in it");
    return facts.value_bytes;
}

int create_memory_map(std::uint64_t bytes) {
    if (bytes == 0 || bytes % page_bytes != 0 || bytes > most_bytes)
        throw Error(Code::quota_exceeded, "a BPF session of " + std::to_string(bytes) + " bytes: expected at most 256 MiB; use fewer slots or smaller tensors");
    return create({type_array, 4, static_cast<std::uint32_t>(bytes), 1, flag_mmapable, 0, 0, "teal_memory", 0}, "making a BPF array");
}

int create_bell_map() {
    return create({type_ringbuf, 0, 0, static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE)), 0, 0, 0, "teal_bell", 0}, "making a BPF ring buffer");
}

}  // namespace teal
