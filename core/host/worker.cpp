#include "host/worker.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <unistd.h>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "host/bpf_session.hpp"
#include "host/hot.hpp"

namespace teal {
namespace {

constexpr std::uint64_t long_run_ns = 20'000;          // worth the 2–4 µs it takes to wake another worker
constexpr std::uint64_t nap_ns = 500'000'000;          // bound of one sleep
constexpr std::uint64_t crowded_nap_ns = 1'000'000;    // when there are more doorbells than one futex_waitv takes
constexpr std::uint64_t map_patience_ns = 2'000'000'000;
constexpr std::uint32_t most_ahead = 32;               // requests that wait for others looked at before a wait

std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(monotonic_ns()); }

std::uint32_t epoch_of(const SessionLine& line) noexcept { return __atomic_load_n(&line.epoch, __ATOMIC_RELAXED); }

}  // namespace

Worker::Worker(std::shared_ptr<Pool> pool, std::uint32_t index, std::optional<Lender> lender)
    : pool_(std::move(pool)), index_(index), lender_(std::move(lender)), line_(pool_->memory().workers[index]), spin_(pool_->memory().header.idle_ns),
      maps_(max_sessions, nullptr), sessions_(max_sessions), kernels_(max_versions) {
    line_.record.store(nobody, std::memory_order_relaxed);
    line_.run_started.store(0, std::memory_order_relaxed);
    line_.sleeping.store(0, std::memory_order_relaxed);
    line_.pid.store(static_cast<std::uint32_t>(::getpid()), std::memory_order_relaxed);
    std::atomic<std::uint32_t>& end = pool_->memory().header.worker_end;
    std::uint32_t seen = end.load(std::memory_order_relaxed);
    // Before this worker is ever idle (seq_cst store in run()), so that who looks for an idle one looks this far.
    while (seen <= index && !end.compare_exchange_weak(seen, index + 1, std::memory_order_seq_cst)) {}
    line_.state.store(static_cast<std::uint32_t>(WorkerState::starting), std::memory_order_release);
    finished_.reserve(64);
    ran_ns_.reserve(64);
}

Worker::~Worker() = default;

void Worker::post(std::function<void(Worker&)> news) {
    {
        const std::lock_guard lock(inbox_mutex_);
        inbox_.push_back(std::move(news));
    }
    // SYNC: seq_cst pairs with the load in work_ready() after `sleeping` was set (via wake_worker()).
    news_.store(true, std::memory_order_seq_cst);
    pool_->wake_worker(index_);
}

void Worker::add_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint32_t granted) {
    if (index >= max_sessions) throw Error(Code::invalid_argument, "session index " + std::to_string(index) + " out of range");
    std::shared_ptr<SessionMap> map = map_session(fd, index, epoch, slots, Header::ignored);
    map->owned.resize(granted);
    map->views.resize(granted);
    post_session(std::move(map));
}

void Worker::add_bpf_session(int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t bytes) {
    if (index >= max_sessions) throw Error(Code::invalid_argument, "session index " + std::to_string(index) + " out of range");
    std::shared_ptr<SessionMap> map = map_bpf_session(fd, index, epoch, slots, bytes);
    map->session->close_fd();
    post_session(std::move(map));
}

void Worker::post_session(std::shared_ptr<SessionMap> map) {
    post([map = std::move(map)](Worker& w) {
        auto session = std::make_unique<Session>();
        session->map = std::make_unique<SessionMap>(*map);
        session->slots.resize(map->layout.slots);
        w.maps_[map->index] = session->map.get();
        w.sessions_[map->index] = std::move(session);
        w.list_live();
    });
}

void Worker::add_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id, int fd) {
    auto region = Region::adopt(fd, RegionKind::tensor, true, Header::ignored);
    region->close_fd();
    post([=](Worker& w) {
        SessionMap* map = session < max_sessions ? w.maps_[session] : nullptr;
        if (map != nullptr && map->epoch == epoch) map->set_region(id, region);
    });
}

void Worker::drop_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id) {
    post([=](Worker& w) {
        w.when_unused([=](const Begun& begun) { return begun.session->map->index == session && begun.session->map->epoch == epoch && uses(*begun.slot, id); },
                      [=](Worker& worker) { worker.forget_region(session, epoch, id); });
    });
}

