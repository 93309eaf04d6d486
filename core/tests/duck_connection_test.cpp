// Connections on a virtual clock, over a network that loses, duplicates, delays, reorders and breaks: by seeds.
//
//     duck_connection_test [seeds [first]]
#include <algorithm>
#include <cstdlib>

#include "check.hpp"
#include "duck/remote.hpp"
#include "duck_relay.hpp"

namespace {

using namespace teal;
using namespace teal::duck;

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 11);
    return out;
}

// One seed: calls of many sizes (some at once), messages and a blob, whatever the weather: everything arrives once, in order, intact.
bool play(std::uint64_t seed) {
    Random random(seed * 77 + 5);
    Weather weather;
    weather.loss = random.chance(0.3) ? 0 : 0.2 * random.unit();
    weather.duplicates = random.chance(0.5) ? 0 : 0.1 * random.unit();
    weather.delay_ns = 5'000 + random.below(random.chance(0.2) ? 5'000'000 : 100'000);
    weather.jitter_ns = random.chance(0.3) ? 0 : random.below(2'000'000);
    const std::size_t paths[] = {1200, 1500, 9000, most_packet};
    weather.longest_packet = paths[random.below(4)];
    if (random.chance(0.25)) {
        weather.cut_at = 1'000'000'000 + random.below(20'000'000);
        weather.cut_until = weather.cut_at + random.below(900'000'000);
    }
    TestLine line(seed, weather, seed % 2 == 0 ? Cipher::none : seed % 4 == 1 ? Cipher::aes_256_gcm : Cipher::chacha20_poly1305, 2'000'000'000);
    line.asking = true;
    const std::uint64_t calls = 12, depth = 1 + random.below(Desk::kept);
    std::vector<std::vector<std::byte>> args(calls + 1);
    for (std::uint64_t i = 1; i <= calls; ++i) args[i] = pattern(random.below(random.chance(0.2) ? 30'000 : 1500), seed + i);
    const auto blob = pattern(1 + random.below(300'000), seed);
    const BlobDigest digest = sha256(blob);

    std::vector<std::vector<std::byte>> texts;
    for (std::uint64_t i = 0; i < 3; ++i) {
        texts.push_back(pattern(1 + random.below(20'000), seed ^ i));
        const MessageHead head{i};
        line.up->queue(ItemKind::message, bytes_of(head), texts.back());
    }
    const std::uint64_t transfer = line.up->reserve();
    const BlobAsk ask{digest, blob.size(), transfer};
    line.up->queue(ItemKind::blob_ask, bytes_of(ask), {});
    std::uint64_t sent = 0, answered = 0, asked_at = line.now;
    bool sending_blob = false, blob_done = false;
    std::vector<bool> have(calls + 1, false);
    std::size_t seen = 0;
    bool right = true;
    const bool ended = line.run(120'000'000'000, [&] {
        for (; seen < line.client.answers.size(); ++seen) {
            const auto& [head, bytes] = line.client.answers[seen];
            if (head.seq == 0 || head.seq > calls) {
                right = false;
            } else if (static_cast<Outcome>(head.outcome) == Outcome::forgotten && have[head.seq]) {
                continue;  // to a question that was very long on its way
            } else if (head.outcome != 0 || bytes != args[head.seq]) {
                right = false;
            } else if (!have[head.seq]) {
                have[head.seq] = true;
                ++answered;
            }
        }
        std::uint64_t first = 1;
        while (first <= sent && have[first]) ++first;
        while (sent < calls && sent + 1 < first + depth) {
            const CallHead head{1, 1, ++sent};
            line.up->queue(ItemKind::call, bytes_of(head), args[sent]);
        }
        if (line.now >= asked_at + 5'000'000) {
            asked_at = line.now;
            for (std::uint64_t i = first; i <= sent; ++i)
                if (!have[i]) line.up->poll(1, i);
        }
        for (const BlobState& state : line.client.states) {
            if (state.answer == static_cast<std::uint32_t>(BlobAnswer::want) && !std::exchange(sending_blob, true)) line.up->queue_blob(transfer, blob, {});
            if (state.answer == static_cast<std::uint32_t>(BlobAnswer::done)) blob_done = true;
        }
        return answered == calls && blob_done && line.client.replies.size() == texts.size();
    });
    bool ok = ended && right && line.sink->ran.load() == calls && line.sink->out_of_order.load() == 0 && line.host.whole.size() == 1 && line.host.whole[0] == digest;
    ok = ok && line.host.messages.size() == texts.size();
    for (const auto& [id, bytes] : line.host.messages) ok = ok && id < texts.size() && bytes == texts[id];
    for (const auto& [id, bytes] : line.client.replies) ok = ok && id < texts.size() && bytes == texts[id];
    ok = ok && line.up->figures().malformed == 0 && line.duck->connection.figures().malformed == 0 && line.up->figures().forged == 0;
    if (!ok)
        std::fprintf(stderr, "seed %llu: ended %d right %d ran %llu of %llu answered %llu blob %d messages %zu replies %zu; client: %s, duck: %s; loss %.2f path %zu\n",
                     static_cast<unsigned long long>(seed), ended, right, static_cast<unsigned long long>(line.sink->ran.load()), static_cast<unsigned long long>(calls),
                     static_cast<unsigned long long>(answered), blob_done, line.host.messages.size(), line.client.replies.size(), line.up->why().c_str(),
                     line.duck->connection.why().c_str(), weather.loss, weather.longest_packet);
    return ok;
}

void test_any_network(std::uint64_t seeds, std::uint64_t first) {
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) CHECK(play(seed));
}

void test_silence() {
    // A cut that heals in time is not noticed; one that does not is a death, told by both sides, and in the stated time.
    Weather weather;
    weather.cut_at = 1'100'000'000;
    weather.cut_until = 2'500'000'000;
    TestLine line(1, weather, Cipher::none, 2'000'000'000);
    CHECK(line.run(300'000'000, [&] { return line.now > 1'050'000'000; }));
    CHECK(!line.run(2'000'000'000, [] { return false; }));
    CHECK(!line.up->closed());
    weather.cut_until = ~0ULL;
    TestLine dead(2, weather, Cipher::none, 1'000'000'000);
    CHECK(!dead.run(10'000'000'000, [] { return false; }));
    CHECK(dead.up->closed());
    CHECK(dead.up->why().find("nothing heard for") != std::string::npos);
    CHECK(dead.now < 2'400'000'000ULL);
    while (!dead.duck->connection.closed()) {
        dead.now += 10'000'000;
        dead.settle();
    }
    CHECK(dead.now < 3'700'000'000ULL);
}

void test_hostile() {
    // Bits flipped on the way, packets cut short, replayed, or sent by nobody: nothing of it is taken, nothing breaks.
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        Weather weather;
        TestLine line(seed, weather, Cipher::aes_256_gcm);
        Random random(seed);
        std::vector<std::vector<std::byte>> recorded;
        line.tamper = [&](bool to_duck, std::vector<std::byte>& bytes) {
            if (to_duck) recorded.push_back(bytes);
            switch (random.below(6)) {
                case 0: bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1U << random.below(8)); break;
                case 1: bytes.resize(random.below(bytes.size())); break;
                case 2:
                    if (to_duck) {
                        auto again = recorded[random.below(recorded.size())];
                        line.duck->connection.receive(again, line.now, *line.duck);
                    }
                    break;
                default: break;
            }
        };
        line.asking = true;
        const auto args = pattern(300, seed);
        std::uint64_t sent = 0, asked_at = 0;
        const bool ended = line.run(60'000'000'000, [&] {
            const bool answered = std::any_of(line.client.answers.begin(), line.client.answers.end(), [&](const auto& answer) { return answer.first.seq == sent; });
            if (sent == 20 && answered) return true;
            if (sent == 0 || answered) {
                const CallHead head{1, 1, ++sent};
                line.up->queue(ItemKind::call, bytes_of(head), args);
            } else if (line.now > asked_at + 5'000'000) {
                asked_at = line.now;
                line.up->poll(1, sent);
            }
            return false;
        });
        CHECK(ended);
        CHECK_EQ(line.sink->ran.load(), 20);
        // A question that was held back until its answer was overwritten is answered so, and the client has the answer.
        for (const auto& [head, bytes] : line.client.answers) CHECK(bytes == args || static_cast<Outcome>(head.outcome) == Outcome::forgotten);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::uint64_t seeds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1500, first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    test_any_network(seeds, first);
    test_silence();
    test_hostile();
    return check::summary();
}
