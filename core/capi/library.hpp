// What liblaika is to its process: one connection, its memory, models and calls in flight.
//
// Theory of operation: there is one Library, made by the first laika_init and never destroyed, so that a thread which comes too late
// finds a state and not freed memory. A forked child abandons it where it is (its mutexes may be held by threads that do not exist
// there) and makes another. A blocking call pins its model's entry: one atomic add, so that an unload or finalize can wait until
// nobody is inside. Everything else holds `life_` shared while it runs; finalize first makes all waits end (the session is
// closed, the socket shut down), then takes `life_` alone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "capi/control.hpp"
#include "capi/memory.hpp"
#include "capi/pool_session.hpp"
#include "capi/prepared.hpp"
#include "capi/signature.hpp"
#include "host/client.hpp"

namespace teal::capi {

// Where one of them lies.
struct Located {
    Shm* shm = nullptr;       // null: not in shared memory, or not given
    std::uint64_t bytes = 0;  // what dtype and shape of the caller's say
};

struct Model {
    Signature signature;
    PoolSession* pool = nullptr;          // that it is in
    ClientStages* stages = nullptr;       // of that session
    std::shared_ptr<Expectation> expected;  // null: waiters do not spin on a guess
    bool held = false;                    // the host keeps it for us: it wants to hear when we do not need it
    std::atomic<std::uint32_t> unloaded{0};
    // Room for the strings of each output; grows when some did not fit. Relaxed: a guess.
    std::unique_ptr<std::atomic<std::uint64_t>[]> rooms;
    Shelf shelf;
};

struct alignas(64) ModelEntry {
    std::atomic<std::uint64_t> id{0};     // 0: nobody's
    std::atomic<std::uint32_t> pins{0};   // calls inside
    std::shared_ptr<Model> model;         // changed only while id is 0 and nobody is inside
};

struct CallInFlight {
    std::shared_ptr<Model> model;
    Prepared* prepared = nullptr;
    laika_tensor_t* outputs = nullptr;    // the caller's
    bool waited_for = false;
};

// A line in each session whose calls wait for it. The one that was made with it says whether it has come.
struct Event {
    PoolSession* home = nullptr;
    std::shared_ptr<ClientSlot> line;
    std::vector<std::pair<PoolSession*, std::shared_ptr<ClientSlot>>> elsewhere;
};

// What a call waits for, and the session that all of it lies in.
struct After {
    const laika_event_t* events = nullptr;
    std::size_t n_events = 0;
    const laika_call_t* calls = nullptr;
    std::size_t n_calls = 0;
};

struct Counters {
    std::atomic<std::uint64_t> calls{0}, failed{0}, prepared{0}, copies_in{0}, bytes_in{0}, copies_out{0}, bytes_out{0};  // relaxed
};

class Library {
public:
    enum class Phase : std::uint32_t { closed, open, closing, forked };

    // Throws Failure(not_initialized) before the first init.
    static Library& get();
    static laika_status_t init(const char* address, unsigned flags, const laika_options_t* options);

    laika_status_t finalize();
    laika_status_t shm_alloc(std::size_t bytes, unsigned flags, const laika_options_t* options, laika_shm_t* shm);
    laika_status_t shm_map(laika_shm_t shm, void** data);
    laika_status_t shm_unmap(laika_shm_t shm);
    laika_status_t shm_free(laika_shm_t shm);
    laika_status_t model_load(const char* source, unsigned flags, const laika_options_t* options, laika_model_t* model);
    laika_status_t model_unload(laika_model_t model);
    laika_status_t specs(laika_model_t model, bool outputs, laika_spec_t* specs, std::size_t capacity, std::size_t* count);
    laika_status_t infer(laika_model_t model, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out);
    laika_status_t infer_async(laika_model_t model, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out, laika_call_t* call,
                               const After& after = {});
    laika_status_t event_create(laika_event_t* event);
    laika_status_t event_signal(laika_event_t event);
    laika_status_t event_wait(laika_event_t event, std::int64_t timeout_ns);
    laika_status_t event_destroy(laika_event_t event);
    laika_status_t wait(laika_call_t call, std::int64_t timeout_ns);
    laika_status_t cancel(laika_call_t call);
    laika_status_t statistics(laika_statistics_t* statistics, std::size_t size);
    // The host was found to be gone: from now on calls say so at once.
    void lose_host() noexcept { host_gone_.store(true, std::memory_order_relaxed); }

private:
    class Pin;   // a call inside a model's entry
    class Stay;  // `life_` shared, and the state is open

    static std::atomic<Library*> current;
    static void after_fork_in_child() noexcept;

