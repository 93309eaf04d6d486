// The yard's dealings with its zygote: starting it, having boxes made, hearing how they ended.
#include <csignal>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "cpu/features.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t fuse_tick_ns = 4'000'000;    // less than the slack of a fuse
constexpr std::uint64_t fuse_rest_ns = 200'000'000;  // for so long after a run it goes on looking: the next one need not wake it
constexpr std::uint64_t restart_ns = 200'000'000;    // a zygote that dies sooner than that is not replaced sooner
constexpr std::uint64_t least_tick_ns = 1'000'000;
constexpr std::uint64_t asleep_ns = 200'000'000;    // who has not looked for so long was asleep with the whole machine: that is nobody's time
constexpr std::uint64_t quiet_slack_ns = 50'000'000;   // for waking up, and the way to sleep
constexpr std::uint64_t witness_ns = 500'000'000;   // how long an ended box may go unreported

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

// The pid of a pidfd in this process's own namespace; 0 where /proc does not say.
std::uint32_t pid_of(int pidfd) noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return 0;
    char line[128];
    long pid = 0;
    while (std::fgets(line, sizeof line, file) != nullptr)
        if (std::strncmp(line, "Pid:", 4) == 0) pid = std::strtol(line + 4, nullptr, 10);
    std::fclose(file);
    return pid > 0 ? static_cast<std::uint32_t>(pid) : 0;
}

Descriptor open_pages(std::uint32_t pid) noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%u/pagemap", pid);
    return Descriptor(::open(path, O_RDONLY | O_CLOEXEC));
}

std::shared_ptr<const BoxMemory> read_memory(std::uint32_t pid) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%u/maps", pid);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return nullptr;
    auto memory = std::make_shared<BoxMemory>();
    char line[512];
    while (std::fgets(line, sizeof line, file) != nullptr) {
        char* end = nullptr;
        const std::uint64_t first = std::strtoull(line, &end, 16);
        if (*end != '-') continue;
        const std::uint64_t last = std::strtoull(end + 1, &end, 16);
        memory->ranges.emplace_back(first, last);
        if (std::strncmp(end, " rw-p", 5) == 0 && std::strstr(end, "[stack]") == nullptr) memory->data_bytes += last - first;
    }
    std::fclose(file);
    return memory;
}

// How long the machine slept since the look before, when looks are `period` apart; 0: it did not, or there was none.
std::uint64_t slept(std::uint64_t& before, std::uint64_t now, std::uint64_t period) noexcept {
    const std::uint64_t gap = before != 0 && now > before ? now - before : 0;
    before = now;
    return gap > std::max(asleep_ns, 4 * period) ? gap : 0;
}

// The waits for a CPU that a process has behind it. 0: the kernel does not say.
std::uint64_t waited_ns(std::uint32_t pid) noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%u/schedstat", pid);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return 0;
    unsigned long long ran = 0, waited = 0;
    if (std::fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
    std::fclose(file);
    return waited;
}

bool wants_cpu(std::uint32_t pid) noexcept {
    char path[64], text[512];
    std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return false;
    const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    text[size] = '\0';
    const char* name_end = std::strrchr(text, ')');
    return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'R';
}