bool Worker::uses(const Slot& slot, std::uint32_t region) noexcept {
    if (slot.region == region) return true;
    for (const auto* list : {&slot.descriptor.inputs, &slot.descriptor.outputs})
        for (const TensorDesc& tensor : *list)
            if ((tensor.flags & tensor_absent) == 0 && tensor.region == region) return true;
    return false;
}

void Worker::forget_region(std::uint32_t session, std::uint32_t epoch, std::uint32_t id) {
    Session* owner = session < max_sessions ? sessions_[session].get() : nullptr;
    if (owner != nullptr && owner->map->epoch == epoch) {
        for (Slot& slot : owner->slots)  // a binding holds addresses inside the region
            if (uses(slot, id)) slot = Slot{};
        owner->map->set_region(id, nullptr);  // also one that never came: nobody waits for it any more
    }
    if (on_dropped) on_dropped("region", session, id);
}

void Worker::drop_session(std::uint32_t session, std::uint32_t epoch) {
    post([=](Worker& w) {
        // execute() reads the inbox too when it has to wait for a mapping: not under its feet.
        if (w.serving_ != nobody) w.leaving_.emplace_back(session, epoch);
        else w.forget_session(session, epoch);
    });
}

void Worker::forget_session(std::uint32_t session, std::uint32_t epoch) {
    when_unused([=](const Begun& begun) { return begun.session->map->index == session && begun.session->map->epoch == epoch; }, [=](Worker& w) {
        if (session < max_sessions && w.sessions_[session] && w.sessions_[session]->map->epoch == epoch) {
            w.maps_[session] = nullptr;
            w.list_live();
            w.sessions_[session].reset();
        }
        if (w.on_dropped) w.on_dropped("session", session, epoch);
    });
}

void Worker::set_kernel(std::uint32_t version_line, std::uint32_t generation, std::shared_ptr<Kernel> kernel) {
    post([=](Worker& w) {
        if (version_line >= max_versions) return;
        w.kernels_[version_line] = {generation, kernel};
        if (w.lender_) w.pool_->set_held(w.index_, version_line, true);
        w.told_wanted_.reset(version_line);
    });
}

void Worker::drop_kernel(std::uint32_t version_line, std::uint32_t generation) {
    post([=](Worker& w) {
        w.when_unused([=](const Begun& begun) { return begun.version_line == version_line; }, [=](Worker& worker) {
            if (version_line < max_versions) worker.told_wanted_.reset(version_line);
            if (version_line < max_versions && worker.kernels_[version_line].generation == generation) {
                if (worker.lender_) worker.pool_->set_held(worker.index_, version_line, false);
                worker.drop_bindings(version_line);
                worker.gatherings_.drop(version_line);
                worker.kernels_[version_line] = {};
            }
            if (worker.on_dropped) worker.on_dropped("kernel", version_line, generation);
        });
    });
}

void Worker::unbind(std::uint32_t version_line, std::uint32_t generation) {
    post([=](Worker& w) {
        if (version_line < max_versions && w.kernels_[version_line].generation == generation) w.drop_bindings(version_line);
        if (w.on_dropped) w.on_dropped("bindings", version_line, generation);
    });
}

void Worker::drop_bindings(std::uint32_t version_line) {
    for (auto& session : sessions_)
        if (session)
            for (Slot& slot : session->slots) {
                if (slot.version_line != version_line) continue;
                if (slot.begun) slot.generation = 0;  // bound anew when it is called again
                else slot = Slot{};
            }
}

void Worker::list_live() {
    live_.clear();
    for (SessionMap* map : maps_)
        if (map != nullptr) live_.push_back(map);
    core_ = 0;  // a session that is new has not been shown it
}

// Where we run, to those who wait for us: relaxed, an old place costs its reader a yield or some patience.
TEAL_HOT void Worker::show_core() noexcept {
    const std::uint8_t core = core_mark();
    if (core == core_) return;
    core_ = core;
    for (SessionMap* map : live_) map->header()->worker_cores[index_ % max_core_marks].store(core, std::memory_order_relaxed);
}

