// Theory of operation. A spare box is told what to run and asked for the record. It judges with limits of its own (kvm/judge.hpp); here is
// only a bound on its silence, after which it is killed and the run has failed. A box that has answered goes back to the spares: its next
// run finds the guest as the first one did, at the cost of what this one wrote.
#include "kvm/court.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#include "base/error.hpp"
#include "box/yard_state.hpp"
#include "cpu/clock.hpp"
#include "kvm/probe.hpp"
#include "kvm/run_message.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t longest_ns = 500'000'000'000;
constexpr std::uint64_t slack_ns = 10'000'000'000;   // for making a guest, and a machine that is busy

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

RunMessage message_for(const box::RunOrder& order, box::BoxKind kind) {
    RunMessage message{};
    box::BecomeMessage& m = message.become;
    m.magic = box::message_magic;
    m.version = box::message_version;
    m.kind = kind;
    m.cores = 1;
    m.steps = static_cast<std::uint32_t>(order.image.steps.size());
    m.stack_bytes = static_cast<std::uint32_t>(order.image.stack.size());
    m.narrow = order.image.narrow ? 1 : 0;
    m.entry = order.image.entry;
    m.stack_end = order.image.stack_end;
    m.pin[0] = order.pin;
    m.buffers = static_cast<std::uint32_t>(order.buffers.size());
    for (std::size_t i = 0; i < order.buffers.size(); ++i) {
        const box::RunOrder::Buffer& buffer = order.buffers[i];
        m.buffer[i] = {buffer.address, buffer.bytes, buffer.offset, buffer.writable ? 1u : 0u, buffer.counted ? 0u : 1u};   // stdin is not counted
    }
    message.time_limit_ns = order.time_limit_ns;
    message.wall_limit_ns = order.wall_limit_ns != 0 ? order.wall_limit_ns : 2 * order.time_limit_ns + 1'000'000'000;
    message.memory_bytes = order.memory_bytes;
    message.stack_bytes = box::stack_of(order);
    message.out_limit = order.out_limit;
    message.err_limit = order.err_limit;
    message.report_address = order.report_address;
    return message;
}

void check(const box::RunOrder& order) {
    if (order.time_limit_ns == 0 || order.time_limit_ns > longest_ns)
        throw Error(Code::invalid_argument, "invalid time limit of " + std::to_string(order.time_limit_ns) + " ns: 1 ns to 500 s");
    if (order.image.narrow && !probe().code32)
        throw Error(Code::invalid_argument, "guests of this machine run no 32-bit code (KVM would interpret it); judge it in a process");
    if (order.buffers.size() > box::most_buffers) throw Error(Code::invalid_argument, "a run has at most 8 buffers");
    if (order.image.steps.size() > box::most_steps || order.image.stack.size() > box::most_stack_image)
        throw Error(Code::invalid_argument, "a program of more than 1024 mappings, or with more than 64 KiB on its stack");
}

void tell(const box::Spare& spare, const box::RunOrder& order, const RunMessage& message) {
    const iovec parts[3] = {{const_cast<RunMessage*>(&message), sizeof message},
                            {const_cast<elf::Step*>(order.image.steps.data()), order.image.steps.size() * sizeof(elf::Step)},
                            {const_cast<std::byte*>(order.image.stack.data()), order.image.stack.size()}};
    box::Descriptor nothing;
    if (order.in < 0 || order.out < 0 || order.err < 0) nothing.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const auto or_nothing = [&](int fd) { return fd < 0 ? nothing.get() : fd; };
    std::vector<int> fds = {order.image.fd, or_nothing(order.in), or_nothing(order.out), or_nothing(order.err)};
    for (const box::RunOrder::Buffer& buffer : order.buffers) fds.push_back(buffer.fd);
    if (const int error = box::send_record(spare.socket.get(), parts, fds); error != 0)
        throw Error(Code::internal_error, system_message("tell a guest's process what to run", error));
}

void hear(const box::Spare& spare, RunReply& reply, std::uint64_t limit_ns) {
    const std::uint64_t end = now_ns() + limit_ns;
    for (;;) {
        std::size_t none = 0;
        const long got = box::receive_record(spare.socket.get(), &reply, sizeof reply, {}, none);
        if (got == static_cast<long>(sizeof reply) && reply.magic == box::message_magic) return;
        if (got != -EAGAIN && got != -EINTR) throw Error(Code::internal_error, "the guest's process died during a run");
        const std::uint64_t now = now_ns();
        if (now >= end) throw Error(Code::internal_error, "the guest's process did not answer: was this machine asleep?");
        pollfd socket{spare.socket.get(), POLLIN, 0};
        ::poll(&socket, 1, static_cast<int>((end - now) / 1'000'000) + 1);
    }
}

box::RunRecord record_of(RunReply& reply) {
    box::RunRecord record;
    record.status = reply.status < 4 ? static_cast<box::RunStatus>(reply.status) : box::RunStatus::judge_failed;
    reply.reason[most_reason - 1] = '\0';
    record.reason = reply.reason;
    record.clock = "thread cpu clock of the guest's core: no hardware counters in guests";
    record.memory = "the guest's page tables";
    record.return_code = reply.return_code;
    record.signal = reply.signal;
    record.trap_num = reply.trap_num;
    record.trap_epc = reply.trap_epc;
    record.trap_cr2 = reply.trap_cr2;
    record.clk_ref_tsc = reply.clk_ref_tsc;
    record.time_ns = reply.time_ns;
    record.time_ns_ref_tsc = reply.time_ns_ref_tsc;
    record.time_ns_real = reply.time_ns_real;
    record.time_tsc = reply.time_tsc;
    record.tsc_mhz = reply.tsc_mhz;
    record.memory_kb = reply.memory_kb;
    record.memory_kb_accessed = reply.memory_kb_accessed;
    record.stdout_size = reply.stdout_size;
    record.stderr_size = reply.stderr_size;
    record.user_ns = reply.user_ns;
    record.system_ns = reply.system_ns;
    record.voluntary_switches = reply.voluntary_switches;
    record.involuntary_switches = reply.involuntary_switches;
    record.minor_faults = reply.minor_faults;
    record.major_faults = reply.major_faults;
    record.stdout_truncated = reply.stdout_truncated != 0;
    record.stderr_truncated = reply.stderr_truncated != 0;
    record.memory_exceeded = reply.memory_exceeded != 0;
    if (reply.has_report != 0) record.report.assign(reply.report, reply.report + sizeof reply.report);
    return record;
}

}  // namespace

box::RunRecord judge_in_guest(box::Yard::State& yard, const box::RunOrder& order) {
    check(order);
    const box::BoxKind kind = order.abi == box::Abi::duckinfo ? box::BoxKind::duckinfo_run : box::BoxKind::linux_run;
    box::Spare spare = yard.take(kind, yard.options.zygote_limit_ns);
    RunReply reply{};
    try {
        const RunMessage message = message_for(order, kind);
        tell(spare, order, message);
        hear(spare, reply, message.wall_limit_ns + box::longest_wait_ns(order) + slack_ns);
    } catch (...) {
        ::syscall(SYS_pidfd_send_signal, spare.pidfd.get(), SIGKILL, nullptr, 0);
        throw;
    }
    {
        const std::lock_guard lock(yard.mutex);
        yard.spares[static_cast<std::uint32_t>(kind)].push_front(std::move(spare));
    }
    return record_of(reply);
}

}  // namespace teal::kvm
