#include "kvm/guest.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "kvm/trap_page.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint32_t arena_slot = 0;
constexpr std::uint64_t highest_user = 0x0000'7fff'ffff'f000;
constexpr std::uint64_t most_arena = std::uint64_t{1} << 42;   // addresses, not memory
constexpr std::uint64_t least_arena = std::uint64_t{1} << 32;

}  // namespace

void Guest::take_arena() {
    const std::uint64_t addressable = (std::uint64_t{1} << machine_->physical_bits()) - arena_phys;
    for (arena_bytes_ = std::min(most_arena, addressable); arena_bytes_ >= least_arena; arena_bytes_ /= 4) {
        void* at = ::mmap(nullptr, arena_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at != MAP_FAILED) {
            arena_ = static_cast<std::byte*>(at);
            return;
        }
    }
    throw Error(Code::quota_exceeded, system_message("addresses for a guest's memory", errno));
}

Guest::Guest(unsigned cores, std::uint64_t tables, unsigned windows, std::unique_ptr<Machine> machine)
    : machine_(machine != nullptr ? std::move(machine) : std::make_unique<Machine>()) {
    if (cores == 0 || cores > most_guest_cores) {
        throw Error(Code::invalid_argument, "a guest has 1 to 64 cores");
    }
    take_arena();
    try {
        if (::mprotect(arena_, system_bytes, PROT_READ | PROT_WRITE) != 0) {
            throw Error(Code::quota_exceeded, system_message("a guest's trap page", errno));
        }
        write_trap_page(arena_, cores);
        const std::uint64_t tables_phys = arena_phys + system_bytes;
        const std::uint64_t table_bytes = (tables + 4 + 1) * page_bytes * windows;   // + 4: those of the trap page
        if (table_bytes > arena_bytes_ / 2) {
            throw Error(Code::quota_exceeded, "more memory than a guest can address on this machine");
        }
        tables_ = std::make_unique<Tables>(place(tables_phys), tables_phys, tables + 4, windows);
        next_phys_ = round_up(tables_phys + table_bytes, large_page_bytes);
        for (std::uint64_t at = page_bytes; at < system_bytes; at += page_bytes) {   // the first page stays out: null is nowhere
            const bool code = at == stubs;
            tables_->map(at, arena_phys + at, 1, {.user = false, .write = !code, .execute = code});
        }
        for (unsigned core = 0; core < cores; ++core) {
            cores_.push_back(&machine_->core(core));
        }
    } catch (...) {
        ::munmap(arena_, arena_bytes_);
        throw;
    }
}

Guest::~Guest() {
    machine_.reset();             // before the memory that it has
    ::munmap(arena_, arena_bytes_);
}

void Guest::commit() { machine_->add_memory(arena_slot, arena_phys, next_phys_ - arena_phys, arena_, false); }

std::uint32_t Guest::take_slot() {
    if (free_slots_.empty()) {
        return next_slot_++;
    }
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
}

Area& Guest::add(std::uint64_t virt, std::uint64_t bytes, Access access, const Source& source, bool large) {
    std::uint64_t end = 0;
    if (virt % page_bytes != 0 || bytes % page_bytes != 0 || bytes == 0 || virt < system_bytes ||
        !checked_add(virt, bytes, end) || end > highest_user) {
        throw Error(Code::invalid_argument, "a guest's memory lies between 64 KiB and 128 TiB, in whole pages");
    }
    for (const Area& other : areas_) {
        if (virt < other.virt + other.bytes && other.virt < end) {
            throw Error(Code::invalid_argument, "two areas of a guest overlap");
        }
    }
    Area area;
    area.virt = virt;
    area.phys = next_phys_ + virt % large_page_bytes;   // alike in both, so that large pages are possible underneath
    area.bytes = bytes;
    area.access = access;
    if (!within(area.phys - arena_phys, bytes, arena_bytes_ - large_page_bytes)) {
        throw Error(Code::quota_exceeded, "more memory than a guest can address on this machine");
    }
    area.host = place(area.phys);
    const int protection = PROT_READ | (access.write || !source.shared ? PROT_WRITE : 0);
    const int flags = MAP_FIXED | MAP_NORESERVE | (source.shared ? MAP_SHARED : MAP_PRIVATE) | (source.fd < 0 ? MAP_ANONYMOUS : 0) |
                      (source.populate ? MAP_POPULATE : 0);
    if (::mmap(area.host, bytes, protection, flags, source.fd, static_cast<off_t>(source.offset)) == MAP_FAILED) {
        throw Error(Code::quota_exceeded, system_message("a guest's memory", errno));
    }
    next_phys_ = round_up(area.phys + bytes, large_page_bytes);
    areas_.push_back(area);
    map_area(area, large);
    return areas_.back();
}

