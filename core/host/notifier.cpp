#include "host/notifier.hpp"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include "cpu/clock.hpp"

namespace teal {
namespace {

constexpr std::uint64_t nap_ns = 50'000'000;
constexpr std::uint64_t crowded_nap_ns = 1'000'000;  // more slots than one futex_waitv takes

}  // namespace

Notifier::Notifier(std::shared_ptr<ClientSession> session) : session_(std::move(session)) {}

Notifier::~Notifier() { stop(); }

void Notifier::stop() {
    stopping_.store(true, std::memory_order_seq_cst);
    bell_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&bell_, 1);
    std::thread thread;
    {
        const std::lock_guard lock(mutex_);
        if (thread_.get_id() == std::this_thread::get_id()) return;  // a callback hangs up: the loop ends after it
        thread.swap(thread_);
    }
    if (!thread.joinable()) return;
    if (::getpid() == pid_) thread.join();
    else new std::thread(std::move(thread));  // a forked child has the object, not the thread
}

void Notifier::add(std::shared_ptr<ClientSlot> slot, std::uint64_t deadline_ns, std::function<void()> done) {
    {
        std::unique_lock lock(mutex_);
        if (stopping_.load(std::memory_order_seq_cst)) {
            lock.unlock();
            done();  // nobody will tell it later
            return;
        }
        arriving_.push_back({std::move(slot), deadline_ns, std::move(done)});
        if (!thread_.joinable()) {
            pid_ = ::getpid();
            thread_ = std::thread([this] { loop(); });
        }
    }
    // SYNC: seq_cst pairs with the load of bell_ in loop(): the entry is in arriving_ before the bell changes.
    bell_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&bell_, 1);
}

// The callback may give the slot to another request: counted out before.
void Notifier::tell(Entry& entry) {
    if (std::exchange(entry.counted, false)) entry.slot->line->waiting.fetch_sub(1, std::memory_order_relaxed);
    entry.done();
}

bool Notifier::settle(Entry& entry, bool host_gone) {
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    if (!ClientSession::ended(*entry.slot) && entry.deadline_ns != 0 && now >= entry.deadline_ns)
        session_->cancel(*entry.slot, State::expired, Reason::deadline);
    if (!ClientSession::ended(*entry.slot) && !host_gone) return false;
    tell(entry);
    return true;
}

void Notifier::loop() {
    for (;;) {
        // SYNC: the bell first, then the flag; stop() sets the flag, then bumps the bell.
        const std::uint32_t bell = bell_.load(std::memory_order_seq_cst);
        if (stopping_.load(std::memory_order_seq_cst)) break;
        {
            const std::lock_guard lock(mutex_);
            for (Entry& entry : arriving_) entries_.push_back(std::move(entry));
            arriving_.clear();
        }
        const bool host_gone = !entries_.empty() && session_->peer_gone();
        std::uint64_t until = static_cast<std::uint64_t>(monotonic_ns()) + (entries_.size() >= max_futex_waiters ? crowded_nap_ns : nap_ns);
        FutexWaiter waiters[max_futex_waiters];
        unsigned count = 0;
        waiters[count++] = {&bell_, bell};
        for (std::size_t i = 0; i < entries_.size();) {
            CompletionLine& line = *entries_[i].slot->line;
            // SYNC: seq_cst pairs with end_request(): we count ourselves in, then load the word.
            if (!std::exchange(entries_[i].counted, true)) line.waiting.fetch_add(1, std::memory_order_seq_cst);
            const std::uint64_t word = line.word.load(std::memory_order_seq_cst);
            if (settle(entries_[i], host_gone)) {
                entries_[i] = std::move(entries_.back());
                entries_.pop_back();
                continue;
            }
            if (count < max_futex_waiters) waiters[count++] = {low_word(&line.word), static_cast<std::uint32_t>(word)};
            if (entries_[i].deadline_ns != 0) until = std::min(until, entries_[i].deadline_ns);
            ++i;
        }
        if (!futex_wait_any(waiters, count, until)) futex_wait(&bell_, bell, static_cast<std::uint64_t>(monotonic_ns()) + crowded_nap_ns);
    }
    // Whoever still waits must learn that nobody will tell it later.
    {
        const std::lock_guard lock(mutex_);
        for (Entry& entry : arriving_) entries_.push_back(std::move(entry));
        arriving_.clear();
    }
    for (Entry& entry : entries_) tell(entry);
    entries_.clear();
}

}  // namespace teal