    using Rooms = std::vector<std::uint64_t>;  // for the strings of each tensor, inputs first; empty: there are none
    using Lines = std::vector<std::shared_ptr<ClientSlot>>;
    static std::string pool_named(const laika_options_t* options);
    void connect(const char* address, const std::string& pool);
    void disconnect() noexcept;
    [[noreturn]] void refuse() const;  // says what state it is in
    void check_host() const;
    std::uint64_t new_id() noexcept { return next_id_.fetch_add(1, std::memory_order_relaxed) << id_shift; }
    Shm& shm_of(laika_shm_t shm);
    void clear_users(Shm& shm);  // memory_ is held. Throws busy.
    void end_sessions() noexcept;
    PoolSession& pool_session(const std::string& pool);  // opened at first use; "": the one of laika_init
    [[nodiscard]] bool touches(const void* data, std::uint64_t bytes) const noexcept;

    // calls.cpp
    Prepared* take(Model& model, const Tensors& given);
    static Rooms rooms_of(const Model& model, const Tensors& given);
    std::uint64_t begin_strings(Prepared& prepared, const Prepared::Copy& copy, const laika_tensor_t& tensor);
    void begin(Model& model, Prepared& prepared, const laika_tensor_t* inputs, Lines after = {});  // copies in, submits
    void finish(Model& model, Prepared& prepared, laika_tensor_t* outputs);       // copies out, or throws what ended it
    [[noreturn]] void throw_end(const Model& model, Prepared& prepared);
    // spilled.cpp: outputs that were larger than planned.
    void take_spilled(Model& model, Prepared& prepared, laika_tensor_t* outputs);
    void give_back(Model& model, Prepared* prepared) noexcept;
    void give_back_late(Model& model, Prepared* prepared) noexcept;

    CallInFlight call_of(laika_call_t call, bool end);

    // events.cpp
    Event& event_of(laika_event_t event);  // events_ is held
    std::shared_ptr<ClientSlot> event_line(laika_event_t event);
    Lines lines_of(const PoolSession& pool, const After& after);

    // prepare.cpp
    void locate(PoolSession& pool, const Tensors& given, Located* found);   // memory_ is held
    Prepared* prepare(Model& model, const Tensors& given, const Rooms& rooms);
    void use(Prepared& prepared, const Tensors& given, const Located* found);
    std::shared_ptr<ClientSlot> slot_with_room(PoolSession& pool, const Plan& plan);
    void dispose(Prepared* prepared) noexcept;           // takes memory_
    void dispose_locked(Prepared* prepared) noexcept;
    void sweep_limbo() noexcept;                         // memory_ is held
    void clear_shelf(Model& model) noexcept;
    void clear_shelves() noexcept;

    // models.cpp
    struct Wanted { std::string pool; bool persistent; };  // pool: where it must be; empty: wherever it is, else home
    Signature lookup(const std::string& name, const Wanted& wanted);
    Signature load(const std::string& name, const std::string& source, int fd, const Wanted& wanted);
    Signature find_or_load(const std::string& source, const Wanted& wanted);
    void enter_pool(Model& model);
    void place(std::shared_ptr<Model> model, laika_model_t* handle);
    void release_model(const Model& model);
    void release_name(const std::string& name);  // unless a handle of ours is for it
    void control_release(const std::string& name);
    std::shared_ptr<Model> leave_entry(ModelEntry& entry) noexcept;  // after its id was cleared: waits for the calls inside

    // SYNC: acquire loads pair with the releases of init() and finalize(): home_ and control_ are complete, or gone. Whoever stays
    // inside holds life_ or a pin besides; this word only says what to refuse with.
    std::atomic<Phase> phase_{Phase::closed};
    std::shared_mutex life_;
    std::unique_ptr<Control> control_;
    std::mutex opening_;                  // one session at a time is added to the list
    // SYNC: acquire loads pair with the release stores of connect() and pool_session(): each session in it is complete.
    std::atomic<PoolSession*> pools_{nullptr};
    PoolSession* home_ = nullptr;         // of the pool that laika_init named; changed by connect() and disconnect() only

    std::mutex memory_;                   // guards blocks_, limbo_ and Shm::users
    Blocks blocks_;
    std::vector<Prepared*> limbo_;        // nobody's, and a worker may still use them

    static constexpr unsigned id_shift = 10;
    static constexpr std::uint32_t most_models = 1u << id_shift;
    std::mutex models_;                   // guards who gets which entry, and held_
    std::unordered_map<std::string, unsigned> held_;  // names that the host keeps for us, and for how many of our handles
    std::array<ModelEntry, most_models> entries_;  // in place: leak checkers call an array of its own "possibly lost", as it begins with its size

    std::mutex calls_;                    // guards in_flight_
    std::unordered_map<std::uint64_t, CallInFlight> in_flight_;

    std::mutex events_;                   // guards known_events_
    std::unordered_map<std::uint64_t, Event> known_events_;

    std::atomic<bool> host_gone_{false};
    std::atomic<std::uint64_t> next_id_{1};  // times 1024, plus a model's index: the handles of all kinds
    Counters counters_;
};

}  // namespace teal::capi
