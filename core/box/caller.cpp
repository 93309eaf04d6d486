#include "box/caller.hpp"

#include <sched.h>
#include <csignal>
#include <cerrno>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/fate.hpp"
#include "box/message.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t nap_ns = 50'000'000;
constexpr unsigned most_naps_beyond = 20;
constexpr std::uint64_t slack_ns = 2'000'000'000;      // beyond the session's bound for a call: then the yard does not do its work
constexpr std::uint64_t heart_ns = 3'000'000'000;      // a yard that has not looked for so long is asked after

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

bool size_is(int fd, std::uint64_t bytes) {
    struct stat info {};
    return ::fstat(fd, &info) == 0 && static_cast<std::uint64_t>(info.st_size) == bytes;
}

// Sizes that contradict each other would make us read beyond the mapping.
bool consistent(const SessionFacts& facts) noexcept {
    constexpr std::uint64_t args_at = offsetof(ControlPage, ask) + offsetof(AskLine, args);
    return within(args_at, facts.args_bytes, facts.region_bytes) && within(facts.ob_offset, facts.ob_bytes, facts.region_bytes) &&
           within(facts.log_offset, facts.log_bytes, facts.region_bytes) && facts.ob_offset >= args_at && facts.region_bytes >= sizeof(ControlPage);
}

}  // namespace