void Worker::add_seat(int view_fd, int desk_fd, std::shared_ptr<Link> link) {
    std::shared_ptr<HostSeat> seat = HostSeat::attach(view_fd, desk_fd);
    seat->set_link(std::move(link));
    post([seat = std::move(seat)](Worker& w) {
        if (!w.pool_->enter(map_patience_ns)) return;
        w.pool_->add_seat(seat);
        w.refresh_seat();
        w.pool_->leave();
        --w.seats_seen_;  // so that the next take() says that this worker is here
    });
}

void Worker::decide_inline(std::shared_ptr<Policy> policy) {
    post([policy = std::move(policy)](Worker& w) {
        if (!w.pool_->enter(map_patience_ns)) return;
        w.pool_->decide_inline(policy, w.index_);
        w.pool_->leave();
    });
}

void Worker::drop_seat(std::uint32_t seat, std::uint32_t incarnation) {
    post([=](Worker& w) {
        if (!w.pool_->enter(map_patience_ns)) return;
        w.pool_->drop_seat(seat, incarnation);
        w.refresh_seat();
        w.pool_->leave();
        if (w.on_dropped) w.on_dropped("seat", seat, incarnation);
    });
}

void Worker::set_trace(std::shared_ptr<Trace> trace) {
    post([trace = std::move(trace)](Worker& w) {
        if (!w.pool_->enter(map_patience_ns)) return;
        w.pool_->set_trace(trace);
        w.pool_->leave();
        if (trace == nullptr && w.on_dropped) w.on_dropped("trace", 0, 0);
    });
}

// Under the role.
void Worker::refresh_seat() {
    seats_seen_ = pool_->seats_changed();
    seat_ = pool_->seated() ? pool_->seat_for(index_) : nullptr;
    watch_asks();
}

void Worker::quit() {
    post([](Worker& w) { w.quit_ = true; });
}

void Worker::apply_inbox() {
    // Once: news that come while these are applied wait for one request more, or an endless stream of them would starve all.
    if (!news_.exchange(false, std::memory_order_acquire)) return;
    std::vector<std::function<void(Worker&)>> inbox;
    {
        const std::lock_guard lock(inbox_mutex_);
        inbox.swap(inbox_);
    }
    for (auto& news : inbox) news(*this);
}

// Is there something to do? Cheap, for whoever asks again and again.
TEAL_HOT bool Worker::work_due() const noexcept { return pool_->work_due(live_) || own_work_due(); }

// Asked by whoever is about to sleep: all that is blocked is looked at.
bool Worker::work_ready() const noexcept {
    const bool ready = pool_->work_ready(live_) || (!lender_ && pool_->wanted_ready(live_, told_wanted_));
    if (ready) pool_->look_again();
    return ready || (!lender_ && own_work_due());
}

// What concerns this worker alone, and a lent one not at all.
TEAL_HOT bool Worker::own_work_due() const noexcept {
    if (goes_on_by_itself()) return true;
    if (line_.latched.load(std::memory_order_relaxed) != 0 || pool_->seats_changed() != seats_seen_) return true;
    return seat_ != nullptr && seat_->staged(index_);
}

void Worker::run() {
    line_.state.store(static_cast<std::uint32_t>(lender_ ? WorkerState::barred : WorkerState::idle), std::memory_order_seq_cst);
    while (!quit_) {
        if (news_.load(std::memory_order_relaxed)) apply_inbox();
        if (quit_) break;
        if (!suspended_.empty()) shed();
        if (!postponed_.empty()) retry_postponed();
        const std::uint32_t record = lender_ ? take_for_others() : take();
        if (record != nobody && company_.empty()) execute(record);
        else if (record != nobody) execute_together(record);
        else if (lender_) wait_for_others();
        else if (!prepare_ahead()) wait();
        if (!leaving_.empty()) {
            for (const auto& [session, epoch] : leaving_) forget_session(session, epoch);
            leaving_.clear();
        }
    }
    while (!suspended_.empty()) drop(take_suspended(suspended_.size() - 1), Reason::host_stopping);
    preemptor_.reset();  // it is this thread's
    give_up_role();
    if (lender_) lender_->loans->give_back(lender_->worker, line_.pid.load(std::memory_order_relaxed));
    line_.state.store(static_cast<std::uint32_t>(WorkerState::starting), std::memory_order_seq_cst);
    std::uint32_t me = index_ + 1;
    if (leading_ && pool_->memory().header.leader.compare_exchange_strong(me, 0)) pool_->promote(index_);
}

