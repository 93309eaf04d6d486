// Policies made of policies: requests go to parts by model, session or priority, and workers are given to the parts by rank and share.
//
//     composite:by=model,part.fast=shinjuku,part.bulk=fifo,fast.quantum=50us,rank.fast=1,share.bulk=2,to.bert=fast,else=bulk
//
//   part.NAME=POLICY      a part; NAME.SETTING=VALUE then sets it up
//   to.KEY=NAME           what goes there: a model, a session, or ("by=priority") every priority of KEY and more
//   else=NAME             where the rest goes; the first part unless said
//   rank.NAME=NUMBER      a part of a higher rank goes first, always; 0 unless said
//   share.NAME=WEIGHT     parts of one rank share the workers' time by weight; 1 unless said
//   quantum=TIME          what runs leaves its worker after that time for a part that should go first (50us; 0: never)
//
// Theory of operation. Each part sees its own requests and all workers, and knows nothing of the others. Here is kept which part a request
// went to, how many wait in each part, and each part's tag: the virtual time it has used, as in fair.cpp.
#include <algorithm>
#include <limits>

#include "agents/policies/make.hpp"
#include "agents/policies/queue.hpp"
#include "agents/policies/settings.hpp"
#include "base/error.hpp"

namespace teal {
namespace {

constexpr std::size_t most_parts = 32;

struct Part {
    std::string name;
    std::unique_ptr<Policy> policy;
    std::int64_t rank = 0;
    std::uint64_t share = 1000;   // thousandths
    std::uint64_t tag = 0;
    std::uint64_t now = 0;        // tag that was last picked in its rank
    std::uint64_t usual = 0;      // ns that its last run took
    std::uint32_t waiting = 0;
    std::uint32_t free = 0;       // … that any worker may run
};

struct Book {                     // of a request, by record
    std::uint32_t part = 0;       // plus 1
    std::uint8_t waits = 0;       // 1: for any worker, 2: bound to one
    bool picked = false;
    std::uint64_t guess = 0;      // virtual time that its part was charged
    std::uint64_t ran = 0;        // ran_ns when it was picked
};

class Composite final : public Policy {
public:
    void on_new(PolicyRequest& request, std::uint64_t now) override {
        Book& book = reach(books_, request.index);
        book = {};
        book.part = route(request) + 1;
        mark(request);
        part_of(request).on_new(request, now);
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        mark(request);
        part_of(request).on_runnable(request, now);
    }
    void on_blocked(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        unmark(request);
        part_of(request).on_blocked(request, now);
    }
    void on_yield(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        mark(request);
        part_of(request).on_yield(request, now);
    }
    void on_preempt(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        mark(request);
        part_of(request).on_preempt(request, now);
    }
    void on_done(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        unmark(request);
        part_of(request).on_done(request, now);
    }
    void on_departed(PolicyRequest& request, std::uint64_t now) override {
        settle(request);
        unmark(request);
        part_of(request).on_departed(request, now);
    }
    void on_priority(PolicyRequest& request, std::int32_t before, std::uint64_t now) override {
        part_of(request).on_priority(request, before, now);
        if (by_ != By::priority || route(request) + 1 == books_[request.index].part) return;
        settle(request);
        unmark(request);
        part_of(request).on_departed(request, now);
        on_new(request, now);
    }
    void on_affinity(PolicyRequest& request, std::uint64_t now) override { mark(request), part_of(request).on_affinity(request, now); }
    void on_latch_failure(PolicyRequest& request, Outcome outcome, std::uint64_t now) override {
        settle(request);
        mark(request);
        part_of(request).on_latch_failure(request, outcome, now);
    }
    void on_worker_available(PolicyWorker& worker, std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_worker_available(worker, now);
    }
    void on_worker_busy(PolicyWorker& worker, std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_worker_busy(worker, now);
    }
    void on_worker_gone(PolicyWorker& worker, std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_worker_gone(worker, now);
    }
    void on_tick(std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_tick(now);
    }
    void on_timer(std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_timer(now);
    }
    void on_wakeup(std::uint64_t now) override {
        for (Part& part : parts_) part.policy->on_wakeup(now);
    }

