// A set of numbers as sorted, disjoint half-open ranges: what has arrived, what is acknowledged, what is lost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace teal::duck {

struct Range {
    std::uint64_t begin, end;
};

class Ranges {
public:
    [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
    [[nodiscard]] std::size_t count() const noexcept { return all_.size(); }
    [[nodiscard]] const Range& operator[](std::size_t i) const noexcept { return all_[i]; }
    [[nodiscard]] const Range& front() const noexcept { return all_.front(); }
    [[nodiscard]] const Range& back() const noexcept { return all_.back(); }
    void clear() noexcept { all_.clear(); }
    // Everything from 0 without a gap.
    [[nodiscard]] std::uint64_t prefix() const noexcept { return all_.empty() || all_[0].begin != 0 ? 0 : all_[0].end; }

    [[nodiscard]] bool contains(std::uint64_t n) const noexcept {
        if (all_.empty() || n >= all_.back().end) return false;
        if (n >= all_.back().begin) return true;
        const auto at = after(n);
        return at != all_.begin() && (at - 1)->end > n;
    }
    [[nodiscard]] bool overlaps(std::uint64_t begin, std::uint64_t end) const noexcept {
        const auto at = std::partition_point(all_.begin(), all_.end(), [&](const Range& r) { return r.end <= begin; });
        return at != all_.end() && at->begin < end;
    }
    // How many of [begin, end) are new.
    std::uint64_t add(std::uint64_t begin, std::uint64_t end) {
        if (begin >= end) return 0;
        if (!all_.empty() && all_.back().end == begin) {  // the usual case: in order
            all_.back().end = end;
            return end - begin;
        }
        auto first = all_.begin() + (std::partition_point(all_.begin(), all_.end(), [&](const Range& r) { return r.end < begin; }) - all_.begin());
        std::uint64_t fresh = end - begin;
        auto last = first;
        std::uint64_t low = begin, high = end;
        for (; last != all_.end() && last->begin <= end; ++last) {
            const std::uint64_t overlap_low = std::max(begin, last->begin), overlap_high = std::min(end, last->end);
            if (overlap_high > overlap_low) fresh -= overlap_high - overlap_low;
            low = std::min(low, last->begin);
            high = std::max(high, last->end);
        }
        if (first == last) {
            all_.insert(first, Range{begin, end});
            return fresh;
        }
        *first = Range{low, high};
        all_.erase(first + 1, last);
        return fresh;
    }
    void remove(std::uint64_t begin, std::uint64_t end) {
        std::size_t i = 0;
        while (i < all_.size()) {
            Range& r = all_[i];
            if (r.end <= begin || r.begin >= end) {
                ++i;
            } else if (r.begin < begin && r.end > end) {
                const Range rest{end, r.end};
                r.end = begin;
                all_.insert(all_.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
                return;
            } else if (r.begin < begin) {
                r.end = begin;
                ++i;
            } else if (r.end > end) {
                r.begin = end;
                ++i;
            } else {
                all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }
    void drop_front() { all_.erase(all_.begin()); }

private:
    [[nodiscard]] std::vector<Range>::const_iterator after(std::uint64_t n) const noexcept {
        return std::partition_point(all_.begin(), all_.end(), [&](const Range& r) { return r.begin <= n; });
    }
    std::vector<Range> all_;
};

}  // namespace teal::duck
