// Element types of tensors, and their sizes.
//
// The numbers are part of the shared-memory ABI (memory/descriptor.hpp): append, never renumber.
#pragma once

#include <cstdint>
#include <string_view>

namespace teal {

enum class Dtype : std::uint8_t {
    none = 0,
    boolean,
    u8, i8, u16, i16, u32, i32, u64, i64,
    f16, f32, f64,
    c64, c128,
    bf16, f8_e4m3, f8_e5m2,
    bytes,  // variable-length: u64 offsets[count + 1], then the bytes (memory/descriptor.hpp)
};
inline constexpr std::uint8_t dtype_count = 19;

struct DtypeInfo {
    std::string_view name;    // what users write: "float32", "bfloat16", "BYTES"
    std::uint8_t size;        // bytes an element; 8 for BYTES (its offset)
    signed char dlpack_code;  // DLPack type code, -1 where DLPack has none
    const char* format;       // buffer-protocol format, nullptr where Python has none
};

inline constexpr DtypeInfo dtype_table[dtype_count] = {
    {"none", 0, -1, nullptr},
    {"bool", 1, 6, "?"},
    {"uint8", 1, 1, "B"},
    {"int8", 1, 0, "b"},
    {"uint16", 2, 1, "H"},
    {"int16", 2, 0, "h"},
    {"uint32", 4, 1, "I"},
    {"int32", 4, 0, "i"},
    {"uint64", 8, 1, "Q"},
    {"int64", 8, 0, "q"},
    {"float16", 2, 2, "e"},
    {"float32", 4, 2, "f"},
    {"float64", 8, 2, "d"},
    {"complex64", 8, 5, "Zf"},
    {"complex128", 16, 5, "Zd"},
    {"bfloat16", 2, 4, nullptr},
    {"float8_e4m3fn", 1, 10, nullptr},
    {"float8_e5m2", 1, 12, nullptr},
    {"BYTES", 8, -1, nullptr},
};

inline bool dtype_known(std::uint8_t value) noexcept { return value > 0 && value < dtype_count; }
inline const DtypeInfo& dtype_info(Dtype dtype) noexcept { return dtype_table[static_cast<std::uint8_t>(dtype)]; }

inline Dtype dtype_from_name(std::string_view name) noexcept {
    for (std::uint8_t i = 1; i < dtype_count; ++i)
        if (dtype_table[i].name == name) return static_cast<Dtype>(i);
    return Dtype::none;
}

}  // namespace teal