    Decision pick(PolicyWorker& worker, std::uint64_t now) override {
        std::uint32_t asked = 0;  // a bit for each part
        for (;;) {
            Part* const part = first(asked);
            if (part == nullptr) return {};
            asked |= 1u << (part - parts_.data());
            Decision decision = part->policy->pick(worker, now);
            if (decision.request == nullptr) continue;
            charge(*part, *decision.request);
            return decision;
        }
    }
    bool preempt(const PolicyWorker& worker, std::uint64_t now) override {
        if (worker.running == nullptr || worker.running->index >= books_.size() || books_[worker.running->index].part == 0) return false;
        const Part& runs = parts_[books_[worker.running->index].part - 1];
        if (runs.policy->preempt(worker, now)) return true;
        if (quantum_ == 0 || now < worker.since_ns + quantum_) return false;
        for (const Part& part : parts_)
            if (&part != &runs && part.free > 0 && before(part, runs)) return true;
        return false;
    }
    std::uint64_t timer_ns(std::uint64_t now) override {
        std::uint64_t soonest = 0;
        for (Part& part : parts_)
            if (const std::uint64_t at = part.policy->timer_ns(now); at != 0 && (soonest == 0 || at < soonest)) soonest = at;
        return soonest;
    }
    bool has_work() const override {
        return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.waiting > 0; });
    }
    bool moves() const override {
        return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.policy->moves(); });
    }
    unsigned depth() const override {
        if (parts_.empty()) return 1;
        unsigned least = parts_.empty() ? 1 : stage_depth;
        for (const Part& part : parts_) least = std::min(least, part.policy->depth());
        return least;
    }
    bool work_conserving() const override {
        return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.policy->work_conserving(); });
    }

    void on_name(Named kind, std::uint16_t index, std::string_view name) override {
        to_[kind == Named::session].name(index, name);
        for (Part& part : parts_) part.policy->on_name(kind, index, name);
        names_.push_back({kind, index, std::string(name)});
    }
    bool set(std::string_view name, std::string_view value) override;
    PolicySettings settings() const override;
    std::string_view name() const override { return "composite"; }
    std::string dump() const override {
        std::string text;
        for (const Part& part : parts_) text += (text.empty() ? "" : "; ") + part.name + ": " + part.policy->dump();
        return text;
    }

private:
    enum class By : std::uint8_t { model, session, priority };
    struct Name {
        Named kind;
        std::uint16_t index;
        std::string name;
    };

    Policy& part_of(const PolicyRequest& request) { return *parts_[books_[request.index].part - 1].policy; }

    std::uint32_t route(const PolicyRequest& request) {
        if (parts_.empty()) add("all", "fifo");  // nothing was said
        std::uint32_t part = UINT32_MAX;
        if (by_ == By::priority) {
            for (const auto& [least, to] : from_priority_)
                if (request.priority >= least) part = to;
        } else {
            part = by_ == By::model ? to_[0][request.model] : to_[1][request.session];
        }
        return part < parts_.size() ? part : rest_;
    }

    // It waits in its part, unless it does not.
    void mark(PolicyRequest& request) {
        unmark(request);
        if (!request.runnable || request.staged) return;
        Book& book = books_[request.index];
        Part& part = parts_[book.part - 1];
        if (part.waiting == 0) part.tag = std::max(part.tag, part.now);
        book.waits = request.worker == no_object ? 1 : 2;
        ++part.waiting;
        if (book.waits == 1) ++part.free;
    }
    void unmark(PolicyRequest& request) {
        Book& book = books_[request.index];
        Part& part = parts_[book.part - 1];
        if (book.waits != 0) --part.waiting;
        if (book.waits == 1) --part.free;
        book.waits = 0;
    }

    void charge(Part& part, PolicyRequest& request) {
        unmark(request);
        Book& book = books_[request.index];
        std::uint64_t guess = request.expected_ns > request.ran_ns ? request.expected_ns - request.ran_ns : part.usual;
        if (guess == 0) guess = 1'000;
        if (quantum_ != 0 && guess > quantum_) guess = quantum_;
        book.guess = guess * 1000 / part.share;
        book.ran = request.ran_ns;
        book.picked = true;
        for (Part& each : parts_)
            if (each.rank == part.rank) each.now = std::max(each.now, part.tag);
        part.tag += book.guess;
    }
    void settle(PolicyRequest& request) {
        Book& book = books_[request.index];
        if (!book.picked) return;
        book.picked = false;
        Part& part = parts_[book.part - 1];
        const std::uint64_t took = request.ran_ns > book.ran ? request.ran_ns - book.ran : 0;
        if (took > 0) part.usual = took;
        const std::uint64_t tag = part.tag + took * 1000 / part.share;
        part.tag = tag > book.guess ? tag - book.guess : 0;
    }

    // Which part goes first: rank, then tag. Equal: neither.
    static bool before(const Part& a, const Part& b) { return a.rank != b.rank ? a.rank > b.rank : a.tag < b.tag; }
    Part* first(std::uint32_t asked) {
        Part* best = nullptr;
        for (std::size_t i = 0; i < parts_.size(); ++i)
            if ((asked & 1u << i) == 0 && parts_[i].waiting > 0 && (best == nullptr || before(parts_[i], *best))) best = &parts_[i];
        return best;
    }

    void add(std::string_view name, std::string_view policy);
    Part* find(std::string_view name) {
        for (Part& part : parts_)
            if (part.name == name) return &part;
        return nullptr;
    }
    std::uint32_t find_or_throw(std::string_view setting, std::string_view name);

    By by_ = By::model;
    std::uint64_t quantum_ = 50'000;
    std::vector<Part> parts_;
    std::uint32_t rest_ = 0;                                                // the part for what no "to" speaks of
    PerName<std::uint32_t> to_[2] = {PerName<std::uint32_t>{UINT32_MAX}, PerName<std::uint32_t>{UINT32_MAX}};  // of models, of sessions
    std::vector<std::pair<std::int64_t, std::uint32_t>> from_priority_;     // ascending
    std::vector<Name> names_;                                               // told so far: for parts that come later
    std::vector<Book> books_;
};

