#include "systems/load.hpp"

namespace teal::systems {
namespace {

// b: bias, w: weight (in, out), u: recurrent weight (in, out); gates of an LSTM stand as input, forget, cell, output.
constexpr TensorShape linnos_tensors[] = {{"b0", 256, 0}, {"b1", 2, 0}, {"w0", 31, 256}, {"w1", 256, 2}};
constexpr TensorShape linnos1_tensors[] = {{"b0", 256, 0}, {"b1", 256, 0}, {"b2", 2, 0}, {"w0", 31, 256}, {"w1", 256, 256}, {"w2", 256, 2}};
constexpr TensorShape linnos2_tensors[] = {{"b0", 256, 0},  {"b1", 256, 0},   {"b2", 256, 0},   {"b3", 2, 0},
                                           {"w0", 31, 256}, {"w1", 256, 256}, {"w2", 256, 256}, {"w3", 256, 2}};
constexpr TensorShape mllb_tensors[] = {{"b0", 10, 0}, {"b1", 1, 0}, {"w0", 15, 10}, {"w1", 10, 1}};
constexpr TensorShape kml_tensors[] = {{"b0", 15, 0}, {"b1", 5, 0},  {"b2", 4, 0},  {"mean", 5, 0},
                                       {"std", 5, 0}, {"w0", 5, 15}, {"w1", 15, 5}, {"w2", 5, 4}};
constexpr TensorShape kleio_tensors[] = {{"b0", 1024, 0},   {"b1", 1024, 0},   {"b2", 621, 0},    {"u0", 256, 1024},
                                         {"u1", 256, 1024}, {"w0", 621, 1024}, {"w1", 256, 1024}, {"w2", 256, 621}};

constexpr Load table[] = {
    {LoadId::linnos, "linnos", Dtype::i64, linnos_tensors, Dtype::u8, 31, 2},
    {LoadId::linnos1, "linnos+1", Dtype::i64, linnos1_tensors, Dtype::u8, 31, 2},
    {LoadId::linnos2, "linnos+2", Dtype::i64, linnos2_tensors, Dtype::u8, 31, 2},
    {LoadId::mllb, "mllb", Dtype::f32, mllb_tensors, Dtype::f32, 15, 1},
    {LoadId::kml, "kml", Dtype::f32, kml_tensors, Dtype::f32, 5, 4},
    {LoadId::kleio, "kleio", Dtype::f32, kleio_tensors, Dtype::i32, kleio_steps, kleio_pages},
};

constexpr bool sorted() {
    for (const Load& load : table)
        for (std::size_t i = 1; i < load.tensors.size(); ++i)
            if (load.tensors[i - 1].name >= load.tensors[i].name) return false;
    return true;
}
static_assert(sorted());

}  // namespace

std::span<const Load> loads() noexcept { return table; }

const Load* find_load(std::string_view name) noexcept {
    for (const Load& load : table)
        if (load.name == name) return &load;
    return nullptr;
}

}  // namespace teal::systems
