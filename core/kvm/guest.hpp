// A guest with no operating system: memory, page tables, cores, and what makes a core leave.
//
// Theory of operation. All memory of a guest lies in its *arena*, one range of our own addresses, which is one slot of KVM: telling KVM of
// a slot waits for its readers, and costs more than all else. In the arena lie the trap page, the page tables, and areas: virtual addresses
// of the guest with memory from a file or of their own. What is no area is mapped nowhere. A program runs in ring 3 from its first
// instruction; it leaves by a trap, by a system call, or because it is told to (stop). What a program can ask is decided by whoever calls
// run(); the guest only says what happened.
// The *aperture* is a range of guest addresses, read-only, beside the arena: an input buffer is mapped by giving KVM memory for a part of
// it, and no page table that KVM has looked at changes while cores run.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kvm/machine.hpp"
#include "kvm/tables.hpp"

namespace teal::kvm {

inline constexpr std::uint64_t arena_phys = std::uint64_t{1} << 32;

struct Area {
    std::uint64_t virt = 0, phys = 0, bytes = 0;
    std::byte* host = nullptr;
    Access access;              // of its pages, unless protect() said otherwise
    [[nodiscard]] std::uint64_t pages() const noexcept { return bytes / page_bytes; }
    [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t size) const noexcept {
        return at >= virt && at - virt <= bytes && size <= bytes - (at - virt);
    }
};

// What an area is made of: zeros, had when touched; or a file's pages, shared or copied when written.
struct Source {
    int fd = -1;                // not kept
    std::uint64_t offset = 0;
    bool shared = false;
    bool populate = false;
};

struct Event {
    enum class What : std::uint8_t { trap, syscall, int80, stopped /* a signal, or stop() */, failed /* KVM's words in `number` */ };
    What what = What::failed;
    unsigned number = 0;        // of the trap, or KVM's exit reason
    std::uint64_t error = 0;    // the trap's error code
    std::uint64_t rip = 0, rsp = 0, rflags = 0;   // of the program; for a system call: where it goes on
    std::uint64_t address = 0;  // of a page fault
};

class Guest {
public:
    // Throws like Machine. `tables`: by Tables::tables_for() of all that will be mapped.
    // `machine`: one made ahead, with no memory yet.
    Guest(unsigned cores, std::uint64_t tables, unsigned windows, std::unique_ptr<Machine> machine = nullptr);
    ~Guest();
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

    // Addresses and sizes are whole pages, above system_bytes. `large`: pages of 2 MiB where they fit; whose bits nobody counts. Only
    // before commit(). Throws.
    Area& add(std::uint64_t virt, std::uint64_t bytes, Access access, const Source& source = {}, bool large = false);
    // That was all: KVM is told. Before the first begin().
    void commit();
    void protect(std::uint64_t virt, std::uint64_t pages, Access access);

    // A range for input buffers, read-only, 2 MiB pages; no memory in it yet. One a guest, after commit().
    // As many bytes as there is room for; returns how many.
    std::uint64_t add_aperture(std::uint64_t virt, std::uint64_t most_bytes);
    // Memory of ours at an offset in the aperture, a multiple of 2 MiB; whole pages. Returns the slot. Throws.
    std::uint32_t fill_aperture(std::uint64_t offset, std::uint64_t bytes, void* host);
    void empty_aperture(std::uint32_t slot);

    // Memory of ours behind the program's addresses from `virt` on, as far as it lies in one piece and a program may read (or write) it: at
    // most `bytes`, none if not even the first byte. For writing, the pages count as written by the program.
    std::span<std::byte> reach(std::uint64_t virt, std::uint64_t bytes, bool write) noexcept;
    // All or nothing, except that a write may have begun.
    bool read(std::uint64_t virt, void* to, std::uint64_t bytes) noexcept;
    bool write(std::uint64_t virt, const void* from, std::uint64_t bytes) noexcept;

    void begin(unsigned core, Start start);
    Event run(unsigned core) noexcept;
    [[nodiscard]] Core& core(unsigned index) noexcept { return *cores_[index]; }   // below cores()
    [[nodiscard]] unsigned cores() const noexcept { return static_cast<unsigned>(cores_.size()); }

    // Between two runs: touched and written pages are counted anew.
    void turn();
    [[nodiscard]] Tables& tables() noexcept { return *tables_; }

private:
    void map_area(const Area& area, bool large);
    [[nodiscard]] Event decode(unsigned core) noexcept;
    [[nodiscard]] Event decode_trap(unsigned core, unsigned number) noexcept;
    std::uint32_t take_slot();

    [[nodiscard]] std::byte* place(std::uint64_t phys) const noexcept { return arena_ + (phys - arena_phys); }
    void take_arena();

    std::unique_ptr<Machine> machine_;
    std::byte* arena_ = nullptr;
    std::unique_ptr<Tables> tables_;
    std::deque<Area> areas_;    // references stay good
    std::vector<Core*> cores_;  // the machine's
    std::vector<std::uint32_t> free_slots_;
    std::uint32_t next_slot_ = 1;                 // 0: the arena
    std::uint64_t next_phys_ = 0, arena_bytes_ = 0;
    std::uint64_t aperture_virt_ = 0, aperture_phys_ = 0, aperture_bytes_ = 0;
};

}  // namespace teal::kvm

#endif
