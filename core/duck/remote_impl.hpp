// The inside of Remote: the connection and all that waits on it, under one mutex. See remote.hpp.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/error.hpp"
#include "duck/connection.hpp"
#include "duck/direct.hpp"
#include "duck/handshake.hpp"
#include "duck/pour.hpp"
#include "duck/remote.hpp"
#include "duck/socket.hpp"
#include "queue/wait.hpp"

namespace teal::duck {

struct RemoteSession::State {
    struct Pending {
        std::uint64_t seq = 0;         // 0: free
        bool answered = false, forsaken = false;
        std::uint64_t ask_at = 0, ask_each = 0;  // when to ask for the answer again
        CallAnswer answer;
    };
    std::uint32_t id = 0;
    std::span<std::byte> ob;
    std::shared_ptr<void> owner;
    std::uint64_t next_seq = 1;
    unsigned out = 0;                  // calls without an answer
    Pending pending[most_in_flight];
    // Direct calls have numbers of their own: seq with the top bit. One is out at a time; moved to the connection it has a seq there as well.
    std::unique_ptr<DirectPath> path;  // null: none
    Pending direct;
    std::uint64_t moved = 0;           // seq on the connection of the direct call; 0: not moved
    bool long_results = false;         // the last result did not fit a packet
    std::uint64_t direct_calls = 0;
    static constexpr std::uint64_t direct_bit = std::uint64_t{1} << 63;
    [[nodiscard]] Pending& of(std::uint64_t seq) noexcept { return (seq & direct_bit) != 0 ? direct : pending[seq % most_in_flight]; }
};

inline constexpr std::uint64_t main_each_ns = 20'000, heart_each_ns = 1'000'000;
inline constexpr std::uint64_t polite_ns = 20'000;  // an answer that takes longer is waited for politely

struct Remote::Impl final : Above {
    explicit Impl(RemoteOptions given) : options(std::move(given)), spin(options.spin_ns) {}
    ~Impl() override;

    void connect(const std::string& to);             // remote_connect.cpp
    void shake_hands(ClientHello& hello);
    void keep() noexcept;                            // the keeper's thread
    void stop_keeper() noexcept;

    // Under the mutex:
    bool pump(std::uint64_t now);                    // true: something came
    bool receive(std::uint64_t now);
    void take(std::span<std::byte> datagram, std::uint64_t now);
    void send(std::uint64_t now);
    void ask_again(std::uint64_t now);
    [[nodiscard]] std::uint64_t next_timer() const noexcept;
    [[noreturn]] void fail(const std::string& what) const;
    void check_alive(const char* what) const;
    void sleep(std::uint64_t until, int also = -1) noexcept;   // without the mutex; `also`: of a direct path
    void reach_box(DirectPath& path, std::uint16_t port, std::uint64_t id);   // remote_direct.cpp, to forget_direct()
    bool send_direct(RemoteSession::State& session, std::span<const std::byte> args, std::uint32_t op);   // false: not this one
    bool turn_direct(std::uint64_t now);             // receives and sends again; true: something was answered
    void direct_answered(RemoteSession::State& session, const DirectAnswer& answer, std::span<const std::byte> bytes);
    void move_direct(RemoteSession::State& session);
    void moved_answered(RemoteSession::State& session, const CallAnswer& answer);
    void forget_direct(RemoteSession::State& session) noexcept;
    std::uint64_t queue_call(RemoteSession::State& session, std::span<const std::byte> head, std::span<const std::byte> args, std::uint32_t op);
    [[nodiscard]] int fd() const noexcept { return stream != nullptr ? stream->fd() : udp.fd(); }
    [[nodiscard]] static std::uint64_t clock() noexcept;
    std::uint64_t send_call(RemoteSession::State& session, std::span<const std::byte> args, std::uint32_t op);

    // `whose`: the session whose call is waited for. `patient`: never spins (a long transfer leaves the core to whoever needs it between two acknowledgements).
    // Waits, working, until `done()` (under the mutex, which `lock` holds). False: `until` has come. Throws peer_died or closed.
    template <class Done>
    bool wait(std::unique_lock<std::mutex>& lock, std::uint64_t until, const char* what, Done&& done, bool patient = false,
              const RemoteSession::State* whose = nullptr) {
        struct Here {
            std::atomic<int>& count;
            explicit Here(std::atomic<int>& of) : count(of) { count.fetch_add(1, std::memory_order_relaxed); }
            ~Here() { count.fetch_sub(1, std::memory_order_relaxed); }
        } here(callers);
        const std::uint64_t start = clock();
        std::uint64_t now = start;
        unsigned rounds = 0;
        for (bool slept = false;;) {
            pump(now);
            if (done()) break;
            check_alive(what);
            now = clock();
            if (now >= until) return false;
            if ((!patient && now - start < spin.budget_ns()) || slept) {
                slept = false;
                if (now - start > polite_ns && (++rounds & 7) == 0) give_way();  // the duck may be on this machine, and wait for this core
                if (callers.load(std::memory_order_relaxed) > 1) {
                    lock.unlock();
                    cpu_relax();
                    lock.lock();
                }
                continue;
            }
            const std::uint64_t timer = std::min(until, next_timer());
            const int also = whose != nullptr && whose->path != nullptr && whose->path->out() ? whose->path->fd() : -1;
            lock.unlock();
            sleep(timer, also);
            lock.lock();
            now = clock();
            slept = true;
        }
        const std::uint64_t end = clock();
        if (!patient) spin.learn(end - start);
        last_call.store(end, std::memory_order_relaxed);
        return true;
    }

    void item(ItemKind kind, std::uint64_t id, std::span<const std::byte> bytes) override;
    void answered(const AnswerHead& head, std::span<const std::byte> bytes) override;

    RemoteOptions options;
    std::string address;
    UdpSocket udp;
    std::unique_ptr<Stream> stream;  // null: UDP
    SpinBudget spin;
    std::atomic<int> callers{0};     // relaxed: a hint to the keeper and to each other
    std::atomic<std::uint64_t> last_call{0};
    std::atomic<bool> dead{false}, stopping{false};
    int wake = -1;                   // eventfd of the keeper
    std::thread keeper;

    mutable std::mutex mutex;        // guards all below
    std::optional<Connection> connection;
    std::vector<std::byte> in, out;
    HeldPackets held;                // what the socket did not take
    std::unordered_map<std::uint32_t, std::shared_ptr<RemoteSession::State>> sessions;
    RemoteSession::State* last_session = nullptr;
    unsigned calls_out = 0;            // over the connection
    std::vector<RemoteSession::State*> direct_out;   // with a direct call under way
    std::uint64_t main_at = 0;         // while only those are out, the connection is looked at then;
    std::uint64_t heart_at = 0;        // and at the latest then, even if all answers come at once
    std::uint64_t due = 0;           // before that, and while nothing comes, there is nothing to do
    std::uint64_t next_ask = ~0ULL, next_message = 1, refused_at = 0, refused_seen = 0;
    bool closed = false;             // by us
    struct Reply {
        bool here = false;
        std::vector<std::byte> bytes;
    };
    std::unordered_map<std::uint64_t, Reply> replies;   // by message
    struct Put {
        BlobState state{};           // answer 0: none yet
        Ranges there;
    };
    std::unordered_map<std::uint64_t, Put> puts;        // by transfer
    RemoteFigures figures{};
};

}  // namespace teal::duck
