#include "box/yard.hpp"

#include <csignal>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstring>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "box/fate.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal::box {
namespace {

constexpr std::uint64_t page = 4096;
constexpr int future_write = 0x10;                          // F_SEAL_FUTURE_WRITE
constexpr std::uint64_t own_data_bytes = 8u << 20;          // what the box itself may need of its data limit
constexpr std::uint64_t own_space_bytes = 256u << 20;       // its libraries and our mappings
constexpr std::uint64_t group_slack_bytes = 32u << 20;      // page tables, and what its libraries and a guest's machine take
constexpr std::uint64_t group_slack_tasks = 8;              // of a guest
constexpr std::uint64_t no_limit = ~std::uint64_t{0};

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

Descriptor reserved_memfd(const char* name, std::uint64_t bytes) {
    Descriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) throw Error(Code::internal_error, system_message("memfd_create", errno));
    int result = ::ftruncate(fd.get(), static_cast<off_t>(bytes));
    if (result == 0) do {
            result = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
        } while (result != 0 && errno == EINTR);
    if (result != 0)
        throw Error(Code::quota_exceeded, system_message(("reserve " + std::to_string(bytes) + " bytes for a session").c_str(), errno));
    return fd;
}

void* map_shared(int fd, std::uint64_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) throw Error(Code::quota_exceeded, system_message(("map " + std::to_string(bytes) + " bytes of a session").c_str(), errno));
    return at;
}

}  // namespace

std::shared_ptr<Session::State> make_session(const SessionOrder& order) {
    auto session = std::make_shared<Session::State>();
    session->owner = static_cast<std::uint32_t>(::getpid());
    session->facts = plan_region(order);
    const SessionFacts& facts = session->facts;
    session->control = reserved_memfd("teal-session", facts.region_bytes);
    session->page = static_cast<ControlPage*>(map_shared(session->control.get(), facts.region_bytes));
    session->page->header = {control_magic, control_version, facts.cores,      facts.region_bytes, facts.args_bytes,
                             facts.log_offset, facts.log_bytes, facts.ob_offset, facts.ob_bytes};
    ::fcntl(session->control.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    session->fate_file = reserved_memfd("teal-fate", sizeof(FatePage));
    session->fate = static_cast<FatePage*>(map_shared(session->fate_file.get(), sizeof(FatePage)));
    session->fate->magic = fate_magic;
    session->fate->version = control_version;
    session->fate->alive_ns.store(now_ns(), std::memory_order_relaxed);
    // From here on only the mapping that we have can write it.
    if (::fcntl(session->fate_file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | future_write | F_SEAL_SEAL) != 0)
        throw Error(Code::internal_error, system_message("seal a fate page (F_SEAL_FUTURE_WRITE, Linux 5.1)", errno));
    session->ended_event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!session->ended_event) throw Error(Code::internal_error, system_message("eventfd", errno));
    return session;
}

BecomeMessage become_message(const SessionOrder& order, const SessionFacts& facts) {
    BecomeMessage m{};
    m.kind = BoxKind::resident;
    m.cores = order.cores;
    m.stack_room = round_up(order.stack_bytes, page);
    m.region_bytes = facts.region_bytes;
    m.args_bytes = facts.args_bytes;
    m.log_offset = facts.log_offset;
    m.log_bytes = facts.log_bytes;
    m.ob_offset = facts.ob_offset;
    m.ob_bytes = facts.ob_bytes;
    m.idle_ns = order.idle_ns;
    m.tsc_hz = ticks_per_second();
    const std::uint64_t stacks = m.stack_room * order.cores;
    const std::uint64_t areas = (order.image.tls_bytes + order.image.tls_align + 2 * page) * order.cores;
    m.data_limit = own_data_bytes + writable_bytes(order.image) + stacks + areas + order.memory_bytes;
    m.space_limit = own_space_bytes + image_bytes(order.image) + stacks + areas + facts.region_bytes + order.memory_bytes + order.input_bytes;
    if (order.direct.fd >= 0) {
        m.direct_id = order.direct.id;
        m.direct_cipher = order.direct.cipher;
        m.direct_keys = order.direct.keys;
    }
    m.file_limit = 0;
    m.cpu_limit_s = no_limit;
    for (std::uint32_t core = 0; core < most_cores; ++core) m.pin[core] = core < order.pin.size() ? order.pin[core] : -1;
    return m;
}

namespace {
// Waits for the box's word that the program runs.
void await_became(Session::State& session, std::uint64_t limit) {
    for (;;) {
        BecameMessage said{};
        std::size_t none = 0;
        const long got = receive_record(session.box.socket.get(), &said, sizeof said, {}, none);
        if (got == sizeof said && said.magic == message_magic) {
            if (said.where == 0) return;
            throw Error(Code::invalid_argument, became_text(said));
        }
        if (got == 0 || (got < 0 && got != -EAGAIN)) throw Error(Code::internal_error, "the box died before the program began");
        const std::uint64_t now = now_ns();
        if (now >= limit) throw Error(Code::deadline_exceeded, "the box has not loaded the program in time");
        pollfd socket{session.box.socket.get(), POLLIN, 0};
        ::poll(&socket, 1, static_cast<int>((limit - now) / 1'000'000) + 1);
    }
}

}  // namespace

