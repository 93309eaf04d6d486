// What liblaika is to its process: one connection, its memory, models and calls in flight.
//
// Theory of operation: there is one Library, made by the first laika_init and never destroyed, so that a thread which comes too late
// finds a state and not freed memory. A forked child abandons it where it is (its mutexes may be held by threads that do not exist
// there) and makes another. A blocking call pins its model's entry: one atomic add, so that an unload or finalize can wait until
// nobody is inside. Everything else holds `life_` shared while it runs; finalize first makes all waits end (the session is
// closed, the socket shut down), then takes `life_` alone.
#pragma once

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
    ClientStages* stages = nullptr;       // of the session
    std::shared_ptr<Expectation> expected;  // null: waiters do not spin on a guess
    bool held = false;                    // the host keeps it for us: it wants to hear when we do not need it
    std::atomic<std::uint32_t> unloaded{0};
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

struct Counters {
    std::atomic<std::uint64_t> calls{0}, failed{0}, prepared{0}, copies_in{0}, bytes_in{0}, copies_out{0}, bytes_out{0};  // relaxed
};

class Library {
public:
    enum class Phase : std::uint32_t { closed, open, closing, forked };

    // Throws Failure(not_initialized) before the first init.
    static Library& get();
    static laika_status_t init(const char* address, unsigned flags);

    laika_status_t finalize();
    laika_status_t shm_alloc(std::size_t bytes, unsigned flags, laika_shm_t* shm);
    laika_status_t shm_map(laika_shm_t shm, void** data);
    laika_status_t shm_unmap(laika_shm_t shm);
    laika_status_t shm_free(laika_shm_t shm);
    laika_status_t model_load(const char* source, unsigned flags, laika_model_t* model);
    laika_status_t model_unload(laika_model_t model);
    laika_status_t specs(laika_model_t model, bool outputs, laika_spec_t* specs, std::size_t capacity, std::size_t* count);
    laika_status_t infer(laika_model_t model, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out);
    using Events = std::vector<std::shared_ptr<ClientSlot>>;
    laika_status_t infer_async(laika_model_t model, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out, laika_call_t* call,
                               Events after = {});
    laika_status_t event_create(laika_event_t* event);
    laika_status_t event_signal(laika_event_t event);
    laika_status_t event_wait(laika_event_t event, std::int64_t timeout_ns);
    laika_status_t event_destroy(laika_event_t event);
    Events events_of(const laika_event_t* events, std::size_t count);
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

    void connect(const char* address);
    void disconnect() noexcept;
    [[noreturn]] void refuse() const;  // says what state it is in
    void check_host() const;
    std::uint64_t new_id() noexcept { return next_id_.fetch_add(1, std::memory_order_relaxed) << id_shift; }
    Shm& shm_of(laika_shm_t shm);
    void clear_users(Shm& shm);  // memory_ is held. Throws busy.
    void open_session();

    // calls.cpp
    Prepared* take(Model& model, const Tensors& given);
    void begin(Model& model, Prepared& prepared, const laika_tensor_t* inputs, Events after = {});  // copies in, submits
    void finish(Model& model, Prepared& prepared, laika_tensor_t* outputs);       // copies out, or throws what ended it
    [[noreturn]] void throw_end(const Model& model, Prepared& prepared, laika_tensor_t* outputs);
    [[noreturn]] void throw_spilled(const Model& model, Prepared& prepared, laika_tensor_t* outputs);
    void give_back(Model& model, Prepared* prepared) noexcept;
    void give_back_late(Model& model, Prepared* prepared) noexcept;

    CallInFlight call_of(laika_call_t call, bool end);

    // events.cpp
    std::shared_ptr<ClientSlot> event_of(laika_event_t event);

    // prepare.cpp
    void locate(const Tensors& given, Located* found);   // memory_ is held
    Prepared* prepare(Model& model, const Tensors& given);
    void use(Prepared& prepared, const Tensors& given, const Located* found);
    std::unique_ptr<ClientSlot> slot_with_room(const Plan& plan);
    void dispose(Prepared* prepared) noexcept;           // takes memory_
    void dispose_locked(Prepared* prepared) noexcept;
    void sweep_limbo() noexcept;                         // memory_ is held
    void clear_shelf(Model& model) noexcept;
    void clear_shelves() noexcept;

    // models.cpp
    Signature lookup(const std::string& name, bool persistent);
    Signature load(const std::string& name, const std::string& source, int fd, bool persistent);
    Signature find_or_load(const std::string& source, bool persistent);
    void place(std::shared_ptr<Model> model, laika_model_t* handle);
    void release_model(const Model& model);
    std::shared_ptr<Model> leave_entry(ModelEntry& entry) noexcept;  // after its id was cleared: waits for the calls inside

    // SYNC: acquire loads pair with the releases of init() and finalize(): session_ and control_ are complete, or gone. Whoever stays
    // inside holds life_ or a pin besides; this word only says what to refuse with.
    std::atomic<Phase> phase_{Phase::closed};
    std::shared_mutex life_;
    std::unique_ptr<Control> control_;
    std::shared_ptr<ClientSession> session_;
    std::unique_ptr<Memory> room_;
    std::uint32_t session_index_ = 0;

    std::mutex memory_;                   // guards blocks_, limbo_ and Shm::users
    Blocks blocks_;
    std::vector<Prepared*> limbo_;        // nobody's, and a worker may still use them

    static constexpr unsigned id_shift = 10;
    static constexpr std::uint32_t most_models = 1u << id_shift;
    std::mutex models_;                   // guards who gets which entry, and held_
    std::unordered_map<std::string, unsigned> held_;  // names that the host keeps for us, and for how many of our handles
    std::unique_ptr<ModelEntry[]> entries_{new ModelEntry[most_models]};

    std::mutex calls_;                    // guards in_flight_
    std::unordered_map<std::uint64_t, CallInFlight> in_flight_;

    std::mutex events_;                   // guards known_events_
    std::unordered_map<std::uint64_t, std::shared_ptr<ClientSlot>> known_events_;

    std::atomic<bool> host_gone_{false};
    std::atomic<std::uint64_t> next_id_{1};  // times 1024, plus a model's index: the handles of all kinds
    Counters counters_;
};

}  // namespace teal::capi