// Under the role.
TEAL_HOT void Worker::give_back_finished() noexcept {
    for (std::size_t i = 0; i < finished_.size(); ++i)
        if (ran_ns_[i] != 0) pool_->charge_run(finished_[i], ran_ns_[i]);
    pool_->give_back(finished_);
    finished_.clear();
    ran_ns_.clear();
}

// The end of the loop: what it has finished goes back, and nothing is to be decided for it any more.
void Worker::give_up_role() noexcept {
    const bool latched = line_.latched.load(std::memory_order_relaxed) != 0;
    if ((finished_.empty() && !latched && !pool_->seated()) || !pool_->enter(map_patience_ns)) return;
    give_back_finished();
    pool_->return_latched(index_);
    pool_->tell_worker(index_, false);
    pool_->leave();
}

TEAL_HOT std::uint32_t Worker::take() {
    if (finished_.empty() && !work_due()) return nobody;
    if (seat_ != nullptr) seat_->prefetch(index_);
    if (!pool_->enter(map_patience_ns)) return nobody;
    if (pool_->seats_changed() != seats_seen_) [[unlikely]] refresh_seat();
    if (!finished_.empty()) give_back_finished();
    pool_->drain_to_pick(live_);
    const std::uint32_t record = pool_->pick(index_, maps_, resumable());
    company_.clear();
    if (record != nobody && pool_->memory().header.batch > 1) pool_->gather(record, maps_, company_);
    const bool more = pool_->queued() > 0;
    const std::bitset<max_versions> wanted = pool_->take_wanted();
    pool_->leave();
    tell_wanted(wanted);
    if (record == nobody) return record;
    PoolMemory& memory = pool_->memory();
    const std::uint32_t expected = memory.versions[memory.records[record].version_line].run_ns.load(std::memory_order_relaxed);
    if (!leading_) {
        // SYNC: seq_cst pairs with promote(): who resigns stores leader 0, then looks for an idle worker; we store
        // `running`, then load the leader below. Either it passes us by or we look for another one ourselves.
        line_.state.store(static_cast<std::uint32_t>(WorkerState::running), std::memory_order_seq_cst);
        if (more || memory.header.leader.load(std::memory_order_seq_cst) == 0) pool_->promote(index_);
    } else if (more || expected > long_run_ns) {
        // Somebody else watches the rings while this runs; if all are busy, whoever finishes first does.
        line_.state.store(static_cast<std::uint32_t>(WorkerState::running), std::memory_order_seq_cst);  // a lent worker looks at it
        resign();
        pool_->promote(index_);
    }
    return record;
}

// Once for each time that a version is parked.
void Worker::tell_wanted(std::bitset<max_versions> wanted) {
    wanted &= ~told_wanted_;
    if (wanted.none()) return;
    told_wanted_ |= wanted;
    for (std::uint32_t line = 0; line < max_versions; ++line)
        if (wanted.test(line) && on_dropped) on_dropped("wanted", line, pool_->memory().versions[line].generation);
}

TEAL_HOT void Worker::wait() {
    show_core();
    PoolHeader& header = pool_->memory().header;
    const std::uint64_t idle = __atomic_load_n(&header.idle_ns, __ATOMIC_RELAXED);
    if (idle != spin_.ceiling_ns()) spin_.set_ceiling(idle);
    const std::uint32_t wake_seen = line_.wake.load(std::memory_order_seq_cst);
    leading_ = take_lead();
    line_.state.store(static_cast<std::uint32_t>(leading_ ? WorkerState::leading : WorkerState::idle), std::memory_order_seq_cst);
    const auto stir = [&] {
        return news_.load(std::memory_order_relaxed) || line_.wake.load(std::memory_order_relaxed) != wake_seen || work_due();
    };
    wait_began_ = leading_ || seat_ != nullptr ? ticks() : 0;
    if (leading_) {
        if (!spin_for(spin_.budget_ns(), stir)) sleep_leading(wake_seen);
    } else if (seat_ != nullptr) {  // its next decision comes to itself, not to the leader
        if (!spin_for(spin_.budget_ns(), stir) && header.leader.load(std::memory_order_seq_cst) != 0) sleep_following(wake_seen);
    } else if (!stir() && header.leader.load(std::memory_order_seq_cst) != 0) {
        // SYNC: seq_cst: we stored `idle`, then load the leader; who resigns stores leader 0, then looks for idle ones.
        sleep_following(wake_seen);
    }
}