// Waits until serve() has said what init() did.
void await_ready(Session::State& session, std::uint64_t limit_ns) {
    const std::uint64_t limit = now_ns() + limit_ns;
    std::atomic<std::uint32_t>& state = session.page->order_done.state;
    for (;;) {
        const std::uint32_t seen = state.load(std::memory_order_acquire);   // SYNC: pairs with the release in the box's set_state()
        if (seen == static_cast<std::uint32_t>(BoxState::ready)) return;
        const Ending ending = read_fate(*session.fate);
        const bool refused = seen == static_cast<std::uint32_t>(BoxState::refused) || ending.fate == Fate::refused;
        if (ending.fate != Fate::running && !refused)
            throw Error(Code::kernel_failed, "the program ended before it served a call: " + std::string(fate_name(ending.fate)) + ", " +
                                                 std::to_string(ending.detail) + " (is it linked with duck.h's start-up code?)");
        if (refused || seen == static_cast<std::uint32_t>(BoxState::ended)) {
            const std::int32_t status = __atomic_load_n(&session.page->order_done.status, __ATOMIC_RELAXED);
            session.kill(Fate::refused, status);
            throw Error(Code::kernel_failed, "the program's init() refused with status " + std::to_string(status));
        }
        const std::uint64_t now = now_ns();
        if (now >= limit) {
            session.kill(Fate::overdue, static_cast<std::int32_t>(limit_ns / 1'000'000));
            throw Error(Code::deadline_exceeded, "the program has not come to serve calls within " + std::to_string(limit_ns / 1'000'000) + " ms");
        }
        futex_wait(&state, seen, std::min(limit, now + 10'000'000));
    }
}

std::uint64_t writable_bytes(const Image& image) noexcept {
    std::uint64_t bytes = 0;
    for (const elf::Step& step : image.steps)
        if ((step.protection & elf::writable) != 0 && step.what != elf::Step::What::unmap) bytes += step.bytes;
    return bytes;
}

std::uint64_t image_bytes(const Image& image) noexcept {
    std::uint64_t bytes = 0;
    for (const elf::Step& step : image.steps) bytes += step.bytes;
    return bytes;
}

std::string became_text(const BecameMessage& said) {
    static constexpr const char* stages[] = {"running", "reading the yard's message", "taking descriptors", "setting limits",
                                             "mapping the session's region", "mapping the program", "mapping a stack", "starting a core",
                                             "a place", "the gate", "taking the keys of direct calls"};
    const char* stage = said.where < sizeof stages / sizeof stages[0] ? stages[said.where] : "an unknown stage";
    return system_message(("a box failed in " + std::string(stage) + " (item " + std::to_string(said.index) + ")").c_str(), said.status);
}

void send_become(const Spare& box, const BecomeMessage& given, const Image& image, std::span<const int> fds) {
    BecomeMessage message = given;
    message.magic = message_magic;
    message.version = message_version;
    message.steps = static_cast<std::uint32_t>(image.steps.size());
    message.stack_bytes = static_cast<std::uint32_t>(image.stack.size());
    message.narrow = image.narrow ? 1 : 0;
    message.entry = image.entry;
    message.stack_end = image.stack_end;
    message.tls_address = image.tls_address;
    message.tls_file_bytes = image.tls_file_bytes;
    message.tls_bytes = image.tls_bytes;
    message.tls_align = image.tls_align;
    if (image.steps.size() > most_steps) throw Error(Code::invalid_argument, "a program of " + std::to_string(image.steps.size()) + " mappings, expected at most 1024");
    if (image.stack.size() > most_stack_image || image.stack.size() % 16 != 0)
        throw Error(Code::invalid_argument, "an initial stack of " + std::to_string(image.stack.size()) + " bytes, expected at most 65536 and a multiple of 16");
    const iovec parts[3] = {{&message, sizeof message},
                            {const_cast<elf::Step*>(image.steps.data()), image.steps.size() * sizeof(elf::Step)},
                            {const_cast<std::byte*>(image.stack.data()), image.stack.size()}};
    if (const int error = send_record(box.socket.get(), parts, fds); error != 0)
        throw Error(Code::internal_error, system_message("tell a box what to run", error));
}

Yard::Yard(YardOptions options) : state_(std::make_shared<State>()) {
    state_->options = std::move(options);
    state_->owner = static_cast<std::uint32_t>(::getpid());
    state_->wanted[static_cast<std::uint32_t>(BoxKind::resident)] = state_->options.spares;
    if (::access(state_->options.program.c_str(), X_OK) != 0)
        throw Error(Code::not_found, system_message(("teal-box at " + state_->options.program).c_str(), errno));
    if (state_->options.groups) state_->groups = std::make_unique<CgroupHome>();
    state_->nothing.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    state_->wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!state_->wake) throw Error(Code::internal_error, system_message("eventfd", errno));
    state_->thread = std::thread([state = state_.get()] {
        sigset_t all;
        sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, nullptr);   // signals are for the program's own threads
        state->run();
    });
    std::string failure;
    {
        std::unique_lock lock(state_->mutex);
        state_->changed.wait(lock, [&] { return state_->started; });
        failure = state_->failure;
    }
    if (!failure.empty()) {
        state_->close();
        throw Error(Code::internal_error, "no yard: " + failure);
    }
}

