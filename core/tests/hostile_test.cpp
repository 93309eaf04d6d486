// A client that does its worst, beside one that behaves: the other's answers stay right, and nothing on the host's side
// crashes, hangs or leaks a record.
//
// The hostile client writes to everything it has mapped: its session region (ring, completion lines, headers) and its tensor
// region (descriptors, tensors). Pure noise rarely gets past the first check, so it also forges entries in the right form with
// one or two fields turned, publishes them in the ring's own order, and turns descriptors while they are being read.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cpu/clock.hpp"
#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;
using teal::Dtype;
using teal::Reason;
using teal::State;

constexpr std::uint32_t identity_model = 0;
constexpr std::uint32_t sum_model = 1;
constexpr std::uint32_t impure_model = 2;

// Plain bytes in memory that others read meanwhile: written as relaxed atomics, as a hostile process might in effect.
void scribble(std::byte* at, std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
        __atomic_store_n(reinterpret_cast<std::uint8_t*>(at) + i, static_cast<std::uint8_t>(value >> 8 * (i % 8)), __ATOMIC_RELAXED);
}

class Hostile {
public:
    // `head`: where the consumer looks next. A client cannot read that, but with patience it could guess it.
    Hostile(const Client& client, const std::uint32_t& head, std::uint32_t seed)
        : random_(seed), client_(client), head_(head), map_(teal::map_session(::dup(client.session_fd), client.index, client.epoch, client.slots)) {
        for (int i = 0; i < 4; ++i) slots_.push_back(client.session->make_slot({plan(Dtype::f32, {4, 8})}, {plan(Dtype::f32, {4, 8})}));
    }

    void act() {
        switch (random() % 8) {
            case 0: noise(*map_->session, 4096 + random() % 4096); break;
            case 1: noise(*client_.region, 0); break;
            case 2: turn_descriptor(); break;
            case 3: end_or_unend(); break;
            case 4: ring_bells(); break;
            default: forge(); break;
        }
    }

private:
    // A few bytes anywhere from `from` on; now and then a whole page of it.
    void noise(const teal::Region& region, std::uint64_t from) {
        std::byte* base = &region == map_->session.get() ? map_->session->base() : client_.region->base();
        const std::size_t size = random() % 256 == 0 ? 4096 : 1 + random() % 8;
        const std::uint64_t at = from + random() % (region.size() - from - size);
        scribble(base + at, (std::uint64_t{random()} << 32) | random(), size);
    }
    std::uint64_t odd_number() {
        static constexpr std::uint64_t odd[] = {0, 1, 7, 63, 64, 4095, 4096, 65535, 0x7fffffff, 0xffffffff, 0x100000000, UINT64_MAX, UINT64_MAX - 63, INT64_MAX};
        return random() % 3 == 0 ? random() : odd[random() % std::size(odd)];
    }
    teal::RequestEntry entry() {
        const teal::ClientSlot& slot = *slots_[random() % slots_.size()];
        teal::RequestEntry entry{};
        entry.slot = slot.index;
        entry.generation = ++generation_;
        entry.model = random() % 4;
        entry.priority = static_cast<std::int32_t>(random());
        entry.stamp = random() % 3 == 0 ? 1 : random();
        entry.region = slot.region;
        entry.offset_low = static_cast<std::uint32_t>(slot.offset);
        auto* words = reinterpret_cast<std::uint32_t*>(&entry);
        for (std::uint32_t turns = random() % 3; turns > 0; --turns) words[random() % 15] = static_cast<std::uint32_t>(odd_number());
        return entry;
    }
    // Publishes up to a lap of entries where the consumer looks next, or somewhere else.
    void forge() {
        const std::uint32_t capacity = map_->layout.ring_capacity;
        if (random() % 4 != 0) position_ = __atomic_load_n(&head_, __ATOMIC_RELAXED);
        teal::RingSlot* ring = teal::ring_slots(map_->ring());
        for (std::uint32_t count = random() % 8 == 0 ? capacity : 1 + random() % 3; count > 0; --count) {
            const teal::RequestEntry made = entry();
            teal::RingSlot& slot = ring[position_ & (capacity - 1)];
            for (std::size_t i = 0; i < sizeof made; ++i)
                __atomic_store_n(slot.payload + i, reinterpret_cast<const std::uint8_t*>(&made)[i], __ATOMIC_RELAXED);
            slot.sequence.store(++position_, std::memory_order_release);
        }
        if (random() % 4 == 0) {
            map_->header()->doorbell.fetch_add(1);
            teal::futex_wake(&map_->header()->doorbell, 2);
        }
    }
    void turn_descriptor() {
        const teal::ClientSlot& slot = *slots_[random() % slots_.size()];
        std::byte* block = slot.base + slot.offset;
        if (random() % 4 == 0) {  // right again, so that the next ones get further
            teal::DescriptorHeader head{};
            head.magic = teal::descriptor_magic;
            head.n_in = head.n_out = 1;
            head.message_capacity = 512;
            for (std::size_t i = 0; i < sizeof head; i += 8) scribble(block + i, reinterpret_cast<const std::uint64_t*>(&head)[i / 8], 8);
            for (std::size_t i = 0; i < sizeof(teal::TensorDesc); i += 8) {
                scribble(block + 64 + i, reinterpret_cast<const std::uint64_t*>(slot.inputs.data())[i / 8], 8);
                scribble(block + 160 + i, reinterpret_cast<const std::uint64_t*>(slot.outputs.data())[i / 8], 8);
            }
            return;
        }
        const std::size_t field = random() % 32;  // of header and two tensors, 8 bytes each
        const std::size_t size = std::size_t{1} << random() % 4;
        scribble(block + field * 8, odd_number(), size);
    }
    void end_or_unend() {
        teal::CompletionLine& line = map_->lines()[random() % client_.slots];
        line.word.store(teal::make_word(generation_ + random() % 3, static_cast<State>(random() % 9), Reason::none, static_cast<std::uint16_t>(random())));
        line.waiting.store(random() % 2);
        line.released.store(random());
    }
    void ring_bells() {
        teal::SessionHeader* header = map_->header();
        header->need_wake.store(random() % 3);
        header->doorbell.fetch_add(1 + random() % 3);
        teal::futex_wake(&header->doorbell, 2);
        map_->ring()->tail.store(random());
    }

