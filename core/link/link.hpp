// An emulated link between a pool's host and an agent that sits behind PCIe or CXL, after Wave's: what each access would cost there.
//
// Theory of operation. Both sides really share memory; a Link adds what the wire would. In the machine that is emulated the
// messages and the desk lie in the memory of the agent's card, as Wave's queues do: the agent's own accesses are local and free, the host's
// go over the link. Status words lie in the host's memory, as nobody reads them but an agent that lost track: it fetches them by DMA.
//   - What the host pays it pays here and now: the charge_… functions spin for the stated time on the tick clock, in the thread that would
//     stall. A delay is never shorter than asked; how much longer it is `teal link measure` prints.
//   - What the other side sees it sees late, by time stamps: a message from its `when` + one way on (is_visible()); a decision when a
//     read that reached the card after it was staged has come back, which is the same rule applied to the end of the read; a kick from
//     its sending + end to end on.
//   - A prefetch is a read whose time passes while the host does something else. What it brings is what was there when it was made: a
//     decision staged later is not in it, and costs a read of its own.
// `shm` has no Link: a null pointer, one test on the host's path. With tricks switched off it has one whose figures are all 0.
//
// How the seat uses it (host side; each function takes a Link* that may be null):
//   messages                   gather those that go out together (tricks().batching; else one by one), charge_write() for the lot,
//                              stamp them with what it returned, then write them to the ring: so nothing is seen before it is paid.
//   a slot on the desk         prefetch() for the slot that comes next, as early as it is known to be needed (before a run);
//                              seen = read_slot(); it is there only if it is ready and is_visible(staged, seen).
//   outcome                    a word written to the card: part of the next charge_write(). The compare-and-swap of a claim is emulated
//                              as a posted write to the same line, as Wave's commits are.
//   a worker woken by a bell   receive_kick(sent).
// Agent side: is_visible(when, now) before a message is taken; send_kick() before a bell is rung; fetch() before it reads all status words;
// everything else is free.
//
// One Link a process and thread: its counters and prefetches are not shared. Not a model of congestion or of an IOMMU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cpu/clock.hpp"
#include "queue/wait.hpp"

namespace teal {

enum class LinkKind : std::uint32_t { shm = 0, pcie, cxl };

// How a side waits for the other: `poll` never sleeps; `nap` spins and then sleeps a moment; `sleep` waits for a kick at once;
// `load` goes from one to the other by how soon something came the last times.
enum class Polling : std::uint8_t { load = 0, poll, nap, sleep };

// Nanoseconds.
struct LinkFigures {
    std::uint32_t read = 0;             // one load: 8 bytes uncached, a line with `prefetch` (write-through mapping) or cxl
    std::uint32_t write = 0;            // one store that is not combined: 8 bytes; cxl: a line
    std::uint32_t line = 0;             // 64 combined bytes
    std::uint32_t flush = 0;            // fence after combined writes
    std::uint32_t one_way = 0;          // from a write, or to a read, until the other side has it
    std::uint32_t kick_send = 0;        // sender's own time
    std::uint32_t kick_receive = 0;     // receiver's own time
    std::uint32_t kick = 0;             // end to end, both included
    std::uint32_t dma_setup = 0;        // host's own time
    std::uint32_t dma_per_kib = 0;      // on the wire
};

struct LinkTricks {
    bool write_combining = true;
    bool prefetch = true;
    bool batching = true;               // what is told within one hold of the role goes out together
    bool pre_staging = true;            // decisions lie ready before a worker asks; off: one at a time, for a worker that waits
    bool coalescing = true;             // ends wait for other news, or for `coalesce` of them
    bool dma = true;                    // the cheaper path by size; off: never DMA
    Polling polling = Polling::load;
    std::uint32_t coalesce = 2;         // most ends that wait (1–64)
};

struct LinkSpec {
    LinkKind kind = LinkKind::shm;
    LinkFigures figures;
    LinkTricks tricks;

    // "pcie", "cxl", "shm", with settings after a colon: "pcie:read=900ns,line=40ns,prefetch=off,polling=sleep". tricks=off and tricks=on
    // switch all at once but polling, which is a level (what follows overrules). one_way is half a read unless given. Throws Error(invalid_argument) with what was expected.
    static LinkSpec parse(std::string_view text);
    static LinkSpec of(LinkKind kind) noexcept;        // its defaults
    [[nodiscard]] std::string text() const;            // parse() gives the same again
    [[nodiscard]] bool is_plain_shm() const;  // nothing to emulate and every trick on: no Link needed
};
std::string_view link_kind_name(LinkKind kind) noexcept;
std::string_view polling_name(Polling polling) noexcept;

struct LinkCounts {
    std::uint64_t reads = 0;            // charged in full
    std::uint64_t writes = 0;           // groups
    std::uint64_t lines = 0;            // in these
    std::uint64_t by_dma = 0;           // groups that went by DMA
    std::uint64_t prefetches = 0;
    std::uint64_t hits = 0;             // the prefetch was there when it was needed …
    std::uint64_t late = 0;             // … or on its way
    std::uint64_t misses = 0;           // a slot that was not prefetched
    std::uint64_t kicks_sent = 0;
    std::uint64_t kicks_received = 0;
    std::uint64_t charged = 0;          // ticks spent on all of it
};

class Link {
public:
    static constexpr std::uint32_t most_workers = 64;
    // How time passes, for a virtual clock; null: the real one.
    struct Clock {
        std::uint64_t (*now)(void* context) = nullptr;
        void (*pass)(void* context, std::uint64_t until) = nullptr;
        void* context = nullptr;
    };

