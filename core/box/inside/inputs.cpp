// Runs with the program's thread pointer, as all of the loop (serve.cpp).
#include "box/inside/inputs.hpp"

#include <duck.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "box/box.hpp"
#include "box/inside/gate.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;

struct Ib {
    std::uint64_t id = 0, bytes = 0;
    void* address = nullptr;    // null: free
};
Ib ibs[most_ibs];

ControlPage* control() noexcept { return reinterpret_cast<ControlPage*>(layout::control); }
duck_t* duck() noexcept { return reinterpret_cast<duck_t*>(layout::duck); }

Ib* ib_of(std::uint64_t id) noexcept {
    for (Ib& ib : ibs)
        if (ib.address != nullptr && ib.id == id) return &ib;
    return nullptr;
}

}  // namespace

int map_ib(const OrderMessage& order, int fd) noexcept {
    Ib* ib = ib_of(order.id);
    if (ib == nullptr) {
        if (fd < 0) return ENOENT;
        for (Ib& free_one : ibs)
            if (free_one.address == nullptr) {
                ib = &free_one;
                break;
            }
        if (ib == nullptr) return ENOSPC;
        const long at = raw(SYS_mmap, 0, static_cast<long>((order.bytes + page - 1) / page * page), PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (at < 0 && at > -4096) return static_cast<int>(-at);
        *ib = {order.id, order.bytes, reinterpret_cast<void*>(at)};
    }
    duck()->ib = ib->address;
    duck()->ib_bytes = ib->bytes;
    return 0;
}

// What the caller may do by itself: go over to another one of those that are mapped.
std::int64_t use_ib(std::uint64_t bytes) noexcept {
    std::uint64_t id = 0;
    if (bytes != sizeof id) return -EINVAL;
    std::memcpy(&id, control()->ask.args, sizeof id);
    const Ib* ib = id == 0 ? nullptr : ib_of(id);
    if (id != 0 && ib == nullptr) return -ENOENT;
    duck()->ib = ib == nullptr ? nullptr : ib->address;
    duck()->ib_bytes = ib == nullptr ? 0 : ib->bytes;
    return 0;
}

int forget_ib(std::uint64_t id) noexcept {
    Ib* ib = ib_of(id);
    if (ib == nullptr) return ENOENT;
    if (duck()->ib == ib->address) {
        duck()->ib = nullptr;
        duck()->ib_bytes = 0;
    }
    raw(SYS_munmap, reinterpret_cast<long>(ib->address), static_cast<long>((ib->bytes + page - 1) / page * page));
    ib->address = nullptr;
    return 0;
}

void unmap_ib() noexcept {
    duck()->ib = nullptr;
    duck()->ib_bytes = 0;
}

void forget_ibs() noexcept {
    for (Ib& ib : ibs)
        if (ib.address != nullptr) (void)forget_ib(ib.id);
}

void touch_ibs() noexcept { *const_cast<volatile std::uint64_t*>(&ibs[0].id) = 0; }

}  // namespace teal::box