    std::uint32_t random() { return static_cast<std::uint32_t>(random_()); }

    std::mt19937 random_;
    Client client_;
    const std::uint32_t& head_;
    std::unique_ptr<teal::SessionMap> map_;
    std::vector<std::unique_ptr<teal::ClientSlot>> slots_;
    std::uint32_t position_ = 0;
    std::uint32_t generation_ = 0;
};

// The client that behaves: identity, sum and an impure kernel; true when every answer was right.
std::uint64_t wrong_answers(const Client& client, std::uint32_t seed, int calls) {
    std::mt19937 random(seed);
    const auto echo = client.session->make_slot({plan(Dtype::u8, {500})}, {plan(Dtype::u8, {500})});
    const auto sum = client.session->make_slot({plan(Dtype::f32, {64})}, {plan(Dtype::f64, {})});
    const auto next = client.slot();
    std::uint64_t wrong = 0;
    for (int i = 0; i < calls; ++i) {
        auto* from = echo->base + echo->inputs[0].offset;
        for (int at = 0; at < 500; ++at) from[at] = static_cast<std::byte>(random());
        if (!call(*client.session, *echo, identity_model) || std::memcmp(from, echo->base + echo->outputs[0].offset, 500) != 0) ++wrong;
        auto* floats = reinterpret_cast<float*>(sum->base + sum->inputs[0].offset);
        double expected = 0;
        for (int at = 0; at < 64; ++at) {
            floats[at] = static_cast<float>(random() % 1000);
            expected += floats[at];
        }
        double total = 0;
        const bool summed = call(*client.session, *sum, sum_model);
        std::memcpy(&total, sum->base + sum->outputs[0].offset, sizeof total);
        if (!summed || total != expected) ++wrong;
        input(*next) = i;
        if (!call(*client.session, *next, impure_model) || output(*next) != i + 1) ++wrong;
    }
    return wrong;
}

void test_hostile(std::uint32_t seed, std::uint32_t workers) {
    SmallPool pool;
    for (std::uint32_t i = 0; i < workers; ++i) pool.add_worker();
    pool.load(identity_model, "identity", teal::kernel_pure);
    pool.load(sum_model, "sum", teal::kernel_pure);
    pool.load(impure_model, 1, std::make_shared<Lambda>([](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = in + 1;
        return true;
    }));
    pool.sweeper.start();
    const Client good = pool.open();
    const Client bad = pool.open(32, 16);
    std::atomic<bool> stop{false};
    std::uint64_t acts = 0;
    std::thread attack([&] {
        Hostile hostile(bad, pool.pool->memory().sessions[bad.index].head, seed);
        for (; !stop.load(std::memory_order_relaxed); ++acts) {
            hostile.act();
            if (acts % 32 == 0) ::sched_yield();
        }
    });
    CHECK_EQ(wrong_answers(good, seed, scaled(8'000, 1'500)), 0);
    stop = true;
    attack.join();
    const teal::SessionLine& line = pool.pool->memory().sessions[bad.index];
    CHECK(__atomic_load_n(&line.in_flight, __ATOMIC_RELAXED) <= 16);
    pool.close(bad, Reason::client_gone);
    CHECK_EQ(wrong_answers(good, seed, 10), 0);
    pool.check_all_free();
    std::printf("seed %u, %u workers: %llu hostile acts, %llu requests admitted, %u entries named no slot\n", seed, workers,
                static_cast<unsigned long long>(acts), static_cast<unsigned long long>(line.requests), line.garbage);
    CHECK(line.requests > 0);
}

}  // namespace

int main() {
    for (std::uint32_t seed = 1; seed <= 4; ++seed) test_hostile(seed, 1 + seed % 2);
    return teal::check::summary();
}
