// Queues of requests for policies: intrusive, so that an event allocates nothing.
//
// Theory of operation. A request is in at most one queue, and its links lie in its own words (PolicyRequest.data). Most requests may run on
// any worker; one that has begun and was taken from its worker can go on there only (request.worker). So a queue has a free part and one
// part a worker; what a worker can get is the first of two, and order is kept across them by a stamp: every push takes the next one, and
// what comes back because its decision was refused keeps the one it had, and so its place.
//   WaitList   ordered by stamp: push, remove, first in O(1); coming back costs a walk past what is older, usually nothing
//   WaitHeap   ordered by (key, stamp): push and remove in O(log n), first in O(1)
#pragma once

#include <cstdint>
#include <vector>

#include "agents/policy.hpp"

namespace teal {

namespace word {  // of PolicyRequest.data
inline constexpr unsigned next = 0;
inline constexpr unsigned previous = 1;  // or the position in a heap
inline constexpr unsigned stamp = 2;
inline constexpr unsigned place = 3;     // 0: in no queue; 1: free; worker + 2: bound to it
inline constexpr unsigned own = 4;       // 4 … 7: the policy's
}  // namespace word

inline void forget(PolicyRequest& request) noexcept {
    for (std::uint64_t& each : request.data) each = 0;
}
inline bool queued(const PolicyRequest& request) noexcept { return request.data[word::place] != 0; }
inline std::uint64_t place_for(const PolicyRequest& request) noexcept { return request.worker == no_object ? 1 : std::uint64_t{request.worker} + 2; }

class RequestList {
public:
    PolicyRequest* first() const noexcept { return first_; }
    bool empty() const noexcept { return first_ == nullptr; }
    static PolicyRequest* after(const PolicyRequest& request) noexcept { return at(request, word::next); }

    void insert(PolicyRequest& request) noexcept {  // by stamp
        PolicyRequest* before = last_;
        if (before != nullptr && stamp(*before) > stamp(request)) {
            before = nullptr;
            for (PolicyRequest* each = first_; stamp(*each) < stamp(request); each = at(*each, word::next)) before = each;
        }
        PolicyRequest* behind = before == nullptr ? first_ : at(*before, word::next);
        link(before, &request);
        link(&request, behind);
    }
    void remove(PolicyRequest& request) noexcept { link(at(request, word::previous), at(request, word::next)); }

private:
    static PolicyRequest* at(const PolicyRequest& request, unsigned which) noexcept { return reinterpret_cast<PolicyRequest*>(request.data[which]); }
    static std::uint64_t stamp(const PolicyRequest& request) noexcept { return request.data[word::stamp]; }
    void link(PolicyRequest* left, PolicyRequest* right) noexcept {
        if (left == nullptr) first_ = right;
        else left->data[word::next] = reinterpret_cast<std::uintptr_t>(right);
        if (right == nullptr) last_ = left;
        else right->data[word::previous] = reinterpret_cast<std::uintptr_t>(left);
    }

    PolicyRequest* first_ = nullptr;
    PolicyRequest* last_ = nullptr;
};

// Grows to hold `index`; for tables by worker, record, model, session, which are small numbers.
template <class T>
T& reach(std::vector<T>& table, std::size_t index) {
    if (index >= table.size()) [[unlikely]] table.resize(index + 1);
    return table[index];
}

class WaitList {
public:
    // With a new stamp (the end), or the one it has.
    void push(PolicyRequest& request, std::uint64_t stamp) {
        request.data[word::stamp] = stamp;
        request.data[word::place] = place_for(request);
        list_of(request).insert(request);
        ++size_;
    }
    void remove(PolicyRequest& request) {
        list_of(request).remove(request);
        request.data[word::place] = 0;
        --size_;
    }
    PolicyRequest* first(std::uint32_t worker) const noexcept {
        PolicyRequest* const free = free_.first();
        PolicyRequest* const bound = worker < bound_.size() ? bound_[worker].first() : nullptr;
        if (free == nullptr || bound == nullptr) return free == nullptr ? bound : free;
        return free->data[word::stamp] < bound->data[word::stamp] ? free : bound;
    }
    PolicyRequest* first_free() const noexcept { return free_.first(); }
    std::size_t size() const noexcept { return size_; }

private:
    RequestList& list_of(const PolicyRequest& request) {
        const std::uint64_t place = request.data[word::place];
        return place == 1 ? free_ : reach(bound_, place - 2);
    }

