// teal-kvm-box: teal-box's zygote, whose boxes are processes that run one guest each.
//
// Theory of operation. The zygote is the same code (core/box/inside/zygote.cpp); what it calls for a box is here. /dev/kvm is opened before
// the zygote gives up the file system, and each box gets it beside its socket. A box makes its own machine with it: KVM machines belong to
// the memory of the process that made them.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "box/inside/become.hpp"
#include "box/inside/gate.hpp"
#include "kvm/judge.hpp"
#include "kvm/resident.hpp"
#include "kvm/run_message.hpp"

extern "C" const std::byte teal_loop_begin[], teal_loop_end[];

namespace teal::box {
namespace {

constexpr int most_descriptors = 4 + static_cast<int>(most_buffers);

[[noreturn]] void give_up(BecomeStage where, int error, std::uint32_t index) noexcept {
    BecameMessage said{};
    said.magic = message_magic;
    said.status = error;
    said.where = static_cast<std::uint32_t>(where);
    said.index = index;
    ::send(box_socket, &said, sizeof said, MSG_NOSIGNAL);
    ::_exit(70);
}

// A message of the yard: its head, the steps and the stack behind it, and descriptors.
template <typename Head>
struct Arrived {
    Head head;
    std::vector<elf::Step> steps;
    std::vector<std::byte> stack;
    std::vector<kvm::Handle> descriptors;
};

const BecomeMessage& become_part(const BecomeMessage& head) noexcept { return head; }
const BecomeMessage& become_part(const kvm::RunMessage& head) noexcept { return head.become; }

template <typename Head>
Arrived<Head> receive(BoxKind kind, std::size_t least_descriptors) {
    constexpr std::size_t most = sizeof(Head) + most_steps * sizeof(elf::Step) + most_stack_image;
    static const auto bytes = std::make_unique<std::byte[]>(most);
    iovec part{bytes.get(), most};
    alignas(cmsghdr) char space[CMSG_SPACE(most_descriptors * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = space;
    header.msg_controllen = sizeof space;
    ssize_t got = 0;
    do {
        got = ::recvmsg(box_socket, &header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got == 0) ::_exit(0);   // the yard is gone
    Arrived<Head> arrived;
    if (got < static_cast<ssize_t>(sizeof(Head))) give_up(BecomeStage::message, got < 0 ? errno : EBADMSG, 0);
    std::memcpy(&arrived.head, bytes.get(), sizeof(Head));
    const BecomeMessage& m = become_part(arrived.head);
    if (m.magic != message_magic || m.version != message_version || m.kind != kind || m.steps > most_steps || m.stack_bytes > most_stack_image ||
        m.cores < 1 || m.cores > most_cores || m.buffers > most_buffers)
        give_up(BecomeStage::message, EBADMSG, 1);
    const std::size_t steps = m.steps * sizeof(elf::Step);
    if (static_cast<std::size_t>(got) != sizeof(Head) + steps + m.stack_bytes || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        give_up(BecomeStage::message, EBADMSG, 2);
    arrived.steps.resize(m.steps);
    std::memcpy(arrived.steps.data(), bytes.get() + sizeof(Head), steps);
    arrived.stack.assign(bytes.get() + sizeof(Head) + steps, bytes.get() + got);
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
        for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= item->cmsg_len; at += sizeof(int)) {
            int fd = -1;
            std::memcpy(&fd, reinterpret_cast<const char*>(item) + at, sizeof fd);
            arrived.descriptors.emplace_back(fd);
        }
    }
    if (arrived.descriptors.size() < least_descriptors + m.buffers) give_up(BecomeStage::descriptors, EBADF, 0);
    return arrived;
}

std::unique_ptr<kvm::Resident> make_resident() {
    auto machine = std::make_unique<kvm::Machine>();   // while nobody waits for it
    machine->core(0);
    Arrived<BecomeMessage> arrived = receive<BecomeMessage>(BoxKind::resident, 2);
    if (arrived.head.narrow != 0) give_up(BecomeStage::message, ENOTSUP, 0);
    kvm::Resident::Order order;
    order.message = arrived.head;
    order.steps = std::move(arrived.steps);
    order.stack = std::move(arrived.stack);
    order.image = arrived.descriptors[0].get();
    order.control = arrived.descriptors[1].get();
    order.socket = box_socket;
    order.machine = std::move(machine);
    order.loop = {teal_loop_begin, static_cast<std::size_t>(teal_loop_end - teal_loop_begin)};
    return std::make_unique<kvm::Resident>(std::move(order));
}

RunOrder order_of(Arrived<kvm::RunMessage>& arrived, BoxKind kind) {
    const kvm::RunMessage& head = arrived.head;
    RunOrder order;
    order.image.fd = arrived.descriptors[0].get();
    order.image.steps = std::move(arrived.steps);
    order.image.stack = std::move(arrived.stack);
    order.image.entry = head.become.entry;
    order.image.narrow = head.become.narrow != 0;
    order.image.stack_end = head.become.stack_end;
    order.abi = kind == BoxKind::duckinfo_run ? Abi::duckinfo : Abi::linux_static;
    order.time_limit_ns = head.time_limit_ns;
    order.wall_limit_ns = head.wall_limit_ns;
    order.memory_bytes = head.memory_bytes;
    order.stack_bytes = head.stack_bytes;
    order.in = arrived.descriptors[1].get();
    order.out = arrived.descriptors[2].get();
    order.err = arrived.descriptors[3].get();
    order.out_limit = head.out_limit;
    order.err_limit = head.err_limit;
    order.report_address = head.report_address;
    order.pin = head.become.pin[0];
    for (std::uint32_t i = 0; i < head.become.buffers; ++i) {
        const BecomeMessage::Buffer& buffer = head.become.buffer[i];
        order.buffers.push_back({arrived.descriptors[4 + i].get(), buffer.address, buffer.bytes, buffer.offset,
                                 buffer.writable != 0, buffer.reserved == 0});
    }
    return order;
}

void say(const RunRecord& record) noexcept {
    kvm::RunReply reply{};
    reply.magic = message_magic;
    reply.version = message_version;
    reply.status = static_cast<std::uint32_t>(record.status);
    reply.return_code = record.return_code;
    reply.signal = record.signal;
    reply.trap_num = record.trap_num;
    reply.trap_epc = record.trap_epc;
    reply.trap_cr2 = record.trap_cr2;
    reply.clk_ref_tsc = record.clk_ref_tsc;
    reply.time_ns = record.time_ns;
    reply.time_ns_ref_tsc = record.time_ns_ref_tsc;
    reply.time_ns_real = record.time_ns_real;
    reply.time_tsc = record.time_tsc;
    reply.tsc_mhz = record.tsc_mhz;
    reply.memory_kb = record.memory_kb;
    reply.memory_kb_accessed = record.memory_kb_accessed;
    reply.stdout_size = record.stdout_size;
    reply.stderr_size = record.stderr_size;
    reply.user_ns = record.user_ns;
    reply.system_ns = record.system_ns;
    reply.voluntary_switches = record.voluntary_switches;
    reply.involuntary_switches = record.involuntary_switches;
    reply.minor_faults = record.minor_faults;
    reply.major_faults = record.major_faults;
    reply.stdout_truncated = record.stdout_truncated;
    reply.stderr_truncated = record.stderr_truncated;
    reply.memory_exceeded = record.memory_exceeded;
    reply.has_report = record.report.size() == sizeof reply.report;
    if (reply.has_report != 0) std::memcpy(reply.report, record.report.data(), sizeof reply.report);
    std::memcpy(reply.reason, record.reason.data(), std::min<std::size_t>(record.reason.size(), kvm::most_reason - 1));
    if (::send(box_socket, &reply, sizeof reply, MSG_NOSIGNAL) < 0) ::_exit(0);   // the yard is gone
}

[[noreturn]] void judge_runs(BoxKind kind) {
    kvm::Judge judge;
    for (;;) {
        Arrived<kvm::RunMessage> arrived = receive<kvm::RunMessage>(kind, 4);
        say(judge.run(order_of(arrived, kind)));
    }
}

}  // namespace

// No program runs in this process, so there is nothing to open a gate for.
bool make_gate() noexcept { return true; }

int open_devices() noexcept {
    int error = 0;
    static const kvm::Handle device = kvm::open_device(error);   // stays open
    if (!device || ::dup2(device.get(), box_socket + 1) < 0) return 0;
    kvm::lend_device(box_socket + 1);
    return 1;
}

void become(BoxKind kind) noexcept {
    std::unique_ptr<kvm::Resident> resident;
    try {
        if (kind != BoxKind::resident) judge_runs(kind);
        resident = make_resident();
    } catch (const std::exception&) {
        give_up(kvm::Resident::stage(), errno != 0 ? errno : EINVAL, 0);
    }
    BecameMessage said{};
    said.magic = message_magic;
    said.where = static_cast<std::uint32_t>(BecomeStage::running);
    if (::send(box_socket, &said, sizeof said, MSG_NOSIGNAL) < 0) ::_exit(70);
    ::_exit(resident->run() & 0xff);
}

}  // namespace teal::box