// What a hypervisor took of all CPUs since they began: time in which a program neither ran nor, for this kernel, waited.
std::uint64_t stolen_ns() noexcept {
    static const bool guest = (read_cpuid().leaf1_ecx >> 31) != 0;
    static const long ticks = ::sysconf(_SC_CLK_TCK);
    if (!guest) return 0;
    std::FILE* file = std::fopen("/proc/stat", "re");
    if (file == nullptr) return 0;
    unsigned long long steal = 0;
    if (std::fscanf(file, "cpu %*u %*u %*u %*u %*u %*u %*u %llu", &steal) != 1) steal = 0;
    std::fclose(file);
    return ticks > 0 ? steal * (1'000'000'000u / static_cast<std::uint64_t>(ticks)) : 0;
}

// Is it over on the wall, without what it had no CPU for? Its clock stands at `cpu`.
bool wall_over(Fuse& fuse, std::uint64_t cpu, std::uint64_t now) noexcept {
    if (fuse.moved_ns == 0) fuse.stolen_before = stolen_ns();
    if (fuse.moved_ns == 0 || cpu != fuse.cpu_seen) {
        fuse.cpu_seen = cpu;
        fuse.moved_ns = now;
    }
    if (now < fuse.wall_end) return false;
    const std::uint64_t stolen = stolen_ns();
    std::uint64_t without = waited_ns(fuse.pid) + (stolen > fuse.stolen_before ? stolen - fuse.stolen_before : 0);
    if (wants_cpu(fuse.pid)) without += now - fuse.moved_ns;   // it waits now: the kernel counts that when it is over
    if (now < fuse.wall_end + std::min(without, fuse.wait_most)) return false;
    // One that has ended by itself has no figures any more: what was read is its own only if it is still there.
    pollfd ended{fuse.pidfd, POLLIN, 0};
    return fuse.pidfd < 0 || ::poll(&ended, 1, 0) == 0;
}

std::uint64_t cpu_ns(std::int32_t clock) noexcept {
    timespec used{};
    if (::clock_gettime(clock, &used) != 0) return 0;
    return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(used.tv_nsec);
}

int spawn(const YardOptions& options, int socket, pid_t& pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_adddup2(&actions, socket, box_socket);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    std::string words[3] = {options.program, "zygote", "--no-namespaces"};
    char* arguments[4] = {words[0].data(), words[1].data(), options.namespaces ? nullptr : words[2].data(), nullptr};
    char* environment[] = {nullptr};
    // Per thread, and only for the child: the same addresses in every box.
    const int before = ::personality(0xffffffff);
    if (before >= 0) ::personality(static_cast<unsigned long>(before) | ADDR_NO_RANDOMIZE);
    const int error = ::posix_spawn(&pid, options.program.c_str(), &actions, &attributes, arguments, environment);
    if (before >= 0) ::personality(static_cast<unsigned long>(before));
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    return error;
}

void reap(pid_t pid) noexcept {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace

// PR_SET_PDEATHSIG is about the parent's *thread*: so it is the yard's own that starts the zygote.
bool Yard::State::start_zygote() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        failure = system_message("socketpair", errno);
        return false;
    }
    Descriptor ours(pair[0]), theirs(pair[1]);
    pid_t pid = 0;
    const int error = spawn(options, theirs.get(), pid);
    theirs.reset();
    if (error != 0) {
        failure = system_message(("start " + options.program).c_str(), error);
        return false;
    }
    pollfd socket{ours.get(), POLLIN, 0};
    HelloMessage said{};
    const std::uint64_t limit = now_ns() + options.zygote_limit_ns;
    int ready = 0;
    do {
        const std::uint64_t now = now_ns();
        ready = ::poll(&socket, 1, now >= limit ? 0 : static_cast<int>((limit - now) / 1'000'000) + 1);
    } while (ready < 0 && errno == EINTR);
    std::size_t none = 0;
    const long got = ready > 0 ? receive_record(ours.get(), &said, sizeof said, {}, none) : -ETIMEDOUT;
    const bool talks = got == sizeof said && said.magic == message_magic && said.version == message_version;
    const bool confined = talks && (said.no_new_privileges == 0 && said.seccomp == 0);
    if (!talks || (!confined && options.demand_seccomp)) {
        failure = talks ? "this machine offers no seccomp filter (errno " + std::to_string(said.seccomp) +
                              "), so a program could not be confined; demand_seccomp=False runs trusted programs without"
                        : got == sizeof said ? options.program + " is of another version of Teal" : options.program + " did not answer";
        ours.reset();
        ::kill(pid, SIGKILL);
        reap(pid);
        return false;
    }
    const std::lock_guard lock(mutex);
    hello = said;
    zygote = std::move(ours);
    zygote_pid = pid;
    failure.clear();
    ++counts.zygotes_started;
    for (std::uint32_t kind = 0; kind < box_kinds; ++kind)
        for (std::uint32_t i = 0; i < wanted[kind]; ++i) ask(static_cast<BoxKind>(kind));
    return true;
}