    RequestList free_;
    std::vector<RequestList> bound_;
    std::size_t size_ = 0;
};

class RequestHeap {
public:
    PolicyRequest* first() const noexcept { return entries_.empty() ? nullptr : entries_[0].request; }
    std::uint64_t first_key() const noexcept { return entries_.empty() ? UINT64_MAX : entries_[0].key; }

    void insert(PolicyRequest& request, std::uint64_t key) {
        entries_.push_back({key, request.data[word::stamp], &request});
        rise(entries_.size() - 1);
    }
    void remove(PolicyRequest& request) noexcept {
        const std::size_t position = request.data[word::previous];
        const Entry last = entries_.back();
        entries_.pop_back();
        if (position == entries_.size()) return;
        entries_[position] = last;
        if (position > 0 && entries_[position] < entries_[(position - 1) / width]) rise(position);
        else sink(position);
    }

private:
    struct Entry {  // keys lie together: a comparison touches no request
        std::uint64_t key, stamp;
        PolicyRequest* request;
        bool operator<(const Entry& other) const noexcept { return key != other.key ? key < other.key : stamp < other.stamp; }
    };
    static constexpr std::size_t width = 4;

    void put(std::size_t position, const Entry& entry) noexcept {
        entries_[position] = entry;
        entry.request->data[word::previous] = position;
    }
    void rise(std::size_t position) noexcept {
        const Entry entry = entries_[position];
        for (; position > 0 && entry < entries_[(position - 1) / width]; position = (position - 1) / width)
            put(position, entries_[(position - 1) / width]);
        put(position, entry);
    }
    void sink(std::size_t position) noexcept {
        const Entry entry = entries_[position];
        for (;;) {
            std::size_t least = position * width + 1;
            if (least >= entries_.size()) break;
            for (std::size_t child = least + 1; child < entries_.size() && child <= position * width + width; ++child)
                if (entries_[child] < entries_[least]) least = child;
            if (!(entries_[least] < entry)) break;
            put(position, entries_[least]);
            position = least;
        }
        put(position, entry);
    }

    std::vector<Entry> entries_;
};

class WaitHeap {
public:
    void push(PolicyRequest& request, std::uint64_t key, std::uint64_t stamp) {
        request.data[word::stamp] = stamp;
        request.data[word::place] = place_for(request);
        heap_of(request).insert(request, key);
        ++size_;
    }
    void remove(PolicyRequest& request) {
        heap_of(request).remove(request);
        request.data[word::place] = 0;
        --size_;
    }
    PolicyRequest* first(std::uint32_t worker) const noexcept {
        if (worker >= bound_.size() || bound_[worker].first() == nullptr) return free_.first();
        if (free_.first() == nullptr) return bound_[worker].first();
        const std::uint64_t free = free_.first_key(), bound = bound_[worker].first_key();
        if (free == bound) return free_.first()->data[word::stamp] < bound_[worker].first()->data[word::stamp] ? free_.first() : bound_[worker].first();
        return free < bound ? free_.first() : bound_[worker].first();
    }
    std::uint64_t first_key(std::uint32_t worker) const noexcept {
        const std::uint64_t free = free_.first_key(), bound = worker < bound_.size() ? bound_[worker].first_key() : UINT64_MAX;
        return free < bound ? free : bound;
    }
    std::size_t size() const noexcept { return size_; }

private:
    RequestHeap& heap_of(const PolicyRequest& request) {
        const std::uint64_t place = request.data[word::place];
        return place == 1 ? free_ : reach(bound_, place - 2);
    }

    RequestHeap free_;
    std::vector<RequestHeap> bound_;
    std::size_t size_ = 0;
};

}  // namespace teal
