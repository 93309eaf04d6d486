// Tests of core/queue: ring, status table, histogram, role; between threads and between processes.
//
// Threads meet in a barrier that yields, so that the races are tried on a machine with as few as two busy cores. Nothing here
// fails for being slow.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/clock.hpp"
#include "queue/histogram.hpp"
#include "queue/ring.hpp"
#include "queue/role.hpp"
#include "queue/status.hpp"
#include "tests/check.hpp"
#include "tests/meeting.hpp"

namespace {

using teal::tests::relax;
using teal::tests::scaled;
using teal::tests::shared_memory;

// Runs it in a child; the exit status, or 256 + signal.
int in_child(const std::function<int()>& run) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

// ---- ring ------------------------------------------------------------------------------------------------------

struct Message {
    std::uint64_t number;
    std::uint64_t mixed[6];
    std::uint32_t low;
    std::uint32_t pad;
    void fill(std::uint64_t n) {
        number = n;
        for (std::uint64_t i = 0; i < 6; ++i) mixed[i] = (n + i) * 0x9e3779b97f4a7c15;
        low = static_cast<std::uint32_t>(~n);
    }
    [[nodiscard]] bool whole() const {
        for (std::uint64_t i = 0; i < 6; ++i)
            if (mixed[i] != (number + i) * 0x9e3779b97f4a7c15) return false;
        return low == static_cast<std::uint32_t>(~number);
    }
};
struct Payload {  // what a slot holds
    std::uint8_t bytes[60];
    static Payload of(std::uint64_t n) {
        Message message{};
        message.fill(n);
        Payload payload{};
        std::memcpy(payload.bytes, &message, sizeof payload.bytes);
        return payload;
    }
    [[nodiscard]] bool is(std::uint64_t n) const {
        Message message{};
        std::memcpy(&message, bytes, sizeof bytes);
        return message.number == n && message.whole();
    }
};
static_assert(sizeof(teal::RingSlot::payload) == sizeof(Payload));

void test_ring_order(std::uint32_t capacity, std::uint32_t position) {
    auto* header = shared_memory<teal::RingHeader>(teal::ring_bytes(capacity));
    teal::ring_format(header, capacity);
    header->tail.store(position, std::memory_order_relaxed);
    teal::RingProducer producer(header, capacity, position);
    teal::RingConsumer consumer(header, capacity, position);
    Payload got{};
    std::uint64_t sent = 0;
    std::uint64_t seen = 0;
    CHECK(!consumer.pop(&got));
    for (int lap = 0; lap < 50; ++lap) {
        const std::uint32_t burst = 1 + static_cast<std::uint32_t>(lap) * 7 % (capacity + 3);
        std::uint32_t accepted = 0;
        for (std::uint32_t i = 0; i < burst; ++i)
            if (producer.push(Payload::of(sent).bytes)) ++sent, ++accepted;
        CHECK_EQ(accepted, burst < capacity ? burst : capacity);
        while (consumer.pop(&got)) CHECK(got.is(seen++));
        CHECK_EQ(seen, sent);
    }
    CHECK_EQ(producer.position(), consumer.position());
    CHECK(producer.overflow() > 0);
    ::munmap(header, teal::ring_bytes(capacity));
}

void test_ring_batch() {
    auto* header = shared_memory<teal::RingHeader>(teal::ring_bytes(8));
    teal::ring_format(header, 8);
    teal::RingProducer producer(header, 8);
    teal::RingConsumer consumer(header, 8);
    for (std::uint64_t i = 0; i < 8; ++i) CHECK(producer.fill(Payload::of(i).bytes));
    CHECK(consumer.peek() == nullptr);  // filled is not published
    CHECK(!producer.fill(Payload::of(8).bytes));
    CHECK(!producer.fill(Payload::of(8).bytes));
    CHECK_EQ(producer.overflow(), 2);
    producer.publish();
    Payload got{};
    for (std::uint64_t i = 0; i < 8; ++i) CHECK(consumer.pop(&got) && got.is(i));
    CHECK(consumer.peek() == nullptr);
    CHECK(producer.push(Payload::of(8).bytes));
    CHECK(consumer.next_line()->load() == 9);
    CHECK(consumer.pop(&got) && got.is(8));
    ::munmap(header, teal::ring_bytes(8));
}

constexpr std::uint64_t stress_messages = scaled(std::uint64_t{1} << 21, std::uint64_t{1} << 20);

void produce(teal::RingHeader* header, std::uint32_t capacity) {
    teal::RingProducer producer(header, capacity);
    for (std::uint64_t n = 0; n < stress_messages;) {
        const std::uint64_t batch = n % 5 == 0 ? 3 : 1;
        std::uint64_t filled = 0;
        while (filled < batch && n + filled < stress_messages && producer.fill(Payload::of(n + filled).bytes)) ++filled;
        producer.publish();
        n += filled;
        if (filled == 0) relax();
    }
}

// Messages that were out of order, torn, lost or seen twice.
std::uint64_t consume(teal::RingHeader* header, std::uint32_t capacity) {
    teal::RingConsumer consumer(header, capacity);
    std::uint64_t wrong = 0;
    Payload got{};
    for (std::uint64_t n = 0; n < stress_messages;) {
        if (!consumer.pop(&got)) {
            relax();
            continue;
        }
        if (!got.is(n)) ++wrong;
        ++n;
    }
    return wrong + (consumer.peek() == nullptr ? 0 : 1);
}

void test_ring_stress() {
    constexpr std::uint32_t capacity = 64;
    auto* header = shared_memory<teal::RingHeader>(teal::ring_bytes(capacity));
    teal::ring_format(header, capacity);
    std::thread producer([header] { produce(header, capacity); });
    CHECK_EQ(consume(header, capacity), 0);
    producer.join();
    std::memset(static_cast<void*>(header), 0, teal::ring_bytes(capacity));
    teal::ring_format(header, capacity);
    const pid_t child = ::fork();
    if (child == 0) {
        produce(header, capacity);
        ::_exit(0);
    }
    CHECK_EQ(consume(header, capacity), 0);
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    ::munmap(header, teal::ring_bytes(capacity));
}

// ---- status table ----------------------------------------------------------------------------------------------

struct Seven {
    std::uint64_t words[7];
    static Seven of(std::uint64_t n) {
        Seven value{};
        for (std::uint64_t i = 0; i < 7; ++i) value.words[i] = n * (i + 1);
        return value;
    }
    [[nodiscard]] bool whole() const {
        for (std::uint64_t i = 0; i < 7; ++i)
            if (words[i] != words[0] * (i + 1)) return false;
        return true;
    }
};

void test_status() {
    auto* entry = shared_memory<teal::StatusEntry<7>>();
    std::atomic<std::uint32_t> readers{0};
    std::atomic<std::uint64_t> torn{0};
    constexpr std::uint64_t wanted = scaled(200'000, 50'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
            std::uint64_t last = 0;
            for (std::uint64_t reads = 0; reads < wanted;) {
                Seven value{};
                if (!entry->read(value)) {
                    relax();
                    continue;
                }
                ++reads;
                if (!value.whole() || value.words[0] < last) torn.fetch_add(1);
                last = value.words[0];
            }
            readers.fetch_add(1);
        });
    }
    std::uint64_t written = 0;
    while (readers.load() < 2) {
        entry->write(Seven::of(++written));
        if (written % 64 == 0) ::sched_yield();
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(torn.load(), 0);
    Seven value{};
    CHECK(entry->read(value) && value.words[0] == written);
    entry->count.store(entry->count.load() | 1);  // a writer died in the middle
    CHECK(!entry->read(value));
    entry->write(Seven::of(5));
    CHECK(entry->read(value) && value.words[6] == 35);
    ::munmap(static_cast<void*>(entry), sizeof *entry);
}

