// What a judged program may ask for, where there is no kernel to ask.
//
// Theory of operation. An ordinary static Linux program makes system calls; those that a program needs which only reads its input and
// writes its output are played here, on the memory of its guest: input and output, memory from one heap, clocks, and the questions that a C
// library asks when it starts. Nothing else exists: no file can be opened, no process or thread made; what is not known gets ENOSYS. A
// DuckInfo program may only end: exit and tkill; anything else ends it. Nothing that a program says is believed: every address goes through
// Guest::reach().
#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include <sys/stat.h>

#include "box/judge.hpp"
#include "kvm/fuse.hpp"
#include "kvm/guest.hpp"

namespace teal::kvm {

// How the program ended, if it has.
struct End {
    bool ended = false;
    std::uint32_t trap = 0;     // the reference's: 253 abort, 254 invalid system call, 255 exit
    std::int32_t status = 0;    // exit status
    std::int32_t signal = 0;    // that it sent itself
};

class Calls {
public:
    struct Files {
        int in = -1, out = -1, err = -1;
        std::uint64_t out_limit = 0, err_limit = 0;
    };
    Calls(Guest& guest, box::Abi abi, const Files& files, std::uint64_t heap, std::uint64_t heap_bytes) noexcept;

    // For resident programs: no files, but real clocks. Others are told the CPU time they have used, whatever clock they ask for.
    void serve_resident() noexcept { resident_ = true; }
    // A judged run: it is told how long the program sleeps, which its signals do not shorten.
    void bound_by(Fuse& fuse) noexcept { fuse_ = &fuse; }
    // Does what the event asks for; resumes the core unless the program has ended.
    End answer(unsigned core, const Event& event) noexcept;

    [[nodiscard]] std::uint64_t out_bytes() const noexcept { return outputs_[0].bytes; }
    [[nodiscard]] std::uint64_t err_bytes() const noexcept { return outputs_[1].bytes; }
    [[nodiscard]] bool out_truncated() const noexcept { return outputs_[0].truncated; }
    [[nodiscard]] bool err_truncated() const noexcept { return outputs_[1].truncated; }
    [[nodiscard]] bool memory_refused() const noexcept { return memory_refused_; }
    [[nodiscard]] std::uint64_t unknown() const noexcept { return unknown_; }

private:
    struct Output {
        int fd = -1;
        std::uint64_t limit = 0, bytes = 0;
        bool truncated = false;
    };
    std::int64_t linux_call(std::uint64_t number, const std::uint64_t (&arguments)[6]) noexcept;
    std::int64_t ask_system(std::uint64_t number, const std::uint64_t (&arguments)[6]) noexcept;
    std::int64_t read_input(std::uint64_t to, std::uint64_t bytes) noexcept;
    std::int64_t read_input_at(std::uint64_t to, std::uint64_t bytes, std::uint64_t offset) noexcept;
    std::int64_t write_output(std::uint64_t fd, std::uint64_t from, std::uint64_t bytes) noexcept;
    std::int64_t vector(std::uint64_t fd, std::uint64_t list, std::uint64_t count, bool write) noexcept;
    std::int64_t set_break(std::uint64_t to) noexcept;
    std::int64_t map(const std::uint64_t (&arguments)[6]) noexcept;
    std::int64_t unmap(std::uint64_t address, std::uint64_t bytes) noexcept;
    std::int64_t describe_file(std::uint64_t fd, std::uint64_t to) noexcept;
    std::int64_t describe_more(std::uint64_t fd, std::uint64_t to) noexcept;
    [[nodiscard]] struct stat file(std::uint64_t fd) const noexcept;
    std::int64_t sleep(std::uint64_t clock, std::uint64_t flags, std::uint64_t from) noexcept;
    std::int64_t tell_time(std::uint64_t clock, std::uint64_t to) noexcept;
    std::int64_t set_base(std::uint64_t code, std::uint64_t value) noexcept;
    std::int64_t name_system(std::uint64_t to) noexcept;
    std::int64_t random(std::uint64_t to, std::uint64_t bytes) noexcept;
    void zero(std::uint64_t from, std::uint64_t to) noexcept;

    Guest* guest_;
    box::Abi abi_;
    int in_;
    Output outputs_[2];
    std::uint64_t heap_, heap_end_, break_, lowest_map_;   // the break grows up, maps come down from the end
    std::uint64_t began_ns_, random_ = 0x9e37'79b9'7f4a'7c15;
    std::uint64_t unknown_ = 0;
    unsigned core_ = 0;
    bool memory_refused_ = false, resident_ = false;
    Fuse* fuse_ = nullptr;
};

}  // namespace teal::kvm

#endif