    explicit Link(const LinkSpec& spec) : Link(spec, Clock()) {}
    Link(const LinkSpec& spec, Clock clock);

    [[nodiscard]] const LinkSpec& spec() const noexcept { return spec_; }
    [[nodiscard]] const LinkTricks& tricks() const noexcept { return spec_.tricks; }
    [[nodiscard]] const LinkCounts& counts() const noexcept { return counts_; }
    [[nodiscard]] std::uint64_t now() const noexcept { return clock_.now == nullptr ? ticks() : clock_.now(clock_.context); }

    // ---- host ----
    // Pays for one group of writes, `lines` lines of 64 bytes of which `bytes` are written, and its flush. Returns the ticks that are to be
    // its `when`: by DMA it leaves later than it was paid for.
    std::uint64_t charge_write(std::uint32_t bytes, std::uint32_t lines) noexcept {
        const std::uint64_t stores = write_cost(bytes, lines);
        ++counts_.writes;
        counts_.lines += lines;
        if (spec_.tricks.dma && dma_setup_ < stores) {
            ++counts_.by_dma;
            return charge(dma_setup_) + (bytes * dma_per_kib_ + 1023) / 1024;
        }
        return charge(stores);
    }
    // Pays for a read of `bytes`. Returns the ticks at which it ended: what is_visible() is to be asked for.
    std::uint64_t charge_read(std::uint32_t bytes) noexcept {
        ++counts_.reads;
        const std::uint64_t start = now();
        const std::uint64_t there = start + read_cost(bytes);
        pass_until(start, there);
        return there;  // a load does not wait for a thread that lost its core meanwhile: it brings what was there then
    }
    // Asks for the slot of transaction `serial` of a worker ahead of time. Without the trick: nothing. One a worker is on its way at a
    // time: another serial takes its place, the same one keeps the first.
    void prefetch(std::uint32_t worker, std::uint32_t serial, std::uint64_t now) noexcept {
        if (!spec_.tricks.prefetch || worker >= most_workers) return;
        Prefetch& ahead = prefetches_[worker];
        if (ahead.issued != 0 && ahead.serial == serial) return;
        ahead = {now | 1, serial};
        ++counts_.prefetches;
    }
    // Pays for a look at the slot: nothing if it was prefetched and is there, the remainder if it is on its way, else a read: of its line, or
    // of its first word (charge_rest_of_slot() then, when that says ready). Returns when the read ended: for the slot as it was then. The
    // prefetch is used up: a second look is a new read.
    std::uint64_t read_slot(std::uint32_t worker, std::uint32_t serial) noexcept {
        if (is_ahead(worker, serial)) {
            const std::uint64_t there = prefetches_[worker].issued + read_cost(slot_bytes);
            prefetches_[worker].issued = 0;
            const std::uint64_t start = now();
            ++(static_cast<std::int64_t>(start - there) >= 0 ? counts_.hits : counts_.late);
            pass_until(start, there);
            return there;
        }
        ++counts_.misses;
        return charge_read(reads_lines() ? slot_bytes : 8);
    }
    [[nodiscard]] bool is_ahead(std::uint32_t worker, std::uint32_t serial) const noexcept {
        return worker < most_workers && prefetches_[worker].issued != 0 && prefetches_[worker].serial == serial;
    }
    // Of a slot that is not read as a line: what is left of it after its first word was.
    void charge_rest_of_slot() noexcept {
        if (!reads_lines()) charge((slot_bytes / 8 - 1) * read_);
    }
    // What was prefetched is worth nothing any more: its worker died.
    void forget(std::uint32_t worker) noexcept {
        if (worker < most_workers) prefetches_[worker].issued = 0;
    }
    // A worker was woken by a kick sent at `sent` (0: not known). Returns once it could have been, and has paid for it. `sent` may come
    // from the agent: a lie makes it wait two kicks at most.
    void receive_kick(std::uint64_t sent) noexcept {
        const std::uint64_t start = now();
        std::uint64_t until = start + kick_receive_;
        // Twice a kick at most: clocks of two cores are a little apart, and a read of one passes loads before it.
        const std::uint64_t left = sent + kick_ - start;
        if (sent != 0 && left <= 2 * kick_ && left > kick_receive_) until = start + left;
        ++counts_.kicks_received;
        pass_until(start, until);
    }

