// Fuzzing of what liblaika reads from a host: parse_reply() and, of its body, parse_signature() and a plan made from it.
//
// With TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives it with mutations of a valid reply from a fixed seed, so
// that it runs everywhere:
//
//     fuzz_reply [rounds [seed]]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "capi/signature.hpp"

namespace {

using namespace teal::capi;

void plan(const Signature& signature) {
    std::vector<laika_tensor_t> inputs(signature.inputs.size());
    std::vector<laika_tensor_t> outputs(signature.outputs.size());
    const auto suit = [](const TensorSpec& spec, laika_tensor_t& tensor) {
        tensor = {};
        tensor.data = &tensor;
        tensor.dtype = spec.dtype == teal::Dtype::none ? LAIKA_UINT8 : static_cast<std::int32_t>(spec.dtype);
        tensor.ndim = spec.ranked ? static_cast<std::int32_t>(spec.shape.size()) : 1;
        for (std::size_t i = 0; i < LAIKA_MAX_DIMS; ++i) tensor.shape[i] = i < spec.shape.size() && spec.shape[i].size >= 0 ? spec.shape[i].size : 3;
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) suit(signature.inputs[i], inputs[i]);
    for (std::size_t i = 0; i < outputs.size(); ++i) suit(signature.outputs[i], outputs[i]);
    const Plan made = plan_call(signature, inputs.data(), inputs.size(), outputs.data(), outputs.size());
    if (made.inputs.size() != inputs.size() || made.outputs.size() != outputs.size()) std::abort();
    for (const teal::TensorPlan& output : made.outputs)
        if (output.in_place >= 0 && static_cast<std::size_t>(output.in_place) >= inputs.size()) std::abort();
}

void feed(const std::uint8_t* data, std::size_t size) {
    const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
    ReplyView reply;
    if (!parse_reply(bytes, reply)) return;
    Answer answer;
    answer.bytes.assign(reply.body.begin(), reply.body.end());
    try {
        plan(parse_signature(answer));
    } catch (const Failure& failure) {
        if (failure.status() == LAIKA_OK) std::abort();
    }
}

#ifndef TEAL_LIBFUZZER
void write_spec(Writer& out, const char* name, const char* like) {
    out.map(like != nullptr ? 4 : 3);
    out.text("name"); out.text(name);
    out.text("dtype"); out.text("float32");
    out.text("shape"); out.array(3); out.text("n"); out.number(4); out.nil();
    if (like != nullptr) { out.text("like"); out.text(like); }
}

std::vector<std::uint8_t> valid() {
    Writer out;
    out.map(2);
    out.text("id"); out.number(7);
    out.text("body");
    out.map(8);
    out.text("name"); out.text("m");
    out.text("index"); out.number(3);
    out.text("version"); out.number(1);
    out.text("pool"); out.text("default");
    out.text("idle_ns"); out.nil();
    out.text("threads"); out.number(2);
    out.text("inputs"); out.array(2); write_spec(out, "x", nullptr); write_spec(out, "z", nullptr);
    out.text("outputs"); out.array(2); write_spec(out, "y", "x"); write_spec(out, "w", nullptr);
    std::vector<std::uint8_t> bytes(out.bytes().size());
    std::memcpy(bytes.data(), out.bytes().data(), bytes.size());
    return bytes;
}
#endif

}  // namespace

#ifdef TEAL_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    feed(data, size);
    return 0;
}
#else
int main(int argc, char** argv) {
    const long rounds = argc > 1 ? std::atol(argv[1]) : 50'000;
    std::mt19937 random(static_cast<unsigned>(argc > 2 ? std::atol(argv[2]) : 1));
    const std::vector<std::uint8_t> seed = valid();
    feed(seed.data(), seed.size());
    for (long round = 0; round < rounds; ++round) {
        std::vector<std::uint8_t> bytes = seed;
        for (unsigned changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
            const std::size_t at = random() % bytes.size();
            switch (random() % 4) {
                case 0: bytes[at] = static_cast<std::uint8_t>(random()); break;
                case 1: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at)); break;
                case 2: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(0x80 + random() % 128)); break;
                default: bytes.resize(at); break;
            }
        }
        feed(bytes.data(), bytes.size());
    }
    std::printf("%ld rounds\n", rounds);
    return 0;
}
#endif
