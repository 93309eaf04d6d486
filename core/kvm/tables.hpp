// A guest's page tables, and what they know about a run: which pages it touched and which it wrote.
//
// Theory of operation. The CPU (or KVM's own walk, where pages are shadowed) sets two bits in a page's entry: accessed, and dirty. A run's
// record reads them; what has to be restored before the next run are the dirty pages.
// Clearing the bits is not enough for them to be set again: KVM may have translated the tables already and does not see what we write into
// them. So the same table memory is visible to the guest through several *windows* of guest-physical addresses (one memfd mapped several
// times in a row). turn() clears the bits of the entries that have any, points the upper levels into the next window, and whoever loads
// root() afterwards starts with nothing translated. When the windows are used up, wrapped() says that the slot of the tables has to be
// taken out and put in again, which makes KVM forget all.
//
// Only whole pages of 4 KiB, and 2 MiB for ranges that are never judged. What is not mapped is not there for the program: a page fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace teal::kvm {

inline constexpr std::uint64_t page_bytes = 4096, large_page_bytes = std::uint64_t{1} << 21;

struct Access {
    bool user = false;
    bool write = false;
    bool execute = false;
    friend bool operator==(const Access&, const Access&) = default;
};

inline constexpr std::uint64_t accessed_bit = 1 << 5, dirty_bit = 1 << 6;

class Tables {
public:
    // Memory for `most_tables` tables and the top one, mapped at `memory` `windows` times in a row; the guest sees it at `phys` and on.
    // Throws quota_exceeded.
    Tables(std::byte* memory, std::uint64_t phys, std::uint64_t most_tables, unsigned windows);
    Tables(const Tables&) = delete;
    Tables& operator=(const Tables&) = delete;

    // How many tables a mapping of this range may need, beside the top one.
    static std::uint64_t tables_for(std::uint64_t virt, std::uint64_t bytes, bool large = false) noexcept;

    // Overwrites what was mapped there. Throws quota_exceeded when the tables are used up.
    void map(std::uint64_t virt, std::uint64_t phys, std::uint64_t pages, Access access);
    void map_large(std::uint64_t virt, std::uint64_t phys, std::uint64_t large_pages, Access access);

    // The entry of a page, or of the large page that it lies in; null: no table there.
    [[nodiscard]] std::uint64_t* find(std::uint64_t virt) noexcept;
    // What we wrote ourselves on the program's behalf counts as written by it.
    void mark_written(std::uint64_t virt) noexcept;

    // seen(page, dirty) for each page of the range that was touched since the last turn().
    template <typename Seen>
    void each_touched(std::uint64_t virt, std::uint64_t pages, Seen&& seen) {
        for (std::uint64_t page = 0; page < pages;) {
            const Leaf leaf = leaf_of(virt + page * page_bytes);
            const std::uint64_t end = page + (512 - leaf.index) < pages ? page + (512 - leaf.index) : pages;
            for (std::uint64_t i = leaf.index; leaf.table != nullptr && page < end; ++page, ++i) {
                if ((leaf.table[i] & accessed_bit) != 0) {
                    seen(page, (leaf.table[i] & dirty_bit) != 0);
                }
            }
            page = end;
        }
    }

    void turn();
    // All windows used: take the slot out and in again, then it is window 0.
    [[nodiscard]] bool wrapped() const noexcept { return wrapped_; }
    void unwrap() noexcept { wrapped_ = false; }

    [[nodiscard]] std::uint64_t root() const noexcept { return base(); }

private:
    struct Leaf {
        std::uint64_t* table;   // null: nothing of it was touched, or none there
        std::uint64_t index;
    };
    struct Link {               // an entry of an upper level, and the table it names
        std::uint64_t entry;    // byte offset in the window
        std::uint64_t table;
        bool leaf;              // the table maps pages
    };

    [[nodiscard]] std::uint64_t base() const noexcept { return phys_ + window_ * window_bytes_; }
    [[nodiscard]] std::uint64_t* at(std::uint64_t offset) const noexcept {
        return reinterpret_cast<std::uint64_t*>(memory_ + offset);
    }
    std::uint64_t* walk(std::uint64_t virt, unsigned level, bool make);
    Leaf leaf_of(std::uint64_t virt) noexcept;

    std::uint64_t phys_, window_bytes_, windows_, used_;
    std::uint64_t window_ = 0;
    bool wrapped_ = false;
    std::byte* memory_;   // of whoever made this
    std::vector<Link> links_;
};

}  // namespace teal::kvm