    // ---- both ----
    // Has what was written (or staged) at `when` reached the other side at `at`?
    [[nodiscard]] bool is_visible(std::uint64_t when, std::uint64_t at) const noexcept {
        return static_cast<std::int64_t>(at - when) >= static_cast<std::int64_t>(one_way_);
    }
    // When a kick sent at `sent` has its effect; for what looks at a word instead of sleeping.
    [[nodiscard]] bool has_arrived(std::uint64_t sent, std::uint64_t at) const noexcept {
        return static_cast<std::int64_t>(at - sent) >= static_cast<std::int64_t>(kick_);
    }
    // Agent: `bytes` of the host's memory are fetched by DMA.
    void fetch(std::uint64_t bytes) noexcept { charge(dma_setup_ + 2 * one_way_ + bytes * dma_per_kib_ / 1024); }
    // Pays for sending a kick.
    void send_kick() noexcept {
        ++counts_.kicks_sent;
        charge(kick_send_);
    }

    // What each costs, ticks.
    [[nodiscard]] std::uint64_t write_cost(std::uint32_t bytes, std::uint32_t lines) const noexcept {
        if (spec_.tricks.write_combining) return lines * line_ + flush_;
        return (spec_.kind == LinkKind::cxl ? lines : (bytes + 7) / 8) * write_;
    }
    [[nodiscard]] std::uint64_t read_cost(std::uint32_t bytes) const noexcept {
        return (reads_lines() ? (bytes + 63) / 64 : (bytes + 7) / 8) * read_;
    }
    // Write-through mapped, or coherent: a load brings its whole line.
    [[nodiscard]] bool reads_lines() const noexcept { return spec_.kind == LinkKind::cxl || spec_.tricks.prefetch; }
    [[nodiscard]] std::uint64_t one_way() const noexcept { return one_way_; }

private:
    static constexpr std::uint32_t slot_bytes = 64;
    struct Prefetch {
        std::uint64_t issued = 0;  // ticks; 0: none
        std::uint32_t serial = 0;
    };

    // Returns when it was over: at `start + cost`, or later.
    std::uint64_t charge(std::uint64_t cost) noexcept {
        const std::uint64_t start = now();
        return cost == 0 ? start : pass_until(start, start + cost);
    }
    std::uint64_t pass_until(std::uint64_t start, std::uint64_t until) noexcept {
        if (static_cast<std::int64_t>(until - start) <= 0) return start;
        std::uint64_t seen = start;
        if (clock_.pass != nullptr) {
            clock_.pass(clock_.context, until);
            seen = until;
        }
        // No pause: it is as long as the shortest of these delays.
        while (static_cast<std::int64_t>(until - seen) > 0) seen = ticks();
        counts_.charged += seen - start;
        return seen;
    }

    LinkSpec spec_;
    Clock clock_;
    std::uint64_t read_, write_, line_, flush_, one_way_, kick_send_, kick_receive_, kick_, dma_setup_, dma_per_kib_;  // ticks
    Prefetch prefetches_[most_workers];
    LinkCounts counts_;
};

// Null for plain shm.
std::unique_ptr<Link> make_link(const LinkSpec& spec, Link::Clock clock = {});

// ---- with a link that may not be there -----------------------------------------------------------------------------------------

// The ticks that a group of messages is to be stamped with.
inline std::uint64_t charge_write(Link* link, std::uint32_t bytes, std::uint32_t lines) noexcept {
    return link == nullptr ? ticks() : link->charge_write(bytes, lines);
}
inline void prefetch(Link* link, std::uint32_t worker, std::uint32_t serial, std::uint64_t now) noexcept {
    if (link != nullptr) link->prefetch(worker, serial, now);
}
// 0 without a link: is_visible() then asks for nothing.
inline std::uint64_t read_slot(Link* link, std::uint32_t worker, std::uint32_t serial) noexcept {
    return link == nullptr ? 0 : link->read_slot(worker, serial);
}
inline void charge_rest_of_slot(Link* link) noexcept {
    if (link != nullptr) link->charge_rest_of_slot();
}
inline void fetch(Link* link, std::uint64_t bytes) noexcept {
    if (link != nullptr) link->fetch(bytes);
}
inline bool is_visible(const Link* link, std::uint64_t when, std::uint64_t at) noexcept { return link == nullptr || link->is_visible(when, at); }
inline void receive_kick(Link* link, std::uint64_t sent) noexcept {
    if (link != nullptr) link->receive_kick(sent);
}
inline void send_kick(Link* link) noexcept {
    if (link != nullptr) link->send_kick();
}
inline bool batches(const Link* link) noexcept { return link == nullptr || link->tricks().batching; }
inline bool stages_ahead(const Link* link) noexcept { return link == nullptr || link->tricks().pre_staging; }
// How many ends may wait for other news. One without a link: there a message costs less than what it saves.
inline std::uint32_t most_held_ends(const Link* link) noexcept {
    if (link == nullptr) return 1;
    return link->tricks().coalescing ? link->tricks().coalesce : 1;
}

}  // namespace teal
