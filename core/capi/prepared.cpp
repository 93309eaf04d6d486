#include "capi/prepared.hpp"

#include <cstring>

namespace teal::capi {
namespace {

constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
    hash = (hash ^ value) * odd;
    return hash ^ hash >> 29;
}

std::size_t dims(const laika_tensor_t& tensor) noexcept {  // what of it may be read, whatever it says
    return tensor.ndim < 0 || tensor.ndim > LAIKA_MAX_DIMS ? 0 : static_cast<std::size_t>(tensor.ndim);
}

std::uint64_t mix_tensor(std::uint64_t hash, const laika_tensor_t& tensor) noexcept {
    hash = mix(hash, reinterpret_cast<std::uintptr_t>(tensor.data));
    hash = mix(hash, std::uint64_t{static_cast<std::uint32_t>(tensor.dtype)} << 32 | static_cast<std::uint32_t>(tensor.ndim));
    for (std::size_t i = 0; i < dims(tensor); ++i) hash = mix(hash, static_cast<std::uint64_t>(tensor.shape[i]));
    return hash;
}

bool same(const laika_tensor_t& a, const laika_tensor_t& b) noexcept {
    if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
    for (std::size_t i = 0; i < dims(a); ++i)
        if (a.shape[i] != b.shape[i]) return false;
    return true;
}

}  // namespace

std::uint64_t hash_of(const Tensors& given) noexcept {
    std::uint64_t hash = given.n_in << 16 | given.n_out;
    for (std::size_t i = 0; i < given.n_in; ++i) hash = mix_tensor(hash, given.inputs[i]);
    for (std::size_t i = 0; i < given.n_out; ++i) hash = mix_tensor(hash, given.outputs[i]);
    return (hash | 4) & ~std::uint64_t{3};
}

bool Prepared::fits(const Tensors& given) const noexcept {
    if (given.n_in != n_in || given.count() != tensors.size()) return false;
    for (std::size_t i = 0; i < given.count(); ++i)
        if (!same(tensors[i], given[i])) return false;
    return true;
}

void Prepared::restore_block() noexcept {
    std::byte* at = slot->base + slot->offset + sizeof(DescriptorHeader);
    for (const auto* list : {&slot->inputs, &slot->outputs}) {
        if (!list->empty()) std::memcpy(at, list->data(), list->size() * sizeof(TensorDesc));
        at += list->size() * sizeof(TensorDesc);
    }
    restore = false;
}

bool Shelf::claim(unsigned place, std::uint64_t seen) noexcept {
    // SYNC: acquire pairs with the release in put() and remove(): what is held there, and all that its last user did to it.
    return words_[place].compare_exchange_strong(seen, in_use, std::memory_order_acquire, std::memory_order_relaxed);
}

Prepared* Shelf::take(std::uint64_t key, const Tensors& given) noexcept {
    for (unsigned i = 0, place = first_of(key); i < places; ++i, place = (place + 1) % places) {
        if (words_[place].load(std::memory_order_relaxed) != resting(key) || !claim(place, resting(key))) continue;
        Prepared* found = held_[place];
        if (found->fits(given)) return found;
        put(found);
    }
    return nullptr;
}

void Shelf::put(Prepared* prepared) noexcept {
    // SYNC: release pairs with the acquire in claim().
    words_[prepared->place.load(std::memory_order_relaxed)].store(resting(prepared->key), std::memory_order_release);
}

void Shelf::add(Prepared* prepared, Prepared*& evicted) noexcept {
    evicted = nullptr;
    for (const bool evict : {false, true})
        for (unsigned i = 0, place = first_of(prepared->key); i < places; ++i, place = (place + 1) % places) {
            const std::uint64_t seen = words_[place].load(std::memory_order_relaxed);
            if (seen == in_use || (seen != empty) != evict || !claim(place, seen)) continue;
            if (evict) {
                evicted = held_[place];
                evicted->place.store(-1, std::memory_order_relaxed);
            }
            held_[place] = prepared;
            prepared->place.store(static_cast<int>(place), std::memory_order_relaxed);
            return;
        }
}

bool Shelf::take_this(Prepared* prepared) noexcept {
    const int place = prepared->place.load(std::memory_order_relaxed);
    if (place < 0 || !claim(static_cast<unsigned>(place), resting(prepared->key))) return false;
    Prepared* found = held_[place];
    if (found == prepared) return true;
    put(found);  // it was evicted meanwhile, for one of the same hash
    return false;
}

void Shelf::remove(Prepared* prepared) noexcept {
    const int place = prepared->place.exchange(-1, std::memory_order_relaxed);
    if (place < 0) return;
    held_[place] = nullptr;
    // SYNC: release pairs with the acquire in claim().
    words_[place].store(empty, std::memory_order_release);
}

Prepared* Shelf::clear_one() noexcept {
    for (unsigned place = 0; place < places; ++place) {
        const std::uint64_t seen = words_[place].load(std::memory_order_relaxed);
        if (seen == empty || seen == in_use || !claim(place, seen)) continue;
        Prepared* found = held_[place];
        remove(found);
        return found;
    }
    return nullptr;
}

}  // namespace teal::capi
