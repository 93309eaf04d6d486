#include "capi/control.hpp"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "memory/region.hpp"

namespace teal::capi {
namespace {

constexpr std::uint64_t protocol = TEAL_PROTOCOL;    // wire.PROTOCOL, by way of CMake
constexpr std::size_t longest_message = 160 * 1024;
constexpr unsigned most_fds = 4;
constexpr std::size_t largest_file = 64u << 20;     // of an answer that does not fit a datagram

[[noreturn]] void gone() { throw Failure(LAIKA_ERR_HOST_GONE, "the host's process is gone; laika_finalize, start it again (`teal serve`), then laika_init"); }

[[noreturn]] void not_understood(const char* what) {
    throw Failure(LAIKA_ERR_INTERNAL, std::string("the host sent an answer that is not understood: ") + what);
}

// The body of an answer that came in a file of its own.
std::vector<std::byte> read_file(int fd) {
    std::vector<std::byte> bytes;
    for (;;) {
        const std::size_t have = bytes.size();
        if (have >= largest_file) not_understood("its file is too long");
        bytes.resize(have + (have == 0 ? 256 * 1024 : have));
        const ssize_t got = ::pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
        if (got < 0 && errno == EINTR) { bytes.resize(have); continue; }
        if (got < 0) not_understood("its file cannot be read");
        bytes.resize(have + static_cast<std::size_t>(got));
        if (got == 0) return bytes;
    }
}

bool parse_error(Reader& reader, ReplyView& parsed) {
    if (reader.next() == Reader::Kind::nil) return reader.nil();
    std::uint32_t entries = 0;
    if (!reader.map(entries)) return false;
    for (; entries > 0; --entries) {
        std::string_view key;
        if (!reader.text(key)) return false;
        if (!(key == "kind" ? reader.text(parsed.kind) : key == "message" ? reader.text(parsed.message) : reader.skip())) return false;
    }
    parsed.failed = true;
    return true;
}

}  // namespace

bool parse_reply(std::span<const std::byte> bytes, ReplyView& parsed) {
    Reader reader(bytes);
    std::uint32_t entries = 0;
    if (!reader.map(entries)) return false;
    for (; entries > 0; --entries) {
        std::string_view key;
        if (!reader.text(key)) return false;
        const bool good = key == "id"        ? reader.number(parsed.id)
                          : key == "body"    ? reader.skip(&parsed.body)
                          : key == "in_file" ? reader.boolean(parsed.in_file)
                          : key == "error"   ? parse_error(reader, parsed)
                                             : reader.skip();
        if (!good) return false;
    }
    return reader.at_end();
}

Fd Answer::take_fd() {
    if (fds.empty()) not_understood("it should have come with a file descriptor");
    Fd fd = std::move(fds.front());
    fds.erase(fds.begin());
    return fd;
}

Control::Control(const char* address, const char* version) : address_(choose_address(address)), socket_(connect_to(address_, address == nullptr)) {
    const timeval bound{patience_s, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    greet(version);
}

void Control::relax() noexcept {
    const timeval unbounded{};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &unbounded, sizeof unbounded);
}

void Control::greet(const char* version) {
    ask([version](Writer& out) {
        out.map(5);
        out.text("t"); out.text("hello");
        out.text("protocol"); out.number(protocol);
        out.text("abi"); out.number(abi_version);
        out.text("version"); out.text(version);
        out.text("pid"); out.number(static_cast<std::uint64_t>(::getpid()));
    });
}

Answer Control::ask(const std::function<void(Writer&)>& write, int fd) {
    std::uint64_t number = 0;
    {
        const std::lock_guard lock(sending_);
        number = ++last_;
        Writer envelope;
        envelope.map(2);
        envelope.text("id"); envelope.number(number);
        envelope.text("body");
        write(envelope);
        if (envelope.bytes().size() > longest_message)
            throw Failure(LAIKA_ERR_INVALID, "a message of " + std::to_string(envelope.bytes().size()) + " bytes to the host, expected at most " +
                          std::to_string(longest_message));
        {
            const std::lock_guard turn(turn_);
            waiting_.emplace(number, std::nullopt);
        }
        try {
            send(envelope.bytes(), fd);
        } catch (...) {
            const std::lock_guard turn(turn_);
            waiting_.erase(number);
            throw;
        }
    }
    Reply reply = wait_for(number);
    if (!reply.kind.empty()) throw_host_failure(reply.kind, reply.message);
    return std::move(reply.answer);
}

void Control::send(std::span<const std::byte> bytes, int fd) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    ssize_t sent;
    do { sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL); } while (sent < 0 && errno == EINTR);
    if (sent >= 0 || errno == EPIPE || errno == ECONNRESET) return;  // its last words are still to be read
    if (errno == ENOTCONN || errno == EBADF) gone();
    throw Failure(LAIKA_ERR_QUOTA, std::string("asking the host: ") + ::strerrordesc_np(errno));
}

