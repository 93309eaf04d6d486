#include "memory/region.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.hpp"
#include "base/error.hpp"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace teal {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;

std::uint64_t read_number(const char* path, const char* key) noexcept {
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return UINT64_MAX;
    std::uint64_t value = UINT64_MAX;
    char line[256];
    const std::size_t length = key != nullptr ? std::strlen(key) : 0;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (key != nullptr && std::strncmp(line, key, length) != 0) continue;
        char* end = nullptr;
        const char* digits = line + length;
        const unsigned long long parsed = std::strtoull(digits, &end, 10);
        if (end != digits) value = parsed;  // "max" and other words leave the value unlimited
        break;
    }
    std::fclose(file);
    return value;
}

std::uint64_t cgroup_headroom() noexcept {
    // The mount's root is this container's own limit; nested groups are stricter still, but reading
    // them needs a parse of /proc/self/cgroup, and fallocate reports ENOMEM there in any case.
    const std::uint64_t limit = read_number("/sys/fs/cgroup/memory.max", nullptr);
    if (limit == UINT64_MAX) return UINT64_MAX;
    std::uint64_t used = read_number("/sys/fs/cgroup/memory.current", nullptr);
    if (used == UINT64_MAX) return UINT64_MAX;
    // Cached files count as used, but make way: without this a container that has read large files could allocate nothing.
    const std::uint64_t cached = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (cached != UINT64_MAX) used -= cached < used ? cached : used;
    return used > limit ? 0 : limit - used;
}

struct Fd {  // closes on every way out of create() and adopt()
    int fd;
    ~Fd() { if (fd >= 0) ::close(fd); }
    int take() noexcept { const int taken = fd; fd = -1; return taken; }
};

void reserve(int fd, std::uint64_t size) {
    const std::uint64_t available = available_memory();
    if (size > available)
        throw Error(Code::quota_exceeded, "region of " + std::to_string(size) + " bytes: only " + std::to_string(available) +
                    " bytes are available on this machine; free memory or ask for less");
    int result;
    do { result = ::fallocate(fd, 0, 0, static_cast<off_t>(size)); } while (result != 0 && errno == EINTR);
    if (result != 0)
        throw Error(Code::quota_exceeded, "region of " + std::to_string(size) + " bytes, " + std::to_string(available) +
                    " available: " + system_message("reserving its pages", errno));
}

// Returns a memfd with all pages reserved, or -1 when huge pages were asked for and there are none.
int reserved_memfd(std::uint64_t size, bool huge) {
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    Fd fd{::memfd_create("teal", flags)};
    if (fd.fd < 0) {
        if (huge) return -1;
        throw Error(Code::internal_error, system_message("memfd_create", errno));
    }
    if (::ftruncate(fd.fd, static_cast<off_t>(size)) != 0)
        throw Error(Code::quota_exceeded, "region of " + std::to_string(size) + " bytes: " + system_message("ftruncate", errno));
    if (huge) {
        if (::fallocate(fd.fd, 0, 0, static_cast<off_t>(size)) != 0) return -1;
    } else {
        reserve(fd.fd, size);
    }
    return fd.take();
}

std::byte* map(int fd, std::uint64_t size, bool writable) {
    // Pages exist already (reserved by the creator): MAP_POPULATE only builds page tables, now
    // instead of one fault a page on somebody's first call.
    void* address = ::mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
        throw Error(Code::quota_exceeded, "mapping " + std::to_string(size) + " bytes: " + system_message("mmap", errno));
    return static_cast<std::byte*>(address);
}

}  // namespace

std::uint64_t available_memory() noexcept {
    const std::uint64_t kib = read_number("/proc/meminfo", "MemAvailable:");
    const std::uint64_t machine = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
    const std::uint64_t group = cgroup_headroom();
    return machine < group ? machine : group;
}

std::shared_ptr<Region> Region::create(RegionKind kind, std::uint64_t size, std::uint64_t id, Pages pages) {
    if (size < page_bytes || size > (std::uint64_t{1} << 46))
        throw Error(Code::invalid_argument, "region size " + std::to_string(size) + ": expected 4096 to 2^46 bytes");
    Fd fd{-1};
    std::uint32_t shift = 12;
    if (pages != Pages::small && (pages == Pages::huge || size >= huge_page_bytes)) {
        fd.fd = reserved_memfd(round_up(size, huge_page_bytes), true);
        if (fd.fd >= 0) shift = 21;
        else if (pages == Pages::huge)
            throw Error(Code::quota_exceeded, "no free 2 MiB pages for " + std::to_string(size) +
                        " bytes; reserve some: sysctl vm.nr_hugepages=N, or allocate with pages=\"best\"");
    }
    if (fd.fd < 0) fd.fd = reserved_memfd(round_up(size, page_bytes), false);
    size = round_up(size, std::uint64_t{1} << shift);
    if (::fcntl(fd.fd, F_ADD_SEALS, size_seals) != 0)
        throw Error(Code::internal_error, system_message("sealing a region's size", errno));
    std::shared_ptr<Region> region{new Region};
    region->base_ = map(fd.fd, size, true);
    region->size_ = size;
    region->fd_ = fd.take();
    region->id_ = id;
    region->page_shift_ = shift;
    auto* header = reinterpret_cast<RegionHeader*>(region->base_);
    header->magic = region_magic;
    header->abi = abi_version;
    header->header_bytes = sizeof(RegionHeader);
    header->size = size;
    header->kind = kind;
    header->owner_pid = static_cast<std::uint32_t>(::getpid());
    header->owner_uid = ::getuid();
    header->page_shift = shift;
    header->id = id;
    return region;
}

