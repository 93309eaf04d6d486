// A session on the yard's side: orders to its box, its end, its log.
#include <csignal>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/fate.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal::box {
namespace {

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

constexpr std::uint64_t order_spin_ns = 50'000;
constexpr std::uint64_t order_nap_ns = 2'000'000;
constexpr std::uint64_t order_slack_ns = 2'000'000'000;   // for populating a large mapping
constexpr std::uint64_t unbounded_order_ns = 60'000'000'000;

// A descriptor of the same pages that cannot be mapped writable, whatever the program does with it; -1: `fd` itself is one already.
Descriptor read_only(int fd, std::uint64_t bytes) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) throw Error(Code::invalid_argument, system_message("an input buffer's descriptor", errno));
    if (bytes == 0 || static_cast<std::uint64_t>(info.st_size) < bytes)
        throw Error(Code::invalid_argument, "an input buffer of " + std::to_string(bytes) + " bytes, its memfd has " + std::to_string(info.st_size) + "; give 1 to that many");
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        throw Error(Code::invalid_argument, "an input buffer must be a memfd that is sealed against shrinking (F_SEAL_SHRINK)");
    if ((seals & (F_SEAL_WRITE | 0x10 /* F_SEAL_FUTURE_WRITE */)) != 0) return {};
    if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return {};
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    Descriptor other(::open(path, O_RDONLY | O_CLOEXEC));
    if (!other) throw Error(Code::invalid_argument, system_message("open an input buffer read-only (or seal it with F_SEAL_FUTURE_WRITE)", errno));
    return other;
}

}  // namespace

bool Session::State::of_another_process() const noexcept { return static_cast<std::uint32_t>(::getpid()) != owner; }

Session::State::~State() {
    if (page != nullptr) ::munmap(page, facts.region_bytes);
    if (fate != nullptr) ::munmap(fate, sizeof(FatePage));
}

void Session::State::wake_all() noexcept {
    futex_wake(low_word(&page->answer.seq), INT32_MAX);
    futex_wake(&page->order_done.state, INT32_MAX);
    futex_wake(low_word(&page->order_done.seq), INT32_MAX);
}

void Session::State::kill(Fate why, std::int32_t detail) noexcept {
    {
        const std::lock_guard lock(mutex);
        if (finished) return;
        if (wanted == Fate::running) {
            wanted = why;
            wanted_detail = detail;
        }
    }
    if (let_go) return let_go();
    kill_process(box.pidfd.get(), box.pid);
}

void Session::State::finish(int status, bool lost) noexcept {
    Ending ending{Fate::lost, 0};
    {
        const std::lock_guard lock(mutex);
        if (finished) return;
        if (wanted != Fate::running) {
            ending = {wanted, wanted_detail};
        } else if (lost) {
            ending = {Fate::lost, 0};
        } else if (WIFEXITED(status) && page->order_done.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(BoxState::refused)) {
            ending = {Fate::refused, WEXITSTATUS(status)};   // by its own word, which nothing but the wording depends on
        } else if (WIFEXITED(status)) {
            ending = {closing ? Fate::closed : Fate::exited, WEXITSTATUS(status)};
        } else if (WTERMSIG(status) == SIGKILL && box.group.ran_out_of_memory()) {
            ending = {Fate::memory, 0};
        } else {
            ending = {Fate::killed, WTERMSIG(status)};
        }
        box.group.remove();
        finished = true;
        fate->detail = ending.detail;
        fate->fate.store(static_cast<std::uint32_t>(ending.fate), std::memory_order_release);   // SYNC: pairs with the acquire in read_fate()
    }
    wake_all();
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(ended_event.get(), &one, sizeof one);
    if (const auto home = yard.lock()) {
        const std::lock_guard lock(home->mutex);
        --home->counts.sessions_open;
        if (ending.fate == Fate::overdue) ++home->counts.ended_overdue;
        if (ending.fate == Fate::killed) ++home->counts.ended_killed;
        if (ending.fate == Fate::exited) ++home->counts.ended_exited;
        if (ending.fate == Fate::memory) ++home->counts.ended_memory;
        if (ending.fate == Fate::refused) ++home->counts.ended_refused;
    }
    changed.notify_all();
}