void Guest::map_area(const Area& area, bool large) {
    const std::uint64_t end = area.virt + area.bytes;
    const std::uint64_t from = large ? std::min(round_up(area.virt, large_page_bytes), end) : end;
    const std::uint64_t to = large ? std::max(end & ~(large_page_bytes - 1), from) : end;
    tables_->map(area.virt, area.phys, (from - area.virt) / page_bytes, area.access);
    tables_->map_large(from, area.phys + (from - area.virt), (to - from) / large_page_bytes, area.access);
    tables_->map(to, area.phys + (to - area.virt), (end - to) / page_bytes, area.access);
}

void Guest::protect(std::uint64_t virt, std::uint64_t pages, Access access) {
    for (const Area& area : areas_) {
        if (area.holds(virt, pages * page_bytes)) {
            tables_->map(virt, area.phys + (virt - area.virt), pages, access);
            return;
        }
    }
    throw Error(Code::invalid_argument, "pages to protect that are in no area");
}

// Behind the arena's memory: no area may be added afterwards.
std::uint64_t Guest::add_aperture(std::uint64_t virt, std::uint64_t most_bytes) {
    const std::uint64_t end = std::uint64_t{1} << machine_->physical_bits();
    aperture_virt_ = virt;
    aperture_phys_ = next_phys_;
    aperture_bytes_ = std::min(most_bytes, end - next_phys_) & ~(large_page_bytes - 1);
    return aperture_bytes_;
}

std::uint32_t Guest::fill_aperture(std::uint64_t offset, std::uint64_t bytes, void* host) {
    if (offset % large_page_bytes != 0 || bytes % page_bytes != 0 || bytes == 0 || !within(offset, bytes, aperture_bytes_)) {
        throw Error(Code::invalid_argument, "memory outside a guest's aperture");
    }
    const std::uint32_t slot = take_slot();
    try {
        tables_->map_large(aperture_virt_ + offset, aperture_phys_ + offset, round_up(bytes, large_page_bytes) / large_page_bytes,
                           {.user = true, .write = false, .execute = false});
        machine_->add_memory(slot, aperture_phys_ + offset, bytes, host, true);
    } catch (...) {
        free_slots_.push_back(slot);
        throw;
    }
    return slot;
}

void Guest::empty_aperture(std::uint32_t slot) {
    machine_->remove_memory(slot);
    free_slots_.push_back(slot);
}

std::span<std::byte> Guest::reach(std::uint64_t virt, std::uint64_t bytes, bool write) noexcept {
    constexpr std::uint64_t present = 1, writable = 2, user = 4;
    for (const Area& area : areas_) {
        if (!area.holds(virt, 1)) {
            continue;
        }
        const std::uint64_t most = std::min(bytes, area.bytes - (virt - area.virt));
        std::uint64_t end = virt;
        while (end < virt + most) {
            const std::uint64_t* entry = tables_->find(end);
            const std::uint64_t needed = present | user | (write ? writable : 0);
            if (entry == nullptr || (*entry & needed) != needed) {
                break;
            }
            if (write) tables_->mark_written(end);
            end = (end & ~(page_bytes - 1)) + page_bytes;
        }
        return {area.host + (virt - area.virt), std::min(end, virt + most) - virt};
    }
    return {};
}

