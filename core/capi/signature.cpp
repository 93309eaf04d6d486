#include "capi/signature.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "base/checked.hpp"
#include "capi/strings.hpp"

namespace teal::capi {
namespace {

constexpr std::size_t longest_text = 4096;

[[noreturn]] void not_understood(std::string_view what) {
    throw Failure(LAIKA_ERR_INTERNAL, "the host describes the model in a way that is not understood: " + std::string(what));
}

[[noreturn]] void wrong(const std::string& path, const std::string& text) { throw Failure(LAIKA_ERR_INVALID, path + ": " + text); }

std::string_view short_text(Reader& reader) {
    std::string_view text;
    if (!reader.text(text) || text.size() > longest_text) not_understood("a text");
    return text;
}

std::uint64_t number_up_to(Reader& reader, std::uint64_t most) {
    std::uint64_t number = 0;
    if (!reader.number(number) || number > most) not_understood("a number");
    return number;
}

bool yes_or_no(Reader& reader) {
    bool value = false;
    if (!reader.boolean(value)) not_understood("a boolean");
    return value;
}

std::uint32_t entries_of(Reader& reader) {
    std::uint32_t entries = 0;
    if (!reader.map(entries)) not_understood("a map");
    return entries;
}

void parse_shape(Reader& reader, TensorSpec& spec) {
    if (reader.next() == Reader::Kind::nil) {
        reader.nil();
        return;
    }
    std::uint32_t rank = 0;
    if (!reader.array(rank)) not_understood("a shape");
    if (rank > max_rank) throw Failure(LAIKA_ERR_UNSUPPORTED, "tensor '" + spec.name + "' has " + std::to_string(rank) + " dimensions, expected at most 8");
    spec.ranked = true;
    for (std::uint32_t i = 0; i < rank; ++i) {
        Extent extent;
        const Reader::Kind kind = reader.next();
        if (kind == Reader::Kind::text) extent.symbol = short_text(reader);
        else if (kind == Reader::Kind::nil) reader.nil();
        else extent.size = static_cast<std::int64_t>(number_up_to(reader, INT64_MAX));
        spec.shape.push_back(std::move(extent));
    }
}

Dtype parse_dtype(Reader& reader, const std::string& name) {
    if (reader.next() == Reader::Kind::nil) {
        reader.nil();
        return Dtype::none;
    }
    const std::string_view text = short_text(reader);
    const Dtype dtype = dtype_from_name(text);
    if (dtype == Dtype::none)
        throw Failure(LAIKA_ERR_UNSUPPORTED, "tensor '" + name + "' has dtype " + std::string(text.substr(0, 40)) + ", which this library does not pass; call it from Python");
    return dtype;
}

// `names` are the inputs', for an output; empty for an input.
TensorSpec parse_spec(Reader& reader, const std::vector<TensorSpec>& known) {
    TensorSpec spec;
    for (std::uint32_t entries = entries_of(reader); entries > 0; --entries) {
        const std::string_view key = short_text(reader);
        if (key == "name") spec.name = short_text(reader);
        else if (key == "dtype") spec.dtype = parse_dtype(reader, spec.name);
        else if (key == "shape") parse_shape(reader, spec);
        else if (key == "in_place") spec.in_place = yes_or_no(reader);
        else if (key == "optional") spec.optional = yes_or_no(reader);
        else if (key == "like" && reader.next() == Reader::Kind::text) {
            const std::string_view name = short_text(reader);
            const auto found = std::find_if(known.begin(), known.end(), [&](const TensorSpec& one) { return one.name == name; });
            if (found == known.end()) not_understood("an output like an input that it does not have");
            spec.like = static_cast<std::int32_t>(found - known.begin());
        } else if (!reader.skip()) not_understood("a tensor");
    }
    return spec;
}

void parse_specs(Reader reader, std::vector<TensorSpec>& specs, const std::vector<TensorSpec>& known) {
    std::uint32_t count = 0;
    if (!reader.array(count) || count > max_tensors) not_understood("a list of tensors");
    for (; count > 0; --count) specs.push_back(parse_spec(reader, known));
}

void parse_field(Reader& reader, std::string_view key, Signature& found) {
    if (key == "name") found.name = short_text(reader);
    else if (key == "digest") found.digest = short_text(reader);
    else if (key == "kernel") found.onnx = short_text(reader) == "onnx";
    else if (key == "index") found.index = static_cast<std::uint32_t>(number_up_to(reader, UINT32_MAX));
    else if (key == "version") found.version = static_cast<std::uint32_t>(number_up_to(reader, INT32_MAX));
    else if (key == "threads") found.threads = static_cast<std::uint32_t>(number_up_to(reader, 1u << 20));
    else if (key == "idle_ns" && reader.next() == Reader::Kind::integer) found.idle_ns = number_up_to(reader, 3600'000'000'000u);
    else if (key == "pool") {
        found.pool = short_text(reader);
        if (found.pool.empty() || found.pool.size() > LAIKA_MAX_NAME) not_understood("a pool");
    } else if (!reader.skip()) not_understood("a field");
}

// ---- plans ---------------------------------------------------------------------------------------------------------

using Extents = std::map<std::string_view, std::int64_t>;

std::string label(const TensorSpec& spec, const char* side) { return std::string(side) + " '" + spec.name + "'"; }

void check_dtype(const TensorSpec& spec, Dtype given, const char* side, const std::string& path) {
    if (spec.dtype != Dtype::none && given != spec.dtype)
        wrong(path + ".dtype", std::string(dtype_info(given).name) + ", " + label(spec, side) + " expects " + std::string(dtype_info(spec.dtype).name));
}

void check_shape(const TensorSpec& spec, const laika_tensor_t& tensor, Extents& extents, const std::string& path) {
    if (!spec.ranked) return;
    if (static_cast<std::size_t>(tensor.ndim) != spec.shape.size())
        wrong(path + ".ndim", std::to_string(tensor.ndim) + ", " + label(spec, "input") + " expects " + std::to_string(spec.shape.size()));
    for (std::size_t i = 0; i < spec.shape.size(); ++i) {
        const Extent& extent = spec.shape[i];
        const std::int64_t given = tensor.shape[i];
        std::int64_t expected = extent.size;
        if (!extent.symbol.empty()) expected = extents.try_emplace(extent.symbol, given).first->second;
        if (expected >= 0 && given != expected)
            wrong(path + ".shape[" + std::to_string(i) + "]", std::to_string(given) + ", " + label(spec, "input") + " expects " + std::to_string(expected) +
                  (extent.symbol.empty() ? "" : " ('" + extent.symbol + "' of this call)"));
    }
}

TensorPlan plan_of(const laika_tensor_t& tensor) {
    TensorPlan plan;
    plan.dtype = static_cast<Dtype>(tensor.dtype);
    plan.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
    return plan;
}

// The shape an output will have, when the inputs fix it.
bool known_shape(const TensorSpec& spec, const std::vector<TensorPlan>& inputs, const Extents& extents, std::vector<std::int64_t>& shape) {
    if (spec.like >= 0) {
        shape = inputs[static_cast<std::size_t>(spec.like)].shape;
        return true;
    }
    if (!spec.ranked) return false;
    for (const Extent& extent : spec.shape) {
        const auto found = extent.symbol.empty() ? extents.end() : extents.find(extent.symbol);
        if (extent.size < 0 && found == extents.end()) return false;
        shape.push_back(extent.size >= 0 ? extent.size : found->second);
    }
    return true;
}

std::string shown(const std::vector<std::int64_t>& shape) {
    std::string text = "(";
    for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
    return text + ")";
}

TensorPlan plan_output(const TensorSpec& spec, const laika_tensor_t& given, std::vector<std::int64_t> shape, bool known, Dtype dtype, std::uint64_t strings_room,
                       const std::string& path) {
    TensorPlan plan;
    const std::uint64_t room = checked_bytes(given, path);
    const auto own = static_cast<Dtype>(given.dtype);
    if (own != Dtype::none && dtype != Dtype::none && own != dtype)
        wrong(path + ".dtype", std::string(dtype_info(own).name) + ", " + label(spec, "output") + " is " + std::string(dtype_info(dtype).name));
    plan.dtype = dtype != Dtype::none ? dtype : own;
    if (plan.dtype == Dtype::bytes) {
        if (own != Dtype::bytes) wrong(path + ".dtype", "LAIKA_DTYPE_NONE, " + label(spec, "output") + " is BYTES; give LAIKA_BYTES and an array of laika_bytes_t");
        plan.flags = tensor_unplanned;
        plan.capacity = strings_room;
        return plan;
    }
    if (!known || plan.dtype == Dtype::none) {
        if (plan.dtype == Dtype::none) plan.dtype = Dtype::u8;
        plan.flags = tensor_unplanned;
        plan.capacity = room;
        return plan;
    }
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (!tensor_bytes(plan.dtype, shape.data(), shape.size(), count, bytes)) wrong(path + ".shape", "the model's output has more than 2^63 bytes");
    if (bytes > room)
        throw Failure(LAIKA_ERR_TOO_SMALL, path + ".shape: " + std::to_string(room) + " bytes, " + label(spec, "output") + " of shape " + shown(shape) + " needs " + std::to_string(bytes));
    plan.shape = std::move(shape);
    return plan;
}

}  // namespace

Signature parse_signature(const Answer& answer) {
    Signature found;
    Reader reader = answer.body();
    std::span<const std::byte> inputs;
    std::span<const std::byte> outputs;
    for (std::uint32_t entries = entries_of(reader); entries > 0; --entries) {
        const std::string_view key = short_text(reader);
        if (key == "inputs" || key == "outputs") {
            if (!reader.skip(key == "inputs" ? &inputs : &outputs)) not_understood(key);
        } else {
            parse_field(reader, key, found);
        }
    }
    parse_specs(Reader(inputs), found.inputs, {});
    parse_specs(Reader(outputs), found.outputs, found.inputs);
    if (found.inputs.size() + found.outputs.size() > max_tensors) not_understood("more than 1024 tensors");
    return found;
}

std::uint64_t checked_bytes(const laika_tensor_t& tensor, const std::string& path) {
    const std::int32_t dtype = tensor.dtype;
    if (dtype < 0 || dtype > static_cast<std::int32_t>(Dtype::bytes)) wrong(path + ".dtype", std::to_string(tensor.dtype) + ", expected a laika_dtype_t");
    if (tensor.ndim < 0 || tensor.ndim > LAIKA_MAX_DIMS) wrong(path + ".ndim", std::to_string(tensor.ndim) + ", expected 0 to 8");
    const auto rank = static_cast<std::size_t>(tensor.ndim);
    for (std::size_t i = 0; i < rank; ++i)
        if (tensor.shape[i] < 0) wrong(path + ".shape[" + std::to_string(i) + "]", std::to_string(tensor.shape[i]) + ", expected 0 or more");
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    // Without a dtype (an output of any) the shape counts bytes.
    const Dtype counted = dtype == 0 ? Dtype::u8 : static_cast<Dtype>(dtype);
    if (!tensor_bytes(counted, tensor.shape, rank, count, bytes)) wrong(path + ".shape", "more than 2^63 bytes");
    if (counted == Dtype::bytes && !checked_mul(count, sizeof(laika_bytes_t), bytes)) wrong(path + ".shape", "more than 2^63 bytes");
    return bytes;
}

Plan plan_call(const Signature& signature, const laika_tensor_t* inputs, std::size_t n_in, const laika_tensor_t* outputs, std::size_t n_out,
               std::span<const std::uint64_t> rooms) {
    if (n_in != signature.inputs.size())
        wrong("n_inputs", std::to_string(n_in) + ", model '" + signature.name + "' has " + std::to_string(signature.inputs.size()) + " inputs");
    if (n_out != signature.outputs.size())
        wrong("n_outputs", std::to_string(n_out) + ", model '" + signature.name + "' has " + std::to_string(signature.outputs.size()) + " outputs");
    Plan plan;
    Extents extents;
    for (std::size_t i = 0; i < n_in; ++i) {
        const TensorSpec& spec = signature.inputs[i];
        const std::string path = "inputs[" + std::to_string(i) + "]";
        if (spec.optional && inputs[i].data == nullptr) {
            plan.inputs.emplace_back();
            plan.inputs.back().dtype = Dtype::f32;
            plan.inputs.back().flags = tensor_absent;
            continue;
        }
        checked_bytes(inputs[i], path);
        if (inputs[i].dtype == LAIKA_DTYPE_NONE) wrong(path + ".dtype", "LAIKA_DTYPE_NONE, expected the dtype of the data");
        check_dtype(spec, static_cast<Dtype>(inputs[i].dtype), "input", path);
        check_shape(spec, inputs[i], extents, path);
        plan.inputs.push_back(plan_of(inputs[i]));
        if (is_strings(inputs[i]) && !rooms.empty()) plan.inputs.back().capacity = rooms[i];
    }
    for (std::size_t i = 0; i < n_out; ++i) {
        const TensorSpec& spec = signature.outputs[i];
        std::vector<std::int64_t> shape;
        const bool known = known_shape(spec, plan.inputs, extents, shape);
        const Dtype dtype = spec.like >= 0 ? plan.inputs[static_cast<std::size_t>(spec.like)].dtype : spec.dtype;
        plan.outputs.push_back(plan_output(spec, outputs[i], std::move(shape), known, dtype,
                                           rooms.empty() ? 0 : rooms[n_in + i], "outputs[" + std::to_string(i) + "]"));
        if (spec.in_place && spec.like >= 0 && dtype != Dtype::bytes) plan.outputs.back().in_place = spec.like;
    }
    return plan;
}

}  // namespace teal::capi
