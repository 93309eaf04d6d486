#include "elf/program.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <optional>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/sha256.hpp"

namespace teal::elf {
namespace {

constexpr std::uint32_t resident_abi = 1;         // DUCK_ABI of duck.h
constexpr std::uint32_t note_resident = 1;        // types of the note "Teal": desc = DUCK_ABI
constexpr std::uint32_t note_duckinfo = 2;        // desc = DUCKINFO_VERSION
constexpr std::uint64_t lowest_address = 0x1'0000;  // below, the kernel maps nothing for an ordinary user
constexpr std::uint64_t highest_address = 0x7fff'ffff'0000;  // 47 bits; all three machines' kernels leave a gap at the end
constexpr std::uint64_t highest_address_32 = 0xffff'0000;
constexpr std::uint16_t most_headers = 256;

struct Segment {  // a program header of either class
    std::uint32_t type, flags;
    std::uint64_t offset, address, file_bytes, bytes, align;
};

struct Head {  // what both classes' file headers say
    std::uint16_t type, machine, header_bytes, entry_bytes, count;
    std::uint32_t version;
    std::uint64_t entry, offset;
};

template <typename T>
T copied(std::span<const std::byte> bytes, std::uint64_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

template <typename Ehdr>
Head head_of(std::span<const std::byte> file) {
    const auto h = copied<Ehdr>(file, 0);
    return {h.e_type, h.e_machine, h.e_ehsize, h.e_phentsize, h.e_phnum, h.e_version, h.e_entry, h.e_phoff};
}

template <typename Phdr>
Segment segment_of(std::span<const std::byte> file, std::uint64_t at) {
    const auto h = copied<Phdr>(file, at);
    return {h.p_type, h.p_flags, h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz, h.p_align};
}

std::string hex(std::uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

std::uint64_t page_of(std::uint64_t address) { return address & ~(page_bytes - 1); }

class Reader {
public:
    Reader(std::span<const std::byte> file, const char* name, const Rules& rules) : file_(file), name_(name), rules_(rules) {}

    std::shared_ptr<const Program> read() {
        read_head();
        read_segments();
        check_linkage();
        if (rules_.duckinfo) check_duckinfo();
        add_ranges();
        check_entry();
        copy_image();
        find_headers();
        read_tls();
        read_notes();
        if (rules_.digest != nullptr) {
            program_->digest = *rules_.digest;
        } else {
            Sha256 digest;
            digest.add(file_);
            program_->digest = digest.finish();
        }
        return program_;
    }

private:
    [[nodiscard]] std::string segment_name(std::size_t index) const { return "segment " + std::to_string(index); }

    void read_head() {
        if (file_.size() < EI_NIDENT || std::memcmp(file_.data(), ELFMAG, SELFMAG) != 0)
            throw Error(Code::invalid_argument, name_ + ": no ELF file: it does not begin with 7f 45 4c 46");
        const auto ident = [this](std::size_t i) { return std::to_integer<unsigned>(file_[i]); };
        const unsigned elf_class = ident(EI_CLASS);
        if (elf_class != ELFCLASS64 && elf_class != ELFCLASS32)
            throw Error(Code::invalid_argument, name_ + ": ELF class " + std::to_string(elf_class) + ": expected 2 (64 bits) or 1 (32 bits)");
        if (ident(EI_DATA) != ELFDATA2LSB)
            throw Error(Code::invalid_argument, name_ + ": ELF byte order " + std::to_string(ident(EI_DATA)) + ": expected 1 (little-endian)");
        if (ident(EI_OSABI) != ELFOSABI_SYSV && ident(EI_OSABI) != ELFOSABI_LINUX)
            throw Error(Code::invalid_argument, name_ + ": made for operating system " + std::to_string(ident(EI_OSABI)) + ": expected 0 (System V) or 3 (Linux)");
        wide_ = elf_class == ELFCLASS64;
        const std::size_t least = wide_ ? sizeof(Elf64_Ehdr) : sizeof(Elf32_Ehdr);
        if (file_.size() < least)
            throw Error(Code::invalid_argument, name_ + ": cut short: " + std::to_string(file_.size()) + " bytes, the file header alone has " + std::to_string(least));
        head_ = wide_ ? head_of<Elf64_Ehdr>(file_) : head_of<Elf32_Ehdr>(file_);
        if (ident(EI_VERSION) != EV_CURRENT || head_.version != EV_CURRENT)
            throw Error(Code::invalid_argument, name_ + ": ELF version " + std::to_string(head_.version) + ": expected 1");
        read_machine();
        if (head_.type != ET_EXEC && head_.type != ET_DYN)
            throw Error(Code::invalid_argument, name_ + ": ELF type " + std::to_string(head_.type) +
                        ": expected a linked program, 2 (fixed address) or 3 (position-independent); an object file has to be linked first");
        program_->kind = head_.type == ET_EXEC ? Kind::fixed : Kind::position_independent;
        check_table(least);
    }

    void read_machine() {
        std::optional<Machine> machine;
        if (wide_ && head_.machine == EM_X86_64) machine = Machine::x86_64;
        if (!wide_ && head_.machine == EM_386) machine = Machine::i386;
        if (wide_ && head_.machine == EM_AARCH64) machine = Machine::aarch64;
        if (!machine)
            throw Error(Code::invalid_argument, name_ + ": machine " + std::to_string(head_.machine) + " with " + (wide_ ? "64" : "32") +
                        " bits: expected x86-64 (62), aarch64 (183) or i386 (3)");
        if ((rules_.machines & bit_of(*machine)) == 0)
            throw Error(Code::invalid_argument, name_ + ": a program for " + name_of(*machine) + ", which this machine cannot run");
        program_->machine = *machine;
    }

    void check_table(std::size_t least) {
        const std::size_t entry_bytes = wide_ ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
        if (head_.header_bytes < least)
            throw Error(Code::invalid_argument, name_ + ": e_ehsize is " + std::to_string(head_.header_bytes) + ": expected " + std::to_string(least));
        if (head_.entry_bytes != entry_bytes)
            throw Error(Code::invalid_argument, name_ + ": e_phentsize is " + std::to_string(head_.entry_bytes) + ": expected " + std::to_string(entry_bytes));
        if (head_.count == 0 || head_.count > most_headers)
            throw Error(Code::invalid_argument, name_ + ": e_phnum is " + std::to_string(head_.count) + ": expected 1 to " + std::to_string(most_headers) + " program headers");
        if (!within(head_.offset, head_.count * entry_bytes, file_.size()))
            throw Error(Code::invalid_argument, name_ + ": cut short: " + std::to_string(head_.count) + " program headers at " + hex(head_.offset) +
                        ", the file has " + std::to_string(file_.size()) + " bytes");
        program_->header_offset = head_.offset;
        program_->header_count = head_.count;
        program_->header_entry_bytes = head_.entry_bytes;
    }

    void read_segments() {
        for (std::uint16_t i = 0; i < head_.count; ++i) {
            const std::uint64_t at = head_.offset + std::uint64_t{i} * head_.entry_bytes;
            const Segment segment = wide_ ? segment_of<Elf64_Phdr>(file_, at) : segment_of<Elf32_Phdr>(file_, at);
            segments_.push_back(segment);
            if (segment.type == PT_GNU_STACK) program_->executable_stack = (segment.flags & PF_X) != 0;
            if (segment.type == PT_LOAD || segment.type == PT_TLS || segment.type == PT_NOTE || segment.type == PT_DYNAMIC || segment.type == PT_INTERP) check_segment(i);
        }
    }

    void check_segment(std::size_t i) {
        const Segment& s = segments_[i];
        // What has nothing in the file may be said to lie anywhere: linkers put it behind the end.
        const bool of_file = s.file_bytes != 0 || (s.type != PT_LOAD && s.type != PT_TLS);
        if (of_file && !within(s.offset, s.file_bytes, file_.size()))
            throw Error(Code::invalid_argument, name_ + ": cut short: " + segment_name(i) + " has " + std::to_string(s.file_bytes) + " bytes at " + hex(s.offset) +
                        ", the file has " + std::to_string(file_.size()) + " bytes");
        if (s.type != PT_LOAD && s.type != PT_TLS) return;
        if (s.file_bytes > s.bytes)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " has " + std::to_string(s.file_bytes) + " bytes in the file and " +
                        std::to_string(s.bytes) + " in memory: expected no more in the file");
        if (s.align > 1 && (s.align & (s.align - 1)) != 0)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " has alignment " + std::to_string(s.align) + ": expected a power of two");
        if (s.type == PT_TLS) return;
        const std::uint64_t limit = wide_ ? highest_address : highest_address_32;
        if (!within(s.address, s.bytes, limit))
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " has " + std::to_string(s.bytes) + " bytes at " + hex(s.address) +
                        ": expected an end at or below " + hex(limit));
        if ((s.flags & ~std::uint32_t{PF_R | PF_W | PF_X}) != 0)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " has flags " + hex(s.flags) + ": expected read, write, execute (7) at most");
        if ((s.flags & PF_W) != 0 && (s.flags & PF_X) != 0)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " at " + hex(s.address) +
                        " is writable and executable: one or the other; was it linked with -N or --omagic?");
        if (program_->kind == Kind::fixed && s.bytes > 0 && s.address < lowest_address)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " is at " + hex(s.address) + ": expected " + hex(lowest_address) + " or above");
    }

    // Whether it can run with nobody to link it.
    void check_linkage() {
        for (const Segment& s : segments_) {
            if (s.type == PT_INTERP) {
                std::string who(reinterpret_cast<const char*>(file_.data() + s.offset), std::min<std::uint64_t>(s.file_bytes, 80));
                who.resize(std::min(who.size(), who.find('\0')));
                for (char& c : who) if (c < ' ' || c > '~') c = '?';
                throw Error(Code::invalid_argument, name_ + ": dynamically linked (by " + who + "): link it with -static");
            }
        }
        bool marked = program_->kind == Kind::fixed;
        bool dynamic = false;
        for (const Segment& s : segments_) {
            if (s.type != PT_DYNAMIC) continue;
            dynamic = true;
            const std::uint64_t size = wide_ ? sizeof(Elf64_Dyn) : sizeof(Elf32_Dyn);
            for (std::uint64_t at = 0; within(at, size, s.file_bytes); at += size) {
                const auto tag = wide_ ? copied<std::int64_t>(file_, s.offset + at) : copied<std::int32_t>(file_, s.offset + at);
                const auto value = wide_ ? copied<std::uint64_t>(file_, s.offset + at + 8) : copied<std::uint32_t>(file_, s.offset + at + 4);
                if (tag == DT_NULL) break;
                if (tag == DT_NEEDED) throw Error(Code::invalid_argument, name_ + ": dynamically linked: it needs shared libraries; link it with -static");
                if (tag == DT_FLAGS_1 && (value & DF_1_PIE) != 0) marked = true;
            }
        }
        if (dynamic && !marked)
            throw Error(Code::invalid_argument, name_ + ": a shared library, or linked without -pie: expected a program (DF_1_PIE in DT_FLAGS_1)");
    }

    void check_duckinfo() {
        if (program_->machine == Machine::aarch64) throw Error(Code::invalid_argument, name_ + ": a DuckInfo program for aarch64: expected x86-64 or i386");
        if (program_->kind != Kind::fixed) throw Error(Code::invalid_argument, name_ + ": position-independent: DuckInfo programs have a fixed address; link with -static -no-pie");
        const std::uint64_t base = wide_ ? 0x40'0000 : 0x804'8000;
        std::uint64_t lowest = UINT64_MAX;
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            const Segment& s = segments_[i];
            if (s.type != PT_LOAD) continue;
            lowest = std::min(lowest, s.address);
            if (s.align != page_bytes && s.align != 0x20'0000)
                throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " has alignment " + std::to_string(s.align) + ": expected 4096 or 2097152");
        }
        if (lowest != base)
            throw Error(Code::invalid_argument, name_ + ": begins at " + hex(lowest) + ": expected " + hex(base) + ", where DuckInfo programs of its class lie");
        if (!within(head_.offset, std::uint64_t{head_.count} * head_.entry_bytes, page_bytes))
            throw Error(Code::invalid_argument, name_ + ": its program headers do not lie in the first page of the file, as DuckInfo programs' do");
        program_->duckinfo = true;
    }

    void add_ranges() {
        std::uint64_t from_file = 0, end = 0;
        std::size_t last = SIZE_MAX;
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            const Segment& s = segments_[i];
            if (s.type != PT_LOAD || s.bytes == 0) continue;
            if (last != SIZE_MAX && s.address < end)
                throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " at " + hex(s.address) + " begins before the end of segment " +
                            std::to_string(last) + " at " + hex(end) + ": expected segments in the order of their addresses that do not overlap");
            end = s.address + s.bytes;
            last = i;
            from_file += s.file_bytes;  // at most 256 times the size of a file in memory: no overflow
            add_range(i);
        }
        if (program_->ranges.empty()) throw Error(Code::invalid_argument, name_ + ": nothing to load: it has no PT_LOAD segment of any size");
        if (from_file > file_.size())
            throw Error(Code::invalid_argument, name_ + ": its segments have " + std::to_string(from_file) + " bytes of the file, which has only " + std::to_string(file_.size()));
        program_->low = program_->ranges.front().address;
        program_->high = program_->ranges.back().address + program_->ranges.back().pages * page_bytes;
        const std::uint64_t pages = program_->memory_pages();
        if (pages > rules_.most_bytes / page_bytes)
            throw Error(Code::invalid_argument, name_ + ": wants " + std::to_string(pages) + " pages of memory when it starts: at most " +
                        std::to_string(rules_.most_bytes / page_bytes) + " are allowed");
    }

    void add_range(std::size_t i) {
        const Segment& s = segments_[i];
        std::uint8_t protection = 0;
        if (s.flags != 0) protection = readable;  // what can be written or executed can be read
        if ((s.flags & PF_W) != 0) protection |= writable;
        if ((s.flags & PF_X) != 0) protection |= executable;
        std::uint64_t begin = page_of(s.address);
        const std::uint64_t end = round_up(s.address + s.bytes, page_bytes);
        const std::uint64_t file_end = s.file_bytes == 0 ? begin : round_up(s.address + s.file_bytes, page_bytes);
        auto& ranges = program_->ranges;
        if (!ranges.empty() && ranges.back().address + ranges.back().pages * page_bytes > begin) {
            share_page(i, protection, s.file_bytes > 0);
            begin += page_bytes;
            if (begin == end) return;
        }
        ranges.push_back({begin, (end - begin) / page_bytes, file_end > begin ? (file_end - begin) / page_bytes : 0, 0, protection});
    }

    // The last page so far is the first of segment i too: it becomes a range of its own if they want it differently.
    void share_page(std::size_t i, std::uint8_t protection, bool has_bytes) {
        auto& ranges = program_->ranges;
        Range& before = ranges.back();
        const auto both = static_cast<std::uint8_t>(before.protection | protection);
        if ((both & writable) != 0 && (both & executable) != 0)
            throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " and the one before it share the page at " + hex(page_of(segments_[i].address)) +
                        ", which would be writable and executable: link with -z separate-code or -z max-page-size=4096");
        const bool from_file = has_bytes || before.file_pages == before.pages;
        if (before.pages == 1) {
            before.protection = both;
            before.file_pages = from_file ? 1 : 0;
            return;
        }
        --before.pages;
        before.file_pages = std::min(before.file_pages, before.pages);
        ranges.push_back({page_of(segments_[i].address), 1, from_file ? std::uint64_t{1} : 0, 0, both});
    }

    void check_entry() {
        for (const Segment& s : segments_)
            if (s.type == PT_LOAD && (s.flags & PF_X) != 0 && head_.entry >= s.address && head_.entry - s.address < s.file_bytes) {
                program_->entry = head_.entry;
                return;
            }
        throw Error(Code::invalid_argument, name_ + ": entry " + hex(head_.entry) + ": expected an address in an executable segment; does it have a _start?");
    }

    void copy_image() {
        std::uint64_t bytes = 0;
        for (Range& range : program_->ranges) {
            range.offset = bytes;
            bytes += range.file_pages * page_bytes;
        }
        program_->image.resize(bytes);
        std::size_t r = 0;
        for (const Segment& s : segments_) {
            if (s.type != PT_LOAD) continue;
            // A segment's bytes may lie in two ranges or three: its first page and its last one may be shared.
            for (std::uint64_t done = 0; done < s.file_bytes;) {
                const std::uint64_t address = s.address + done;
                while (address >= program_->ranges[r].address + program_->ranges[r].pages * page_bytes) ++r;
                const Range& range = program_->ranges[r];
                const std::uint64_t at = address - range.address;
                const std::uint64_t n = std::min(s.file_bytes - done, range.file_pages * page_bytes - at);
                std::memcpy(program_->image.data() + range.offset + at, file_.data() + s.offset + done, n);
                done += n;
            }
        }
        const auto head = file_.first(std::min<std::size_t>(file_.size(), page_bytes));
        program_->header_page.assign(head.begin(), head.end());
    }

    void find_headers() {
        const std::uint64_t size = std::uint64_t{head_.count} * head_.entry_bytes;
        for (const Segment& s : segments_)
            if (s.type == PT_LOAD && head_.offset >= s.offset && within(head_.offset - s.offset, size, s.file_bytes)) {
                program_->header_address = s.address + (head_.offset - s.offset);
                return;
            }
    }

    void read_tls() {
        bool seen = false;
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            const Segment& s = segments_[i];
            if (s.type != PT_TLS) continue;
            if (seen) throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " is the second PT_TLS: expected one at most");
            seen = true;
            if (s.bytes > rules_.most_bytes || s.align > page_bytes)
                throw Error(Code::invalid_argument, name_ + ": thread-local storage of " + std::to_string(s.bytes) + " bytes, aligned to " + std::to_string(s.align) +
                            ": expected at most " + std::to_string(rules_.most_bytes) + ", aligned to 4096 at most");
            const bool loaded = s.file_bytes == 0 || std::any_of(segments_.begin(), segments_.end(), [&s](const Segment& of) {
                return of.type == PT_LOAD && s.address >= of.address && within(s.address - of.address, s.file_bytes, of.bytes) && of.flags != 0;
            });
            if (!loaded) throw Error(Code::invalid_argument, name_ + ": " + segment_name(i) + " (PT_TLS) is at " + hex(s.address) + ", which no segment loads");
            program_->tls_address = s.address;
            program_->tls_file_bytes = s.file_bytes;
            program_->tls_bytes = s.bytes;
            program_->tls_align = std::max<std::uint64_t>(s.align, 1);
        }
    }

    // A note that is not understood ends the search in its segment: other people's notes are none of our business.
    void read_notes() {
        for (const Segment& s : segments_) {
            if (s.type != PT_NOTE) continue;
            const std::uint64_t align = s.align == 8 ? 8 : 4;
            for (std::uint64_t at = 0; within(at, sizeof(Elf64_Nhdr), s.file_bytes);) {
                const auto note = copied<Elf64_Nhdr>(file_, s.offset + at);
                const std::uint64_t name = at + sizeof note;
                const std::uint64_t desc = round_up(name + note.n_namesz, align);
                if (!within(name, note.n_namesz, s.file_bytes) || !within(desc, note.n_descsz, s.file_bytes)) break;
                if (note.n_namesz == 5 && std::memcmp(file_.data() + s.offset + name, "Teal", 5) == 0 && note.n_descsz == 4) {
                    if (note.n_type == note_resident) program_->resident_abi = copied<std::uint32_t>(file_, s.offset + desc);
                    if (note.n_type == note_duckinfo) program_->wants_duckinfo = true;
                }
                at = round_up(desc + note.n_descsz, align);
            }
        }
        if (program_->resident_abi > resident_abi)
            throw Error(Code::version_mismatch, name_ + ": was compiled for DUCK_ABI " + std::to_string(program_->resident_abi) + " of duck.h: this Teal knows " +
                        std::to_string(resident_abi) + "; update Teal here");
    }

    std::span<const std::byte> file_;
    std::string name_;
    const Rules& rules_;
    std::shared_ptr<Program> program_ = std::make_shared<Program>();
    bool wide_ = true;
    Head head_{};
    std::vector<Segment> segments_;
};

}  // namespace

const char* name_of(Machine machine) noexcept {
    switch (machine) {
        case Machine::x86_64: return "x86-64";
        case Machine::i386: return "i386";
        case Machine::aarch64: return "aarch64";
    }
    return "?";
}

unsigned native_machines() noexcept {
#if defined(__aarch64__)
    return bit_of(Machine::aarch64);
#else
    return bit_of(Machine::x86_64) | bit_of(Machine::i386);
#endif
}

std::uint64_t Program::memory_pages() const noexcept {
    std::uint64_t pages = 0;
    for (const Range& range : ranges) pages += range.pages;
    return pages;
}

bool Program::executable_at(std::uint64_t address) const noexcept {
    return std::any_of(ranges.begin(), ranges.end(), [address](const Range& range) {
        return (range.protection & executable) != 0 && address >= range.address && address - range.address < range.pages * page_bytes;
    });
}

std::shared_ptr<const Program> read_program(std::span<const std::byte> file, const char* name, const Rules& rules) {
    return Reader(file, name, rules).read();
}

}  // namespace teal::elf
