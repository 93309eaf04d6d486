#include "kernel/preemptor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace teal {
namespace {

constexpr int signal_number = SIGURG;
constexpr std::int64_t again_ns = 10'000;      // found in another handler: looks again so much later
constexpr std::int64_t latest_ns = 50'000;     // more than that was something else's doing
constexpr std::uint32_t most_calls = 4096;     // of an agent that names nothing that runs
constexpr std::uint32_t most_threads = 64;     // with a Preemptor, in one process

// Whose Preemptor a thread is. Not thread_local: reading such a variable may take memory, which a handler must not.
struct Place {
    std::atomic<pthread_t> thread{};
    std::atomic<Preemptor*> preemptor{nullptr};
};
Place places[most_threads];

Preemptor* preemptor_of(pthread_t thread) noexcept {
    for (Place& place : places)
        if (place.preemptor.load(std::memory_order_relaxed) != nullptr && pthread_equal(place.thread.load(std::memory_order_relaxed), thread) != 0)
            return place.preemptor.load(std::memory_order_relaxed);
    return nullptr;
}

std::mutex places_mutex;  // guards entries of `places` against others that take one

bool take_place(Preemptor* preemptor) {
    const std::lock_guard lock(places_mutex);
    for (Place& place : places) {
        if (place.preemptor.load(std::memory_order_relaxed) != nullptr) continue;
        place.thread.store(pthread_self(), std::memory_order_relaxed);
        place.preemptor.store(preemptor, std::memory_order_release);
        return true;
    }
    return false;
}

void give_place(Preemptor* preemptor) noexcept {
    const std::lock_guard lock(places_mutex);
    for (Place& place : places)
        if (place.preemptor.load(std::memory_order_relaxed) == preemptor) place.preemptor.store(nullptr, std::memory_order_release);
}

void allow() noexcept {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, signal_number);
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::uint64_t low_mask(const sigset_t& set) noexcept {
    std::uint64_t mask = 0;  // the kernel's signal mask; what lies behind it in a handler's frame is something else
    std::memcpy(&mask, &set, sizeof mask);
    return mask;
}

}  // namespace

Preemptor::~Preemptor() {
    for (std::uint32_t seat = 0; seat < most_seats; ++seat) forget(seat);
    if (!opened_) return;
    ::timer_delete(timer_);
    give_place(this);
}