void Yard::State::ask(BoxKind kind) {
    const SpawnMessage message{message_magic, message_version, kind, 0};
    const iovec part{const_cast<SpawnMessage*>(&message), sizeof message};
    if (zygote && send_record(zygote.get(), {&part, 1}, {}) == 0) ++asked[static_cast<std::uint32_t>(kind)];
}

Spare Yard::State::take(BoxKind kind, std::uint64_t limit_ns) {
    const auto at = static_cast<std::uint32_t>(kind);
    std::unique_lock lock(mutex);
    const std::uint64_t limit = now_ns() + limit_ns;
    wanted[at] = std::max(wanted[at], kind == BoxKind::resident ? options.spares : options.judge_spares);
    if (spares[at].empty()) ++counts.spares_waited_for;
    while (spares[at].empty()) {
        if (closed) throw Error(Code::closed, "this yard is closed");
        if (const std::string why = std::exchange(failure, {}); !why.empty()) throw Error(Code::internal_error, "no box can be made: " + why);
        if (asked[at] == 0) ask(kind);
        const std::uint64_t now = now_ns();
        if (now >= limit) throw Error(Code::deadline_exceeded, "the zygote has not made a box within " + std::to_string(limit_ns / 1'000'000) + " ms");
        changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::uint64_t>(limit - now, 100'000'000)));
    }
    if (closed) throw Error(Code::closed, "this yard is closed");
    Spare box = std::move(spares[at].front());
    spares[at].pop_front();
    ++counts.boxes_used;
    // The next one is made at once for a session, which is there to stay; for a run when it is over, so that they do not share the cores.
    if (kind == BoxKind::resident) replace(kind);
    return box;
}

void Yard::State::replace(BoxKind kind) {
    const auto at = static_cast<std::uint32_t>(kind);
    while (!closed && spares[at].size() + asked[at] < wanted[at]) {
        const std::uint32_t before = asked[at];
        ask(kind);
        if (asked[at] == before) break;
    }
}

void Yard::State::hear(const ZygoteMessage& message, Descriptor pidfd, Descriptor socket) {
    const auto at = static_cast<std::uint32_t>(message.kind);
    if (message.magic != message_magic || at >= box_kinds) return;
    if (message.word == ZygoteWord::ended) {
        std::shared_ptr<Session::State> session;
        std::vector<Spare> over;    // closed when the lock is given back
        {
            const std::lock_guard lock(mutex);
            over.swap(spent);
            ++counts.boxes_ended;
            for (auto& kind : spares)
                for (auto spare = kind.begin(); spare != kind.end();) spare = spare->inner == message.pid ? kind.erase(spare) : spare + 1;
            if (const auto found = sessions.find(message.pid); found != sessions.end()) {
                session = std::move(found->second);
                sessions.erase(found);
            }
        }
        if (session) session->finish(message.status, false);
        return;
    }
    Spare made{message.pid, pidfd ? pid_of(pidfd.get()) : 0, std::move(pidfd), std::move(socket), {}, {}};
    if (message.kind == BoxKind::resident && groups) made.group = groups->hold(made.pid);
    std::shared_ptr<const BoxMemory> seen;
    if (message.kind != BoxKind::resident && made.pid != 0) {
        made.pages = open_pages(made.pid);
        seen = memory;   // only this thread writes it
        if (!seen) seen = read_memory(made.pid);
    }
    const std::lock_guard lock(mutex);
    if (seen) memory = seen;
    if (asked[at] > 0) --asked[at];
    if (message.word == ZygoteWord::made && made.pidfd && made.socket) {
        ++counts.boxes_made;
        counts.last_box_ns = message.ns;
        spares[at].push_back(std::move(made));
    } else {
        failure = system_message("fork of a box", message.status);
    }
    changed.notify_all();
}

