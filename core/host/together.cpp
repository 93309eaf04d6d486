// The worker's way with requests that run together (host/worker.hpp, host/batch.hpp).
//
// Theory of operation: all of them are this worker's by now, and each ends by itself. Those whose tensors go together are gathered, run
// once and scattered; the others, and all of them when that run fails, run one by one, as if they had come alone. So a request that a
// kernel cannot stand ends nobody's but itself.
#include <algorithm>
#include <cstring>

#include "cpu/clock.hpp"
#include "host/worker.hpp"

namespace teal {

void Worker::execute_together(std::uint32_t first) {
    company_.insert(company_.begin(), first);
    line_.record.store(first, std::memory_order_relaxed);
    serving_ = pool_->memory().records[first].session;
    std::vector<Member> members;
    std::vector<std::uint32_t> alone;
    members.reserve(company_.size());
    for (const std::uint32_t index : company_) {
        Member member;
        member.record = index;
        if (take_part(member)) members.push_back(std::move(member));
        else alone.push_back(index);
    }
    company_.clear();
    while (!members.empty()) {
        // What was read first may have gone with a region since.
        std::vector<Member> group;
        std::vector<Member> others;
        std::int64_t rows = 0;
        const Descriptor* like = nullptr;
        for (Member& member : members) {
            const Record& record = pool_->memory().records[member.record];
            const Slot& slot = member.session->slots[record.entry.slot];
            if (!is_known(slot, record)) alone.push_back(member.record);
            else if (like != nullptr && (rows + member.rows > static_cast<std::int64_t>(pool_->memory().header.batch) || !go_together(*like, slot.descriptor)))
                others.push_back(std::move(member));
            else {
                like = &slot.descriptor;
                rows += member.rows;
                group.push_back(std::move(member));
            }
        }
        members.swap(others);
        if (group.size() < 2 || !run_together(group))
            for (const Member& member : group) alone.push_back(member.record);
    }
    for (const std::uint32_t index : alone) execute(index);
    serving_ = nobody;
}

// Reads where the request's tensors are. False: it runs alone, and hears what is wrong with it then.
bool Worker::take_part(Member& member) {
    const Record& record = pool_->memory().records[member.record];
    member.session = session_of(record);
    if (member.session == nullptr) return false;
    Slot& slot = member.session->slots[record.entry.slot];
    if (slot.begun) return false;
    const AfterLine& after = after_of(member.record);
    Run& run = member.run;
    Ending unused;
    if (!is_known(slot, record) && !read(*member.session, slot, record, after, run, unused)) return false;
    if (!slot.chain.empty()) {
        const Chain::Found found = slot.chain.follow(*member.session->map, after, slot.descriptor, false, nullptr, run.message);
        if (found == Chain::Found::changed) slot.binding.reset();
        if (found != Chain::Found::same && found != Chain::Found::changed) return false;
        run.chained = true;
    }
    run.message.clear();
    run.regions = &member.session->map->views;
    run.owners = &member.session->map->owned;
    run.descriptor = &slot.descriptor;
    member.rows = rows_of(slot.descriptor);
    return member.rows > 0 && member.rows <= static_cast<std::int64_t>(pool_->memory().header.batch);
}

// All of them go together. False: nothing has happened to them.
bool Worker::run_together(std::vector<Member>& members) {
    PoolMemory& memory = pool_->memory();
    const std::uint32_t version_line = memory.records[members[0].record].version_line;
    VersionLine& version = memory.versions[version_line];
    const Loaded& loaded = kernels_[version_line];
    if (!loaded.kernel || loaded.generation != version.generation) return false;
    Together* together = gatherings_.find(version_line, loaded.generation, *members[0].run.descriptor, memory.header.batch);
    if (together == nullptr) return false;
    std::int64_t rows = 0;
    for (const Member& member : members) rows += member.rows;
    std::string error;
    Together::Bound* bound = together->bind(*loaded.kernel, rows, error);
    if (bound == nullptr) return false;
    std::int64_t at = 0;
    const std::uint64_t began = ticks();
    for (Member& member : members) {
        member.run.bytes_in += together->gather(member.run, at, member.run.copies_in);
        at += member.rows;
    }
    Run run;
    together->attach(run, *bound);
    run.record = nobody;
    run.started = ticks();
    const std::uint64_t gathered = run.started;
    line_.run_started.store(run.started, std::memory_order_relaxed);
    const bool ok = bound->binding->run(run);
    const std::uint64_t ended = ticks();
    line_.run_started.store(0, std::memory_order_relaxed);
    if (!ok || run.reshaped || run.handed_over) {
        for (Member& member : members) member.run = Run{};
        return false;
    }
    version.batches.fetch_add(1, std::memory_order_relaxed);
    version.batched.fetch_add(members.size(), std::memory_order_relaxed);
    members[0].run.copies_out += run.copies_out;  // the kernel's own
    members[0].run.bytes_out += run.bytes_out;
    at = 0;
    for (Member& member : members) {
        const std::uint64_t start = ticks();
        member.run.bytes_out += together->scatter(member.run, at, member.run.copies_out);
        at += member.rows;
        member.run.copy_ticks = (gathered - began) / members.size() + ticks() - start;
        member.run.path = bound->binding->path;
        member.ending.started = run.started;
        member.ending.ended = ended;
        finish(member.record, member.session, member.run, member.ending, false, members.size());
    }
    return true;
}

}  // namespace teal
