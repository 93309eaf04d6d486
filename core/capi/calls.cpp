// Library: running calls.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "capi/library.hpp"
#include "capi/pin.hpp"
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

// Output `i` as the worker left it. The worker is trusted, but these bytes lie in memory that bugs of ours could spoil.
TensorDesc seen_output(const Prepared& prepared, std::size_t i) {
    const ClientSlot& slot = *prepared.slot;
    TensorDesc seen;
    std::memcpy(&seen, slot.base + slot.offset + sizeof(DescriptorHeader) + (slot.inputs.size() + i) * sizeof(TensorDesc), sizeof seen);
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    if (!dtype_known(seen.dtype) || static_cast<Dtype>(seen.dtype) == Dtype::bytes || seen.rank > max_rank ||
        !tensor_bytes(static_cast<Dtype>(seen.dtype), seen.shape, seen.rank, count, bytes) || seen.nbytes != bytes || bytes > slot.outputs[i].capacity)
        throw Failure(LAIKA_ERR_INTERNAL, "the worker's description of outputs[" + std::to_string(i) + "] makes no sense");
    return seen;
}

void tell_shape(laika_tensor_t& tensor, std::uint8_t dtype, std::size_t rank, const std::int64_t* shape) noexcept {
    tensor.dtype = static_cast<std::int32_t>(dtype);
    tensor.ndim = static_cast<std::int32_t>(rank);
    std::copy(shape, shape + rank, tensor.shape);
}

void check_lists(const Signature& signature, const Tensors& given) {
    if (given.n_in != signature.inputs.size() || given.n_out != signature.outputs.size())
        plan_call(signature, given.inputs, given.n_in, given.outputs, given.n_out);  // says what there should be
    if (given.inputs == nullptr && given.n_in > 0) throw Failure(LAIKA_ERR_POINTER, "inputs: NULL, expected " + std::to_string(given.n_in) + " tensors");
    if (given.outputs == nullptr && given.n_out > 0) throw Failure(LAIKA_ERR_POINTER, "outputs: NULL, expected " + std::to_string(given.n_out) + " tensors");
}

}  // namespace

// A prepared call for these tensors, in use by the caller.
Prepared* Library::take(Model& model, const Tensors& given) {
    check_lists(model.signature, given);
    // All in shared memory, and seen before: their addresses are the key.
    if (Prepared* found = model.shelf.take(hash_of(given), given)) return found;
    if (given.count() > small) return prepare(model, given);
    Located where[small];
    laika_tensor_t tensors[small];
    bool copied = false;
    {
        const std::lock_guard lock(memory_);
        locate(given, where);
    }
    for (std::size_t i = 0; i < given.count(); ++i) {
        tensors[i] = given[i];
        if (where[i].shm != nullptr || given[i].data == nullptr) continue;
        tensors[i].data = elsewhere();
        copied = true;
    }
    const Tensors known{tensors, given.n_in, tensors + given.n_in, given.n_out};
    Prepared* found = copied ? model.shelf.take(hash_of(known), known) : nullptr;
    return found != nullptr ? found : prepare(model, given);
}