bool Session::State::wait(std::uint64_t limit_ns) const {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::uint64_t>(limit_ns, std::uint64_t{1} << 60)), [&] { return finished; });
}

// 0, or an errno: the box's own, EPIPE when it has ended, ETIMEDOUT.
int Session::State::order(OrderOp op, std::uint64_t id, std::uint64_t bytes, int fd, std::uint64_t limit_ns) {
    if (read_fate(*fate).fate != Fate::running) return EPIPE;
    const std::uint64_t number = orders.load(std::memory_order_relaxed) + 1;
    orders.store(number, std::memory_order_relaxed);
    const OrderMessage message{message_magic, op, number, id, bytes};
    const iovec part{const_cast<OrderMessage*>(&message), sizeof message};
    if (const int error = send_record(box.socket.get(), {&part, 1}, fd >= 0 ? std::span<const int>{&fd, 1} : std::span<const int>{}); error != 0) return error;
    OrderDoneLine& done = page->order_done;
    page->order.seq.store(number, std::memory_order_seq_cst);   // SYNC: pairs with the acquire in the box's await_work()
    const auto obeyed = [&] { return done.seq.load(std::memory_order_acquire) == number; };   // SYNC: pairs with the release in take_order()
    if (page->ask.sleeps.load(std::memory_order_seq_cst) != 0) futex_wake(low_word(&page->ask.seq), 1);
    const std::uint64_t limit = now_ns() + limit_ns;
    if (!spin_for(order_spin_ns, obeyed, [&] { return in_the_way_of(*page); })) {
        while (!obeyed()) {
            const std::uint64_t now = now_ns();
            if (read_fate(*fate).fate != Fate::running) return EPIPE;
            if (now >= limit) return ETIMEDOUT;
            // The box sleeps on another word than the one that we wrote: a wake that came too early is made up for here.
            futex_wake(low_word(&page->ask.seq), 1);
            const std::uint32_t seen = low_word(&done.seq)->load(std::memory_order_relaxed);
            if (!obeyed()) futex_wait(low_word(&done.seq), seen, std::min(now + order_nap_ns, limit));
        }
    }
    const std::int32_t status = __atomic_load_n(&done.status, __ATOMIC_RELAXED);
    return status < 0 || status > 4095 ? EPROTO : status;
}

Session::Session(std::shared_ptr<State> state) : state_(std::move(state)) {}

Session::~Session() {
    if (!state_->of_another_process()) kill(Fate::closed, 0);
}

const SessionFacts& Session::facts() const noexcept { return state_->facts; }
int Session::control_fd() const noexcept { return state_->control.get(); }
int Session::fate_fd() const noexcept { return state_->fate_file.get(); }
int Session::bell_fd() const noexcept { return state_->direct ? state_->box.socket.get() : -1; }
std::uint64_t Session::direct_calls() const noexcept { return state_->page->direct.done.load(std::memory_order_relaxed); }
int Session::ended_fd() const noexcept { return state_->ended_event.get(); }
Ending Session::ending() const noexcept { return read_fate(*state_->fate); }
bool Session::wait_ended(std::uint64_t limit_ns) const { return state_->wait(limit_ns); }
void Session::kill(Fate fate, std::int32_t detail) noexcept { state_->kill(fate, detail); }

namespace {
[[noreturn]] void refuse(int error, const char* what, std::uint64_t id, const Ending& ending) {
    const std::string about = std::string(what) + " input buffer " + std::to_string(id) + ": ";
    if (error == EPIPE) throw Error(Code::peer_died, about + "the session is over (" + fate_name(ending.fate) + ", " + std::to_string(ending.detail) + ")");
    if (error == ETIMEDOUT) throw Error(Code::deadline_exceeded, about + "the program is still in a call, or does not look at its orders");
    if (error == ENOENT) throw Error(Code::not_found, about + "this session has no such buffer; map it with its descriptor first");
    if (error == ENOSPC)
        throw Error(Code::quota_exceeded, about + "a session keeps at most " + std::to_string(most_ibs) + " input buffers mapped; forget one first");
    throw Error(error == ENOMEM ? Code::quota_exceeded : Code::invalid_argument, system_message((about + "the box said").c_str(), error));
}
}  // namespace