std::shared_ptr<Region> Region::adopt(int raw_fd, RegionKind kind, bool writable, Header checks) {
    Fd fd{raw_fd};
    // Not fstat(): a confined agent (agents/confine.hpp) may not call what the C library makes of it, as that takes paths too.
    const off_t end = ::lseek(fd.fd, 0, SEEK_END);
    if (end < 0) throw Error(Code::invalid_argument, system_message("size of a region", errno));
    const int seals = ::fcntl(fd.fd, F_GET_SEALS);
    if (seals < 0 || (seals & size_seals) != size_seals)
        throw Error(Code::invalid_argument, "region descriptor is not a memfd sealed against shrinking and growing");
    const auto size = static_cast<std::uint64_t>(end);
    if (size < sizeof(RegionHeader))
        throw Error(Code::invalid_argument, "region of " + std::to_string(size) + " bytes has no room for its header");
    std::shared_ptr<Region> region{new Region};
    region->base_ = map(fd.fd, size, writable);
    region->size_ = size;
    region->writable_ = writable;
    if (checks == Header::ignored) {
        region->fd_ = fd.take();
        return region;
    }
    RegionHeader header;  // one copy: the other side could change it between check and use
    std::memcpy(&header, region->base_, sizeof header);
    if (header.magic != region_magic) throw Error(Code::invalid_argument, "region header: wrong magic; not a Teal region");
    if (header.abi != abi_version)
        throw Error(Code::version_mismatch, "region made by ABI " + std::to_string(header.abi) + ", this process speaks ABI " +
                    std::to_string(abi_version) + "; run the same Teal on both sides");
    if (header.kind != kind)
        throw Error(Code::invalid_argument, "region kind " + std::to_string(static_cast<unsigned>(header.kind)) + ", expected " +
                    std::to_string(static_cast<unsigned>(kind)));
    region->page_shift_ = header.page_shift == 21 ? 21 : 12;
    region->id_ = header.id;
    region->fd_ = fd.take();
    return region;
}

std::shared_ptr<Region> Region::adopt_map(int raw_fd, std::uint64_t size) {
    Fd fd{raw_fd};
    std::shared_ptr<Region> region{new Region};
    region->base_ = map(fd.fd, size, true);
    region->size_ = size;
    region->fd_ = fd.take();
    return region;
}

std::shared_ptr<Region> Region::part(std::shared_ptr<Region> whole, std::uint64_t offset, std::uint64_t size) {
    if (!within(offset, size, whole->size_)) throw Error(Code::internal_error, "a part of a region that does not lie in it");
    std::shared_ptr<Region> region{new Region};
    region->base_ = whole->base_ + offset;
    region->size_ = size;
    region->whole_ = std::move(whole);
    return region;
}

Region::~Region() {
    if (base_ != nullptr && !whole_) ::munmap(base_, size_);
    close_fd();
}

void Region::close_fd() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

void Region::seal_contents() const {
    if (::fcntl(fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        throw Error(Code::internal_error, system_message("sealing a region's contents", errno));
}

int Region::readable_fd() const {
    // Whoever gets it could open the file anew for writing: not once its mode says otherwise (except with CAP_DAC_OVERRIDE). Our own
    // descriptor goes on writing.
    if (::fchmod(fd_, S_IRUSR) != 0) throw Error(Code::internal_error, system_message("fchmod of a region", errno));
    const std::string path = "/proc/self/fd/" + std::to_string(fd_);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw Error(Code::internal_error, system_message("opening a region read-only through /proc/self/fd", errno));
    return fd;
}

int sealed_file(const char* name, std::span<const std::byte> bytes) {
    Fd fd{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (fd.fd < 0) throw Error(Code::internal_error, system_message("memfd_create", errno));
    if (!bytes.empty()) {
        if (::ftruncate(fd.fd, static_cast<off_t>(bytes.size())) != 0)
            throw Error(Code::quota_exceeded, system_message("ftruncate", errno));
        reserve(fd.fd, bytes.size());
        std::size_t done = 0;
        while (done < bytes.size()) {
            const ssize_t wrote = ::pwrite(fd.fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
            if (wrote < 0 && errno == EINTR) continue;
            if (wrote <= 0) throw Error(Code::quota_exceeded, system_message("writing a sealed file", errno));
            done += static_cast<std::size_t>(wrote);
        }
    }
    if (::fcntl(fd.fd, F_ADD_SEALS, size_seals | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
        throw Error(Code::internal_error, system_message("sealing a file", errno));
    return fd.take();
}

}  // namespace teal
