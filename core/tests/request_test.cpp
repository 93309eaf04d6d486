// Tests of request words: which transitions are allowed, generations that wrap around, and races for the one end of each.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>

#include "host/client.hpp"
#include "host/session.hpp"
#include "queue/request.hpp"
#include "tests/check.hpp"
#include "tests/meeting.hpp"

namespace {

using teal::Reason;
using teal::State;
using teal::tests::Meeting;
using teal::tests::scaled;

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

}  // namespace

int main() {
    test_transitions();
    test_words();
    test_one_winner();
    test_late_endings();
    return teal::check::summary();
}