static std::uint64_t order_limit(const SessionFacts& facts) {
    return (facts.call_limit_ns == 0 ? unbounded_order_ns : facts.call_limit_ns) + order_slack_ns;
}

void Session::map(std::uint64_t id, int fd, std::uint64_t bytes) {
    const std::lock_guard lock(state_->order_mutex);
    const bool there = state_->mapped.contains(id);
    Descriptor own;
    if (!there) {
        if (fd < 0) refuse(ENOENT, "map", id, ending());
        own = read_only(fd, bytes);
    }
    const int error = state_->order(OrderOp::map, id, bytes, there ? -1 : own ? own.get() : fd, order_limit(facts()));
    if (error != 0) refuse(error, "map", id, ending());
    if (!there) state_->mapped.insert(id);
    if (const auto home = state_->yard.lock()) {
        const std::lock_guard guard(home->mutex);
        ++home->counts.maps;
        if (!there) ++home->counts.maps_first;
    }
}

void Session::unmap() {
    const std::lock_guard lock(state_->order_mutex);
    if (const int error = state_->order(OrderOp::unmap, 0, 0, -1, order_limit(facts())); error != 0) refuse(error, "unmap", 0, ending());
}

void Session::forget(std::uint64_t id) {
    const std::lock_guard lock(state_->order_mutex);
    if (!state_->mapped.contains(id)) refuse(ENOENT, "forget", id, ending());
    if (const int error = state_->order(OrderOp::forget, id, 0, -1, order_limit(facts())); error != 0) refuse(error, "forget", id, ending());
    state_->mapped.erase(id);
}

bool Session::has(std::uint64_t id) const {
    const std::lock_guard lock(state_->order_mutex);
    return state_->mapped.contains(id);
}

void Session::close(std::uint64_t limit_ns) {
    if (state_->of_another_process()) return;
    const std::uint64_t limit = now_ns() + limit_ns;
    {
        const std::lock_guard lock(state_->mutex);
        state_->closing = true;
    }
    if (std::unique_lock lock(state_->order_mutex, std::try_to_lock); lock.owns_lock() && limit_ns != 0) {
        if (state_->order(OrderOp::close, 0, 0, -1, limit_ns) == 0) {
            const std::uint64_t now = now_ns();
            if (state_->wait(now < limit ? limit - now : 0)) return;
        }
    }
    state_->kill(Fate::closed, 0);
    state_->wait(order_slack_ns);
}

std::string Session::log(std::uint64_t& from, std::uint64_t most) const {
    const SessionFacts& facts = state_->facts;
    if (facts.log_bytes == 0) return {};
    const std::uint64_t written = state_->page->log.written.load(std::memory_order_acquire);   // SYNC: pairs with the release in the box's log()
    // The program can write the counter too: whatever it says, no more than the ring is read.
    const std::uint64_t oldest = written > facts.log_bytes ? written - facts.log_bytes : 0;
    if (from < oldest) from = oldest;
    if (from >= written) return {};
    const std::uint64_t bytes = std::min(std::min(written - from, most), facts.log_bytes);
    std::string text(bytes, '\0');
    const char* ring = reinterpret_cast<const char*>(state_->page) + facts.log_offset;
    for (std::uint64_t i = 0; i < bytes;) {
        const std::uint64_t at = (from + i) & (facts.log_bytes - 1);
        const std::uint64_t part = std::min(bytes - i, facts.log_bytes - at);
        std::memcpy(text.data() + i, ring + at, part);
        i += part;
    }
    return text;
}

}  // namespace teal::box
