// Tests of core/queue: ring, status table, waiting, request words, histogram, role; between threads and between processes.
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
#include <new>
#include <thread>
#include <vector>

#include "cpu/clock.hpp"
#include "host/client.hpp"
#include "host/session.hpp"
#include "queue/histogram.hpp"
#include "queue/request.hpp"
#include "queue/ring.hpp"
#include "queue/role.hpp"
#include "queue/status.hpp"
#include "queue/wait.hpp"
#include "tests/check.hpp"
#include "tests/meeting.hpp"

namespace {

using teal::Reason;
using teal::State;
using teal::tests::Meeting;
using teal::tests::relax;
using teal::tests::scaled;

template <class T>
T* shared_memory(std::size_t bytes = sizeof(T)) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return static_cast<T*>(address);  // zeroed
}

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

// ---- waiting ---------------------------------------------------------------------------------------------------

void test_spin_budget() {
    teal::SpinBudget budget(100'000);
    CHECK_EQ(budget.budget_ns(), 100'000);
    int halvings = 0;
    for (; budget.budget_ns() > 0 && halvings < 100; ++halvings) budget.learn(1'000'000);
    CHECK(halvings > 5 && halvings < 12);  // down to nothing while it does not pay
    budget.learn(500);
    CHECK_EQ(budget.budget_ns(), 2'000);
    budget.learn(300);
    CHECK_EQ(budget.budget_ns(), 2'000);  // shorter waits take nothing away
    budget.learn(30'000);
    CHECK_EQ(budget.budget_ns(), 61'000);
    budget.learn(90'000);
    CHECK_EQ(budget.budget_ns(), 100'000);  // never above the ceiling
    budget.set_ceiling(10'000);
    CHECK_EQ(budget.budget_ns(), 10'000);
    budget.learn(UINT64_MAX);
    CHECK_EQ(budget.budget_ns(), 5'000);
    teal::SpinBudget never(0);
    never.learn(0);
    never.learn(10);
    CHECK_EQ(never.budget_ns(), 0);
    never.set_ceiling(50);
    CHECK_EQ(never.budget_ns(), 50);
}

void test_spin_for() {
    CHECK(teal::spin_for(0, [] { return true; }));
    CHECK(!teal::spin_for(0, [] { return false; }));
    const std::int64_t start = teal::monotonic_ns();
    CHECK(!teal::spin_for(2'000'000, [] { return false; }));
    CHECK(teal::monotonic_ns() - start >= 1'900'000);
    int calls = 0;
    CHECK(teal::spin_for(1'000'000'000'000, [&] { return ++calls == 100; }));
}

constexpr std::uint64_t long_nap_ns = 3'000'000'000;

std::uint64_t now_ns() { return static_cast<std::uint64_t>(teal::monotonic_ns()); }

// Waits for `word` to become `value` as every waiter in Teal does: announce, look once more, sleep. True when it slept
// through the change until its nap was over: a lost wake-up.
bool sleep_until(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& waiting, std::uint32_t value) {
    bool lost = false;
    while (word.load(std::memory_order_acquire) != value) {
        waiting.store(1, std::memory_order_seq_cst);  // SYNC: pairs with tell()
        const std::uint32_t seen = word.load(std::memory_order_seq_cst);
        if (seen != value) {
            const std::uint64_t until = now_ns() + long_nap_ns;
            teal::futex_wait(&word, seen, until);
            lost = lost || (now_ns() >= until && word.load() == value);
        }
        waiting.store(0, std::memory_order_relaxed);
    }
    return lost;
}

void tell(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& waiting, std::uint32_t value) {
    word.store(value, std::memory_order_seq_cst);
    if (waiting.load(std::memory_order_seq_cst) != 0) teal::futex_wake(&word, 1);
}

struct PingPong {
    alignas(64) std::atomic<std::uint32_t> ping;
    std::atomic<std::uint32_t> ping_waiting;
    alignas(64) std::atomic<std::uint32_t> pong;
    std::atomic<std::uint32_t> pong_waiting;
};

void test_no_lost_wake_up() {
    constexpr std::uint32_t rounds = scaled(30'000U, 8'000U);
    auto* shared = shared_memory<PingPong>();
    const auto answer = [shared] {
        int lost = 0;
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            if (i % 3 == 0) teal::spin_for(2'000, [&] { return shared->ping.load(std::memory_order_acquire) == i; });
            lost += sleep_until(shared->ping, shared->ping_waiting, i) ? 1 : 0;
            tell(shared->pong, shared->pong_waiting, i);
        }
        return lost;
    };
    const auto ask = [shared] {
        int lost = 0;
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            tell(shared->ping, shared->ping_waiting, i);
            if (i % 2 == 0) teal::spin_for(1'000, [&] { return shared->pong.load(std::memory_order_acquire) == i; });
            lost += sleep_until(shared->pong, shared->pong_waiting, i) ? 1 : 0;
        }
        return lost;
    };
    std::thread other([&] { CHECK_EQ(answer(), 0); });
    CHECK_EQ(ask(), 0);
    other.join();
    std::memset(static_cast<void*>(shared), 0, sizeof *shared);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(answer());
    CHECK_EQ(ask(), 0);
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    ::munmap(static_cast<void*>(shared), sizeof *shared);
}

void test_wait_any() {
    std::atomic<std::uint32_t> words[3] = {};
    teal::FutexWaiter waiters[3] = {{&words[0], 0}, {&words[1], 0}, {&words[2], 0}};
    const std::uint64_t start = now_ns();
    if (!teal::futex_wait_any(waiters, 3, start + 5'000'000)) return;  // this kernel has no futex_waitv: callers nap instead
    CHECK(now_ns() >= start + 5'000'000);
    words[1].store(1);
    CHECK(teal::futex_wait_any(waiters, 3, now_ns() + long_nap_ns));  // differs: returns at once
    waiters[1].expected = 1;
    std::thread waker([&] {
        while (words[0].load() == 0) {  // until it is seen: it may not be asleep yet
            teal::futex_wake(&words[2], 1);
            relax();
        }
    });
    CHECK(teal::futex_wait_any(waiters, 3, now_ns() + 60'000'000'000));
    words[0].store(1);
    waker.join();
    std::vector<teal::FutexWaiter> many(teal::max_futex_waiters + 1, waiters[0]);
    CHECK(!teal::futex_wait_any(many.data(), teal::max_futex_waiters + 1, now_ns()));
}

// ---- request words ---------------------------------------------------------------------------------------------

void test_transitions() {
    // Rows: from, columns: to, both in the order of State: free submitted queued running done failed cancelled expired.
    constexpr const char* allowed[8] = {".SQ.....", "..Q..FCE", "...R.FCE", "..Q.DFCE", "F.......", "F.......", "F.......", "F......."};
    for (unsigned from = 0; from < 8; ++from)
        for (unsigned to = 0; to < 8; ++to)
            if (!CHECK_EQ(teal::transition_allowed(static_cast<State>(from), static_cast<State>(to)), allowed[from][to] != '.'))
                std::fprintf(stderr, "    from %u to %u\n", from, to);
    for (unsigned state = 0; state < 8; ++state) CHECK_EQ(teal::is_terminal(static_cast<State>(state)), state >= 4);
}

void test_words() {
    for (const std::uint32_t generation : {1U, 77U, 0xffffffU, 0x1234567U}) {
        const std::uint64_t word = teal::make_word(generation, State::failed, Reason::worker_died, 5);
        CHECK_EQ(teal::generation_of(word), generation & 0xffffff);
        CHECK(teal::state_of(word) == State::failed);
        CHECK(teal::reason_of(word) == Reason::worker_died);
        CHECK_EQ(teal::flags_of(word), 5);
        CHECK(teal::has_ended(word, generation));
        CHECK(!teal::has_ended(word, generation + 1));
        CHECK(!teal::has_ended(teal::make_word(generation, State::running), generation));
        CHECK(teal::is_past(word, generation));
        CHECK(!teal::is_past(teal::make_word(generation, State::running), generation));
        CHECK(!teal::is_past(word, teal::next_generation(generation)));
        CHECK(teal::is_past(teal::make_word(teal::next_generation(generation), State::running), generation));
        CHECK(teal::is_later(teal::next_generation(generation), generation));
        CHECK(!teal::is_later(generation, teal::next_generation(generation)));
        CHECK(!teal::is_later(generation, generation));
    }
    CHECK_EQ(teal::next_generation(0xffffff), 1);  // 0 means "never used"
    CHECK(!teal::is_past(0, 1));                   // a fresh line
    CHECK_EQ(teal::join(0x89abcdef, 0x01234567), 0x0123456789abcdef);
}

struct Line {  // a session's first slot, as its client knows it; `generation` has just ended
    std::shared_ptr<teal::Region> region = teal::create_session_region(4, 0, 1);
    teal::ClientSession session{teal::map_session(::dup(region->fd()), 0, 1, 4), 0, -1};
    teal::ClientSlot slot;
    explicit Line(std::uint32_t generation) {
        slot.line = &session.map().lines()[0];
        slot.generation = generation;
        slot.line->word.store(teal::make_word(generation, State::done, Reason::none, teal::word_released));
    }
};

// Client, worker and host race for the end of each generation: one of them gets it, and a claim keeps the client out.
void test_one_winner() {
    constexpr std::uint32_t rounds = scaled(100'000U, 20'000U);
    Line one(0xfffff0);  // generations wrap around early on
    teal::CompletionLine& line = *one.slot.line;
    Meeting meeting(3);
    std::atomic<int> cancelled{0};
    std::atomic<int> claimed{0};
    std::atomic<int> ended_by_worker{0};
    std::atomic<int> ended_by_host{0};
    std::atomic<std::uint32_t> wins[4] = {};
    std::thread worker([&] {
        for (std::uint32_t i = 0; i < rounds; ++i) {
            meeting.wait();
            claimed = teal::claim_request(line, one.slot.generation) ? 1 : 0;
            teal::Ending ending;
            ending.version = i;
            if (claimed == 1) ended_by_worker = teal::end_request(line, one.slot.generation, ending) ? 1 : 0;
            else teal::release_slot(line, one.slot.generation);
            meeting.wait();
        }
    });
    std::thread host([&] {
        for (std::uint32_t i = 0; i < rounds; ++i) {
            meeting.wait();
            teal::Ending ending;
            ending.state = State::expired;
            ending.reason = Reason::deadline;
            ending.flags = 0;
            if (i % 2 == 0) ended_by_host = teal::end_request(line, one.slot.generation, ending) ? 1 : 0;
            meeting.wait();
        }
    });
    for (std::uint32_t i = 0; i < rounds; ++i) {
        one.slot.generation = teal::next_generation(one.slot.generation);
        one.slot.submitted = true;
        cancelled = claimed = ended_by_worker = ended_by_host = 0;
        meeting.wait();
        if (i % 3 != 0) cancelled = one.session.cancel(one.slot, State::cancelled, Reason::client_cancelled) ? 1 : 0;
        meeting.wait();
        const std::uint64_t word = line.word.load();
        CHECK_EQ(cancelled + ended_by_worker + ended_by_host, 1);
        CHECK(!(claimed == 1 && cancelled == 1));
        CHECK(teal::ClientSession::ended(one.slot));
        CHECK(teal::ClientSession::quiescent(one.slot));
        const State expected = cancelled == 1 ? State::cancelled : ended_by_worker == 1 ? State::done : State::expired;
        CHECK(teal::state_of(word) == expected);
        ++wins[cancelled == 1 ? 0 : ended_by_worker == 1 ? 1 : claimed == 1 ? 2 : 3];
    }
    worker.join();
    host.join();
    std::printf("races won by client %u, worker %u, host before %u and after the worker began %u\n", wins[0].load(), wins[1].load(), wins[3].load(),
                wins[2].load());
}

// What comes late changes nothing that is newer.
void test_late_endings() {
    Line one(6);
    teal::CompletionLine& line = *one.slot.line;
    teal::Ending done;
    CHECK(teal::end_request(line, 7, done));
    CHECK(!teal::end_request(line, 7, done));
    CHECK(!teal::end_request(line, 6, done));
    CHECK(!teal::claim_request(line, 6));
    CHECK(!teal::claim_request(line, 7));
    one.slot.generation = 8;
    one.slot.submitted = true;
    CHECK(one.session.cancel(one.slot, State::cancelled, Reason::client_cancelled));
    CHECK(!teal::ClientSession::quiescent(one.slot));
    teal::Ending late;
    late.state = State::failed;
    CHECK(!teal::end_request(line, 7, late));  // a worker that died after telling is buried
    CHECK(teal::state_of(line.word.load()) == State::cancelled);
    CHECK(!teal::ClientSession::quiescent(one.slot));
    teal::release_slot(line, 8);
    CHECK(teal::ClientSession::quiescent(one.slot));
    teal::release_slot(line, 7);
    CHECK(teal::ClientSession::quiescent(one.slot));
    // A slot that was called millions of times without ever needing release_slot() still can be released.
    const std::uint32_t far = 8 + 0x900000;
    line.word.store(teal::make_word(far - 1, State::done, Reason::none, teal::word_released));
    one.slot.generation = far;
    CHECK(one.session.cancel(one.slot, State::expired, Reason::deadline));
    CHECK(!teal::end_request(line, far, done));
    CHECK(teal::ClientSession::quiescent(one.slot));
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
    test_spin_budget();
    test_spin_for();
    test_no_lost_wake_up();
    test_wait_any();
    test_transitions();
    test_words();
    test_one_winner();
    test_late_endings();
    test_histogram();
    return teal::check::summary();
}
