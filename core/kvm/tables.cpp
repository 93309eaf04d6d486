#include "kvm/tables.hpp"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t present = 1, writable = 2, user = 4, large = 1 << 7, no_execute = std::uint64_t{1} << 63;
constexpr std::uint64_t address_bits = 0x000f'ffff'ffff'f000;
constexpr std::uint64_t upper = present | writable | user;   // what is allowed is said by the last level

std::uint64_t bits_of(Access access) noexcept {
    return present | (access.write ? writable : 0) | (access.user ? user : 0) | (access.execute ? 0 : no_execute);
}

std::uint64_t index_of(std::uint64_t virt, unsigned level) noexcept { return virt >> (12 + 9 * level) & 511; }

}  // namespace

Tables::Tables(std::byte* memory, std::uint64_t phys, std::uint64_t most_tables, unsigned windows)
    : phys_(phys), window_bytes_((most_tables + 1) * page_bytes), windows_(windows), used_(page_bytes), memory_(memory) {
    const int fd = ::memfd_create("teal-kvm-tables", MFD_CLOEXEC);
    int error = fd < 0 || ::ftruncate(fd, static_cast<off_t>(window_bytes_)) != 0 ? errno : 0;
    for (unsigned window = 0; error == 0 && window < windows; ++window) {
        if (::mmap(memory + window * window_bytes_, window_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
            error = errno;
        }
    }
    if (fd >= 0) ::close(fd);
    if (error != 0) {
        throw Error(Code::quota_exceeded, system_message("memory for page tables", error));
    }
}

std::uint64_t Tables::tables_for(std::uint64_t virt, std::uint64_t bytes, bool large_pages) noexcept {
    const std::uint64_t last = virt + (bytes == 0 ? 0 : bytes - 1);
    std::uint64_t count = (last >> 39) - (virt >> 39) + 1 + (last >> 30) - (virt >> 30) + 1;
    if (!large_pages) {
        count += (last >> 21) - (virt >> 21) + 1;
    }
    return count;
}

// The entry for `virt` in the table of a level: 0 for pages of 4 KiB, 1 for 2 MiB.
std::uint64_t* Tables::walk(std::uint64_t virt, unsigned level, bool make) {
    std::uint64_t table = 0;
    for (unsigned step = 3; step > level; --step) {
        const std::uint64_t entry = table + index_of(virt, step) * 8;
        if ((*at(entry) & present) == 0) {
            if (!make) return nullptr;
            if (used_ == window_bytes_) {
                throw Error(Code::quota_exceeded, "a guest's page tables are used up");
            }
            links_.push_back({entry, used_, step == 1});
            *at(entry) = (base() + used_) | upper;
            used_ += page_bytes;
        } else if ((*at(entry) & large) != 0) {
            return nullptr;
        }
        table = (*at(entry) & address_bits) - base();
    }
    return at(table + index_of(virt, level) * 8);
}

void Tables::map(std::uint64_t virt, std::uint64_t phys, std::uint64_t pages, Access access) {
    const std::uint64_t bits = bits_of(access);
    while (pages > 0) {
        std::uint64_t* entry = walk(virt, 0, true);
        if (entry == nullptr) {
            throw Error(Code::internal_error, "a guest's small page would lie in a large one");
        }
        const std::uint64_t here = 512 - index_of(virt, 0) < pages ? 512 - index_of(virt, 0) : pages;
        for (std::uint64_t i = 0; i < here; ++i) {
            entry[i] = (phys + i * page_bytes) | bits;
        }
        virt += here * page_bytes;
        phys += here * page_bytes;
        pages -= here;
    }
}

void Tables::map_large(std::uint64_t virt, std::uint64_t phys, std::uint64_t large_pages, Access access) {
    for (std::uint64_t i = 0; i < large_pages; ++i) {
        *walk(virt + i * large_page_bytes, 1, true) = (phys + i * large_page_bytes) | bits_of(access) | large;
    }
}

std::uint64_t* Tables::find(std::uint64_t virt) noexcept {
    std::uint64_t* above = walk(virt, 1, false);
    return above != nullptr && (*above & (present | large)) == (present | large) ? above : walk(virt, 0, false);
}

void Tables::mark_written(std::uint64_t virt) noexcept {
    for (unsigned level = 0; level < 4; ++level) {
        if (std::uint64_t* entry = walk(virt, level, false)) {
            *entry |= accessed_bit | (level == 0 ? dirty_bit : 0);
        }
    }
}

Tables::Leaf Tables::leaf_of(std::uint64_t virt) noexcept {
    const std::uint64_t index = index_of(virt, 0);
    const std::uint64_t* above = walk(virt, 1, false);
    if (above == nullptr || (*above & present) == 0 || (*above & large) != 0 || (*above & accessed_bit) == 0) {
        return {nullptr, index};
    }
    return {at((*above & address_bits) - base()), index};
}

void Tables::turn() {
    for (const Link& link : links_) {
        if (link.leaf && (*at(link.entry) & accessed_bit) != 0) {
            std::uint64_t* table = at(link.table);
            for (unsigned i = 0; i < 512; ++i) {
                table[i] &= ~(accessed_bit | dirty_bit);
            }
        }
    }
    window_ = window_ + 1 == windows_ ? 0 : window_ + 1;
    wrapped_ = wrapped_ || window_ == 0;
    for (const Link& link : links_) {
        *at(link.entry) = (base() + link.table) | upper;
    }
}

}  // namespace teal::kvm
