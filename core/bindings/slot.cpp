// The client's seam for calls: SlotHome, Slot, Call.
//
// Theory of operation: what repeats is prepared. A Slot carries the tensors of one call; Call is a Slot whose outputs object
// was made once, so calling it crosses from Python into C++ and back exactly once. Waiting spins a few microseconds with the
// GIL held (shorter than the time it takes to give it away and get it back), then without.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/place.hpp"
#include "bindings/slot.hpp"
#include "cpu/clock.hpp"

namespace teal {
namespace {

std::vector<TensorPlan> plans_of(const std::vector<nb::tuple>& list) {
    std::vector<TensorPlan> plans;
    for (const nb::tuple& item : list) {  // (dtype name, shape or None, capacity, flags[, input it lies in[, its place]])
        TensorPlan plan;
        plan.flags = nb::cast<std::uint16_t>(item[3]);
        const auto name = nb::cast<std::string>(item[0]);
        plan.dtype = dtype_from_name(name);
        if (plan.dtype == Dtype::none && (plan.flags & tensor_absent) == 0) throw Error(Code::invalid_argument, "dtype '" + name + "' is not one of Teal's");
        if ((plan.flags & tensor_chained) != 0) plan.flags = 0;  // its link says so
        else if (item[1].is_none()) plan.flags |= tensor_unplanned;
        else plan.shape = nb::cast<std::vector<std::int64_t>>(item[1]);
        plan.capacity = nb::cast<std::uint64_t>(item[2]);
        if (nb::len(item) > 4 && !item[4].is_none()) plan.in_place = nb::cast<std::int32_t>(item[4]);
        if (nb::len(item) > 5 && !item[5].is_none()) {
            const auto place = nb::cast<nb::tuple>(item[5]);
            plan.place = {nb::cast<std::uint32_t>(place[0]), nb::cast<std::uint64_t>(place[1])};
            if (nb::len(place) > 2) {
                const auto link = nb::cast<nb::tuple>(place[2]);
                plan.link = {nb::cast<std::uint32_t>(link[0]), nb::cast<std::uint32_t>(link[1]), nb::cast<std::uint32_t>(link[2]), nb::cast<std::uint64_t>(link[3])};
            }
        }
        plans.push_back(std::move(plan));
    }
    return plans;
}

constexpr std::uint64_t fill_without_gil = 1 << 20;  // copies this large let other Python threads run

// On a tensor in the slot's own block.
Hold own_hold(const std::shared_ptr<ClientSlot>& slot) { return {slot->memory, slot, nullptr, slot.get()}; }

nb::object input_tensor(nb::handle self, std::size_t index) {
    const Slot& s = *nb::inst_ptr<Slot>(self);
    const TensorDesc& desc = s.tensor(index, false);
    if ((desc.flags & (tensor_absent | tensor_chained)) != 0) return nb::none();
    nb::object object = make_tensor(desc, own_hold(s.slot), *s.session);
    Tensor* tensor = nb::inst_ptr<Tensor>(object);
    tensor->slot = nb::borrow(self);
    tensor->position = static_cast<std::uint32_t>(index);
    return object;
}

// Output `index` as the worker left it (its shape may be news to us).
nb::object ended_output(const Slot& s, std::size_t index) {
    TensorDesc desc = s.tensor(index, true);
    if ((desc.flags & tensor_absent) != 0) return nb::none();
    // Before its first request the line still says how the one of another slot ended.
    if (s.slot->submitted && ClientSession::ended(*s.slot) && (flags_of(s.word()) & word_reshaped) != 0) {
        TensorDesc seen;
        const std::size_t at = s.slot->inputs.size() + index;
        std::memcpy(&seen, s.slot->base + s.slot->offset + sizeof(DescriptorHeader) + at * sizeof(TensorDesc), sizeof seen);
        std::uint64_t count = 0;
        std::uint64_t bytes = 0;
        // The worker is trusted, but these bytes also lie in memory of ours that a bug of ours could spoil.
        if (!dtype_known(seen.dtype) || seen.rank > max_rank || !tensor_bytes(static_cast<Dtype>(seen.dtype), seen.shape, seen.rank, count, bytes) ||
            seen.nbytes > desc.capacity || (static_cast<Dtype>(seen.dtype) == Dtype::bytes ? seen.nbytes < bytes : seen.nbytes != bytes))
            throw Error(Code::internal_error, "the worker's description of output " + std::to_string(index) + " makes no sense");
        desc.dtype = seen.dtype;
        desc.rank = seen.rank;
        desc.nbytes = seen.nbytes;
        std::memcpy(desc.shape, seen.shape, sizeof desc.shape);
    }
    if (s.slot->placed && s.slot->holds.empty()) throw Error(Code::closed, "tensor is released");
    if (const Hold* hold = s.slot->hold_of(index, true)) return make_tensor(desc, *hold, *s.session);
    // An output in place lies where the inputs are: with the elder of a sibling.
    Hold hold = own_hold(s.slot->in_place[index] >= 0 && s.elder ? s.elder : s.slot);
    hold.view = s.slot->views;
    return make_tensor(desc, std::move(hold), *s.session);
}

// The outputs were taken, or there are none: the next call may have the memory, and what was used in place is no longer ours to keep.
void let_go(Slot& s) {
    s.claim.reset();
    if (s.slot->placed) ClientSession::let_go_of_places(*s.slot);
}

// All outputs of a request that has ended, in order. From here on the tensors keep the memory.
nb::list ended_outputs(Slot& s) {
    nb::list tensors;
    for (std::size_t i = 0; i < s.slot->outputs.size(); ++i) tensors.append(ended_output(s, i));
    let_go(s);
    return tensors;
}

// This slot, or one with outputs of its own on the same inputs when those of this one are looked at, or still to be taken by
// the call before; None: no room.
nb::object ready(nb::handle self) {
    Slot& s = *nb::inst_ptr<Slot>(self);
    check_not_forked(s.forks);
    std::shared_ptr<ClientSlot> found = s.session->ready(s.slot);
    if (!found) return nb::none();
    if (found == s.slot) {
        s.claim = s.slot->views;
        return nb::borrow(self);
    }
    auto* other = new Slot(s.session, s.stages, s.home, s.model, s.version);
    other->claim = found->views;
    other->slot = std::move(found);
    other->elder = s.elder ? s.elder : s.slot;
    return nb::cast(other, nb::rv_policy::take_ownership);
}

void write_input(Slot& s, std::size_t index, nb::handle array) {
    check_not_forked(s.forks);
    const TensorDesc& planned = s.tensor(index, false);
    const Source source = source_of(array);
    if (static_cast<std::uint8_t>(source.dtype) != planned.dtype)
        throw Error(Code::invalid_argument, "dtype " + std::string(dtype_info(source.dtype).name) + ", expected " +
                    std::string(dtype_info(static_cast<Dtype>(planned.dtype)).name));
    if (source.nbytes != planned.nbytes || source.shape.size() != planned.rank)
        throw Error(Code::invalid_argument, "array of " + std::to_string(source.nbytes) + " bytes, the slot expects " + std::to_string(planned.nbytes));
    const std::uint64_t start = ticks();
    copy_source(source, s.slot->base + planned.offset);
    const auto took = static_cast<std::uint64_t>(ticks_to_ns(ticks() - start));
    s.stages->copy.add(took);
    s.stages->copies_in.fetch_add(1, std::memory_order_relaxed);
    s.stages->bytes_in.fetch_add(source.nbytes, std::memory_order_relaxed);
}

// The same from memory whose caller knows dtype and shape: `nbytes` must be what the slot has for it.
void fill_input(Slot& s, std::size_t index, std::uint64_t address, std::uint64_t nbytes) {
    const TensorDesc& planned = s.tensor(index, false);
    if (nbytes != planned.nbytes)
        throw Error(Code::invalid_argument, "memory of " + std::to_string(nbytes) + " bytes, the slot expects " + std::to_string(planned.nbytes));
    check_not_forked(s.forks);
    const std::uint64_t start = ticks();
    const auto* from = reinterpret_cast<const std::byte*>(address);
    if (nbytes < fill_without_gil) {
        std::memcpy(s.slot->base + planned.offset, from, nbytes);
    } else {
        const nb::gil_scoped_release release;
        std::memcpy(s.slot->base + planned.offset, from, nbytes);
    }
    s.stages->copy.add(static_cast<std::uint64_t>(ticks_to_ns(ticks() - start)));
    s.stages->copies_in.fetch_add(1, std::memory_order_relaxed);
    s.stages->bytes_in.fetch_add(nbytes, std::memory_order_relaxed);
}

// A BYTES input: `packed` is the offset table and the bytes, already in Teal's layout.
void write_packed(Slot& s, std::size_t index, nb::bytes packed) {
    check_not_forked(s.forks);
    TensorDesc& planned = s.tensor(index, false);
    if (packed.size() > planned.capacity)
        throw Error(Code::invalid_argument, std::to_string(packed.size()) + " bytes of strings, the slot has room for " + std::to_string(planned.capacity));
    std::memcpy(s.slot->base + planned.offset, packed.data(), packed.size());
    planned.nbytes = packed.size();
    s.store(index, false);
    s.stages->copies_in.fetch_add(1, std::memory_order_relaxed);
    s.stages->bytes_in.fetch_add(packed.size(), std::memory_order_relaxed);
}

void submit_after(Slot& s, std::int32_t priority, std::uint64_t deadline_ns, nb::sequence after) {
    std::vector<std::shared_ptr<ClientSlot>> awaited;
    for (nb::handle one : after) {
        const bool event = nb::isinstance<Event>(one);
        if ((event ? nb::cast<Event&>(one).session : nb::cast<Slot&>(one).session) != s.session)
            throw Error(Code::invalid_argument, "$.after: belongs to another session");
        awaited.push_back(event ? nb::cast<Event&>(one).line : nb::cast<Slot&>(one).slot);
    }
    s.submit(priority, deadline_ns, std::move(awaited));
}

// Null: the slot has another request by now, or none.
nb::object to_come(const Slot& s, std::size_t index, std::uint32_t awaited, std::uint32_t generation) {
    check_not_forked(s.forks);
    if (index >= s.slot->outputs.size()) throw Error(Code::invalid_argument, "tensor index out of range");
    if (!s.slot->submitted || s.slot->generation != generation) return nb::none();
    return place_to_come(s.slot, s.elder, index, awaited);
}

// Ticks when the kernel left, low half, and how long it ran: of a request that a worker ended.
std::uint64_t times_of(const Slot& s) { return s.slot->line->times.load(std::memory_order_relaxed); }

// From the end of another request to the beginning of this one, both seen to have ended well less than a second ago.
std::int64_t began_after(const Slot& s, const Slot& other) {
    const std::uint64_t mine = times_of(s);
    const auto gap = static_cast<std::int32_t>(static_cast<std::uint32_t>(mine >> 32) - static_cast<std::uint32_t>(run_ticks(mine)) -
                                               static_cast<std::uint32_t>(times_of(other) >> 32));
    return gap < 0 ? -ticks_to_ns(static_cast<std::uint64_t>(-std::int64_t{gap})) : ticks_to_ns(static_cast<std::uint64_t>(gap));
}

nb::str message_of(const Slot& s) {
    if ((flags_of(s.word()) & word_message) == 0) return nb::str("");
    const std::byte* block = s.slot->base + s.slot->offset;
    DescriptorHeader head;
    std::memcpy(&head, block, sizeof head);
    const std::size_t at = sizeof head + (s.slot->inputs.size() + s.slot->outputs.size()) * sizeof(TensorDesc);
    if (head.message_size > max_message || head.message_size > head.message_capacity) return nb::str("");
    // It may have been cut in the middle of a character.
    PyObject* text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(block + at), head.message_size, "replace");
    if (text == nullptr) nb::raise_python_error();
    return nb::steal<nb::str>(text);
}

struct Call {
    nb::object slot_object;
    nb::object outputs;
    nb::object on_other_end;  // called with the slot when it did not end plainly; returns the outputs or raises
    nb::object renew;         // called with a slot whose outputs did not fit; returns another one on the same inputs, or None; or none
    Slot* slot = nullptr;
    std::uint64_t timeout_ns = 0;
    std::int32_t priority = 0;

