// A call that was prepared: its slot, which of its tensors lie in shared memory of the caller's, and what has to be copied.
//
// Theory of operation: the first call of a model with certain places and shapes makes a Prepared; the following ones find it in the
// model's Shelf by a hash over the tensors as they were given, and then only submit. A tensor in shared memory is described where
// it is. One anywhere else gets memory in the slot; since any such memory does, its address is not part of the key.
//
// A Shelf is a row of places, each with one word: empty, in use, or the hash of the Prepared that rests there. Taking one is one
// compare-and-swap, putting it back one store; while it is used its place is kept for it. So threads share a Shelf without
// a lock, and whoever frees shared memory can tell exactly whether a Prepared over it is at rest.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "capi/include/laika.h"
#include "host/client.hpp"

namespace teal::capi {

struct Shm;
class Shelf;

// The tensors of a call, as they were given.
struct Tensors {
    const laika_tensor_t* inputs;
    std::size_t n_in;
    const laika_tensor_t* outputs;
    std::size_t n_out;
    [[nodiscard]] std::size_t count() const noexcept { return n_in + n_out; }
    [[nodiscard]] const laika_tensor_t& operator[](std::size_t i) const noexcept { return i < n_in ? inputs[i] : outputs[i - n_in]; }
};

// What stands for the address of a tensor that is copied: any will do. Of strings, for the room they take, a power of two.
inline void* elsewhere() noexcept { return reinterpret_cast<void*>(std::uintptr_t{1}); }
inline void* elsewhere(std::uint64_t room) noexcept { return reinterpret_cast<void*>(std::uintptr_t{3} | static_cast<std::uintptr_t>(std::countr_zero(room)) << 2); }

struct Prepared {
    struct Copy {
        std::uint32_t tensor;   // index among the inputs, or the outputs
        std::byte* place;       // in the slot, or in another tensor's memory
        std::uint64_t nbytes;   // of strings: room for them, packed
        bool strings = false;
    };
    struct Made { std::uint32_t output; laika_tensor_t tensor; };  // `data` unused

    std::shared_ptr<ClientSession> session;
    std::shared_ptr<ClientSlot> slot;     // shared with the calls that wait for this one, for as long as they do
    std::uint64_t key = 0;                // hash_of() of `tensors`
    std::size_t n_in = 0;
    std::vector<laika_tensor_t> tensors;  // as given, inputs then outputs; data null where copied
    std::vector<Copy> in;
    std::vector<Copy> out;
    std::vector<Made> made;               // outputs whose shape is another than the caller's
    bool planned = true;                  // all shapes are known before the run
    bool restore = false;                 // the last run wrote shapes into the descriptor block
    std::vector<Shm*> used;               // shared memory that it describes
    Shelf* shelf = nullptr;               // where it has a place, or null
    std::atomic<int> place{-1};           // in the Shelf; relaxed: the Shelf's word of that place decides

    [[nodiscard]] bool fits(const Tensors& given) const noexcept;
    void restore_block() noexcept;        // the descriptors as they were planned
    // Does a call wait for this one? Its line must not be about another request before that has ended.
    [[nodiscard]] bool is_awaited() const noexcept { return slot.use_count() > 1; }
};

// The two lowest bits are clear, and it is not 0.
std::uint64_t hash_of(const Tensors& given) noexcept;

class Shelf {
public:
    // A resting one with this hash that fits, now in use; or null.
    Prepared* take(std::uint64_t key, const Tensors& given) noexcept;
    void put(Prepared* prepared) noexcept;  // one that take() or add() gave a place
    // Gives a new one a place, in use. `evicted` is who rested there before, or null. No place is free: its place stays -1.
    void add(Prepared* prepared, Prepared*& evicted) noexcept;
    bool take_this(Prepared* prepared) noexcept;  // false: it is in use
    void remove(Prepared* prepared) noexcept;     // one in use; its place becomes empty
    // Takes some resting one off the shelf; null when there is none.
    Prepared* clear_one() noexcept;

private:
    static constexpr unsigned places = 32;
    static constexpr std::uint64_t empty = 0;
    static constexpr std::uint64_t in_use = 2;
    static constexpr std::uint64_t resting(std::uint64_t key) noexcept { return key | 1; }
    static unsigned first_of(std::uint64_t key) noexcept { return static_cast<unsigned>(key >> 32) % places; }
    bool claim(unsigned place, std::uint64_t seen) noexcept;

    std::atomic<std::uint64_t> words_[places] = {};
    Prepared* held_[places] = {};  // written by whoever has the place in use
};

}  // namespace teal::capi
