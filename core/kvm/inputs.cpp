#include "kvm/inputs.hpp"

#if defined(__x86_64__)

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include <sys/mman.h>
#include <sys/stat.h>

#include "duck/include/duck.h"

#include "base/checked.hpp"

namespace teal::kvm {

static_assert(box::most_ibs == sizeof(LoopState::ibs) / sizeof(LoopIb));

Inputs::Inputs(Guest& guest, LoopState& loop, std::byte* duck)
    : guest_(guest), loop_(loop), duck_(duck), aperture_bytes_(guest.add_aperture(aperture_at, most_aperture)) {}

void Inputs::show(std::uint64_t virt, std::uint64_t bytes) noexcept {
    std::memcpy(duck_ + offsetof(duck_t, ib), &virt, sizeof virt);
    std::memcpy(duck_ + offsetof(duck_t, ib_bytes), &bytes, sizeof bytes);
}

// For the loop, which goes over from one to another by itself.
void Inputs::list() noexcept {
    std::size_t at = 0;
    for (const auto& [id, input] : inputs_) loop_.ibs[at++] = {id, aperture_at + input.offset, input.bytes};
    for (; at < box::most_ibs; ++at) loop_.ibs[at] = {};
}

std::optional<std::uint64_t> Inputs::find_room(std::uint64_t bytes) const noexcept {
    for (std::uint64_t offset = 0; bytes <= aperture_bytes_ && offset <= aperture_bytes_ - bytes;) {
        const auto taken = std::find_if(inputs_.begin(), inputs_.end(), [&](const auto& item) {
            return offset < item.second.offset + item.second.mapped && item.second.offset < offset + bytes;
        });
        if (taken == inputs_.end()) return offset;
        offset = round_up(taken->second.offset + taken->second.mapped, large_page_bytes);
    }
    return std::nullopt;
}

int Inputs::map(const box::OrderMessage& message, int fd) {
    auto found = inputs_.find(message.id);
    if (found == inputs_.end()) {
        struct stat about {};
        if (fd < 0) return ENOENT;
        if (inputs_.size() == box::most_ibs) return ENOSPC;
        if (message.bytes == 0 || message.bytes > aperture_bytes_ || ::fstat(fd, &about) != 0) return EINVAL;
        const std::uint64_t bytes = round_up(message.bytes, page_bytes);
        if (static_cast<std::uint64_t>(about.st_size) < message.bytes) return EINVAL;   // a page behind its end would end us
        const auto offset = find_room(bytes);
        if (!offset) return ENOMEM;
        void* host = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (host == MAP_FAILED) return errno;
        try {
            const std::uint32_t slot = guest_.fill_aperture(*offset, bytes, host);
            found = inputs_.emplace(message.id, Input{slot, *offset, message.bytes, bytes, host}).first;
            list();
        } catch (const std::exception&) {
            ::munmap(host, bytes);
            return ENOMEM;
        }
    }
    show(aperture_at + found->second.offset, found->second.bytes);
    return 0;
}

int Inputs::forget(std::uint64_t id) {
    const auto found = inputs_.find(id);
    if (found == inputs_.end()) return ENOENT;
    const Input input = found->second;
    std::uint64_t current = 0;
    std::memcpy(&current, duck_ + offsetof(duck_t, ib), sizeof current);
    if (current == aperture_at + input.offset) show(0, 0);
    inputs_.erase(found);
    list();
    try {
        guest_.empty_aperture(input.slot);
    } catch (const std::exception&) {
        return EIO;
    }
    ::munmap(input.host, input.mapped);
    return 0;
}

}  // namespace teal::kvm

#endif
