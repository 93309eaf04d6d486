#include "systems/header.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "memory/descriptor.hpp"

namespace teal::systems {
namespace {

struct DtypeName {
    std::string_view name;
    Dtype dtype;
};
constexpr DtypeName dtype_names[] = {
    {"BOOL", Dtype::boolean}, {"U8", Dtype::u8},   {"I8", Dtype::i8},    {"U16", Dtype::u16},      {"I16", Dtype::i16},
    {"U32", Dtype::u32},      {"I32", Dtype::i32}, {"U64", Dtype::u64},  {"I64", Dtype::i64},      {"F16", Dtype::f16},
    {"BF16", Dtype::bf16},    {"F32", Dtype::f32}, {"F64", Dtype::f64},  {"F8_E4M3", Dtype::f8_e4m3}, {"F8_E5M2", Dtype::f8_e5m2},
};

// A reader of the little JSON there is. The first mistake stops it; later calls do nothing and return false.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text) {}

    bool fail(const std::string& what) {
        if (error_.empty()) error_ = what;
        return false;
    }
    [[nodiscard]] bool ok() const noexcept { return error_.empty(); }
    [[nodiscard]] const std::string& error() const noexcept { return error_; }
    [[nodiscard]] std::size_t at() const noexcept { return at_; }

    void skip() noexcept {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
    }
    [[nodiscard]] bool peek(char wanted) noexcept {
        skip();
        return at_ < text_.size() && text_[at_] == wanted;
    }
    bool take(char wanted) {
        if (!ok()) return false;
        if (!peek(wanted)) return fail(std::string("expected '") + wanted + "'");
        ++at_;
        return true;
    }
    bool at_end() {
        skip();
        return ok() && (at_ == text_.size() || fail("something follows the object"));
    }

    // `{"key": <value>, …}`: calls value(key) for each.
    template <typename Value>
    bool object(Value value) {
        if (!take('{')) return false;
        if (peek('}')) return take('}');
        std::vector<std::string> seen;
        do {
            std::string key;
            if (!string(key) || !take(':')) return false;
            if (std::find(seen.begin(), seen.end(), key) != seen.end()) return fail("key '" + shown(key) + "' for the second time");
            if (seen.size() == 256) return fail("more than 256 keys");
            seen.push_back(key);
            if (!value(key)) return fail("not understood");
        } while (more('}'));
        return ok();
    }

    bool numbers(std::vector<std::uint64_t>& out) {
        if (!take('[')) return false;
        if (peek(']')) return take(']');
        do {
            std::uint64_t value = 0;
            if (!number(value)) return false;
            if (out.size() == max_rank) return fail("more than " + std::to_string(max_rank) + " numbers");
            out.push_back(value);
        } while (more(']'));
        return ok();
    }

    bool string(std::string& out) {
        if (!take('"')) return false;
        while (at_ < text_.size() && text_[at_] != '"') {
            const char c = text_[at_++];
            if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
            if (c != '\\') out.push_back(c);
            else if (!escape(out)) return false;
        }
        if (at_ == text_.size()) return fail("a string without an end");
        ++at_;
        return true;
    }

private:
    // After an element: true when a comma says that another follows.
    bool more(char end) {
        if (!ok()) return false;
        if (peek(',')) return take(',');
        take(end);
        return false;
    }

    bool number(std::uint64_t& out) {
        skip();
        const std::size_t first = at_;
        std::uint64_t value = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
            if (!checked_mul(value, 10, value) || !checked_add(value, static_cast<std::uint64_t>(text_[at_] - '0'), value))
                return fail("a number of more than 64 bits");
        }
        if (at_ == first || (text_[first] == '0' && at_ > first + 1)) return fail("expected a whole number");
        out = value;
        return true;
    }

    bool escape(std::string& out) {
        if (at_ == text_.size()) return fail("a string without an end");
        const char c = text_[at_++];
        constexpr std::string_view from = "\"\\/bfnrt";
        constexpr std::string_view to = "\"\\/\b\f\n\r\t";
        if (const std::size_t i = from.find(c); i != std::string_view::npos) {
            out.push_back(to[i]);
            return true;
        }
        return c == 'u' ? code_point(out) : fail("an unknown escape");
    }