void Yard::State::zygote_gone() {
    std::map<std::int32_t, std::shared_ptr<Session::State>> orphans;
    pid_t pid = 0;
    {
        const std::lock_guard lock(mutex);
        orphans.swap(sessions);
        zygote.reset();
        pid = std::exchange(zygote_pid, 0);
        memory.reset();
        spent.clear();
        for (auto& kind : spares) kind.clear();
        for (auto& count : asked) count = 0;
    }
    if (pid > 0) {
        ::kill(pid, SIGKILL);
        reap(pid);
    }
    for (const auto& [inner, session] : orphans) {
        session->kill(Fate::lost, 0);
        session->finish(0, true);
    }
    changed.notify_all();
}

// A program can write its session's lines so that no call seems to run, and go on computing. What it cannot write is its CPU time: a box that has
// nothing to do polls for `idle_ns` and sleeps, so what it uses beyond that is a call by another name, with the bound of one.
bool Session::State::burns_unasked(std::uint64_t key) noexcept {
    if (facts.call_limit_ns == 0 || box.pid == 0 || !ready.load(std::memory_order_relaxed)) return false;
    const std::uint64_t used = cpu_ns(~static_cast<std::int32_t>(box.pid) << 3 | 2);   // the process's clock, as clock_getcpuclockid() makes it
    if (key != quiet_key || used < quiet_cpu_ns) {
        quiet_key = key;
        quiet_cpu_ns = used;
    }
    return used - quiet_cpu_ns > facts.call_limit_ns + (idle_ns + quiet_slack_ns) * facts.cores;
}

void Yard::State::tick(std::uint64_t now) noexcept {
    std::vector<std::shared_ptr<Session::State>> open;
    {
        const std::lock_guard lock(mutex);
        open.reserve(sessions.size());
        for (const auto& [inner, session] : sessions) open.push_back(session);
    }
    const std::uint64_t asleep = slept(ticked_ns, now, options.tick_ns);
    for (const auto& session : open) {
        if (session->since_ns != 0) session->since_ns += asleep;
        session->fate->alive_ns.store(now, std::memory_order_relaxed);
        // Direct calls have counters of their own; a call is open while either pair differs, and is another one when anything was answered.
        const ControlPage& page = *session->page;
        const std::uint64_t asks = page.ask.seq.load(std::memory_order_relaxed) + page.direct.begun.load(std::memory_order_relaxed);
        const std::uint64_t answered = page.answer.seq.load(std::memory_order_relaxed) + page.direct.done.load(std::memory_order_relaxed);
        if (asks == answered) {
            session->since_ns = 0;
            // The session's bound in CPU time, on all of its cores together.
            if (session->burns_unasked(1 + asks + session->orders.load(std::memory_order_relaxed)))
                session->kill(Fate::overdue, static_cast<std::int32_t>(std::min<std::uint64_t>(session->facts.call_limit_ns / 1'000'000, INT32_MAX)));
        } else if (session->since_ns == 0 || session->answered != answered) {
            session->answered = answered;
            session->since_ns = now;
        } else if (const std::uint64_t limit = session->facts.call_limit_ns; limit != 0 && now - session->since_ns > limit) {
            session->kill(Fate::overdue, static_cast<std::int32_t>(std::min<std::uint64_t>(limit / 1'000'000, INT32_MAX)));
        }
        pollfd ended{session->box.pidfd.get(), POLLIN, 0};
        if (::poll(&ended, 1, 0) <= 0) continue;
        if (session->gone_ns == 0) session->gone_ns = now;
        if (now - session->gone_ns < witness_ns) continue;
        {
            const std::lock_guard lock(mutex);
            sessions.erase(session->box.inner);
        }
        session->finish(0, true);
    }
}