void Composite::add(std::string_view name, std::string_view policy) {
    if (Part* const part = find(name); part != nullptr && part->policy->name() == policy) return;  // said again
    constexpr std::string_view words[] = {"part", "to", "rank", "share"};  // settings of our own
    const bool taken = find(name) != nullptr || std::find(std::begin(words), std::end(words), name) != std::end(words);
    if (taken || name.find('.') != std::string_view::npos || parts_.size() == most_parts)
        throw Error(Code::invalid_argument, "part." + std::string(name.substr(0, 80)) + ": expected a name that is not taken, without '.', of at most " +
                                                std::to_string(most_parts) + " parts");
    std::unique_ptr<Policy> made = make_policy(policy);
    if (made == nullptr)
        throw Error(Code::invalid_argument, "part." + std::string(name) + "='" + std::string(policy.substr(0, 80)) + "': expected a shipped policy");
    for (const Name& each : names_) made->on_name(each.kind, each.index, each.name);
    Part& part = parts_.emplace_back();
    part.name = name;
    part.policy = std::move(made);
}

std::uint32_t Composite::find_or_throw(std::string_view setting, std::string_view name) {
    Part* const part = find(name);
    if (part != nullptr) return static_cast<std::uint32_t>(part - parts_.data());
    throw Error(Code::invalid_argument, std::string(setting) + "='" + std::string(name.substr(0, 80)) + "': expected a part; give part.NAME=POLICY before it");
}

bool Composite::set(std::string_view name, std::string_view value) {
    const auto [setting, of] = split_setting(name);
    if (name == "by") {
        if (value != "model" && value != "session" && value != "priority")
            throw Error(Code::invalid_argument, "by='" + std::string(value.substr(0, 80)) + "': expected model, session or priority");
        by_ = value == "model" ? By::model : value == "session" ? By::session : By::priority;
    } else if (name == "quantum") {
        quantum_ = value == "0" ? 0 : parse_time(name, value, 1'000);
    } else if (name == "else") {
        rest_ = find_or_throw(name, value);
    } else if (of.empty()) {
        return false;
    } else if (setting == "part") {
        add(of, value);
    } else if (setting == "rank") {
        parts_[find_or_throw("rank", of)].rank = parse_whole(name, value, -1'000'000, 1'000'000);
    } else if (setting == "share") {
        parts_[find_or_throw("share", of)].share = parse_weight(name, value);
    } else if (setting == "to") {
        const std::uint32_t part = find_or_throw(name, value);
        if (by_ != By::priority) {
            for (auto& each : to_) each.set(of, part);
            return true;
        }
        const std::int64_t least = parse_whole("to", of, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max());
        std::erase_if(from_priority_, [least](const auto& each) { return each.first == least; });
        from_priority_.emplace_back(least, part);
        std::sort(from_priority_.begin(), from_priority_.end());
    } else {
        Part* const part = find(setting);
        if (part == nullptr) return false;
        set_or_throw(*part->policy, of, value);
    }
    return true;
}

PolicySettings Composite::settings() const {
    PolicySettings all{{"by", by_ == By::model ? "model" : by_ == By::session ? "session" : "priority"}, {"quantum", show_time(quantum_)}};
    for (const Part& part : parts_) all.emplace_back("part." + part.name, part.policy->name());
    for (const Part& part : parts_) {
        all.emplace_back("rank." + part.name, std::to_string(part.rank));
        all.emplace_back("share." + part.name, show_weight(part.share));
        for (const auto& [name, value] : part.policy->settings()) all.emplace_back(part.name + "." + name, value);
    }
    for (const auto& [name, part] : to_[0].said()) all.emplace_back("to." + name, parts_[part].name);
    for (const auto& [least, part] : from_priority_) all.emplace_back("to." + std::to_string(least), parts_[part].name);
    if (!parts_.empty()) all.emplace_back("else", parts_[rest_].name);
    return all;
}

}  // namespace

std::unique_ptr<Policy> make_composite() { return std::make_unique<Composite>(); }

}  // namespace teal