// From nobody, or from a lent worker: what it sleeps at wakes both of us until it finds that it leads no more. True: we lead.
bool Worker::take_lead() noexcept {
    std::atomic<std::uint32_t>& lead = pool_->memory().header.leader;
    std::uint32_t leader = lead.load(std::memory_order_seq_cst);
    while (leader == 0 || (leader != index_ + 1 && pool_->is_lent(leader - 1)))
        if (lead.compare_exchange_weak(leader, index_ + 1, std::memory_order_seq_cst)) return true;
    return leader == index_ + 1;
}

void Worker::sleep_leading(std::uint32_t wake_seen) {
    FutexWaiter waiters[max_futex_waiters];
    unsigned count = 0;
    bool crowded = false;
    line_.sleeping.store(1, std::memory_order_seq_cst);
    waiters[count++] = {&line_.wake, wake_seen};
    if (seat_ != nullptr) {
        waiters[count] = {seat_->bell(index_), seat_->bell(index_)->load(std::memory_order_seq_cst)};
        ++count;
        seat_->set_asleep(index_, true);
    }
    for (SessionMap* map : live_) {
        SessionHeader* header = map->header();
        // The bell first: a client that takes need_wake down after we put it up must find us waiting for the old value.
        const std::uint32_t bell = header->doorbell.load(std::memory_order_seq_cst);
        // SYNC: pairs with the exchange in ClientSession::ring_doorbell(): it publishes, then exchanges; we exchange, then look
        // at the rings.
        header->need_wake.exchange(1, std::memory_order_acq_rel);
        if (map->no_futex) continue;  // its bell wakes us by another session's
        if (count == max_futex_waiters) crowded = true;
        else waiters[count++] = {&header->doorbell, bell};
    }
    if (!work_ready() && !news_.load(std::memory_order_seq_cst)) {
        line_.sleeps.fetch_add(1, std::memory_order_relaxed);
        std::uint64_t until = now_ns() + (crowded ? crowded_nap_ns : nap_ns);
        if (const std::uint64_t due = pool_->next_due_ns(); due != 0) until = std::min(until, due);
        if (!futex_wait_any(waiters, count, until)) futex_wait(&line_.wake, wake_seen, now_ns() + crowded_nap_ns);
    }
    if (seat_ != nullptr) seat_->woken(index_);
    line_.sleeping.store(0, std::memory_order_relaxed);
}

void Worker::sleep_following(std::uint32_t wake_seen) {
    FutexWaiter waiters[2] = {{&line_.wake, wake_seen}, {}};
    unsigned count = 1;
    line_.sleeping.store(1, std::memory_order_seq_cst);
    if (seat_ != nullptr) {
        waiters[count++] = {seat_->bell(index_), seat_->bell(index_)->load(std::memory_order_seq_cst)};
        seat_->set_asleep(index_, true);
    }
    // SYNC: seq_cst pairs with wake_worker(): it bumps `wake`, then loads `sleeping`.
    if (line_.wake.load(std::memory_order_seq_cst) == wake_seen && !news_.load(std::memory_order_seq_cst) && (seat_ == nullptr || !seat_->staged(index_))) {
        line_.sleeps.fetch_add(1, std::memory_order_relaxed);
        if (count == 1) futex_wait(&line_.wake, wake_seen, now_ns() + nap_ns);
        else if (!futex_wait_any(waiters, count, now_ns() + nap_ns)) futex_wait(&line_.wake, wake_seen, now_ns() + crowded_nap_ns);
    }
    if (seat_ != nullptr) seat_->woken(index_);
    line_.sleeping.store(0, std::memory_order_relaxed);
}

