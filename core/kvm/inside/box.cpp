// teal-kvm-box: teal-box's zygote, whose boxes are processes that run one guest each.
//
// Theory of operation. The zygote is the same code (core/box/inside/zygote.cpp); what it calls for a box is here. /dev/kvm is opened before the zygote gives up the file system, and each box
// gets it beside its socket. A box makes its own machine with it: KVM machines belong to the memory of the process that made them.
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "box/inside/become.hpp"
#include "kvm/resident.hpp"

extern "C" const std::byte teal_loop_begin[], teal_loop_end[];

namespace teal::box {
namespace {

[[noreturn]] void give_up(BecomeStage where, int error, std::uint32_t index) noexcept {
    const BecameMessage said{message_magic, error, static_cast<std::uint32_t>(where), index};
    ::send(box_socket, &said, sizeof said, MSG_NOSIGNAL);
    ::_exit(70);
}

kvm::Resident::Order receive() {
    constexpr std::size_t most = sizeof(BecomeMessage) + most_steps * sizeof(elf::Step) + most_stack_image;
    const auto arrived = std::make_unique<std::byte[]>(most);
    iovec part{arrived.get(), most};
    alignas(cmsghdr) char space[CMSG_SPACE((4 + most_buffers) * sizeof(int))] = {};
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
    kvm::Resident::Order order;
    if (got < static_cast<ssize_t>(sizeof order.message)) give_up(BecomeStage::message, got < 0 ? errno : EBADMSG, 0);
    std::memcpy(&order.message, arrived.get(), sizeof order.message);
    const BecomeMessage& m = order.message;
    if (m.magic != message_magic || m.version != message_version || m.kind != BoxKind::resident || m.narrow != 0 || m.steps > most_steps ||
        m.stack_bytes > most_stack_image || m.cores < 1 || m.cores > most_cores)
        give_up(BecomeStage::message, EBADMSG, 1);
    const std::size_t steps = m.steps * sizeof(elf::Step);
    if (static_cast<std::size_t>(got) != sizeof m + steps + m.stack_bytes || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        give_up(BecomeStage::message, EBADMSG, 2);
    order.steps.resize(m.steps);
    std::memcpy(order.steps.data(), arrived.get() + sizeof m, steps);
    order.stack.assign(arrived.get() + sizeof m + steps, arrived.get() + got);
    const cmsghdr* item = CMSG_FIRSTHDR(&header);
    if (item == nullptr || item->cmsg_type != SCM_RIGHTS || item->cmsg_len < CMSG_LEN(2 * sizeof(int))) give_up(BecomeStage::descriptors, EBADF, 0);
    int fds[2];
    std::memcpy(fds, CMSG_DATA(item), sizeof fds);
    order.image = fds[0];
    order.control = fds[1];
    order.socket = box_socket;
    order.loop = {teal_loop_begin, static_cast<std::size_t>(teal_loop_end - teal_loop_begin)};
    return order;
}

}  // namespace

int open_devices() noexcept {
    int error = 0;
    static const kvm::Handle device = kvm::open_device(error);   // stays open
    if (!device || ::dup2(device.get(), box_socket + 1) < 0) return 0;
    kvm::lend_device(box_socket + 1);
    return 1;
}

void become(BoxKind) noexcept {
    std::unique_ptr<kvm::Resident> resident;
    try {
        resident = std::make_unique<kvm::Resident>(receive());
    } catch (const std::exception&) {
        give_up(kvm::Resident::stage(), errno != 0 ? errno : EINVAL, 0);
    }
    const BecameMessage said{message_magic, 0, static_cast<std::uint32_t>(BecomeStage::running), 0};
    if (::send(box_socket, &said, sizeof said, MSG_NOSIGNAL) < 0) ::_exit(70);
    ::_exit(resident->run() & 0xff);
}

}  // namespace teal::box
