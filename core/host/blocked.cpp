// Pool: requests that wait for the ends of others, or for events (AfterLine).
//
// Theory of operation: a blocked record is queued as all are, but its index lies in `blocked` and not in the run queue. Whoever
// holds the role looks at some of them in each drain(): those whose ends have come go to the run queue, those whose client ended them,
// or that waited for what did not end well, are ended on the spot. Nothing is kept of how far a record has got: its ends are words in
// the session, looked at anew each time, so a death loses nothing (repair() puts such records back in here).
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/clock.hpp"
#include "host/hot.hpp"
#include "host/pool.hpp"
#include "host/words.hpp"

namespace teal {
namespace {

constexpr unsigned longest_look = 64;   // blocked records looked at in one drain()
constexpr unsigned longest_turn = 16;   // of which so many go on
constexpr std::int64_t look_every_ns = 100'000;

std::uint64_t look_every() noexcept {
    static const std::uint64_t value = ns_to_ticks(look_every_ns);
    return value;
}

enum class Came { not_yet, well, badly, in_vain };

// Have all the ends come? Badly: at least one did otherwise than done; `which` says whose. In vain: the client has ended the request
// that waits.
Came came(const SessionMap& map, const RequestEntry& entry, const AfterLine& after, std::uint32_t& which) noexcept {
    if (entry.slot < map.layout.slots && is_past(map.lines()[entry.slot].word.load(std::memory_order_relaxed), entry.generation)) return Came::in_vain;
    Came found = Came::well;
    const std::uint32_t count = after.count <= max_after ? after.count : max_after;  // may be read without the role: a torn copy leads nowhere
    for (std::uint32_t i = 0; i < count; ++i) {
        if (after.on[i].slot >= map.layout.slots) return Came::not_yet;
        // SYNC: acquire pairs with end_request() and ClientSession::signal(): what was written before is seen by the kernel that runs next.
        const std::uint64_t word = map.lines()[after.on[i].slot].word.load(std::memory_order_acquire);
        if (!is_past(word, after.on[i].generation)) {
            if (found != Came::badly) found = Came::not_yet;
        } else if (has_ended(word, after.on[i].generation) && state_of(word) != State::done) {
            found = Came::badly;
            which = after.on[i].slot;
        }
    }
    return found;
}

SessionMap* map_of(std::span<SessionMap* const> live, const Record& record) noexcept {
    for (SessionMap* map : live)
        if (map->index == record.session && map->epoch == record.epoch) return map;
    return nullptr;
}

bool names(const AfterLine& after, std::uint32_t slot, std::uint32_t generation) noexcept {
    for (std::uint32_t i = 0; i < after.count && i < max_after; ++i)
        if (after.on[i].slot == slot && ((after.on[i].generation ^ generation) & generation_mask) == 0) return true;
    return false;
}

}  // namespace

// The client's words about what a request waits for, copied once and checked.
bool Pool::read_after(const SessionMap& map, const RequestEntry& entry, std::uint32_t slots, AfterLine& copy) noexcept {
    std::memcpy(&copy, &map.afters()[entry.slot], sizeof copy);
    if (copy.count == 0 || copy.count > max_after) return false;
    for (std::uint32_t i = 0; i < copy.count; ++i)
        if (copy.on[i].slot >= slots || copy.on[i].slot == entry.slot) return false;
    return true;
}

bool Pool::is_parked(std::uint32_t version_line) const noexcept {
    return version_line < max_versions &&
           static_cast<VersionState>(memory_->versions[version_line].state.load(std::memory_order_relaxed)) == VersionState::parked;
}

void Pool::block(std::uint32_t index) noexcept {
    poke(memory_->blocked[memory_->header.blocked_size], index);
    poke(memory_->header.blocked_size, memory_->header.blocked_size + 1);
    SessionLine& line = memory_->sessions[memory_->records[index].session];
    poke(line.blocked, static_cast<std::uint16_t>(line.blocked + 1));
    look_again();  // what it waits for may have come
}

// Of one whose version is parked, and that had its turn. Waiting is no credit: how far that was behind virtual time is what counts.
void Pool::stop_clock(Record& record) const noexcept {
    const std::uint64_t now = memory_->header.virtual_time;
    record.tag = record.tag > now ? record.tag - now : 0;
}

// Of one that can run from now on. It had no turn while it waited, or a client could let a thousand loose that all come before anybody else's.
void Pool::start_clock(std::uint32_t index) noexcept {
    Record& record = memory_->records[index];
    SessionLine& line = memory_->sessions[record.session];
    if (record.charge == 0) {
        if (line.epoch == record.epoch) deal_turn(index);
        return;
    }
    const std::uint64_t behind = record.tag;
    slip(record);  // what its session slipped meanwhile is not added to that
    record.tag = behind + memory_->header.virtual_time;
    if (line.epoch == record.epoch) line.finish = std::max(line.finish, record.tag + record.charge);
}

void Pool::uncount_blocked(const Record& record) noexcept {
    SessionLine& line = memory_->sessions[record.session];
    if (line.blocked > 0) poke(line.blocked, static_cast<std::uint16_t>(line.blocked - 1));
}

// Those in [from, to) are blocked no more. The others stay in their order, which is that in which they came.
void Pool::close_gap(std::uint32_t from, std::uint32_t to) noexcept {
    std::uint32_t* blocked = memory_->blocked;
    const std::uint32_t size = memory_->header.blocked_size;
    if (from == to) return;
    while (to < size) poke(blocked[from++], blocked[to++]);
    poke(memory_->header.blocked_size, from);
}

void Pool::look_again() noexcept { look_.left.store(peek_at(memory_->header.blocked_size), std::memory_order_relaxed); }

// A number that changes with every end in a session that has blocked records.
std::uint32_t Pool::ends_of(std::span<SessionMap* const> live) const noexcept {
    std::uint32_t sum = 0;
    for (const SessionMap* map : live) {
        const SessionLine& line = memory_->sessions[map->index];
        if (peek_at(line.blocked) == 0) continue;
        // SYNC: acquire pairs with ClientSession::cancel(): the word that it ended is seen by the look that this begins.
        sum += peek_at(line.ended) + map->header()->ends.load(std::memory_order_acquire);
    }
    return sum;
}

bool Pool::look_due(std::span<SessionMap* const> live) const noexcept {
    if (peek_at(memory_->header.blocked_size) == 0) return false;
    if (look_.left.load(std::memory_order_relaxed) > 0 || ends_of(live) != look_.ends.load(std::memory_order_relaxed)) return true;
    return ticks() - look_.began.load(std::memory_order_relaxed) > look_every();
}

// Does a request wait for this one that was taken before it? So a client speaks that makes requests wait for each other in a circle.
bool Pool::awaited_already(std::uint32_t session, const RequestEntry& entry) const noexcept {
    for (std::uint32_t i = 0; i < memory_->header.blocked_size; ++i) {
        const std::uint32_t index = memory_->blocked[i];
        if (memory_->records[index].session == session && names(memory_->afters[index], entry.slot, entry.generation)) return true;
    }
    return false;
}

bool Pool::is_awaited(std::uint32_t session, std::uint32_t slot, std::uint32_t generation) const noexcept {
    for (std::uint32_t i = 0; i < record_count; ++i) {
        const Record& record = memory_->records[i];
        if (record.session != session || record.epoch != memory_->sessions[session].epoch || (record.entry.flags & entry_after) == 0) continue;
        const State state = state_of_record(record);
        if ((state == State::queued || state == State::running) && names(memory_->afters[i], slot, generation)) return true;
    }
    return false;
}

bool Pool::copy_blocked(std::uint32_t i, Record& record, AfterLine& after) const noexcept {
    if (i >= memory_->header.blocked_size) return false;
    const Record& blocked = memory_->records[memory_->blocked[i]];
    record.session = blocked.session;
    record.epoch = blocked.epoch;
    record.entry = blocked.entry;
    record.version_line = blocked.version_line;
    after = memory_->afters[memory_->blocked[i]];
    return true;
}

void Pool::unblock(std::span<SessionMap* const> live) noexcept {
    std::uint32_t* blocked = memory_->blocked;
    PoolHeader& header = memory_->header;
    std::uint32_t i = header.next_blocked < header.blocked_size ? header.next_blocked : 0;
    std::uint32_t left = std::min(look_.left.load(std::memory_order_relaxed), header.blocked_size);
    if (left == 0) {
        look_.began.store(ticks(), std::memory_order_relaxed);
        look_.ends.store(ends_of(live), std::memory_order_relaxed);
        left = header.blocked_size;
        i = 0;
        look_.found = false;
    }
    std::uint32_t kept = i;
    for (unsigned looked = 0, moved = 0; looked < longest_look && moved < longest_turn && left > 0 && i < header.blocked_size; ++looked, --left) {
        const std::uint32_t index = blocked[i];
        Record& record = memory_->records[index];
        SessionMap* map = map_of(live, record);
        const bool waits = state_of_record(record) == State::queued;
        std::uint32_t which = 0;
        Came found = !waits ? Came::in_vain : map == nullptr ? Came::not_yet : came(*map, record.entry, memory_->afters[index], which);
        if (found == Came::well && is_parked(record.version_line)) {
            wanted_.set(record.version_line);
            found = Came::not_yet;
        }
        if (found == Came::not_yet) {
            poke(blocked[kept++], index);
            ++i;
            continue;
        }
        // What it waited for came during this look, maybe, and others that wait for the same were passed by: those came before it.
        if (!std::exchange(look_.found, true) && i > 0) {
            left = header.blocked_size + 1;
            i = kept = 0;
            continue;
        }
        if (waits && found != Came::well) {
            // The client first, as in pick().
            if (found == Came::badly) end_queued(index, map, State::cancelled, Reason::dependency, which);
            else end_queued(index, map, State::cancelled, Reason::client_cancelled);
            end_record(index, State::cancelled);
        }
        uncount_blocked(record);
        ++i;
        ++moved;
        if (found == Came::well) {
            start_clock(index);
            enqueue(index);
        } else {
            give_back({&index, 1});
        }
    }
    close_gap(kept, i);
    look_.left.store(left, std::memory_order_relaxed);
    header.next_blocked = kept;
}

bool Pool::after_ready(std::span<SessionMap* const> live) const noexcept {
    const std::uint32_t size = peek_at(memory_->header.blocked_size);
    for (std::uint32_t i = 0; i < size && i < record_count; ++i) {
        const std::uint32_t index = peek_at(memory_->blocked[i]);
        if (index >= record_count) continue;
        std::uint32_t which = 0;
        const SessionMap* map = map_of(live, memory_->records[index]);
        if (map == nullptr) continue;
        const Came found = came(*map, memory_->records[index].entry, memory_->afters[index], which);
        if (found != Came::not_yet && (found != Came::well || !is_parked(peek_at(memory_->records[index].version_line)))) return true;
    }
    return false;
}

TEAL_HOT bool Pool::wanted_ready(std::span<SessionMap* const> live, const std::bitset<max_versions>& told) const noexcept {
    const std::uint32_t size = peek_at(memory_->header.blocked_size);
    for (std::uint32_t i = 0; i < size && i < record_count; ++i) {
        const std::uint32_t index = peek_at(memory_->blocked[i]);
        if (index >= record_count) continue;
        const std::uint32_t line = peek_at(memory_->records[index].version_line);
        if (!is_parked(line) || told.test(line)) continue;
        std::uint32_t which = 0;
        const SessionMap* map = map_of(live, memory_->records[index]);
        if (map != nullptr && came(*map, memory_->records[index].entry, memory_->afters[index], which) == Came::well) return true;
    }
    return false;
}

}  // namespace teal
