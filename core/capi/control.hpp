// The control connection to a host: questions and answers, none of them on the path of a call.
//
// Theory of operation: one message is one datagram (src/teal/host/wire.py): an envelope with a number and a body, descriptors
// beside it; the answers carry the number and come in any order. Any thread asks. Whoever waits for an answer and finds nobody
// reading reads one datagram, puts it where it belongs and tells the others, so that an answer which takes minutes holds up
// nobody else's. What the host says is checked like anybody's: sizes, types, and descriptors that nobody asked for are closed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capi/address.hpp"
#include "capi/failure.hpp"
#include "capi/msgpack.hpp"

namespace teal::capi {

// A reply as it came, still in its datagram.
struct ReplyView {
    std::uint64_t id = 0;
    std::span<const std::byte> body;
    bool in_file = false;
    bool failed = false;        // `kind` and `message` say how
    std::string_view kind;
    std::string_view message;
};
bool parse_reply(std::span<const std::byte> bytes, ReplyView& reply);  // false: it is none

struct Answer {
    std::vector<std::byte> bytes;  // the body, MessagePack
    std::vector<Fd> fds;
    [[nodiscard]] Reader body() const noexcept { return Reader(bytes); }
    Fd take_fd();  // throws Failure when none came
};

class Control {
public:
    // Connects and greets. Throws Failure. Answers have to come within patience_s until relax().
    Control(const char* address, const char* version);
    void relax() noexcept;  // from here on a question may take its time: loading a model does

    // Asks and waits. `write` writes the body: a map with the key "t". Throws what the host says, or host_gone.
    Answer ask(const std::function<void(Writer&)>& write, int fd = -1);

    // Everybody who waits, and whoever asks from now on, gets a Failure.
    void hang_up() noexcept;
    // In a forked child: closes this process's copy, so that the host hears of the parent's end.
    void forget() noexcept;
    [[nodiscard]] int socket() const noexcept { return socket_.get(); }
    [[nodiscard]] const std::string& address() const noexcept { return address_; }

private:
    struct Reply {
        Answer answer;
        std::string kind;     // of an error; empty: none
        std::string message;
    };
    struct Datagram { std::vector<std::byte> bytes; std::vector<Fd> fds; bool over = false; };

    void greet(const char* version);
    void send(std::span<const std::byte> bytes, int fd);
    Reply wait_for(std::uint64_t number);
    void read_one();
    Datagram receive();
    void deliver(Datagram datagram);

    std::string address_;
    Fd socket_;
    std::mutex sending_;                 // one question at a time on its way
    std::uint64_t last_ = 0;             // under sending_
    std::mutex turn_;                    // guards what follows
    std::condition_variable changed_;
    std::map<std::uint64_t, std::optional<Reply>> waiting_;  // by number; empty: expected
    bool reading_ = false;
    std::optional<std::pair<std::string, std::string>> end_;  // why there are no more answers: kind, message
};

}  // namespace teal::capi
