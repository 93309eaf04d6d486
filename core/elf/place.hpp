// A place: program memory that a program is put into, and that the next one is put into afterwards.
//
// Theory of operation. A place is a memfd with room for a program's image. Boxes map it privately: what a program writes lies in pages of
// its own, and the place stays as it was loaded. load() brings a program in: only pages whose contents differ from what lies there already are written,
// and nothing at all is done for the program that is there. What has to be mapped, or mapped differently, since a given generation comes out as a short
// list of steps for the box.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "elf/program.hpp"

namespace teal::elf {

// What a box does, in this order, to have the place's program in its address space.
struct Step {
    enum class What : std::uint32_t { map /* privately, from the place's memfd */, zeros /* anonymous */, protect, unmap, discard /* private pages */ };
    What what;
    std::uint32_t protection;   // of Protection
    std::uint64_t address;      // bias added
    std::uint64_t bytes;
    std::uint64_t offset;       // in the memfd
};

struct LoadReport {
    std::uint64_t pages_written = 0;   // of the place's memory
    std::uint64_t pages_zeroed = 0;
    std::uint64_t pages_same = 0;
    std::uint64_t steps = 0;
    std::uint64_t ns = 0;
};

class Place {
public:
    // Room for programs of so many bytes; pages are had now (throws quota_exceeded), so that a load touches no new ones.
    explicit Place(std::uint64_t bytes);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    LoadReport load(std::shared_ptr<const Program> program, std::uint64_t bias);
    [[nodiscard]] const Program* program() const noexcept;
    [[nodiscard]] std::uint64_t bias() const noexcept;
    [[nodiscard]] std::uint64_t generation() const noexcept;         // counts loads that changed something
    [[nodiscard]] std::vector<Step> steps() const;                   // for a box with nothing of it
    [[nodiscard]] std::vector<Step> steps_since_last() const;        // for a box that has the program before it
    [[nodiscard]] int fd() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace teal::elf
