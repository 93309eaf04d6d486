// Fuzzing of what a duck and a client read from the network: packets of an open connection (after the seal), hellos, and what answers them.
//
// One input = a side, then packets, each with a length before it. They are given to a peer of a duck (with a session and a blob on its way)
// or to a client; whatever happens, memory stays sound (sanitizers look), no more than the stated bounds is kept, and the connection can still
// send. With TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives it with mutations of valid packets from a fixed seed:
//
//     fuzz_duck [rounds [seed]]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "duck/handshake.hpp"
#include "duck_relay.hpp"

namespace {

using namespace teal;
using namespace teal::duck;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "fuzz_duck: %s\n", what);
    std::abort();
}

void use_handshake(std::span<const std::byte> packet) {
    static Door door({}, 1 << 20);
    std::byte out[256];
    std::size_t bytes = 0;
    ConnectionOptions options;
    const Door::What what = door.read(packet, {}, 100, false, out, bytes, options);
    if (what == Door::What::answered || what == Door::What::welcome) {
        if (bytes == 0 || bytes > sizeof out || bytes > packet.size()) fail("an answer longer than its question");
    }
    static ClientHello hello({}, 1'000'000'000, 1 << 20);
    if (hello.read(packet) == ClientHello::Step::failed && packet.size() < sizeof(Refuse)) fail("a refusal out of nothing");
}

// The client's own packets, so that inputs can be made from valid ones.
void give(TestLine& line, bool to_duck, std::span<const std::byte> frames, std::uint64_t number) {
    std::vector<std::byte> packet(sizeof(DataHead) + frames.size());
    Connection& connection = to_duck ? line.duck->connection : *line.up;
    const DataHead head{{static_cast<std::uint8_t>(PacketKind::data), static_cast<std::uint8_t>(highest_version), 0, static_cast<std::uint32_t>(packet.size())},
                        connection.own_id(), number};
    std::memcpy(packet.data(), &head, sizeof head);
    if (!frames.empty()) std::memcpy(packet.data() + sizeof head, frames.data(), frames.size());
    const bool sound = check_frames(frames);
    const Verdict verdict = connection.receive(packet, line.now, to_duck ? static_cast<Above&>(*line.duck) : line.client);
    if (!sound && verdict == Verdict::taken) fail("a packet was taken whose frames are wrong");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const bool to_duck = (data[0] & 1) != 0;
    std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
    use_handshake(input);
    TestLine line(1, {}, Cipher::none);
    const BlobAsk ask{BlobDigest{}, 5000, 1};
    line.up->queue(ItemKind::blob_ask, bytes_of(ask), {});
    line.up->queue(ItemKind::call, bytes_of(CallHead{1, 1, 1}), {});
    const auto pass = [&line](std::uint64_t ns) { (void)line.run(ns, [] { return false; }); };
    pass(3'000'000);
    if (line.duck->arriving.empty()) fail("the blob was not asked for");
    for (std::uint64_t number = 100; input.size() >= 2; ++number) {
        std::uint16_t length = 0;
        std::memcpy(&length, input.data(), sizeof length);
        input = input.subspan(2);
        const std::size_t bytes = std::min<std::size_t>(length, input.size());
        give(line, to_duck, input.first(bytes), number);
        input = input.subspan(bytes);
        pass(300'000);
    }
    return 0;
}

#ifndef TEAL_LIBFUZZER
namespace {

class Mutator {
public:
    explicit Mutator(std::uint64_t seed) : random_(seed) {}

    std::vector<std::uint8_t> valid() {
        std::vector<std::uint8_t> input{static_cast<std::uint8_t>(random_.below(2))};
        for (std::uint64_t packets = 1 + random_.below(6); packets > 0; --packets) {
            std::vector<std::byte> frames;
            for (std::uint64_t count = 1 + random_.below(3); count > 0; --count) add_frame(frames);
            const auto length = static_cast<std::uint16_t>(frames.size());
            const auto* at = reinterpret_cast<const std::uint8_t*>(&length);
            input.insert(input.end(), at, at + sizeof length);
            const auto* bytes = reinterpret_cast<const std::uint8_t*>(frames.data());
            input.insert(input.end(), bytes, bytes + frames.size());
        }
        return input;
    }

    void mutate(std::vector<std::uint8_t>& bytes) {
        static constexpr std::uint64_t odd[] = {0, 1, 2, 7, 8, 9, 16, 64, 255, 1023, 4096, 65535, 0x7fffffff, 0xffffffff, 1ULL << 32, 1ULL << 62, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
        for (std::uint64_t turns = 1 + random_.below(3); turns > 0; --turns) {
            const std::size_t width = std::size_t{1} << random_.below(4);
            const std::size_t at = random_.below(bytes.size());
            if (at + width > bytes.size()) continue;
            std::uint64_t value = 0;
            std::memcpy(&value, &bytes[at], width);
            switch (random_.below(4)) {
                case 0: value = odd[random_.below(std::size(odd))]; break;
                case 1: value += random_.below(33) - 16; break;
                case 2: value ^= std::uint64_t{1} << random_.below(64); break;
                default: value = random_.next(); break;
            }
            std::memcpy(&bytes[at], &value, width);
        }
        if (random_.below(16) == 0) bytes.resize(1 + random_.below(bytes.size()));
    }

private:
    template <class T> static void put(std::vector<std::byte>& to, const T& value) {
        const auto bytes = bytes_of(value);
        to.insert(to.end(), bytes.begin(), bytes.end());
    }
    static FrameHead head(FrameType type, std::size_t bytes, ItemKind kind = {}) {
        return {static_cast<std::uint8_t>(type), static_cast<std::uint8_t>(kind), 0, static_cast<std::uint32_t>(bytes)};
    }
    void add_chunk(std::vector<std::byte>& to) {
        const auto kind = static_cast<ItemKind>(1 + random_.below(last_item_kind));
        std::vector<std::byte> body;
        switch (kind) {
            case ItemKind::call:
            case ItemKind::cancel: put(body, CallHead{static_cast<std::uint32_t>(1 + random_.below(2)), 1, 1 + random_.below(12)}); break;
            case ItemKind::answer: put(body, AnswerHead{1, 0, 1 + random_.below(3), 8, 0}); break;
            case ItemKind::blob_ask: put(body, BlobAsk{BlobDigest{}, 1 + random_.below(10'000), 1 + random_.below(4)}); break;
            case ItemKind::blob_state: put(body, BlobState{1, static_cast<std::uint32_t>(1 + random_.below(6)), 0, 0}); break;
            case ItemKind::group_ask: {
                GroupAsk ask{};
                ask.blob = {BlobDigest{}, 1000, 1};
                put(body, ask);
                break;
            }
            default: put(body, MessageHead{random_.below(5)}); break;
        }
        body.resize(body.size() + random_.below(64));
        const bool part = random_.chance(0.3);
        const std::uint64_t offset = part ? random_.below(2000) : 0, total = part ? offset + body.size() + random_.below(3000) : body.size();
        put(to, ChunkFrame{head(FrameType::chunk, sizeof(ChunkFrame) + body.size(), kind), 1 + random_.below(20), offset, total});
        to.insert(to.end(), body.begin(), body.end());
    }
    void add_frame(std::vector<std::byte>& to) {
        switch (random_.below(8)) {
            case 0: {
                const std::uint64_t pairs = random_.below(3);
                put(to, AckFrame{head(FrameType::ack, sizeof(AckFrame) + pairs * sizeof(AckPair)), 1 + random_.below(200), 0, 100, static_cast<std::uint32_t>(pairs)});
                for (std::uint64_t i = 0; i < pairs; ++i) put(to, AckPair{1, 1});
                break;
            }
            case 1: put(to, head(FrameType::ping, sizeof(FrameHead))); break;
            case 2:
                put(to, head(FrameType::answer, sizeof(FrameHead) + sizeof(AnswerHead)));
                put(to, AnswerHead{1, 0, 1, 0, 0});
                break;
            case 3: put(to, PollFrame{head(FrameType::poll, sizeof(PollFrame)), 1, 0, 1 + random_.below(12)}); break;
            case 4:
                if (random_.chance(0.1)) {
                    put(to, head(FrameType::close, sizeof(FrameHead) + 4));
                    put(to, std::uint32_t{1});
                }
                break;
            default: add_chunk(to); break;
        }
        if (to.empty()) put(to, head(FrameType::ping, sizeof(FrameHead)));
    }
    Random random_;
};

}  // namespace

int main(int argc, char** argv) {
    const unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 60'000;
    Mutator mutator(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    std::vector<std::uint8_t> bytes;
    for (unsigned long round = 0; round < rounds; ++round) {
        if (round % 8 == 0 || bytes.size() < 2) bytes = mutator.valid();  // then eight mutations deep
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        mutator.mutate(bytes);
    }
    std::printf("%lu inputs\n", rounds);
    return 0;
}
#endif
