// The smallest test harness that does: a failed check prints where and what, and the test goes on.
//
//     int main() {
//         CHECK(ring.try_push(slot));
//         CHECK_EQ(ring.size(), 1);
//         return teal::check::summary();   // prints "2 passed, 0 failed"; non-zero when one failed
//     }
//
// Checks may run in several threads at once. Integers of different signs compare by value.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace teal::check {

inline std::atomic<std::uint64_t> passed{0};  // relaxed: counts only, read after the threads were joined
inline std::atomic<std::uint64_t> failed{0};

inline bool record(bool ok, const char* text, const char* file, int line) {
    (ok ? passed : failed).fetch_add(1, std::memory_order_relaxed);
    if (!ok) {
        std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, text);
    }
    return ok;
}

template <typename T>
std::string show(const T& value) {
    if constexpr (std::is_enum_v<T>) {
        return std::to_string(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
        return value ? "true" : "false";
    } else if constexpr (requires(std::ostringstream& stream) { stream << value; }) {
        std::ostringstream stream;
        stream.precision(17);
        stream << value;
        return stream.str();
    } else {
        return "(a value that cannot be printed)";
    }
}

// What std::cmp_equal takes.
template <typename T>
concept Number = std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
                 !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
                 !std::is_same_v<T, char32_t>;

template <typename A, typename B>
bool equal(const A& a, const B& b) {
    if constexpr (Number<A> && Number<B>) {
        return std::cmp_equal(a, b);
    } else {
        return a == b;
    }
}

template <typename A, typename B>
bool record_equal(const A& a, const B& b, const char* text, const char* file, int line) {
    if (record(equal(a, b), text, file, line)) {
        return true;
    }
    std::fprintf(stderr, "    left:  %s\n    right: %s\n", show(a).c_str(), show(b).c_str());
    return false;
}

inline int summary() {
    const std::uint64_t bad = failed.load(std::memory_order_relaxed);
    std::printf("%llu passed, %llu failed\n",
                static_cast<unsigned long long>(passed.load(std::memory_order_relaxed)),
                static_cast<unsigned long long>(bad));
    return bad == 0 ? 0 : 1;
}

}  // namespace teal::check

// Both are expressions of type bool: `if (!CHECK(pointer != nullptr)) return;`
#define CHECK(...) ::teal::check::record(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define CHECK_EQ(left, right) \
    ::teal::check::record_equal((left), (right), #left " == " #right, __FILE__, __LINE__)