// ---- histogram, role -------------------------------------------------------------------------------------------

void test_histogram() {
    using teal::Histogram;
    unsigned last = 0;
    for (std::uint64_t ns = 0; ns < 100'000; ++ns) {
        const unsigned bucket = Histogram::bucket_of(ns);
        CHECK(bucket == last || bucket == last + 1);
        CHECK(Histogram::bucket_floor(bucket) <= ns && ns < Histogram::bucket_floor(bucket + 1));
        last = bucket;
    }
    for (unsigned i = 0; i < Histogram::bucket_count; ++i) {
        const std::uint64_t floor = Histogram::bucket_floor(i);
        const std::uint64_t end = Histogram::bucket_floor(i + 1);
        CHECK(end > floor);
        CHECK_EQ(Histogram::bucket_of(floor), i);
        CHECK_EQ(Histogram::bucket_of(end - 1), i);
        if (i >= 16) CHECK((end - floor) * 16 <= floor);  // at most 6.25 % wide
    }
    CHECK_EQ(Histogram::bucket_of(UINT64_MAX), Histogram::bucket_count - 1);
    auto* histogram = shared_memory<Histogram>();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([histogram] {
            for (std::uint64_t i = 0; i < 20'000; ++i) histogram->add(i);
        });
    for (std::thread& thread : threads) thread.join();
    std::uint64_t total = 0;
    for (const auto& bucket : histogram->buckets) total += bucket.load();
    CHECK_EQ(total, 60'000);
    ::munmap(static_cast<void*>(histogram), sizeof *histogram);
}

std::uint64_t now_ns() { return static_cast<std::uint64_t>(teal::monotonic_ns()); }

int die_holding(teal::Role* role, teal::Role::Taken expected) {
    return in_child([=] {
        if (role->lock_until(now_ns() + 10'000'000'000) != expected) return 1;
        ::kill(::getpid(), SIGKILL);
        return 2;
    });
}

void test_role() {
    using Taken = teal::Role::Taken;
    auto* role = shared_memory<teal::Role>();
    role->init();
    CHECK(role->try_lock() == Taken::yes);
    CHECK_EQ(in_child([=] { return role->try_lock() == Taken::no ? 7 : 0; }), 7);
    CHECK_EQ(in_child([=] {
        const std::uint64_t until = now_ns() + 20'000'000;
        return role->lock_until(until) == Taken::no && now_ns() >= until ? 7 : 0;
    }), 7);
    role->unlock();
    CHECK_EQ(die_holding(role, Taken::yes), 256 + SIGKILL);
    CHECK_EQ(die_holding(role, Taken::after_death), 256 + SIGKILL);  // the one who should have repaired dies as well
    CHECK(role->lock_until(now_ns() + 10'000'000'000) == Taken::after_death);
    role->repaired();
    role->unlock();
    CHECK(role->try_lock() == Taken::yes);
    role->unlock();
    CHECK_EQ(die_holding(role, Taken::yes), 256 + SIGKILL);
    CHECK(role->try_lock() == Taken::after_death);
    role->repaired();
    CHECK_EQ(in_child([=] { return role->try_lock() == Taken::no ? 7 : 0; }), 7);
    role->unlock();
    ::munmap(static_cast<void*>(role), sizeof *role);
}

}  // namespace

int main() {
    test_role();
    for (const std::uint32_t capacity : {2U, 8U, 64U}) {
        test_ring_order(capacity, 0);
        test_ring_order(capacity, UINT32_MAX - 20);  // positions wrap around
    }
    test_ring_batch();
    test_ring_stress();
    test_status();
    test_histogram();
    return teal::check::summary();
}
