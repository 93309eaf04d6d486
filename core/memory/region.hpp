// A region: a sealed memfd with a versioned header, mapped by several domains at once.
//
// Theory of operation: create() makes an anonymous memfd, sizes it, reserves every page (fallocate),
// writes the header page and seals the size, so that nobody who gets the descriptor can make another
// process fault by truncating it. adopt() is the other end: it takes a descriptor that came over a
// socket, believes its size and the seals, checks the header against this build, and maps it. The header
// is for people and version checks; after adopt() nothing in it is used for addressing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace teal {

inline constexpr std::uint64_t region_magic = 0x4e4f494745524c54ULL;  // "TLREGION"
inline constexpr std::uint32_t abi_version = 6;
inline constexpr std::size_t page_bytes = 4096;
inline constexpr std::size_t huge_page_bytes = 2u << 20;

enum class RegionKind : std::uint32_t { session = 1, tensor = 2, spill = 3, pool = 4, weights = 5, view = 6, desk = 7, trace = 8 };

struct RegionHeader {
    std::uint64_t magic;          // region_magic; set by create()
    std::uint32_t abi;            // abi_version of the creator
    std::uint32_t header_bytes;   // sizeof(RegionHeader)
    std::uint64_t size;           // bytes of the whole region, header included
    RegionKind kind;
    std::uint32_t owner_pid;      // who created it, for humans
    std::uint32_t owner_uid;
    std::uint32_t page_shift;     // 12 or 21: what backs it
    std::uint64_t id;             // chosen by the host, unique while it lives
    std::uint8_t reserved[page_bytes - 48];
};
static_assert(sizeof(RegionHeader) == page_bytes);

enum class Pages : std::uint8_t {
    small,  // 4 KiB
    huge,   // 2 MiB from the hugetlb pool, else an error
    best,   // 2 MiB when the pool has enough free, else 4 KiB (page_shift says which)
};

// A worker gets its clients' regions from its own host, and perhaps only after the client has scribbled over their headers.
enum class Header : std::uint8_t { checked, ignored };

class Region {
public:
    // Throws quota_exceeded (with the machine's numbers) when the pages cannot be had now.
    static std::shared_ptr<Region> create(RegionKind kind, std::uint64_t size, std::uint64_t id, Pages pages);
    // Takes ownership of `fd` (also when it throws). Throws version_mismatch or invalid_argument.
    static std::shared_ptr<Region> adopt(int fd, RegionKind kind, bool writable, Header header = Header::checked);

    // The memory of a BPF map (bpf/map.hpp), which cannot shrink and needs no seals. Takes ownership of `fd`. Throws quota_exceeded.
    static std::shared_ptr<Region> adopt_map(int fd, std::uint64_t size);
    // A part of another region, on whole pages, which keeps all of it mapped.
    static std::shared_ptr<Region> part(std::shared_ptr<Region> whole, std::uint64_t offset, std::uint64_t size);

    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    [[nodiscard]] std::byte* base() const noexcept { return base_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
    [[nodiscard]] int fd() const noexcept { return fd_; }
    [[nodiscard]] bool writable() const noexcept { return writable_; }
    [[nodiscard]] std::uint32_t page_shift() const noexcept { return page_shift_; }
    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] int readable_fd() const;  // a new descriptor of the same pages that nobody can write through; the caller's to close
    void close_fd() noexcept;   // keep the mapping, give the descriptor back
    void seal_contents() const; // no new writable mapping, no write(2), by anyone, ever

private:
    Region() = default;
    std::shared_ptr<Region> whole_;  // of a part: who has the mapping
    std::byte* base_ = nullptr;
    std::uint64_t size_ = 0;
    std::uint64_t id_ = 0;
    int fd_ = -1;
    std::uint32_t page_shift_ = 12;
    bool writable_ = true;
};

// A sealed, read-only memfd with exactly `bytes`, for files (models) that must not change after they
// were checked. No header: engines read it as a file. Returns the descriptor.
int sealed_file(const char* name, std::span<const std::byte> bytes);

// Bytes that a reservation may take now: the smaller of MemAvailable and the cgroup's headroom.
std::uint64_t available_memory() noexcept;

}  // namespace teal
