#include "systems/file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.hpp"
#include "systems/header.hpp"

namespace teal::systems {
namespace {

constexpr std::uint64_t most_i64 = INT64_MAX;

std::string list(const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

std::vector<std::uint64_t> extents(const TensorShape& shape) {
    return shape.columns == 0 ? std::vector<std::uint64_t>{shape.rows} : std::vector<std::uint64_t>{shape.rows, shape.columns};
}

bool fail(std::string& error, std::string text) {
    error = std::move(text);
    return false;
}

// Keys that start with "teal." are ours, and each is understood or refused; the others are the author's.
const Load* load_of(const FileHeader& header, std::string& error) {
    const Load* load = nullptr;
    bool versioned = false;
    for (const auto& [key, value] : header.metadata) {
        if (key == "teal.load") {
            load = find_load(value);
            if (load == nullptr) {
                std::string names;
                for (const Load& known : loads()) names += " " + std::string(known.name);
                fail(error, "metadata teal.load: '" + shown(value) + "', expected one of" + names);
                return nullptr;
            }
        } else if (key == "teal.version") {
            if (value != "1") {
                fail(error, "metadata teal.version: '" + shown(value) + "', this build reads version 1");
                return nullptr;
            }
            versioned = true;
        } else if (key.starts_with("teal.")) {
            fail(error, "metadata " + shown(key) + ": unknown, expected teal.load and teal.version");
            return nullptr;
        }
    }
    if (load != nullptr && versioned) return load;
    fail(error, "metadata without teal.load and teal.version: not a model of a systems load");
    return nullptr;
}

bool check_tensors(const FileHeader& header, const Load& load, std::string& error) {
    const std::string name(load.name);
    for (std::size_t i = 0; i < std::max(header.tensors.size(), load.tensors.size()); ++i) {
        if (i >= load.tensors.size()) return fail(error, "tensor '" + shown(header.tensors[i].name) + "' is not one of " + name + "'s");
        const TensorShape& wanted = load.tensors[i];
        const std::string wanted_name(wanted.name);
        if (i >= header.tensors.size()) return fail(error, "tensor '" + wanted_name + "' of " + name + " is missing");
        const HeaderEntry& given = header.tensors[i];
        if (given.name != wanted_name)
            return fail(error, "tensor '" + shown(given.name) + "' in place " + std::to_string(i) + ", expected '" + wanted_name + "' (" + name + ")");
        if (given.dtype != load.weights)
            return fail(error, "tensor '" + wanted_name + "': dtype " + std::string(dtype_info(given.dtype).name) + ", expected " +
                                     std::string(dtype_info(load.weights).name) + " (" + name + ")");
        if (given.shape != extents(wanted))
            return fail(error, "tensor '" + wanted_name + "': shape " + list(given.shape) + ", expected " + list(extents(wanted)) + " (" + name + ")");
    }
    return true;
}

bool check_finite(const ModelFile& model, std::string& error) {
    for (const TensorShape& shape : model.load->tensors) {
        const float* values = model.tensor<float>(shape.name);
        for (std::uint64_t i = 0; i < shape.count(); ++i)
            if (!std::isfinite(values[i])) return fail(error, "tensor '" + std::string(shape.name) + "': element " + std::to_string(i) + " is not finite");
    }
    if (model.load->id != LoadId::kml) return true;
    const float* deviation = model.tensor<float>("std");
    for (std::size_t i = 0; i < 5; ++i)
        if (!(deviation[i] > 0.0F)) return fail(error, "tensor 'std': element " + std::to_string(i) + " is not above zero");
    return true;
}

// Inputs of every sum are at most 1 in magnitude (one-hot, or what a sigmoid and a tanh leave), so the sum of the weights' is a bound.
bool check_kleio_sums(const ModelFile& model, std::string& error) {
    struct Sum { const char* bias; const char* first; const char* second; };
    for (const Sum& sum : {Sum{"b0", "w0", "u0"}, Sum{"b1", "w1", "u1"}, Sum{"b2", "w2", nullptr}}) {
        const std::uint32_t columns = sum.second == nullptr ? kleio_pages : 4 * kleio_units;
        std::vector<double> total(columns);
        const auto add = [&](const char* name, std::uint32_t rows) {
            const float* values = name == nullptr ? nullptr : model.tensor<float>(name);
            for (std::uint32_t k = 0; values != nullptr && k < rows; ++k)
                for (std::uint32_t j = 0; j < columns; ++j) total[j] += std::fabs(static_cast<double>(values[std::uint64_t{k} * columns + j]));
        };
        add(sum.bias, 1);
        add(sum.first, std::string_view(sum.first) == "w0" ? kleio_pages : kleio_units);
        add(sum.second, kleio_units);
        for (const double value : total)
            if (value > 1e30) return fail(error, std::string("tensor '") + sum.first + "': the weights of one unit add up to more than 1e30");
    }
    return true;
}

std::uint64_t magnitude(std::int64_t value) noexcept { return value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value); }

}  // namespace

bool linnos_bounds(const ModelFile& file, std::uint64_t bounds[3], std::string& error) {
    const std::size_t layers = file.load->tensors.size() / 2;
    std::uint64_t input = UINT8_MAX;  // largest value of the layer's inputs, none of which is negative
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const TensorShape& shape = file.load->tensors[layers + layer];
        const auto* weights = file.tensor<std::int64_t>(shape.name);
        const auto* bias = file.tensor<std::int64_t>(file.load->tensors[layer].name);
        std::uint64_t largest = 0;
        for (std::uint32_t j = 0; j < shape.columns; ++j) {
            std::uint64_t total = magnitude(bias[j]);
            bool fits = true;
            for (std::uint32_t k = 0; k < shape.rows; ++k) {
                std::uint64_t product = 0;
                fits = fits && checked_mul(magnitude(weights[std::uint64_t{k} * shape.columns + j]), input, product) && checked_add(total, product, total);
            }
            if (!fits || total > most_i64)
                return fail(error, "tensor '" + std::string(shape.name) + "': unit " + std::to_string(j) + " might leave the range of int64 for some input; scale the weights down");
            largest = std::max(largest, total);
        }
        if (layer + 1 < layers) bounds[layer] = largest;
        input = largest;
    }
    return true;
}

bool read_model(std::span<const std::byte> file, ModelFile& out, std::string& error) {
    FileHeader header;
    out = ModelFile{};
    if (!read_header(file, header, error)) return false;
    const Load* load = load_of(header, error);
    if (load == nullptr || !check_tensors(header, *load, error)) return false;
    if (header.data % 8 != 0) return fail(error, "the data begins at byte " + std::to_string(header.data) + ", expected a multiple of 8");
    out = ModelFile{load, header.data, file.data() + header.data};
    std::uint64_t bounds[3] = {};
    if (load->weights == Dtype::i64) return linnos_bounds(out, bounds, error);
    return check_finite(out, error) && (load->id != LoadId::kleio || check_kleio_sums(out, error));
}

}  // namespace teal::systems