    bool code_point(std::string& out) {
        unsigned code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            const char lower = static_cast<char>(c | 0x20);
            if (c >= '0' && c <= '9') code = code * 16 + static_cast<unsigned>(c - '0');
            else if (lower >= 'a' && lower <= 'f') code = code * 16 + static_cast<unsigned>(lower - 'a' + 10);
            else return fail("expected four hexadecimal digits");
        }
        if (code >= 0xD800 && code < 0xE000) return fail("a surrogate");
        const auto put = [&out](unsigned byte) { out.push_back(static_cast<char>(byte)); };
        if (code < 0x80) put(code);
        else if (code < 0x800) put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
        else put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
        return true;
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::string error_;
};

bool read_dtype(Reader& reader, Dtype& out) {
    std::string name;
    if (!reader.string(name)) return false;
    for (const DtypeName& known : dtype_names)
        if (known.name == name) {
            out = known.dtype;
            return true;
        }
    return reader.fail("dtype '" + shown(name) + "' is not one of safetensors'");
}

bool read_tensor(Reader& reader, HeaderEntry& entry) {
    std::vector<std::uint64_t> offsets;
    bool shaped = false;
    const bool read = reader.object([&](const std::string& key) {
        if (key == "dtype") return read_dtype(reader, entry.dtype);
        if (key == "shape") return shaped = reader.numbers(entry.shape);
        if (key == "data_offsets") return reader.numbers(offsets);
        return reader.fail("key '" + shown(key) + "', expected dtype, shape and data_offsets");
    });
    if (!read) return false;
    if (entry.dtype == Dtype::none || !shaped || offsets.size() != 2)
        return reader.fail("'" + shown(entry.name) + "' lacks dtype, shape or two data_offsets");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    return true;
}

bool read_metadata(Reader& reader, FileHeader& out) {
    return reader.object([&](const std::string& key) {
        std::string value;
        if (!reader.string(value)) return false;
        out.metadata.emplace_back(key, std::move(value));
        return true;
    });
}

bool fail(std::string& error, std::string text) {
    error = std::move(text);
    return false;
}

// The tensors cover the data: each begins where the one before it ends, and the last one ends with the file.
bool check_places(const FileHeader& header, std::uint64_t data_bytes, std::string& error) {
    std::uint64_t at = 0;
    for (const HeaderEntry& entry : header.tensors) {
        std::uint64_t bytes = dtype_info(entry.dtype).size;
        bool fits = true;
        for (const std::uint64_t extent : entry.shape) fits = fits && checked_mul(bytes, extent, bytes);
        if (!fits || entry.end < entry.begin || entry.end - entry.begin != bytes)
            return fail(error, "tensor '" + shown(entry.name) + "': data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                                   "] do not hold its shape, which takes " + (fits ? std::to_string(bytes) : "more than 2^64") + " bytes");
        if (entry.begin != at)
            return fail(error, "tensor '" + shown(entry.name) + "': begins at " + std::to_string(entry.begin) + ", expected " + std::to_string(at) +
                                   ": no gap, no overlap");
        at = entry.end;
    }
    if (at == data_bytes) return true;
    return fail(error, "the tensors take " + std::to_string(at) + " bytes, the file has " + std::to_string(data_bytes) + " of data: it was cut off or added to");
}

}  // namespace

std::string shown(std::string_view text) {
    std::string out(text.substr(0, 40));
    for (char& c : out)
        if (c < ' ' || c > '~') c = '?';
    return text.size() > 40 ? out + "..." : out;
}

bool read_header(std::span<const std::byte> file, FileHeader& out, std::string& error) {
    out = FileHeader{};
    std::uint64_t length = 0;
    if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
    if (file.size() < sizeof length || length > file.size() - sizeof length || length > most_header_bytes || length == 0) {
        return fail(error, "not a safetensors file: " + std::to_string(file.size()) + " bytes, of which the header would take " + std::to_string(length) +
                               " (at most " + std::to_string(most_header_bytes) + ")");
    }
    Reader reader({reinterpret_cast<const char*>(file.data()) + sizeof length, static_cast<std::size_t>(length)});
    reader.object([&](const std::string& key) {
        if (key == "__metadata__") return read_metadata(reader, out);
        out.tensors.emplace_back();
        out.tensors.back().name = key;
        return read_tensor(reader, out.tensors.back());
    });
    if (!reader.at_end()) return fail(error, "header, byte " + std::to_string(reader.at()) + ": " + reader.error());
    out.data = sizeof length + length;
    std::stable_sort(out.tensors.begin(), out.tensors.end(), [](const HeaderEntry& a, const HeaderEntry& b) { return a.begin < b.begin; });
    return check_places(out, file.size() - out.data, error);
}

}  // namespace teal::systems
