// What the tests of core/systems share: a model file with random weights, in memory aligned as a mapping is.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "systems/load.hpp"

namespace teal::systems {

// Bytes that begin at a multiple of 64 and end exactly where they should, so that a sanitizer sees the first one beyond.
class Bytes {
public:
    explicit Bytes(const std::vector<std::byte>& contents) : size_(contents.size()), base_(static_cast<std::byte*>(::operator new(size_ > 0 ? size_ : 1, std::align_val_t{64}))) {
        if (size_ > 0) std::memcpy(base_, contents.data(), size_);
    }
    ~Bytes() { ::operator delete(base_, std::align_val_t{64}); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    [[nodiscard]] std::span<const std::byte> span() const noexcept { return {base_, size_}; }

private:
    std::size_t size_;
    std::byte* base_;
};

inline std::string header_of(const Load& load) {
    std::string text = R"({"__metadata__": {"teal.load": ")" + std::string(load.name) + R"(", "teal.version": "1"})";
    std::uint64_t at = 0;
    for (const TensorShape& tensor : load.tensors) {
        const std::uint64_t end = at + tensor.count() * dtype_info(load.weights).size;
        text += ", \"" + std::string(tensor.name) + R"(": {"dtype": ")" + (load.weights == Dtype::i64 ? "I64" : "F32") + R"(", "shape": [)" +
                std::to_string(tensor.rows) + (tensor.columns == 0 ? "" : ", " + std::to_string(tensor.columns)) + R"(], "data_offsets": [)" +
                std::to_string(at) + ", " + std::to_string(end) + "]}";
        at = end;
    }
    text += "}";
    return text + std::string((8 - text.size() % 8) % 8, ' ');
}

inline std::vector<std::byte> file_of(const std::string& header, const void* data, std::size_t size) {
    std::vector<std::byte> file(8 + header.size() + size);
    const std::uint64_t length = header.size();
    std::memcpy(file.data(), &length, 8);
    std::memcpy(file.data() + 8, header.data(), header.size());
    if (size > 0) std::memcpy(file.data() + 8 + header.size(), data, size);
    return file;
}

// Integers in [-size, size]; floats around 0 whose sums stay small, above 0 for kml's deviation.
inline std::vector<std::byte> random_model(const Load& load, std::uint64_t seed, std::int64_t size) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> data(load.weight_bytes());
    std::size_t at = 0;
    for (const TensorShape& tensor : load.tensors) {
        for (std::uint64_t i = 0; i < tensor.count(); ++i) {
            if (load.weights == Dtype::i64) {
                const std::int64_t value = std::uniform_int_distribution<std::int64_t>(-size, size)(random);
                std::memcpy(data.data() + at, &value, 8);
            } else {
                float value = std::normal_distribution<float>(0.0F, 1.0F / 16)(random);
                if (tensor.name == "std") value = 1.0F + value * value;
                std::memcpy(data.data() + at, &value, 4);
            }
            at += dtype_info(load.weights).size;
        }
    }
    return file_of(header_of(load), data.data(), data.size());
}

}  // namespace teal::systems
