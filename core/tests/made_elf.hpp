// ELF files for tests, made field by field: what linkers never make included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "elf/program.hpp"

namespace teal::made {

struct MadeSegment {
    std::uint32_t type = PT_LOAD, flags = PF_R;
    std::uint64_t offset = 0, address = 0, file_bytes = 0, bytes = 0, align = 4096;
};

struct MadeElf {
    bool wide = true;
    std::uint16_t type = ET_EXEC, machine = EM_X86_64;
    std::uint64_t entry = 0x40'1000;
    std::vector<MadeSegment> segments = {
        {PT_LOAD, PF_R, 0, 0x40'0000, 0x200, 0x200, 4096},
        {PT_LOAD, PF_R | PF_X, 0x1000, 0x40'1000, 0x1800, 0x1800, 4096},
        {PT_LOAD, PF_R | PF_W, 0x3000, 0x40'4000, 0x100, 0x3000, 4096},
    };
    std::size_t size = 0x3200;
    std::function<void(std::vector<std::byte>&)> afterwards;  // the last word on the bytes

    template <typename Ehdr, typename Phdr>
    void write(std::vector<std::byte>& file) const {
        Ehdr head{};
        std::memcpy(head.e_ident, ELFMAG, SELFMAG);
        head.e_ident[EI_CLASS] = wide ? ELFCLASS64 : ELFCLASS32;
        head.e_ident[EI_DATA] = ELFDATA2LSB;
        head.e_ident[EI_VERSION] = EV_CURRENT;
        head.e_type = type;
        head.e_machine = machine;
        head.e_version = EV_CURRENT;
        head.e_entry = static_cast<decltype(head.e_entry)>(entry);
        head.e_phoff = sizeof head;
        head.e_ehsize = sizeof head;
        head.e_phentsize = sizeof(Phdr);
        head.e_phnum = static_cast<std::uint16_t>(segments.size());
        std::memcpy(file.data(), &head, sizeof head);
        for (std::size_t i = 0; i < segments.size(); ++i) {
            Phdr p{};
            p.p_type = segments[i].type;
            p.p_flags = segments[i].flags;
            p.p_offset = static_cast<decltype(p.p_offset)>(segments[i].offset);
            p.p_vaddr = p.p_paddr = static_cast<decltype(p.p_vaddr)>(segments[i].address);
            p.p_filesz = static_cast<decltype(p.p_filesz)>(segments[i].file_bytes);
            p.p_memsz = static_cast<decltype(p.p_memsz)>(segments[i].bytes);
            p.p_align = static_cast<decltype(p.p_align)>(segments[i].align);
            std::memcpy(file.data() + sizeof head + i * sizeof p, &p, sizeof p);
        }
    }

    // Headers, and behind them bytes that tell where they are.
    [[nodiscard]] std::vector<std::byte> bytes() const {
        std::vector<std::byte> file(size);
        for (std::size_t i = 0; i < size; ++i) file[i] = static_cast<std::byte>(1 + (i * 7 + i / 4096) % 255);
        if (wide) write<Elf64_Ehdr, Elf64_Phdr>(file);
        else write<Elf32_Ehdr, Elf32_Phdr>(file);
        if (afterwards) afterwards(file);
        return file;
    }
};

inline MadeElf i386() {
    MadeElf made;
    made.wide = false;
    made.machine = EM_386;
    made.entry = 0x804'9000;
    made.segments = {{PT_LOAD, PF_R, 0, 0x804'8000, 0x200, 0x200, 4096}, {PT_LOAD, PF_R | PF_X, 0x1000, 0x804'9000, 0x800, 0x800, 4096}};
    return made;
}

inline std::shared_ptr<const elf::Program> read(const MadeElf& made, const elf::Rules& rules = {}) { return elf::read_program(made.bytes(), "made", rules); }

// What read_program() says of it; "" when it takes it.
inline std::string refusal(std::span<const std::byte> file, const elf::Rules& rules = {}) {
    try {
        elf::read_program(file, "made", rules);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}
inline std::string refusal(const MadeElf& made, const elf::Rules& rules = {}) { return refusal(made.bytes(), rules); }

}  // namespace teal::made
