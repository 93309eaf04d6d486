// The input buffers of a resident guest: which are mapped, where, and which one the program sees.
//
// Theory of operation. Input buffers lie in the guest's aperture (guest.hpp), each at a multiple of 2 MiB, in the first hole that is large
// enough. The duck_t that the program sees says which one it has; the list in LoopState lets the loop in the guest go over to another one
// that is mapped, without leaving the guest. Both are written here only, and nothing in them is ever believed: the program can write them too.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <map>
#include <optional>

#include "box/message.hpp"
#include "kvm/guest.hpp"
#include "kvm/serve_page.hpp"

namespace teal::kvm {

class Inputs {
public:
    // After guest.commit(). `duck`: our address of the page with the program's duck_t. All three outlive this.
    Inputs(Guest& guest, LoopState& loop, std::byte* duck);

    // Each returns 0 or an errno, as a process box does. `fd` is not kept.
    int map(const box::OrderMessage& message, int fd);
    void unmap() noexcept { show(0, 0); }
    int forget(std::uint64_t id);

private:
    struct Input {
        std::uint32_t slot = 0;
        std::uint64_t offset = 0, bytes = 0, mapped = 0;   // in the aperture; as asked for; in whole pages
        void* host = nullptr;
    };

    void show(std::uint64_t virt, std::uint64_t bytes) noexcept;
    void list() noexcept;
    [[nodiscard]] std::optional<std::uint64_t> find_room(std::uint64_t bytes) const noexcept;

    Guest& guest_;
    LoopState& loop_;
    std::byte* duck_;
    std::uint64_t aperture_bytes_;
    std::map<std::uint64_t, Input> inputs_;
};

// Of the aperture: between programs and the control region.
inline constexpr std::uint64_t aperture_at = 0x5000'0000'0000;
inline constexpr std::uint64_t most_aperture = std::uint64_t{1} << 36;

}  // namespace teal::kvm

#endif