bool Preemptor::open(std::string& why) {
#if defined(__SANITIZE_THREAD__)
    why = "the thread sanitizer delivers signals late";
    return false;
#endif
    static std::mutex once;  // guards the process's signal action
    {
        const std::lock_guard lock(once);
        struct sigaction now {};
        ::sigaction(signal_number, nullptr, &now);
        const bool ours = (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &Preemptor::on_signal;
        if (!ours && ((now.sa_flags & SA_SIGINFO) != 0 || (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN))) {
            why = "SIGURG has a handler of somebody else's";
            return false;
        }
        struct sigaction action {};
        action.sa_sigaction = &Preemptor::on_signal;
        // No alternate stack: the frame is what a fiber goes on with. It is blocked meanwhile, or frames could pile up; see consider().
        action.sa_flags = SA_SIGINFO | SA_RESTART;
        ::sigemptyset(&action.sa_mask);
        if (!ours && ::sigaction(signal_number, &action, nullptr) != 0) {
            why = system_message("sigaction", errno);
            return false;
        }
    }
    allow();
    sigset_t set;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
    mask_ = low_mask(set);
    (void)ns_to_ticks(1);  // the first conversion takes its time
    struct sigevent event {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = signal_number;
    event.sigev_notify_thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) {
        why = system_message("timer_create", errno);
        return false;
    }
    if (!take_place(this)) {
        ::timer_delete(timer_);
        why = "64 threads of this process run kernels already";
        return false;
    }
    opened_ = true;
    return true;
}

void Preemptor::name(std::uint64_t running) noexcept {
    running_ = running;
    asked_ = false;
}

void Preemptor::arm(std::uint64_t slice_ns, bool timer) noexcept {
    slice_end_ = 0;  // a signal in between finds none
    if (slice_ns == 0) return;
    const std::uint64_t now = ticks();
    slice_ = ns_to_ticks(static_cast<std::int64_t>(slice_ns));
    slice_end_ = now + slice_;
    if (!timer || (armed_until_ > now && armed_until_ <= slice_end_)) return;  // the handler sets it again
    set_timer(slice_);
}

void Preemptor::disarm() noexcept {
    slice_end_ = 0;
    if (armed_until_ == 0) return;
    const itimerspec none{};
    ::timer_settime(timer_, 0, &none, nullptr);
    armed_until_ = 0;
}

void Preemptor::set_timer(std::uint64_t ticks_from_now) noexcept {
    // Half of the time is the thread's in any case: a handler that is called before the thread has gone on learns only how long itself takes.
    start_timer(ticks_from_now - std::min(lateness_, ticks_from_now / 2));
}

void Preemptor::start_timer(std::uint64_t value) noexcept {
    const auto ns = static_cast<std::uint64_t>(ticks_to_ns(value));
    itimerspec time{};
    time.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    time.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    goes_off_ = ticks() + value;
    armed_until_ = goes_off_ + lateness_;
    ::timer_settime(timer_, 0, &time, nullptr);
}

// In the handler of the timer, as soon as can be.
void Preemptor::learn() noexcept {
    const std::uint64_t now = ticks();
    const std::uint64_t late = std::min(now > goes_off_ ? now - goes_off_ : 0, ns_to_ticks(latest_ns));
    // Down soon, up slowly: what came late for once says little.
    if (late < lateness_) lateness_ -= (lateness_ - late) / 4;
    else lateness_ += (late - lateness_) / 16;
}

bool Preemptor::go(Fiber& fiber) noexcept {
    fiber_ = &fiber;
    const bool done = fiber.enter();
    fiber_ = nullptr;
    slice_end_ = 0;
    return done;
}

void Preemptor::on_signal(int, siginfo_t* info, void* context) noexcept {
    const int error = errno;
    if (Preemptor* self = preemptor_of(pthread_self()); self != nullptr)
        self->notice(*info, low_mask(static_cast<const ucontext_t*>(context)->uc_sigmask) != self->mask_);
    errno = error;
}

void Preemptor::notice(const siginfo_t& info, bool elsewhere) noexcept {
    ++signals_;
    if (info.si_code == SI_TIMER && armed_until_ != 0) learn();
    if (info.si_code == SI_TIMER) armed_until_ = 0;
    if (info.si_code != SI_TIMER)
        for (std::uint32_t seat = 0; seat < most_seats; ++seat) hear(seat);
    if (!inside_.load(std::memory_order_relaxed) || elsewhere) {
        noted_.store(true, std::memory_order_relaxed);
        // Not as early as it could be: what is in that other handler has to come to its end between two looks.
        if (elsewhere && slice_end_ != 0) start_timer(ns_to_ticks(again_ns));
        return;
    }
    consider();
}

void Preemptor::opened() noexcept { consider(); }

// On the fiber's stack, its gate open. Leaves it if there is a reason to, and comes back when it goes on.
void Preemptor::consider() noexcept {
    do {
        // A signal that comes while we look leaves a note, and is not lost on us.
        inside_.store(false, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        noted_.store(false, std::memory_order_relaxed);
        if (fiber_ != nullptr && must_leave()) {
            allow();  // the thread goes on elsewhere; the frame has the mask for here
            fiber_->leave();
        }
        inside_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
    } while (noted_.load(std::memory_order_relaxed));
}

bool Preemptor::must_leave() noexcept {
    if (is_asked()) return true;
    if (slice_end_ == 0) return false;
    const std::uint64_t now = ticks();
    if (now + slice_ / 16 < slice_end_) {  // less than that is not worth another timer
        if (armed_until_ == 0) set_timer(slice_end_ - now);
        return false;
    }
    if (wanted != nullptr && !wanted(wanted_context)) {
        slice_end_ = now + slice_;
        set_timer(slice_);
        return false;
    }
    return true;
}

bool Preemptor::request_pending() noexcept { return is_asked() || (slice_end_ != 0 && ticks() >= slice_end_); }

void Preemptor::note_ask() noexcept {
    asked_ = true;
    noted_.store(true, std::memory_order_relaxed);
}

bool Preemptor::is_asked() noexcept {
    for (std::uint32_t seat = 0; seat < most_seats && !asked_; ++seat) {
        if (words_[seat] == nullptr) continue;
        std::uint64_t word = words_[seat]->load(std::memory_order_relaxed);
        if (word == 0) continue;
        if (word == running_) {
            // Taken down: what leaves and comes back has the same name, and is asked anew by the same word.
            words_[seat]->compare_exchange_strong(word, 0, std::memory_order_relaxed);
            refused_[seat] = 0;
            asked_ = true;
            calls_[seat] = 0;
        } else if (word != refused_[seat]) {
            refused_[seat] = word;
            ++in_vain_;
        }
    }
    return asked_;
}

void Preemptor::watch(std::uint32_t seat, std::atomic<std::uint64_t>* word) noexcept {
    refused_[seat] = 0;
    words_[seat] = word;
}

bool Preemptor::listens() const noexcept {
    for (const auto* word : words_)
        if (word != nullptr) return true;
    return false;
}

bool Preemptor::is_rung() const noexcept {
    for (std::uint32_t seat = 0; seat < most_seats; ++seat)
        if (words_[seat] != nullptr && pipes_[seat] < 0) return false;
    return true;
}

bool Preemptor::listen(std::uint32_t seat, int fd, std::string& why) {
    f_owner_ex owner{F_OWNER_TID, static_cast<pid_t>(::syscall(SYS_gettid))};
    if (pipes_[seat] >= 0) ::close(pipes_[seat]);
    pipes_[seat] = fd;
    calls_[seat] = 0;
    const int flags = ::fcntl(fd, F_GETFL);
    const bool heard = flags >= 0 && ::fcntl(fd, F_SETOWN_EX, &owner) == 0 && ::fcntl(fd, F_SETSIG, signal_number) == 0 &&
                       ::fcntl(fd, F_SETFL, flags | O_ASYNC | O_NONBLOCK) == 0;
    if (heard) {
        hear(seat);  // what was written before
        noted_.store(true, std::memory_order_relaxed);
        return true;
    }
    why = system_message("listening to an agent's pipe", errno);
    ::close(fd);
    pipes_[seat] = -1;
    return false;
}

// Empties a pipe, so that its writer can ring again. Also in the handler.
void Preemptor::hear(std::uint32_t seat) noexcept {
    const int fd = pipes_[seat];
    if (fd < 0) return;
    char bytes[256];
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count <= 0) return;
    calls_[seat] += static_cast<std::uint32_t>(count);
    if (calls_[seat] > most_calls) ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

void Preemptor::forget(std::uint32_t seat) noexcept {
    words_[seat] = nullptr;
    const int fd = pipes_[seat];
    pipes_[seat] = -1;
    if (fd >= 0) ::close(fd);
}

}  // namespace teal
