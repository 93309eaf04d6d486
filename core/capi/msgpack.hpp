// The part of MessagePack that control messages use: maps, arrays, strings, integers, booleans, nil, floats (skipped).
//
// Theory of operation: Writer appends to a buffer, always in the shortest form. Reader walks over bytes that it does not own
// and does not believe: each read checks the remaining length first, a count is never larger than the bytes that follow it,
// nesting is bounded, and after the first thing that does not fit every further read fails too (ok() stays false).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace teal::capi {

class Writer {
public:
    void map(std::uint32_t entries) { head(entries, 0x80, 16, 0xde); }
    void array(std::uint32_t entries) { head(entries, 0x90, 16, 0xdc); }
    void text(std::string_view text);
    void number(std::uint64_t value);
    void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
    void nil() { byte(0xc0); }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

private:
    void byte(unsigned value) { bytes_.push_back(static_cast<std::byte>(value)); }
    void big_endian(std::uint64_t value, unsigned width);
    void head(std::uint32_t count, unsigned fixed, unsigned limit, unsigned wide);

    std::vector<std::byte> bytes_;
};

class Reader {
public:
    enum class Kind : std::uint8_t { nothing, nil, boolean, integer, real, text, binary, array, map, extension };

    explicit Reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] bool at_end() const noexcept { return ok_ && at_ == bytes_.size(); }
    [[nodiscard]] Kind next() const noexcept;  // nothing: at the end, or not MessagePack

    // Each is true, and `value` set, when that is what comes next.
    bool map(std::uint32_t& entries) noexcept;
    bool array(std::uint32_t& entries) noexcept;
    bool text(std::string_view& value) noexcept;      // UTF-8 is not checked
    bool number(std::uint64_t& value) noexcept;       // a negative one does not fit
    bool signed_number(std::int64_t& value) noexcept;
    bool boolean(bool& value) noexcept;
    bool nil() noexcept;
    // Passes over one value of any kind, and shows its bytes.
    bool skip(std::span<const std::byte>* passed = nullptr) noexcept;

private:
    bool fail() noexcept { ok_ = false; return false; }
    [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
    bool big_endian(unsigned width, std::uint64_t& value) noexcept;
    bool take(std::uint64_t size, std::span<const std::byte>& taken) noexcept;
    bool count(unsigned fixed, unsigned wide, std::uint64_t bytes_an_entry, std::uint32_t& entries) noexcept;
    bool sized(unsigned first, std::uint64_t& size) noexcept;

    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    bool ok_ = true;
};

}  // namespace teal::capi