Yard::~Yard() { close(); }

void Yard::close() noexcept {
    if (static_cast<std::uint32_t>(::getpid()) != state_->owner) {
        if (state_->thread.joinable()) state_->thread.detach();   // there is no such thread in a forked child
        return;
    }
    state_->close();
}

std::shared_ptr<Session> Yard::open(const SessionOrder& order) {
    const std::uint64_t start = now_ns();
    auto session = make_session(order);
    session->direct = order.direct.fd >= 0;
    session->idle_ns = order.idle_ns;
    if (session->direct)
        if (const std::string why = refuses_direct(order.direct.cipher != 0); !why.empty()) throw Error(Code::invalid_argument, "direct calls: " + why);
    session->box = state_->take(BoxKind::resident, state_->options.zygote_limit_ns);
    session->yard = state_;
    session->facts.box_pid = session->box.pid;
    session->fate->box_pid = session->box.pid;
    {
        const std::lock_guard lock(state_->mutex);
        session->facts.id = state_->next_id++;
        state_->sessions.emplace(session->box.inner, session);
        ++state_->counts.sessions_opened;
        ++state_->counts.sessions_open;
    }
    state_->nudge();   // it ticks while there are sessions
    try {
        const int fds[3] = {order.image.fd, session->control.get(), order.direct.fd};
        const BecomeMessage message = become_message(order, session->facts);
        session->box.group.limit({message.data_limit + group_slack_bytes, order.cores + group_slack_tasks, order.cores});
        send_become(session->box, message, order.image, std::span(fds).first(session->direct ? 3 : 2));
        const std::uint64_t limit = start + order.start_limit_ns;
        await_became(*session, limit);
        const std::uint64_t now = now_ns();
        await_ready(*session, now < limit ? limit - now : 0);
        session->ready.store(true, std::memory_order_relaxed);
    } catch (...) {
        session->kill(Fate::not_started, 0);
        throw;
    }
    const std::lock_guard lock(state_->mutex);
    state_->counts.last_open_ns = now_ns() - start;
    return std::make_shared<Session>(session);
}

std::string Yard::refuses_direct(bool sealed) const {
    const std::lock_guard lock(state_->mutex);
    if (state_->hello.guests != 0) return "a guest has no socket";
    if (!sealed || state_->hello.seals == 0) return {};
    return state_->hello.seals == ENOSYS ? "this box is built without libcrypto" : "OpenSSL 3's libcrypto.so.3 is not installed";
}

YardStatistics Yard::statistics() const {
    const std::lock_guard lock(state_->mutex);
    YardStatistics counts = state_->counts;
    for (const auto& kind : state_->spares) counts.spares_ready += kind.size();
    return counts;
}

std::uint32_t Yard::zygote_pid() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return static_cast<std::uint32_t>(state_->zygote_pid);
}

namespace {
std::string words(int error) { return system_message("not offered", error); }
}  // namespace

std::vector<Guard> Yard::report() const {
    const std::lock_guard lock(state_->mutex);
    const HelloMessage& h = state_->hello;
    std::vector<Guard> guards;
    const bool root = h.user_namespace == -1;
    guards.push_back({"user namespace", h.user_namespace == 0, h.user_namespace == 0 ? "used" : root ? "not needed: started as root" : words(h.user_namespace)});
    guards.push_back({"own user", h.own_user != 0, h.own_user != 0 ? "each box is a user of its own" : "boxes share this user, without rights in a user namespace"});
    guards.push_back({"namespaces", h.other_namespaces == 0,
                      h.other_namespaces == 0 ? "process, mount, network, ipc and uts: one set for all boxes of a yard" : words(h.other_namespaces)});
    guards.push_back({"root directory", h.root_directory == 0, h.root_directory == 0 ? "empty and read-only" : words(h.root_directory)});
    guards.push_back({"no new privileges", h.no_new_privileges == 0, h.no_new_privileges == 0 ? "set" : words(h.no_new_privileges)});
    guards.push_back({"seccomp", h.seccomp == 0 && h.no_new_privileges == 0, h.seccomp == 0 ? "allow-list" : words(h.seccomp)});
    guards.push_back({"landlock", h.landlock > 0, h.landlock > 0 ? "version " + std::to_string(h.landlock) : words(-h.landlock)});
    guards.push_back({"fixed addresses", h.fixed_addresses != 0, h.fixed_addresses != 0 ? "boxes are the same every time" : "personality() is not allowed here"});
    if (state_->groups) guards.push_back({"cgroup", state_->groups->usable(), state_->groups->why()});
    else guards.push_back({"cgroup", false, "not asked for"});
    guards.push_back({"out-of-memory order", h.oom == 0, h.oom == 0 ? "boxes go first" : words(h.oom)});
    return guards;
}

}  // namespace teal::box