TEAL_HOT Worker::Session* Worker::session_of(const Record& record) {
    const SessionLine& line = pool_->memory().sessions[record.session];
    std::uint64_t until = 0;  // no look at the clock unless we have to wait
    for (;;) {
        Session* session = sessions_[record.session].get();
        if (session != nullptr && session->map->epoch == record.epoch) return session;
        // The host posts a session to every worker before it tells the client; the news is on its way, unless
        // the session is closing already.
        const std::uint64_t now = now_ns();
        if (until == 0) until = now + map_patience_ns;
        if (epoch_of(line) != record.epoch || now > until) return nullptr;
        const timespec nap{0, 50'000};
        ::nanosleep(&nap, nullptr);
        apply_inbox();
    }
}

// Copies and checks the slot's descriptor block.
bool Worker::read(Session& session, Slot& slot, const Record& record, const AfterLine& after, Run& run, Ending& ending) {
    const RequestEntry& entry = record.entry;
    SessionMap& map = *session.map;
    if (news_.load(std::memory_order_relaxed)) apply_inbox();  // the version may have become current this instant
    // Regions that the host granted but that have not reached us yet are on their way.
    const std::uint64_t until = now_ns() + map_patience_ns;
    const SessionLine& line = pool_->memory().sessions[record.session];
    while (map.views.size() < line.granted.load(std::memory_order_acquire) && epoch_of(line) == record.epoch && now_ns() < until) {
        const timespec nap{0, 50'000};
        ::nanosleep(&nap, nullptr);
        apply_inbox();
    }
    slot = Slot{};
    slot.version_line = record.version_line;
    ending.state = State::failed;
    ending.reason = Reason::invalid;
    slot.offset = join(entry.offset_low, entry.offset_high);
    slot.region = entry.region;
    if (!read_descriptor(map.views, entry.region, slot.offset, slot.descriptor, run.message)) return false;
    run.descriptor = &slot.descriptor;
    slot.stamp = entry.stamp;
    slot.known = slot.chain.read(slot.descriptor, after.count, run.message);
    return slot.known;
}

// Whom a record waited for; of one that waited for nobody the line says what an earlier one's did.
TEAL_HOT const AfterLine& Worker::after_of(std::uint32_t index) const noexcept {
    static constexpr AfterLine nobodys{};
    const PoolMemory& memory = pool_->memory();
    return (memory.records[index].entry.flags & entry_after) != 0 ? memory.afters[index] : nobodys;
}

TEAL_HOT bool Worker::is_known(const Slot& slot, const Record& record) noexcept {
    const RequestEntry& entry = record.entry;
    return slot.known && slot.stamp == entry.stamp && slot.region == entry.region && slot.offset == join(entry.offset_low, entry.offset_high) &&
           slot.version_line == record.version_line;
}

// Has the kernel prepare for the slot's tensors as they are known now.
void Worker::bind(Session& session, Slot& slot, const Record& record, Run& run, Ending& ending) {
    const RequestEntry& entry = record.entry;
    SessionMap& map = *session.map;
    slot.binding.reset();
    ending.state = State::failed;
    const Loaded& loaded = kernels_[record.version_line];
    const VersionLine& version = pool_->memory().versions[record.version_line];
    if (!loaded.kernel || loaded.generation != version.generation) {
        run.message = "this worker does not hold the version (any more)";
        ending.reason = Reason::not_found;
        return;
    }
    ending.reason = Reason::invalid;
    const std::uint32_t current = pool_->memory().models[version.model].current.load(std::memory_order_acquire);
    const SlotPlace place{map.session, record.session, entry.stamp, index_ + 1, map.layout.devices + std::uint64_t{entry.slot} * sizeof(DeviceLine),
                          slot.chain.empty() && (entry.version != 0 || current == record.version_line + 1)};
    run.place = &place;
    slot.binding = loaded.kernel->bind(run, run.message);
    run.place = nullptr;
    if (!slot.binding) return;
    slot.generation = loaded.generation;
    pool_->memory().versions[record.version_line].bindings.fetch_add(1, std::memory_order_relaxed);
    ending.state = State::done;
    ending.reason = Reason::none;
}

TEAL_HOT Worker::Slot* Worker::prepared(Session& session, const Record& record, const AfterLine& after, Run& run, Ending& ending) {
    const RequestEntry& entry = record.entry;
    Slot& slot = session.slots[entry.slot];
    if (slot.begun) [[unlikely]] {  // its client has called again before the worker let go of it
        ending.state = State::failed;
        ending.reason = Reason::invalid;
        return nullptr;
    }
    // A slot that was read ahead is not read again below; what it lacked (a parked version that is back) may lie in the inbox.
    if (slot.binding == nullptr && news_.load(std::memory_order_relaxed)) apply_inbox();
    const bool same = is_known(slot, record);
    const std::uint64_t began = same ? 0 : ticks();
    run.regions = &session.map->views;
    run.owners = &session.map->owned;
    run.descriptor = &slot.descriptor;
    if (!same && !read(session, slot, record, after, run, ending)) return nullptr;
    bool bound = slot.binding != nullptr && slot.generation == pool_->memory().versions[record.version_line].generation;
    if (!slot.chain.empty()) {
        const Chain::Found found = slot.chain.follow(*session.map, after, slot.descriptor, false, fetch_spill, run.message);
        if (found == Chain::Found::wrong || found == Chain::Found::unknown) {
            slot.binding.reset();
            ending.state = State::failed;
            ending.reason = Reason::invalid;
            return nullptr;
        }
        bound = bound && found == Chain::Found::same;
        if (slot.chain.spilled()) {
            run.regions = &slot.chain.views();
            run.owners = &slot.chain.owners();
        }
        run.chained = true;
    }
    if (!bound) {
        const std::uint64_t from = began != 0 ? began : ticks();
        bind(session, slot, record, run, ending);
        run.prepare_ticks = ticks() - from;
    }
    return slot.binding != nullptr ? &slot : nullptr;
}

// While nothing can run: what waits for others is bound to their outputs as they were planned, so that it begins as soon as they end.
// True when that took time.
bool Worker::prepare_ahead() {
    const std::uint32_t& blocked = pool_->memory().header.blocked_size;
    for (std::uint32_t i = 0; i < most_ahead && i < __atomic_load_n(&blocked, __ATOMIC_RELAXED); ++i) {
        Record record{};
        AfterLine after{};
        if (news_.load(std::memory_order_relaxed) || work_due() || !pool_->try_enter()) return false;
        const bool found = pool_->copy_blocked(i, record, after) && (record.entry.flags & entry_after) != 0;
        pool_->leave();
        if (found && prepare_one(record, after)) return true;
    }
    return false;
}

bool Worker::prepare_one(const Record& record, const AfterLine& after) {
    Session* session = sessions_[record.session].get();
    if (session == nullptr || session->map->epoch != record.epoch || record.entry.slot >= session->slots.size()) return false;
    Slot& slot = session->slots[record.entry.slot];
    if (slot.begun) return false;
    if (slot.stamp == record.entry.stamp && slot.version_line == record.version_line) return false;  // as far as can be
    serving_ = record.session;
    Run run;
    run.regions = &session->map->views;
    run.owners = &session->map->owned;
    Ending ending;
    if (read(*session, slot, record, after, run, ending)) {
        const Chain::Found found = slot.chain.follow(*session->map, after, slot.descriptor, true, nullptr, run.message);
        if (found == Chain::Found::same || found == Chain::Found::changed) bind(*session, slot, record, run, ending);
    }
    slot.stamp = record.entry.stamp;  // also of what could not be: not again for each look
    serving_ = nobody;
    return true;
}

// A request of a session that never reached this worker: without its memory there is no one to tell. The sweeper, which has
// the session, ends it.
void Worker::abandon(std::uint32_t index) {
    serving_ = nobody;
    line_.record.store(nobody, std::memory_order_relaxed);
    if (!pool_->enter(map_patience_ns)) return;
    pool_->memory().records[index].worker = nobody;
    pool_->leave();
}

}  // namespace teal