Caller::Caller(int control_fd, int fate_fd, const SessionFacts& facts) : facts_(facts) {
    if (!consistent(facts) || !size_is(control_fd, facts.region_bytes) || !size_is(fate_fd, sizeof(FatePage)))
        throw Error(Code::invalid_argument, "a session's region of other than " + std::to_string(facts.region_bytes) +
                                                " bytes; give the descriptors and facts of one session, as its yard gave them");
    void* page = ::mmap(nullptr, facts.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (page == MAP_FAILED) throw Error(Code::invalid_argument, system_message("map a session's region", errno));
    const void* fate = ::mmap(nullptr, sizeof(FatePage), PROT_READ, MAP_SHARED, fate_fd, 0);
    if (fate == MAP_FAILED) {
        const int error = errno;
        ::munmap(page, facts.region_bytes);
        throw Error(Code::invalid_argument, system_message("map a session's fate page", error));
    }
    page_ = static_cast<ControlPage*>(page);
    fate_ = static_cast<const FatePage*>(fate);
    // Another caller may have been here before: go on from its last ask. Nothing depends on the number being true.
    seq_ = page_->ask.seq.load(std::memory_order_relaxed);
}

Caller::~Caller() {
    ::munmap(page_, facts_.region_bytes);
    ::munmap(const_cast<FatePage*>(fate_), sizeof(FatePage));
}

std::byte* Caller::args() noexcept { return page_->ask.args; }
std::byte* Caller::output() noexcept { return reinterpret_cast<std::byte*>(page_) + facts_.ob_offset; }
bool Caller::in_flight() const noexcept { return in_flight_; }
Ending Caller::ending() const noexcept { return read_fate(*fate_); }

Outcome Caller::submit(const void* args, std::uint64_t bytes, AskOp op) noexcept {
    if (in_flight_ && poll().outcome == Outcome::pending) return Outcome::busy;
    if (bytes > facts_.args_bytes) return Outcome::too_long;
    if (bytes != 0) std::memcpy(page_->ask.args, args, bytes);
    return submit_in_place(bytes, op);
}

Outcome Caller::submit_in_place(std::uint64_t bytes, AskOp op) noexcept {
    if (in_flight_ && poll().outcome == Outcome::pending) return Outcome::busy;
    if (bytes > facts_.args_bytes) return Outcome::too_long;
    AskLine& ask = page_->ask;
    ask.op = op;
    const int cpu = ::sched_getcpu();
    __atomic_store_n(&ask.cpu, static_cast<std::uint16_t>(cpu < 0 ? 0 : cpu + 1), __ATOMIC_RELAXED);
    ask.bytes = bytes;
    in_flight_ = true;
    asked_ns_ = 0;
    ++seq_;
    // SYNC: pairs with the acquire in the box's await_work(). An exchange: the look at `sleeps` must not come before it.
    ask.seq.exchange(seq_, std::memory_order_seq_cst);
    if (const std::uint32_t sleeps = ask.sleeps.load(std::memory_order_relaxed); sleeps != 0) {
        if (sleeps == 2 && bell_ >= 0) {
            const OrderMessage wake{message_magic, OrderOp::wake, 0, 0, 0};
            ::send(bell_, &wake, sizeof wake, MSG_DONTWAIT | MSG_NOSIGNAL);   // when there is no room, enough lies there to wake it
        } else {
            futex_wake(low_word(&ask.seq), 1);
        }
    }
    return Outcome::pending;
}

Outcome Caller::submit_once(std::uint64_t number, const void* args, std::uint64_t bytes) noexcept {
    if (in_flight_ && poll().outcome == Outcome::pending) return Outcome::busy;
    __atomic_store_n(&page_->once.number, number, __ATOMIC_RELAXED);
    return submit(args, bytes, AskOp::once);
}

Answer Caller::poll() noexcept {
    Answer answer;
    const AnswerLine& line = page_->answer;
    if (line.seq.load(std::memory_order_acquire) != seq_) {   // SYNC: pairs with the exchange in the box's answer_ask()
        answer.ending = read_fate(*fate_);
        if (answer.ending.fate == Fate::running || !in_flight_) return answer;
        // It may have answered before it ended.
        if (line.seq.load(std::memory_order_acquire) != seq_) {   // SYNC: as above
            answer.outcome = Outcome::ended;
            in_flight_ = false;
            return answer;
        }
    }
    answer.outcome = Outcome::done;
    answer.result = __atomic_load_n(&line.result, __ATOMIC_RELAXED);   // once: the box may be writing it
    answer.began = __atomic_load_n(&line.began, __ATOMIC_RELAXED);
    answer.done = __atomic_load_n(&line.done, __ATOMIC_RELAXED);
    answer.clamped = answer.result > 0 && static_cast<std::uint64_t>(answer.result) > facts_.ob_bytes;
    if (answer.clamped) answer.result = static_cast<std::int64_t>(facts_.ob_bytes);
    in_flight_ = false;
    return answer;
}

// What is looked at between naps: has the yard gone without a word?
Answer Caller::look(std::uint64_t now) noexcept {
    Answer answer = poll();
    if (answer.outcome != Outcome::pending) return answer;
    const std::uint64_t alive = fate_->alive_ns.load(std::memory_order_relaxed);
    const bool silent = alive != 0 && now > alive && now - alive > heart_ns;
    const bool gone = silent && ::kill(static_cast<pid_t>(facts_.box_pid), 0) != 0 && errno == ESRCH;
    const bool forgotten = facts_.call_limit_ns != 0 && now - asked_ns_ > facts_.call_limit_ns + slack_ns && silent;
    if (gone || forgotten) {
        answer.outcome = Outcome::lost;
        answer.ending = {Fate::lost, 0};
        in_flight_ = false;
    }
    return answer;
}

bool Caller::in_the_way() const noexcept { return in_the_way_of(*page_); }

Answer Caller::use(std::uint64_t id, std::uint64_t deadline_ns) noexcept {
    Answer answer;
    answer.outcome = submit(&id, sizeof id, AskOp::map);
    if (answer.outcome != Outcome::pending) return answer;
    return wait(deadline_ns);
}

Answer Caller::wait(std::uint64_t deadline_ns) noexcept {
    AnswerLine& line = page_->answer;
    if (!in_flight_) return poll();
    const auto answered = [&] { return line.seq.load(std::memory_order_relaxed) == seq_; };
    std::uint64_t spin = spin_ns_;
    if (!answered() && deadline_ns != 0) {
        const std::uint64_t now = now_ns();
        spin = now >= deadline_ns ? 0 : std::min(spin, deadline_ns - now);
    }
    if (spin_for(spin, answered, [&] { return in_the_way(); })) return poll();
    const std::uint64_t start = now_ns();
    if (asked_ns_ == 0) asked_ns_ = start;
    const std::uint64_t bound = facts_.call_limit_ns == 0 ? UINT64_MAX : asked_ns_ + facts_.call_limit_ns + slack_ns;
    for (unsigned naps_beyond = 0;;) {
        const std::uint64_t now = now_ns();
        Answer answer = look(now);
        if (answer.outcome != Outcome::pending) return answer;
        // Beyond the bound some more naps: perhaps the whole machine was asleep, and the yard gets to its work only now.
        if ((deadline_ns != 0 && now >= deadline_ns) || (now >= bound && ++naps_beyond > most_naps_beyond)) {
            answer.outcome = Outcome::late;
            return answer;
        }
        std::uint64_t until = now + nap_ns;
        if (deadline_ns != 0) until = std::min(until, deadline_ns);
        const std::uint32_t seen = low_word(&line.seq)->load(std::memory_order_relaxed);
        line.sleeps.store(1, std::memory_order_seq_cst);
        // The low half alone could not tell an answer from what was there; whoever answers has changed it, or sees `sleeps`.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (!answered() && read_fate(*fate_).fate == Fate::running) futex_wait(low_word(&line.seq), seen, until);
        line.sleeps.store(0, std::memory_order_relaxed);
    }
}

Answer Caller::call(const void* args, std::uint64_t bytes, std::uint64_t deadline_ns) noexcept {
    Answer answer;
    answer.outcome = submit(args, bytes);
    if (answer.outcome != Outcome::pending) return answer;
    return wait(deadline_ns);
}

Answer Caller::clear(std::uint64_t deadline_ns) noexcept {
    Answer answer;
    answer.outcome = submit(nullptr, 0, AskOp::clear);
    if (answer.outcome != Outcome::pending) return answer;
    return wait(deadline_ns);
}

}  // namespace teal::box