void Library::begin(Model& model, Prepared& prepared, const laika_tensor_t* inputs, Events after) {
    if (!prepared.in.empty()) {
        const std::uint64_t start = ticks();
        std::uint64_t bytes = 0;
        for (const Prepared::Copy& copy : prepared.in) {
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
    session_->submit(*prepared.slot, model.signature.index, 0, 0, 0, std::move(after));
    counters_.calls.fetch_add(1, std::memory_order_relaxed);
}

void Library::finish(Model& model, Prepared& prepared, laika_tensor_t* outputs) {
    const std::uint64_t word = prepared.slot->line->word.load(std::memory_order_acquire);
    const bool reshaped = (flags_of(word) & word_reshaped) != 0;
    if (reshaped) prepared.restore = true;
    if (!plain_success(*prepared.slot, word) || !prepared.planned) [[unlikely]] {
        if (state_of(word) != State::done || reason_of(word) != Reason::none) throw_end(model, prepared, outputs);
        if (!reshaped && !prepared.planned) throw Failure(LAIKA_ERR_INTERNAL, "the worker did not say what shape an output has");
    }
    for (const Prepared::Copy& copy : prepared.out) {
        const std::uint64_t bytes = reshaped ? seen_output(prepared, copy.tensor).nbytes : copy.nbytes;
        write_callers({outputs[copy.tensor].data, copy.place, bytes}, copy.tensor);
        counters_.copies_out.fetch_add(1, std::memory_order_relaxed);
        counters_.bytes_out.fetch_add(bytes, std::memory_order_relaxed);
    }
    for (const Prepared::Made& made : prepared.made) tell_shape(outputs[made.output], static_cast<std::uint8_t>(made.tensor.dtype), static_cast<std::size_t>(made.tensor.ndim), made.tensor.shape);
    for (std::size_t i = 0; reshaped && i < prepared.slot->outputs.size(); ++i) {
        const TensorDesc seen = seen_output(prepared, i);
        tell_shape(outputs[i], seen.dtype, seen.rank, seen.shape);
    }
}

void Library::throw_end(const Model& model, Prepared& prepared, laika_tensor_t* outputs) {
    const std::uint64_t word = prepared.slot->line->word.load(std::memory_order_acquire);
    const std::uint32_t detail = prepared.slot->line->detail.load(std::memory_order_relaxed);
    const std::string& name = model.signature.name;
    const std::string message = message_of(prepared, word);
    const auto or_else = [&](const char* text) { return message.empty() ? name + ": " + text : message; };
    switch (reason_of(word)) {
        case Reason::output_spilled: throw_spilled(model, prepared, outputs);
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
        case Reason::dependency: throw Failure(LAIKA_ERR_CANCELLED, name + ": an event that the call waited for will not come: laika_event_destroy was called first");
        case Reason::unloaded: throw Failure(LAIKA_ERR_CANCELLED, name + ": its version was unloaded by force");
        default: break;
    }
    throw Failure(LAIKA_ERR_INTERNAL, name + ": the request ended in state " + std::to_string(static_cast<unsigned>(state_of(word))) + " for reason " +
                  std::to_string(static_cast<unsigned>(reason_of(word))) + " " + message);
}

// Outputs larger than the memory for them: the host has them in a region of their own, and says how large they are.
void Library::throw_spilled(const Model& model, Prepared& prepared, laika_tensor_t* outputs) {
    prepared.restore = true;
    const std::uint32_t number = prepared.slot->line->detail.load(std::memory_order_relaxed);
    const Answer answer = control_->ask([&](Writer& out) {
        out.map(3);
        out.text("t"); out.text("take_spill");
        out.text("session"); out.number(session_index_);
        out.text("spill"); out.number(number);
    });
    Reader reader = answer.body();
    std::uint32_t count = 0;
    std::string said;
    bool good = reader.array(count) && count <= prepared.tensors.size();
    for (; good && count > 0; --count) {  // [output, dtype, shape, offset, bytes]
        std::uint32_t fields = 0;
        std::uint32_t rank = 0;
        std::uint64_t index = 0;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
        std::string_view name;
        std::int64_t shape[max_rank] = {};
        good = reader.array(fields) && fields == 5 && reader.number(index) && reader.text(name) && reader.array(rank) && rank <= max_rank;
        for (std::uint32_t i = 0; good && i < rank; ++i) good = reader.signed_number(shape[i]) && shape[i] >= 0;
        good = good && reader.number(offset) && reader.number(bytes) && index < prepared.slot->outputs.size();
        const Dtype dtype = dtype_from_name(name);
        if (!good || dtype == Dtype::none) break;
        if (bytes > prepared.slot->outputs[index].capacity)
            said += (said.empty() ? "" : "; ") + std::string("outputs[") + std::to_string(index) + "]: " + std::to_string(prepared.slot->outputs[index].capacity) +
                    " bytes, model '" + model.signature.name + "' made " + std::to_string(bytes);
        tell_shape(outputs[index], static_cast<std::uint8_t>(dtype), rank, shape);
    }
    if (!good || said.empty()) throw Failure(LAIKA_ERR_INTERNAL, "the host describes spilled outputs in a way that is not understood");
    throw Failure(LAIKA_ERR_TOO_SMALL, said + "; their shapes now say how many: give that much memory and call again");
}

void Library::give_back(Model& model, Prepared* prepared) noexcept {
    if (!prepared->slot->awaited.empty() && ClientSession::quiescent(*prepared->slot)) let_go_of(std::exchange(prepared->slot->awaited, {}));
    const bool resting = prepared->place.load(std::memory_order_relaxed) >= 0;
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
    if (!session_->spin(slot, first_spin_ns)) session_->wait(slot, 0, 0);
    ClientSession::saw_end(slot, *model.stages);
    finish(model, *hold.prepared, outputs);
    hold.good = true;
    return LAIKA_OK;
}

// ---- asynchronous ------------------------------------------------------------------------------------------------------

laika_status_t Library::infer_async(laika_model_t handle, const laika_tensor_t* inputs, std::size_t n_in, laika_tensor_t* outputs, std::size_t n_out,
                                    laika_call_t* call, Events after) {
    if (call == nullptr) throw Failure(LAIKA_ERR_POINTER, "call: NULL, expected where to put the handle");
    call->id = 0;
    const Stay stay(*this);
    const Pin pin(*this, handle);
    CallInFlight one{pin.entry.model, nullptr, outputs};
    one.prepared = take(*one.model, {inputs, n_in, outputs, n_out});
    try {
        begin(*one.model, *one.prepared, inputs, std::move(after));
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
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    const std::uint64_t span = timeout_ns < 0 ? 0 : static_cast<std::uint64_t>(timeout_ns);
    const bool ended = ClientSession::ended(slot) || (timeout_ns != 0 && session_->spin(slot, timeout_ns < 0 ? first_spin_ns : std::min(span, first_spin_ns))) ||
                       (timeout_ns != 0 && session_->wait(slot, timeout_ns < 0 ? 0 : now + span, 0));
    if (!ended) {
        if (session_->peer_gone()) throw Failure(LAIKA_ERR_HOST_GONE, "the host's process is gone; laika_finalize, start it again (`teal serve`), then laika_init");
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
    session_->cancel(*one.prepared->slot, State::cancelled, Reason::client_cancelled);
    ClientSession::saw_end(*one.prepared->slot, *one.model->stages);
    give_back_late(*one.model, one.prepared);
    return LAIKA_OK;
}

}  // namespace teal::capi
