#include "kvm/trap_page.hpp"

#include <cstring>

namespace teal::kvm {
namespace {

void put(std::byte* memory, std::uint64_t at, std::uint64_t value, std::size_t bytes = 8) noexcept {
    std::memcpy(memory + at, &value, bytes);
}

void write_gate(std::byte* memory, unsigned number, unsigned lowest_ring) noexcept {
    const std::uint64_t to = stub(number);
    const std::uint64_t type = 0x8e | lowest_ring << 5;   // interrupt gate, present
    put(memory, interrupt_table + number * 16, (to & 0xffff) | 0x08ULL << 16 | type << 40 | (to >> 16 & 0xffff) << 48);
    put(memory, interrupt_table + number * 16 + 8, to >> 32);
}

void write_task_state(std::byte* memory, unsigned core) noexcept {
    const std::uint64_t at = task_state(core);
    put(memory, at + 4, trap_stack_top(core));            // rsp0
    put(memory, at + 0x66, 0x68, 2);                      // the I/O map lies behind the limit: no port from ring 3
    const std::uint64_t entry = segment_table + task_selector(core);
    put(memory, entry, 0x67 | (at & 0xff'ffff) << 16 | 0x8bULL << 40 | (at >> 24 & 0xff) << 56);
    put(memory, entry + 8, at >> 32);
}

}  // namespace

void write_trap_page(std::byte* memory, unsigned cores) noexcept {
    std::memset(memory, 0, system_bytes);
    for (unsigned number = 0; number < 256; ++number) {
        const unsigned char code[] = {0xe6, static_cast<unsigned char>(number), 0xf4};  // out %al, $number; hlt
        std::memcpy(memory + stub(number), code, sizeof code);
    }
    for (unsigned number = 0; number < 32; ++number) {
        write_gate(memory, number, number == 3 || number == 4 ? 3 : 0);                  // int3 and into are for everybody
    }
    write_gate(memory, int80_port, 3);
    put(memory, segment_table + 0x08, 0x00af'9a00'0000'ffff);                            // ring 0
    put(memory, segment_table + 0x10, 0x00cf'9200'0000'ffff);
    put(memory, segment_table + 0x18, 0x00cf'fa00'0000'ffff);                            // ring 3: 32-bit code, data, 64-bit code
    put(memory, segment_table + 0x20, 0x00cf'f200'0000'ffff);
    put(memory, segment_table + 0x28, 0x00af'fa00'0000'ffff);
    for (unsigned core = 0; core < cores; ++core) {
        write_task_state(memory, core);
    }
}

}  // namespace teal::kvm