bool Guest::read(std::uint64_t virt, void* to, std::uint64_t bytes) noexcept {
    for (auto* at = static_cast<std::byte*>(to); bytes > 0;) {
        const auto piece = reach(virt, bytes, false);
        if (piece.empty()) return false;
        std::memcpy(at, piece.data(), piece.size());
        at += piece.size(), virt += piece.size(), bytes -= piece.size();
    }
    return true;
}

bool Guest::write(std::uint64_t virt, const void* from, std::uint64_t bytes) noexcept {
    for (auto* at = static_cast<const std::byte*>(from); bytes > 0;) {
        const auto piece = reach(virt, bytes, true);
        if (piece.empty()) return false;
        std::memcpy(piece.data(), at, piece.size());
        at += piece.size(), virt += piece.size(), bytes -= piece.size();
    }
    return true;
}

void Guest::begin(unsigned core, Start start) {
    start.root = tables_->root();
    cores_[core]->reset(start);
}

void Guest::turn() {
    tables_->turn();
    if (tables_->wrapped()) {
        machine_->remove_memory(arena_slot);
        commit();
        tables_->unwrap();
    }
}

Event Guest::run(unsigned core) noexcept {
    const int error = cores_[core]->run();
    if (error == EINTR || error == EAGAIN) {
        Event event;
        event.what = Event::What::stopped;
        event.rip = cores_[core]->registers().rip;
        event.rsp = cores_[core]->registers().rsp;
        event.rflags = cores_[core]->registers().rflags;
        return event;
    }
    if (error != 0) {
        return {.what = Event::What::failed, .number = 0x1000u + static_cast<unsigned>(error)};
    }
    return decode(core);
}

Event Guest::decode(unsigned index) noexcept {
    Core& core = *cores_[index];
    const kvm_run& shared = core.shared();
    Event event;
    event.number = shared.exit_reason;
    event.rip = core.registers().rip;
    event.rsp = core.registers().rsp;
    event.rflags = core.registers().rflags;
    switch (shared.exit_reason) {
    case KVM_EXIT_IO:
        if (shared.io.port == syscall_port) {
            event.what = Event::What::syscall;
            event.rip = core.registers().rcx;
            event.rflags = core.registers().r11;
            return event;
        }
        return decode_trap(index, shared.io.port);
    case KVM_EXIT_MMIO:           // mapped, but no memory there
        event.what = Event::What::trap;
        event.number = 14;
        event.error = 4;
        event.address = shared.mmio.phys_addr - aperture_phys_ + aperture_virt_;
        return event;
    case KVM_EXIT_SHUTDOWN:       // a trap while a trap was being told
        event.what = Event::What::trap;
        event.number = 8;
        return event;
    case KVM_EXIT_INTR:
        event.what = Event::What::stopped;
        return event;
    case KVM_EXIT_INTERNAL_ERROR:
        if ((core.special().cs.selector & 3) == 3) {   // an instruction of the program's that KVM had to take over and cannot
            event.what = Event::What::trap;
            event.number = 6;
        }
        return event;
    default:
        return event;
    }
}

Event Guest::decode_trap(unsigned index, unsigned number) noexcept {
    Core& core = *cores_[index];
    std::uint64_t frame[6];       // error code, rip, cs, rflags, rsp, ss
    std::memcpy(frame, arena_ + trap_stack_top(index) - sizeof frame, sizeof frame);
    Event event;
    event.what = Event::What::trap;
    event.number = number;
    event.error = has_error_code(number) ? frame[0] : 0;
    event.rip = frame[1];
    event.rflags = frame[3];
    event.rsp = frame[4];
    if (number == int80_port) {
        event.what = Event::What::int80;
    } else if (number == 14) {
        event.address = core.special().cr2;
        if (event.rip == stub(syscall_port) && event.address == event.rip) {   // the syscall instruction, without ring 0
            event.what = Event::What::syscall;
            event.rip = core.registers().rcx;
            event.rflags = core.registers().r11;
        }
    } else if (number == 6) {
        std::uint8_t code[2] = {};
        if (read(event.rip, code, 2) && code[0] == 0xcd && code[1] == int80_port) {   // the same for int $0x80
            event.what = Event::What::int80;
            event.rip += 2;
        }
    }
    return event;
}

}  // namespace teal::kvm

#endif
