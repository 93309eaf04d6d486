// Tells asyncio (or any callback) that a request has ended: one thread a session, none until somebody awaits.
//
// Theory of operation: the thread sleeps on the completion words of all awaited slots at once (futex_waitv) and on a word
// of its own that add() bumps. It also ends requests whose deadline passes and notices a dead host, exactly as a
// waiting caller would.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host/client.hpp"

namespace teal {

class Notifier {
public:
    explicit Notifier(std::shared_ptr<ClientSession> session);
    ~Notifier();

    // `done` is called once, on the notifier's thread, when the request has ended, its host is gone or stop() was called.
    // After stop(): at once, on the caller's.
    void add(std::shared_ptr<ClientSlot> slot, std::uint64_t deadline_ns, std::function<void()> done);
    void stop();

private:
    struct Entry {
        std::shared_ptr<ClientSlot> slot;
        std::uint64_t deadline_ns;
        std::function<void()> done;
        bool counted = false;  // in the line's `waiting`
    };
    void loop();
    bool settle(Entry& entry, bool host_gone);
    static void tell(Entry& entry);

    std::shared_ptr<ClientSession> session_;
    std::mutex mutex_;            // guards arriving_ and thread_
    std::vector<Entry> arriving_;
    std::thread thread_;
    int pid_ = 0;                 // of the process that has the thread
    std::atomic<std::uint32_t> bell_{0};
    std::atomic<bool> stopping_{false};
    std::vector<Entry> entries_;  // the thread's own
};

}  // namespace teal
