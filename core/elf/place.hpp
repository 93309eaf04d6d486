// A place: program memory that a program is put into, and that the next one is put into afterwards.
//
// Theory of operation. A place is a memfd with room for the file pages of a program. Boxes map it privately: what a program writes lies in pages of
// its own, and the place stays as it was loaded. load() brings a program in: pages are compared with what lies there, only those that differ are
// written, and nothing at all is looked at for the program that is there already (it is known by its SHA-256). Pages are compared
// byte by byte and not by a short hash: whoever can make two pages with one hash could otherwise keep a page of somebody else's program in memory.
// Pages of zeros behind a range's file pages are not in the place: boxes map them anonymously.
//
// What has to be mapped comes out as a short list of steps, which a box without any libc can follow. A box that maps a place sees a later load() in
// all pages that it has not written: a place is loaded anew only when no box runs what was in it.
//
// One thread at a time. The descriptor that boxes get cannot be written through, by whatever means (F_SEAL_FUTURE_WRITE).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "elf/program.hpp"

namespace teal::elf {

// What a box does, in this order, to have a program in its address space.
struct Step {
    enum class What : std::uint32_t {
        map,      // privately, from the place's memfd at `offset`
        zeros,    // anonymous and private
        protect,  // mprotect
        unmap,
        discard,  // drop the pages that the program wrote (MADV_DONTNEED): what is mapped there shows through again
    };
    What what;
    std::uint32_t protection;   // of Protection, for map, zeros and protect
    std::uint64_t address;      // bias added
    std::uint64_t bytes;
    std::uint64_t offset;       // in the memfd, for map
    bool operator==(const Step&) const = default;
};

// For a box that has nothing mapped.
[[nodiscard]] std::vector<Step> steps_for(const Program& program, std::uint64_t bias);
// For a box that has `before` at `before_bias`, from the same place. What it wrote is dropped.
[[nodiscard]] std::vector<Step> steps_between(const Program& before, std::uint64_t before_bias, const Program& after, std::uint64_t after_bias);

struct LoadReport {
    std::uint64_t pages_written = 0;   // of the place's memory
    std::uint64_t pages_zeroed = 0;    // the same, with zeros
    std::uint64_t pages_same = 0;      // were as they should be
    bool known = false;                // the program was there already: nothing was looked at
    std::uint64_t steps = 0;           // of steps_since_last()
    std::uint64_t ns = 0;
};

class Place {
public:
    // Room for so many bytes of file pages (Program::image); they are had now (throws quota_exceeded), so that a load touches no new ones.
    explicit Place(std::uint64_t bytes);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Throws quota_exceeded when the place is too small, invalid_argument for a bias that the program cannot have: it is page-aligned, 0 for
    // a program with a fixed address, and leaves it within the address space. The place is as it was then.
    LoadReport load(std::shared_ptr<const Program> program, std::uint64_t bias = 0);
    [[nodiscard]] const Program* program() const noexcept;           // null: none yet
    [[nodiscard]] std::uint64_t bias() const noexcept;
    [[nodiscard]] std::uint64_t bytes() const noexcept;              // room
    [[nodiscard]] std::uint64_t generation() const noexcept;         // counts loads that changed something
    [[nodiscard]] std::vector<Step> steps() const;                   // for a box with nothing of it
    [[nodiscard]] std::vector<Step> steps_since_last() const;        // for a box that has what was there before the last load()
    [[nodiscard]] int fd() const noexcept;                           // read-only

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace teal::elf