Control::Reply Control::wait_for(std::uint64_t number) {
    std::unique_lock turn(turn_);
    const auto mine = waiting_.find(number);
    struct Leave {  // however it ends
        decltype(waiting_)& all;
        std::uint64_t number;
        ~Leave() { all.erase(number); }
    } leave{waiting_, number};
    for (;;) {
        changed_.wait(turn, [&] { return mine->second.has_value() || !reading_ || end_.has_value(); });
        if (mine->second.has_value()) return std::move(*mine->second);
        if (end_.has_value()) throw_host_failure(end_->first, end_->second);
        reading_ = true;
        turn.unlock();
        std::exception_ptr error;
        try {
            read_one();
        } catch (...) {
            error = std::current_exception();
        }
        turn.lock();
        reading_ = false;
        changed_.notify_all();
        if (!error) continue;
        // Whose answer it was cannot be told: nobody gets one any more.
        if (!end_) end_.emplace("InternalError", "the host sent something that is not understood, or nothing in time; the connection is given up");
        std::rethrow_exception(error);
    }
}

void Control::read_one() {
    Datagram datagram = receive();
    const std::lock_guard turn(turn_);
    deliver(std::move(datagram));
}

Control::Datagram Control::receive() {
    Datagram datagram;
    datagram.bytes.resize(longest_message + 1);
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int) * most_fds)];
    iovec part{datagram.bytes.data(), datagram.bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    ssize_t got;
    // ECONNRESET: it hung up with a message of ours unread; what it said before that comes now.
    int resets = 0;
    do { got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC); } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        throw Failure(LAIKA_ERR_HOST_GONE, "the host took the connection at " + address_ + " but did not answer within " + std::to_string(patience_s) + " s");
    if (got <= 0) {
        datagram.over = true;
        return datagram;
    }
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            datagram.fds.emplace_back(fd);
        }
    }
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) not_understood("it is too long, or has too many descriptors");
    datagram.bytes.resize(static_cast<std::size_t>(got));
    return datagram;
}

// Under turn_.
void Control::deliver(Datagram datagram) {
    if (datagram.over) {
        if (!end_) end_.emplace("Closed", "the host's process is gone; laika_finalize, start it again (`teal serve`), then laika_init");
        return;
    }
    ReplyView parsed;
    if (!parse_reply(datagram.bytes, parsed)) not_understood("it is not a reply");
    const auto found = waiting_.find(parsed.id);
    if (found == waiting_.end()) {
        // Number 0: the host refuses this connection, and says why before it hangs up.
        if (parsed.id == 0 && parsed.failed && !parsed.kind.empty()) end_.emplace(std::string(parsed.kind), std::string(parsed.message));
        return;
    }
    Reply reply;
    if (parsed.failed) {
        reply.kind = parsed.kind.empty() ? "InternalError" : parsed.kind;
        reply.message = parsed.message;
    }
    reply.answer.fds = std::move(datagram.fds);
    if (parsed.in_file) {
        const Fd file = reply.answer.take_fd();
        reply.answer.bytes = read_file(file.get());
    } else {
        reply.answer.bytes.assign(parsed.body.begin(), parsed.body.end());
    }
    found->second = std::move(reply);
}

void Control::hang_up() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

void Control::forget() noexcept { ::close(socket_.take()); }

}  // namespace teal::capi
