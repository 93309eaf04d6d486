#include "capi/msgpack.hpp"

#include <limits>

namespace teal::capi {
namespace {

constexpr unsigned deepest = 32;  // nesting of what is skipped

}  // namespace

void Writer::big_endian(std::uint64_t value, unsigned width) {
    for (unsigned shift = width * 8; shift > 0; shift -= 8) byte(static_cast<unsigned>(value >> (shift - 8) & 0xff));
}

void Writer::head(std::uint32_t count, unsigned fixed, unsigned limit, unsigned wide) {
    if (count < limit) return byte(fixed | count);
    const bool small = count <= 0xffff;
    byte(small ? wide : wide + 1);
    big_endian(count, small ? 2 : 4);
}

void Writer::text(std::string_view text) {
    const std::size_t size = text.size();
    if (size < 32) byte(0xa0 | static_cast<unsigned>(size));
    else {
        const unsigned width = size <= 0xff ? 1 : size <= 0xffff ? 2 : 4;
        byte(width == 1 ? 0xd9 : width == 2 ? 0xda : 0xdb);
        big_endian(size, width);
    }
    for (const char c : text) byte(static_cast<unsigned char>(c));
}

void Writer::number(std::uint64_t value) {
    if (value < 0x80) return byte(static_cast<unsigned>(value));
    const unsigned log = value <= 0xff ? 0 : value <= 0xffff ? 1 : value <= 0xffffffff ? 2 : 3;
    byte(0xcc + log);
    big_endian(value, 1u << log);
}

Reader::Kind Reader::next() const noexcept {
    if (!ok_ || left() == 0) return Kind::nothing;
    const auto first = std::to_integer<unsigned>(bytes_[at_]);
    if (first < 0x80 || first >= 0xe0 || (first >= 0xcc && first <= 0xd3)) return Kind::integer;
    if (first < 0x90 || first == 0xde || first == 0xdf) return Kind::map;
    if (first < 0xa0 || first == 0xdc || first == 0xdd) return Kind::array;
    if (first < 0xc0 || (first >= 0xd9 && first <= 0xdb)) return Kind::text;
    if (first == 0xc0) return Kind::nil;
    if (first == 0xc2 || first == 0xc3) return Kind::boolean;
    if (first >= 0xc4 && first <= 0xc6) return Kind::binary;
    if (first == 0xca || first == 0xcb) return Kind::real;
    return first == 0xc1 ? Kind::nothing : Kind::extension;
}

bool Reader::big_endian(unsigned width, std::uint64_t& value) noexcept {
    if (left() < width) return fail();
    value = 0;
    for (unsigned i = 0; i < width; ++i) value = value << 8 | std::to_integer<std::uint64_t>(bytes_[at_++]);
    return true;
}

bool Reader::take(std::uint64_t size, std::span<const std::byte>& taken) noexcept {
    if (size > left()) return fail();
    taken = bytes_.subspan(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return true;
}

bool Reader::count(unsigned fixed, unsigned wide, std::uint64_t bytes_an_entry, std::uint32_t& entries) noexcept {
    const auto first = std::to_integer<unsigned>(bytes_[at_++]);
    std::uint64_t found = first & 0x0f;
    if ((first & 0xf0) != fixed && !big_endian(first == wide ? 2 : 4, found)) return false;
    if (found > left() / bytes_an_entry) return fail();  // each entry takes a byte at least
    entries = static_cast<std::uint32_t>(found);
    return true;
}

bool Reader::map(std::uint32_t& entries) noexcept {
    if (next() != Kind::map) return fail();
    return count(0x80, 0xde, 2, entries);
}

bool Reader::array(std::uint32_t& entries) noexcept {
    if (next() != Kind::array) return fail();
    return count(0x90, 0xdc, 1, entries);
}

bool Reader::text(std::string_view& value) noexcept {
    if (next() != Kind::text) return fail();
    const auto first = std::to_integer<unsigned>(bytes_[at_++]);
    std::uint64_t size = first & 0x1f;
    if (first >= 0xd9 && !big_endian(1u << (first - 0xd9), size)) return false;
    std::span<const std::byte> taken;
    if (!take(size, taken)) return false;
    value = {reinterpret_cast<const char*>(taken.data()), taken.size()};
    return true;
}

bool Reader::signed_number(std::int64_t& value) noexcept {
    if (next() != Kind::integer) return fail();
    const auto first = std::to_integer<unsigned>(bytes_[at_++]);
    if (first < 0x80 || first >= 0xe0) {
        value = first < 0x80 ? static_cast<std::int64_t>(first) : static_cast<std::int64_t>(first) - 256;
        return true;
    }
    const bool negative = first >= 0xd0;
    const unsigned width = 1u << (first - (negative ? 0xd0 : 0xcc));
    std::uint64_t raw = 0;
    if (!big_endian(width, raw)) return false;
    if (!negative) {
        if (raw > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return fail();
        value = static_cast<std::int64_t>(raw);
        return true;
    }
    const unsigned unused = 64 - width * 8;
    value = static_cast<std::int64_t>(raw << unused) >> unused;  // the sign bit of `width` bytes becomes that of all
    return true;
}

bool Reader::number(std::uint64_t& value) noexcept {
    if (next() == Kind::integer && std::to_integer<unsigned>(bytes_[at_]) == 0xcf) {
        ++at_;
        return big_endian(8, value);
    }
    std::int64_t found = 0;
    if (!signed_number(found)) return false;
    if (found < 0) return fail();
    value = static_cast<std::uint64_t>(found);
    return true;
}

bool Reader::boolean(bool& value) noexcept {
    if (next() != Kind::boolean) return fail();
    value = std::to_integer<unsigned>(bytes_[at_++]) == 0xc3;
    return true;
}

bool Reader::nil() noexcept {
    if (next() != Kind::nil) return fail();
    ++at_;
    return true;
}

// Bytes that follow the first one of a value that holds no others.
bool Reader::sized(unsigned first, std::uint64_t& size) noexcept {
    if (first < 0x80 || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) size = 0;
    else if (first >= 0xa0 && first < 0xc0) size = first & 0x1f;
    else if (first >= 0xc4 && first <= 0xc6) return big_endian(1u << (first - 0xc4), size);
    else if (first >= 0xc7 && first <= 0xc9) {
        if (!big_endian(1u << (first - 0xc7), size)) return false;
        ++size;  // its type
    }
    else if (first == 0xca || first == 0xcb) size = first == 0xca ? 4 : 8;
    else if (first >= 0xcc && first <= 0xcf) size = 1u << (first - 0xcc);
    else if (first >= 0xd0 && first <= 0xd3) size = 1u << (first - 0xd0);
    else if (first >= 0xd4 && first <= 0xd8) size = 1 + (1u << (first - 0xd4));
    else if (first >= 0xd9 && first <= 0xdb) return big_endian(1u << (first - 0xd9), size);
    else return fail();
    return true;
}

bool Reader::skip(std::span<const std::byte>* passed) noexcept {
    const std::size_t begin = at_;
    std::uint64_t waiting[deepest] = {1};  // values still to come, by depth
    unsigned depth = 0;
    for (;;) {
        while (waiting[depth] == 0) {
            if (depth == 0) {
                if (passed != nullptr) *passed = bytes_.subspan(begin, at_ - begin);
                return true;
            }
            --depth;
        }
        --waiting[depth];
        const Kind kind = next();
        if (kind == Kind::nothing) return fail();
        if (kind == Kind::map || kind == Kind::array) {
            std::uint32_t entries = 0;
            if (!(kind == Kind::map ? map(entries) : array(entries))) return false;
            if (depth + 1 == deepest) return fail();
            waiting[++depth] = kind == Kind::map ? std::uint64_t{entries} * 2 : entries;
            continue;
        }
        const auto first = std::to_integer<unsigned>(bytes_[at_++]);
        std::uint64_t size = 0;
        std::span<const std::byte> taken;
        if (!sized(first, size) || !take(size, taken)) return false;
    }
}

}  // namespace teal::capi