std::uint64_t Yard::State::burn(std::uint64_t now) noexcept {
    const std::lock_guard lock(mutex);
    const std::uint64_t asleep = slept(burned_ns, now, fuse_tick_ns);
    if (fuses.empty()) burned_ns = 0;
    for (const auto& fuse : fuses) {
        fuse->wall_end += asleep;
        if (fuse->blown.load(std::memory_order_relaxed)) continue;
        const std::uint64_t cpu = cpu_ns(fuse->clock);
        if (!wall_over(*fuse, cpu, now) && cpu < fuse->cpu_end) continue;
        fuse->blown.store(true, std::memory_order_relaxed);   // read after the box was seen to end, which comes later
        kill_process(fuse->pidfd, fuse->pid);
    }
    if (!fuses.empty()) looks_until = now + fuse_rest_ns;
    if (now >= looks_until) looks_until = 0;
    return looks_until == 0 ? 0 : fuse_tick_ns;
}

// One look at what the zygote has said. False: it is gone.
bool Yard::State::listen(int socket) {
    for (int most = 64; most > 0; --most) {
        ZygoteMessage message{};
        Descriptor fds[2];
        std::size_t count = 0;
        const long got = receive_record(socket, &message, sizeof message, fds, count);
        if (got == -EAGAIN) return true;
        if (got == -EMSGSIZE && message.word == ZygoteWord::made) {   // its descriptors did not fit into this process; the box sees that and leaves
            message.word = ZygoteWord::not_made;
            message.status = EMFILE;
        } else if (got != sizeof message) {
            return false;
        }
        hear(message, std::move(fds[0]), std::move(fds[1]));
    }
    return true;
}

void Yard::State::run() noexcept {
    bool up = start_zygote();
    {
        const std::lock_guard lock(mutex);
        started = true;
    }
    changed.notify_all();
    std::uint64_t next_tick = now_ns(), last_start = next_tick;
    for (;;) {
        pollfd both[2] = {{wake.get(), POLLIN, 0}, {-1, POLLIN, 0}};
        std::uint64_t period = 0;
        {
            const std::lock_guard lock(mutex);
            if (closed) break;
            both[1].fd = up ? zygote.get() : -1;
            if (!sessions.empty()) period = std::max(options.tick_ns, least_tick_ns);
        }
        std::uint64_t now = now_ns();
        std::uint64_t pause = period == 0 ? 0 : now >= next_tick ? 0 : next_tick - now;
        const std::uint64_t fuse = burn(now);
        if (fuse != 0) pause = period == 0 ? fuse : std::min(fuse, pause);
        if (!up) pause = restart_ns;
        const timespec nap{static_cast<time_t>(pause / 1'000'000'000), static_cast<long>(pause % 1'000'000'000)};
        ::ppoll(both, 2, period == 0 && fuse == 0 && up ? nullptr : &nap, nullptr);
        if ((both[0].revents & POLLIN) != 0) {
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t drained = ::read(wake.get(), &count, sizeof count);
        }
        now = now_ns();
        if (up && both[1].revents != 0 && !listen(both[1].fd)) {
            zygote_gone();
            up = false;
        }
        // At once, unless it has died young: then it would die again.
        if (!up && now - last_start >= restart_ns) {
            up = start_zygote();
            last_start = now;
        }
        if (period != 0 && now >= next_tick) {
            tick(now);
            next_tick = now + period;
        }
    }
    zygote_gone();
}

void Yard::State::nudge() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake.get(), &one, sizeof one);
}

void Yard::State::close() noexcept {
    {
        const std::lock_guard lock(mutex);
        closed = true;
    }
    changed.notify_all();
    nudge();
    if (thread.joinable()) thread.join();
}

}  // namespace teal::box