    bool running = false;  // under the GIL, which wait() gives away

    Call(nb::object of, nb::object made, nb::object other_end, std::uint64_t timeout, std::int32_t order, nb::object another)
        : slot_object(std::move(of)), outputs(std::move(made)), on_other_end(std::move(other_end)), renew(std::move(another)),
          slot(nb::cast<Slot*>(slot_object)), timeout_ns(timeout), priority(order) {
        slot->slot->kept = true;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {  // outputs that somebody still looks at keep the slot, not what it was made from
        if (slot->forks == fork_generation.load(std::memory_order_relaxed)) let_slot_go();
    }
    void let_slot_go() {
        slot->slot->kept = false;
        let_go(*slot);
    }

    nb::object run() {
        if (running) throw Error(Code::busy, "this prepared call is running in another thread; prepare one for each");
        struct Mark {
            bool& flag;
            explicit Mark(bool& f) : flag(f) { flag = true; }
            ~Mark() { flag = false; }
        } mark(running);
        const std::uint64_t deadline = timeout_ns == 0 ? 0 : static_cast<std::uint64_t>(monotonic_ns()) + timeout_ns;
        if (slot->call_direct(deadline)) return outputs;
        slot->submit(priority, deadline);
        slot->wait(0);
        if (slot->plain_success()) return outputs;
        nb::object result = on_other_end(slot_object);
        if (slot->outgrown && !renew.is_none()) [[unlikely]] take_another();
        return result;
    }

    void take_another() {
        nb::object another = renew(slot_object);
        if (another.is_none()) return;
        Slot* taken = nb::cast<Slot*>(another);
        taken->slot->kept = true;
        let_slot_go();
        slot = taken;
        slot_object = std::move(another);
    }
};

nb::object result_tuple(const Slot& s) {
    const std::uint64_t word = s.word();
    const CompletionLine& line = *s.slot->line;
    return nb::make_tuple(static_cast<unsigned>(state_of(word)), static_cast<unsigned>(reason_of(word)), line.detail.load(std::memory_order_relaxed),
                          line.version.load(std::memory_order_relaxed), line.copied_in.load(std::memory_order_relaxed),
                          line.copied_out.load(std::memory_order_relaxed));
}

nb::object loan(const Home& home, nb::handle places) {
    check_not_forked(home.forks);
    std::shared_ptr<ClientSlot> loaned = home.home->loan(places.is_none() ? std::vector<Hold>{} : holds_of(nb::cast<nb::list>(places)));
    if (!loaned) return nb::none();
    auto* slot = new Slot(home.home->session_pointer(), home.stages, home.home.get(), home.model, home.version);
    slot->slot = std::move(loaned);
    return nb::cast(slot, nb::rv_policy::take_ownership);
}

}  // namespace

void bind_slot(nb::module_& m) {
    nb::class_<Home>(m, "SlotHome", "Loans slots of one model and one set of shapes.")
        .def("__init__",
             [](Home* self, std::shared_ptr<ClientSession> session, std::uint32_t model, std::uint32_t version, const std::vector<nb::tuple>& inputs,
                const std::vector<nb::tuple>& outputs, bool may_spin, std::size_t keep) {
                 ClientStages* stages = session->stages_of(model);
                 new (self) Home{std::make_shared<SlotHome>(std::move(session), plans_of(inputs), plans_of(outputs), keep, may_spin), stages, model, version};
             },
             nb::arg("session"), nb::arg("model"), nb::arg("version"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("may_spin"), nb::arg("keep") = 64,
             nb::sig("def __init__(self, session: Session, model: int, version: int, inputs: list[PlanEntry], outputs: list[PlanEntry], may_spin: bool, keep: int = 64) -> None"))
        .def("loan", &loan, nb::arg("places") = nb::none(), nb::sig("def loan(self, places: list[Place | None] | None = None) -> Slot | None"),
             "A slot, or None when the session's regions have no room for one. places: of each input and output, for plans that have some.")
        .def("deserted", [](Home& h) { return h.home->deserted(); }, "Is some of the memory that the last loan was made over gone?")
        .def("made", [](const Home& h, const Slot& s) { return s.home == h.home.get(); }, nb::arg("slot"))
        .def("forget_idle", [](Home& h) { h.home->forget_idle(); }, "Gives the memory of idle slots back.");
    nb::class_<Slot>(m, "Slot", "Memory and completion line of one call, on loan.")
        .def("input", &input_tensor, nb::sig("def input(self, index: int, /) -> Tensor | None"))
        .def("ready", &ready, nb::sig("def ready(self) -> Slot | None"), "This slot, or a sibling when its outputs are still looked at; None: no room.")
        .def("output", &ended_output, nb::sig("def output(self, index: int, /) -> Tensor | None"))
        .def("outputs", &ended_outputs, nb::sig("def outputs(self) -> list[Tensor | None]"), "All outputs of a request that has ended; later calls leave them alone.")
        .def("give_up", &let_go, "There are no outputs to take: the next call may have the memory.")
        .def("count_copy", [](Slot& s, std::uint64_t bytes) {
            s.stages->copies_in.fetch_add(1, std::memory_order_relaxed);
            s.stages->bytes_in.fetch_add(bytes, std::memory_order_relaxed);
        }, nb::arg("nbytes"), "This side copied a tensor's contents.")
        .def("write", &write_input, nb::sig("def write(self, index: int, array: typing.Any, /) -> None"), "Copies an array into input `index`; counted.")
        .def("fill", &fill_input, nb::arg("index"), nb::arg("address"), nb::arg("nbytes"),
             "Copies packed memory of the planned dtype and shape into input `index`; counted. The caller keeps it meanwhile.")
        .def("write_packed", &write_packed, nb::sig("def write_packed(self, index: int, packed: bytes, /) -> None"))
        .def("place_of", [](nb::handle self, const Tensor& t) { return t.slot.is(self) ? static_cast<int>(t.position) : -1; },
             nb::sig("def place_of(self, tensor: Tensor, /) -> int"), "Which input of this slot the tensor is, or -1.")
        .def_prop_ro("n_given", [](const Slot& s) {
            std::size_t given = 0;
            for (const TensorDesc& tensor : s.slot->inputs) given += (tensor.flags & tensor_absent) == 0 ? 1 : 0;
            return given;
        })
        .def("is_for", [](const Slot& s, const ClientSession& session, std::uint32_t model, std::uint32_t version) {
            return s.session.get() == &session && s.model == model && s.version == version && !s.outgrown;
        }, nb::arg("session"), nb::arg("model"), nb::arg("version"),
             "Are its requests this session's, for this model and version (0: the current one)? Not after outgrow().")
        .def("outgrow", [](Slot& s) { s.outgrown = true; }, "Its outputs did not fit: what calls on its inputs gets another slot over them.")
        .def_ro("model", &Slot::model)
        .def_prop_ro("nbytes", [](const Slot& s) {
            std::uint64_t total = 0;
            for (const auto* list : {&s.slot->inputs, &s.slot->outputs})
                for (const TensorDesc& tensor : *list) total += tensor.capacity + tensor_align;
            return total + descriptor_bytes(s.slot->inputs.size(), s.slot->outputs.size(), max_message);
        }, "An upper bound of the shared memory it takes.")
        .def("submit", [](Slot& s, std::int32_t priority, std::uint64_t deadline_ns) { s.submit(priority, deadline_ns); },
             nb::arg("priority"), nb::arg("deadline_ns"))
        .def("submit_after", &submit_after, nb::arg("priority"), nb::arg("deadline_ns"), nb::arg("after"),
             nb::sig("def submit_after(self, priority: int, deadline_ns: int, after: typing.Sequence[Slot | Event]) -> None"),
             "Runs once all of these have ended well; is cancelled when one ends otherwise.")
        .def("to_come", &to_come, nb::arg("output"), nb::arg("awaited"), nb::arg("generation"),
             nb::sig("def to_come(self, output: int, awaited: int, generation: int) -> Place | None"),
             "Where an output of this request will be, for one that waits for it as its `awaited`-th; None: it is another request's by now.")
        .def("began_after_ns", &began_after, nb::arg("other"),
             "Nanoseconds from the end of another request to the beginning of this one. Both have ended well.")
        .def("call_direct", &Slot::call_direct, nb::arg("deadline_ns"),
             "Runs the request on a resident device kernel that serves the slot. False where none does: submit() then.")
        .def_prop_ro("session", [](const Slot& s) { return s.session; })
        .def("wait", &Slot::wait, nb::arg("until_ns"), "True when the request has ended; False when CLOCK_MONOTONIC until_ns (0: none) passed first.")
        .def("ended", [](Slot& s) {
            if (s.slot->submitted && !ClientSession::ended(*s.slot) && s.deadline_ns != 0 && static_cast<std::uint64_t>(monotonic_ns()) >= s.deadline_ns)
                s.session->cancel(*s.slot, State::expired, Reason::deadline);
            const bool ended = s.slot->submitted && ClientSession::ended(*s.slot);
            if (ended) s.count_end();
            return ended;
        })
        .def("plain_success", &Slot::plain_success)
        .def("cancel", [](Slot& s) {
            check_not_forked(s.forks);
            return s.session->cancel(*s.slot, State::cancelled, Reason::client_cancelled);
        })
        .def("running", [](const Slot& s) {
            const std::uint64_t word = s.word();
            return generation_of(word) == (s.slot->generation & generation_mask) && state_of(word) == State::running;
        })
        .def("quiescent", [](const Slot& s) { return ClientSession::quiescent(*s.slot); })
        .def("result", &result_tuple, nb::sig("def result(self) -> tuple[int, int, int, int, int, int]"), "(state, reason, detail, version, bytes copied in, out)")
        .def("message", &message_of)
        .def_prop_ro("generation", [](const Slot& s) { return s.slot->generation; })
        .def_prop_ro("index", [](const Slot& s) { return s.slot->index; })
        .def_prop_ro("n_inputs", [](const Slot& s) { return s.slot->inputs.size(); })
        .def_prop_ro("n_outputs", [](const Slot& s) { return s.slot->outputs.size(); });
    nb::class_<Call>(m, "Call", "A prepared call: inputs and outputs stay where they are, one crossing into C++ a call.")
        .def("__reduce__",
             [](const Call&) { throw nb::type_error("a prepared call belongs to its process; give host.address, and prepare it there"); },
             nb::sig("def __reduce__(self) -> typing.NoReturn"))
        .def("__init__",
             [](Call* self, nb::object slot, nb::object outputs, nb::object on_other_end, std::uint64_t timeout_ns, std::int32_t priority, nb::object renew) {
                 new (self) Call(std::move(slot), std::move(outputs), std::move(on_other_end), timeout_ns, priority, std::move(renew));
             },
             nb::arg("slot"), nb::arg("outputs"), nb::arg("on_other_end"), nb::arg("timeout_ns"), nb::arg("priority"), nb::arg("renew") = nb::none(),
             nb::sig("def __init__(self, slot: Slot, outputs: typing.Any, on_other_end: typing.Callable[[Slot], typing.Any], timeout_ns: int, priority: int, renew: typing.Callable[[Slot], Slot | None] | None = None) -> None"))
        .def("__call__", &Call::run, nb::sig("def __call__(self) -> typing.Any"), "Runs the request and returns the outputs object, the same one every time.")
        .def_ro("outputs", &Call::outputs, nb::sig("def outputs(self) -> typing.Any"))
        .def_ro("slot", &Call::slot_object, nb::sig("def slot(self) -> Slot"))
        .def_prop_ro("last_run_ns", [](const Call& c) {
            return ticks_to_ns(run_ticks(c.slot->slot->line->times.load(std::memory_order_relaxed)));
        }, "Nanoseconds the last run spent in the kernel, in the worker.");
    m.def("slot_of", [](const Tensor& t) { return t.slot.is_valid() ? t.slot : nb::none(); }, nb::sig("def slot_of(tensor: Tensor, /) -> Slot | None"),
          "The slot that the tensor is an input of.");
}

}  // namespace teal
