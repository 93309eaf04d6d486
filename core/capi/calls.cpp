// Library: running calls.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "capi/library.hpp"
#include "capi/outputs.hpp"
#include "capi/pin.hpp"
#include "capi/strings.hpp"
#include "cpu/clock.hpp"

namespace teal::capi {
namespace {

constexpr std::uint64_t first_spin_ns = 4'000;  // before the waiting that learns, and may sleep
constexpr std::size_t small = 16;               // tensors of a call that are looked up without allocating

bool plain_success(const ClientSlot& slot, std::uint64_t word) noexcept {
    return (word & ~(std::uint64_t{word_released} << 48)) == make_word(slot.generation, State::done);
}

std::string message_of(const Prepared& prepared, std::uint64_t word) {
    if ((flags_of(word) & word_message) == 0) return {};
    const ClientSlot& slot = *prepared.slot;
    const std::byte* block = slot.base + slot.offset;
    DescriptorHeader head;
    std::memcpy(&head, block, sizeof head);
    const std::size_t at = sizeof head + prepared.tensors.size() * sizeof(TensorDesc);
    if (head.message_size > head.message_capacity || head.message_size > 512) return {};  // make_slot() gives it 512
    return {reinterpret_cast<const char*>(block + at), head.message_size};
}

void check_lists(const Signature& signature, const Tensors& given) {
    if (given.n_in != signature.inputs.size() || given.n_out != signature.outputs.size())
        plan_call(signature, given.inputs, given.n_in, given.outputs, given.n_out);  // says what there should be
    if (given.inputs == nullptr && given.n_in > 0) throw Failure(LAIKA_ERR_POINTER, "inputs: NULL, expected " + std::to_string(given.n_in) + " tensors");
    if (given.outputs == nullptr && given.n_out > 0) throw Failure(LAIKA_ERR_POINTER, "outputs: NULL, expected " + std::to_string(given.n_out) + " tensors");
}

// Room for the strings of an input, 0 for one that is not given. What breaks another rule is left to plan_call().
std::uint64_t room_of_input(const TensorSpec& spec, const laika_tensor_t& tensor, std::size_t index) {
    if (spec.optional && tensor.data == nullptr) return 0;
    checked_bytes(tensor, "inputs[" + std::to_string(index) + "]");
    if (spec.dtype != Dtype::none && spec.dtype != Dtype::bytes) return room_for(0);
    return room_for(packed_bytes(tensor, index));
}

}  // namespace

Library::Rooms Library::rooms_of(const Model& model, const Tensors& given) {
    Rooms rooms;
    for (std::size_t i = 0; i < given.count(); ++i) {
        if (!is_strings(given[i])) continue;
        if (rooms.empty()) rooms.resize(given.count());
        if (i < given.n_in) {
            rooms[i] = room_of_input(model.signature.inputs[i], given[i], i);
            continue;
        }
        const std::int32_t like = model.signature.outputs[i - given.n_in].like;  // strings like those that are given
        rooms[i] = std::max(model.rooms[i - given.n_in].load(std::memory_order_relaxed), like < 0 ? 0 : rooms[static_cast<std::size_t>(like)]);
    }
    return rooms;
}

// A prepared call for these tensors, in use by the caller.
Prepared* Library::take(Model& model, const Tensors& given) {
    check_lists(model.signature, given);
    // All in shared memory, and seen before: their addresses are the key.
    if (Prepared* found = model.shelf.take(hash_of(given), given)) return found;
    const Rooms rooms = rooms_of(model, given);
    if (given.count() > small) return prepare(model, given, rooms);
    Located where[small];
    laika_tensor_t tensors[small];
    bool copied = false;
    {
        const std::lock_guard lock(memory_);
        locate(*model.pool, given, where);
    }
    for (std::size_t i = 0; i < given.count(); ++i) {
        tensors[i] = given[i];
        const bool strings = is_strings(given[i]) && rooms[i] != 0;
        if (!strings && (where[i].shm != nullptr || given[i].data == nullptr)) continue;
        tensors[i].data = strings ? elsewhere(rooms[i]) : elsewhere();
        copied = true;
    }
    const Tensors known{tensors, given.n_in, tensors + given.n_in, given.n_out};
    Prepared* found = copied ? model.shelf.take(hash_of(known), known) : nullptr;
    return found != nullptr ? found : prepare(model, given, rooms);
}

// Strings are of another size each time, so the worker has to look at the descriptors anew.
std::uint64_t Library::begin_strings(Prepared& prepared, const Prepared::Copy& copy, const laika_tensor_t& tensor) {
    const std::uint64_t used = pack(tensor, copy.tensor, copy.place, copy.nbytes);
    prepared.slot->inputs[copy.tensor].nbytes = used;
    prepared.slot->stamp = prepared.session->next_stamp();
    prepared.restore = true;
    return used;
}

void Library::begin(Model& model, Prepared& prepared, const laika_tensor_t* inputs, Lines after) {
    if (!prepared.in.empty()) {
        const std::uint64_t start = ticks();
        std::uint64_t bytes = 0;
        for (const Prepared::Copy& copy : prepared.in) {
            if (copy.strings) {
                bytes += begin_strings(prepared, copy, inputs[copy.tensor]);
                continue;
            }
            read_callers({inputs[copy.tensor].data, copy.place, copy.nbytes}, copy.tensor);
            bytes += copy.nbytes;
        }
        model.stages->copy.add(static_cast<std::uint64_t>(ticks_to_ns(ticks() - start)));
        model.stages->copies_in.fetch_add(prepared.in.size(), std::memory_order_relaxed);
        model.stages->bytes_in.fetch_add(bytes, std::memory_order_relaxed);
        counters_.copies_in.fetch_add(prepared.in.size(), std::memory_order_relaxed);
        counters_.bytes_in.fetch_add(bytes, std::memory_order_relaxed);
    }
    if (prepared.restore) prepared.restore_block();
    check_host();
    prepared.session->submit(*prepared.slot, model.signature.index, 0, 0, 0, std::move(after));
    counters_.calls.fetch_add(1, std::memory_order_relaxed);
}

void Library::finish(Model& model, Prepared& prepared, laika_tensor_t* outputs) {
    const std::uint64_t word = prepared.slot->line->word.load(std::memory_order_acquire);
    const bool reshaped = (flags_of(word) & word_reshaped) != 0;
    if (reshaped) prepared.restore = true;
    if (!plain_success(*prepared.slot, word) || !prepared.planned) [[unlikely]] {
        if (state_of(word) == State::done && reason_of(word) == Reason::output_spilled) return take_spilled(model, prepared, outputs);
        if (state_of(word) != State::done || reason_of(word) != Reason::none) throw_end(model, prepared);
        if (!reshaped && !prepared.planned) throw Failure(LAIKA_ERR_INTERNAL, "the worker did not say what shape an output has");
    }
    if (reshaped) {
        const Moved moved = deliver(prepared, outputs_in_slot(prepared), model.signature.name, outputs);
        counters_.copies_out.fetch_add(moved.tensors, std::memory_order_relaxed);
        counters_.bytes_out.fetch_add(moved.bytes, std::memory_order_relaxed);
        return;
    }
    for (const Prepared::Copy& copy : prepared.out) {
        write_callers({outputs[copy.tensor].data, copy.place, copy.nbytes}, copy.tensor);
        counters_.copies_out.fetch_add(1, std::memory_order_relaxed);
        counters_.bytes_out.fetch_add(copy.nbytes, std::memory_order_relaxed);
    }
    for (const Prepared::Made& made : prepared.made) tell_shape(outputs[made.output], static_cast<std::uint8_t>(made.tensor.dtype), static_cast<std::size_t>(made.tensor.ndim), made.tensor.shape);
}

void Library::throw_end(const Model& model, Prepared& prepared) {
    const std::uint64_t word = prepared.slot->line->word.load(std::memory_order_acquire);
    const std::uint32_t detail = prepared.slot->line->detail.load(std::memory_order_relaxed);
    const std::string& name = model.signature.name;
    const std::string message = message_of(prepared, word);
    const auto or_else = [&](const char* text) { return message.empty() ? name + ": " + text : message; };
    Reason reason = reason_of(word);
    // What only this process held goes from the host when laika_finalize hangs up, which may be before a waiting call is told of that.
    if ((reason == Reason::not_found || reason == Reason::unloaded) && phase_.load(std::memory_order_acquire) != Phase::open) reason = Reason::client_gone;
    switch (reason) {
        case Reason::invalid: throw Failure(LAIKA_ERR_INVALID, or_else("the request was malformed"));
        case Reason::not_found: throw Failure(LAIKA_ERR_NOT_FOUND, "model '" + name + "' is not loaded any more; load it again");
        case Reason::quota: throw Failure(LAIKA_ERR_QUOTA, name + ": an output does not fit this process's quota (Limits.bytes of the host)");
        case Reason::kernel: throw Failure(LAIKA_ERR_KERNEL, name + ": " + (message.empty() ? "no message" : message));
        case Reason::worker_died:
            throw Failure(LAIKA_ERR_WORKER_DIED, "the worker ended (" + (detail < 256 ? "signal " + std::to_string(detail) : "exit status " + std::to_string(detail - 256)) +
                          ") while it ran '" + name + "'; the host replaces it: try again");
        case Reason::client_cancelled: throw Failure(LAIKA_ERR_CANCELLED, name + ": laika_cancel was called");
        case Reason::client_gone: throw Failure(LAIKA_ERR_NOT_INITIALIZED, "laika_finalize was called before the answer came");
        case Reason::host_stopping: throw Failure(LAIKA_ERR_CANCELLED, name + ": the host is stopping");
        case Reason::dependency: throw Failure(LAIKA_ERR_CANCELLED, name + ": a call that it waited for did not end well, or an event will not come (laika_event_destroy was called first)");
        case Reason::unloaded: throw Failure(LAIKA_ERR_CANCELLED, name + ": its version was unloaded by force");
        default: break;
    }
    throw Failure(LAIKA_ERR_INTERNAL, name + ": the request ended in state " + std::to_string(static_cast<unsigned>(state_of(word))) + " for reason " +
                  std::to_string(static_cast<unsigned>(reason_of(word))) + " " + message);
}

void Library::give_back(Model& model, Prepared* prepared) noexcept {
    if (!prepared->slot->awaited.empty() && ClientSession::quiescent(*prepared->slot)) let_go_of(std::exchange(prepared->slot->awaited, {}));
    const bool resting = prepared->place.load(std::memory_order_relaxed) >= 0 && !prepared->is_awaited();
    if (resting && ClientSession::quiescent(*prepared->slot)) [[likely]] {
        model.shelf.put(prepared);
        return;
    }
    model.shelf.remove(prepared);
    dispose(prepared);
}

// For calls that pinned nothing: their model may have been unloaded meanwhile.
void Library::give_back_late(Model& model, Prepared* prepared) noexcept {
    give_back(model, prepared);
    // SYNC: a change (of nothing) pairs with that in model_unload(), which then clears the shelf: the second of the two sees what
    // the first did before.
    if (model.unloaded.fetch_add(0, std::memory_order_seq_cst) != 0) clear_shelf(model);
}

laika_status_t Library::infer(laika_model_t handle, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out) {
    const Pin pin(*this, handle);
    Model& model = *pin.entry.model;
    struct Hold {  // goes back however it ends
        Library& library;
        Model& model;
        Prepared* prepared;
        bool good = false;
        ~Hold() {
            if (!good) library.counters_.failed.fetch_add(1, std::memory_order_relaxed);
            library.give_back(model, prepared);
        }
    } hold{*this, model, take(model, {inputs, n_in, outputs, n_out})};
    begin(model, *hold.prepared, inputs);
    ClientSlot& slot = *hold.prepared->slot;
    ClientSession& session = *hold.prepared->session;
    if (!session.spin(slot, first_spin_ns)) session.wait(slot, 0, 0);
    ClientSession::saw_end(slot, *model.stages);
    finish(model, *hold.prepared, outputs);
    hold.good = true;
    return LAIKA_OK;
}

// ---- asynchronous ------------------------------------------------------------------------------------------------------

laika_status_t Library::infer_async(laika_model_t handle, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out,
                                    laika_call_t* call, const After& after) {
    if (call == nullptr) throw Failure(LAIKA_ERR_POINTER, "call: NULL, expected where to put the handle");
    call->id = 0;
    const Stay stay(*this);
    const Pin pin(*this, handle);
    CallInFlight one{pin.entry.model, nullptr, outputs};
    Lines lines = lines_of(*one.model->pool, after);
    one.prepared = take(*one.model, {inputs, n_in, outputs, n_out});
    try {
        begin(*one.model, *one.prepared, inputs, std::move(lines));
        const std::lock_guard lock(calls_);
        const std::uint64_t id = new_id();
        in_flight_.emplace(id, one);
        call->id = id;
    } catch (...) {
        counters_.failed.fetch_add(1, std::memory_order_relaxed);
        give_back(*one.model, one.prepared);
        throw;
    }
    return LAIKA_OK;
}

CallInFlight Library::call_of(laika_call_t call, bool end) {
    const std::lock_guard lock(calls_);
    const auto found = in_flight_.find(call.id);
    if (found == in_flight_.end()) throw Failure(LAIKA_ERR_HANDLE, "call: not a call in flight of this process; it has ended, or never was");
    if (found->second.waited_for) throw Failure(LAIKA_ERR_BUSY, "call: another thread waits for it");
    CallInFlight one = found->second;
    if (end) in_flight_.erase(found);
    else found->second.waited_for = true;
    return one;
}

laika_status_t Library::wait(laika_call_t call, std::int64_t timeout_ns) {
    const Stay stay(*this);
    const CallInFlight one = call_of(call, false);
    struct Leave {  // the handle ends with the call, and stays while it goes on
        Library& library;
        laika_call_t call;
        const CallInFlight& one;
        bool ended = true;
        bool good = false;
        ~Leave() {
            {
                const std::lock_guard lock(library.calls_);
                if (ended) library.in_flight_.erase(call.id);
                else library.in_flight_[call.id].waited_for = false;
            }
            if (!ended) return;
            if (!good) library.counters_.failed.fetch_add(1, std::memory_order_relaxed);
            library.give_back_late(*one.model, one.prepared);
        }
    } leave{*this, call, one};
    ClientSlot& slot = *one.prepared->slot;
    ClientSession& session = *one.prepared->session;
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    const std::uint64_t span = timeout_ns < 0 ? 0 : static_cast<std::uint64_t>(timeout_ns);
    const bool ended = ClientSession::ended(slot) || (timeout_ns != 0 && session.spin(slot, timeout_ns < 0 ? first_spin_ns : std::min(span, first_spin_ns))) ||
                       (timeout_ns != 0 && session.wait(slot, timeout_ns < 0 ? 0 : now + span, 0));
    if (!ended) {
        if (session.peer_gone()) throw Failure(LAIKA_ERR_HOST_GONE, "the host's process is gone; laika_finalize, start it again (`teal serve`), then laika_init");
        leave.ended = false;
        return remember(LAIKA_ERR_TIMEOUT, "laika_wait", "not ended within " + std::to_string(timeout_ns) + " ns; the call goes on: wait again, or laika_cancel");
    }
    ClientSession::saw_end(slot, *one.model->stages);
    finish(*one.model, *one.prepared, one.outputs);
    leave.good = true;
    return LAIKA_OK;
}

laika_status_t Library::cancel(laika_call_t call) {
    const Stay stay(*this);
    const CallInFlight one = call_of(call, true);
    one.prepared->session->cancel(*one.prepared->slot, State::cancelled, Reason::client_cancelled);
    ClientSession::saw_end(*one.prepared->slot, *one.model->stages);
    give_back_late(*one.model, one.prepared);
    return LAIKA_OK;
}

}  // namespace teal::capi
