// The client's seam: Session, SlotHome, Slot, Call.
//
// Theory of operation: what repeats is prepared. A Slot carries the tensors of one call; Call is a Slot whose outputs object
// was made once, so calling it crosses from Python into C++ and back exactly once. Waiting spins a few microseconds with the
// GIL held (shorter than the time it takes to give it away and get it back), then without.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/tensor.hpp"
#include "cpu/clock.hpp"
#include "host/client.hpp"
#include "host/notifier.hpp"

namespace teal {
namespace {

constexpr std::uint64_t held_spin_ns = 4'000;

struct Stats {  // of one Model object in this process
    std::uint64_t requests = 0;
    std::uint64_t copies_in = 0;
    std::uint64_t bytes_in = 0;
    Histogram wake{};
    Histogram total{};
    Histogram copy{};
};

struct Home {
    std::shared_ptr<SlotHome> home;
    std::shared_ptr<Stats> stats;
    std::uint32_t model = 0;
    std::uint32_t version = 0;
};

struct Slot {
    std::shared_ptr<ClientSlot> elder;   // whose inputs a sibling uses; declared first: goes last
    std::shared_ptr<ClientSlot> slot;
    std::shared_ptr<ClientSession> session;
    std::shared_ptr<Stats> stats;
    const SlotHome* home = nullptr;      // only compared
    std::uint32_t model = 0;
    std::uint32_t version = 0;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);
    std::uint64_t deadline_ns = 0;   // of the last submit
    std::uint64_t submitted = 0;     // ticks of the last submit
    bool counted = true;             // the last submit's end was added to the statistics

    Slot(std::shared_ptr<ClientSession> s, std::shared_ptr<Stats> numbers, const SlotHome* from, std::uint32_t m, std::uint32_t v)
        : session(std::move(s)), stats(std::move(numbers)), home(from), model(m), version(v) {}
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    ~Slot() {
        if (forks == fork_generation.load(std::memory_order_relaxed)) return;
        // A forked child holds copies of the pointers; giving the slot back is the parent's business.
        new std::shared_ptr<ClientSlot>(std::move(slot));
        new std::shared_ptr<ClientSlot>(std::move(elder));
    }

    TensorDesc& tensor(std::size_t index, bool output) const {
        auto& list = output ? slot->outputs : slot->inputs;
        if (index >= list.size()) throw Error(Code::invalid_argument, "tensor index out of range");
        return list[index];
    }
    // Copies this side's record of a tensor into the shared block; the worker takes it up with the next stamp.
    void store(std::size_t index, bool output) const {
        const std::size_t at = (output ? slot->inputs.size() : 0) + index;
        std::memcpy(slot->base + slot->offset + sizeof(DescriptorHeader) + at * sizeof(TensorDesc), &tensor(index, output), sizeof(TensorDesc));
        slot->stamp = session->next_stamp();
    }

    // The last run wrote other shapes into the block; the next one may not write any.
    void restore_outputs() const {
        std::byte* at = slot->base + slot->offset + sizeof(DescriptorHeader) + slot->inputs.size() * sizeof(TensorDesc);
        if (!slot->outputs.empty()) std::memcpy(at, slot->outputs.data(), slot->outputs.size() * sizeof(TensorDesc));
    }

    void submit(std::int32_t priority, std::uint64_t deadline) {
        check_not_forked(forks);
        if (slot->submitted && (flags_of(word()) & word_reshaped) != 0 && ClientSession::quiescent(*slot)) restore_outputs();
        deadline_ns = deadline;
        counted = false;
        submitted = ticks();
        session->submit(*slot, model, version, priority, deadline);
    }

    void count_end() {
        if (counted) return;
        counted = true;
        ++stats->requests;
        const std::uint64_t now = ticks();
        const std::uint64_t ended = slot->line->ended.load(std::memory_order_relaxed);
        if (ended != 0 && now > ended) stats->wake.add(static_cast<std::uint64_t>(ticks_to_ns(now - ended)));
        if (now > submitted) stats->total.add(static_cast<std::uint64_t>(ticks_to_ns(now - submitted)));
        session->saw_end(*slot, submitted);
    }

    bool wait(std::uint64_t until_ns) {
        check_not_forked(forks);
        if (!session->spin(*slot, held_spin_ns)) {
            const nb::gil_scoped_release release;
            if (!session->wait(*slot, until_ns, deadline_ns)) return false;
        }
        count_end();
        return true;
    }

    [[nodiscard]] std::uint64_t word() const { return slot->line->word.load(std::memory_order_acquire); }
    // Done, outputs where and as they were planned: nothing to look up.
    [[nodiscard]] bool plain_success() const {
        return (word() & ~(std::uint64_t{word_released} << 48)) == make_word(slot->generation, State::done);
    }
};

std::vector<TensorPlan> plans_of(const std::vector<nb::tuple>& list) {
    std::vector<TensorPlan> plans;
    for (const nb::tuple& item : list) {  // (dtype name, shape or None, capacity, flags)
        TensorPlan plan;
        plan.flags = nb::cast<std::uint16_t>(item[3]);
        const auto name = nb::cast<std::string>(item[0]);
        plan.dtype = dtype_from_name(name);
        if (plan.dtype == Dtype::none && (plan.flags & tensor_absent) == 0) throw Error(Code::invalid_argument, "dtype '" + name + "' is not one of Teal's");
        if (item[1].is_none()) plan.flags |= tensor_unplanned;
        else plan.shape = nb::cast<std::vector<std::int64_t>>(item[1]);
        plan.capacity = nb::cast<std::uint64_t>(item[2]);
        plans.push_back(std::move(plan));
    }
    return plans;
}

nb::object input_tensor(nb::handle self, std::size_t index) {
    const Slot& s = *nb::inst_ptr<Slot>(self);
    const TensorDesc& desc = s.tensor(index, false);
    if ((desc.flags & tensor_absent) != 0) return nb::none();
    nb::object object = make_tensor(desc, s.slot->base, s.slot->memory, s.slot, false);
    Tensor* tensor = nb::inst_ptr<Tensor>(object);
    tensor->slot = nb::borrow(self);
    tensor->position = static_cast<std::uint32_t>(index);
    return object;
}

// Output `index` as the worker left it (its shape may be news to us).
nb::object ended_output(const Slot& s, std::size_t index) {
    TensorDesc desc = s.tensor(index, true);
    if ((desc.flags & tensor_absent) != 0) return nb::none();
    if ((flags_of(s.word()) & word_reshaped) != 0) {
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
    nb::object object = make_tensor(desc, s.slot->base, s.slot->memory, s.slot, false);
    nb::inst_ptr<Tensor>(object)->view = s.slot->views;
    return object;
}

// This slot, or one with outputs of its own on the same inputs when somebody still looks at this one's; None: no room.
nb::object ready(nb::handle self) {
    const Slot& s = *nb::inst_ptr<Slot>(self);
    std::shared_ptr<ClientSlot> found = s.session->ready(s.slot);
    if (!found) return nb::none();
    if (found == s.slot) return nb::borrow(self);
    auto* other = new Slot(s.session, s.stats, s.home, s.model, s.version);
    other->slot = std::move(found);
    other->elder = s.elder ? s.elder : s.slot;
    return nb::cast(other, nb::rv_policy::take_ownership);
}

void write_input(Slot& s, std::size_t index, nb::handle array) {
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
    s.stats->copy.add(took);
    s.session->map().histograms()->copy.add(took);
    ++s.stats->copies_in;
    s.stats->bytes_in += source.nbytes;
}

// A BYTES input: `packed` is the offset table and the bytes, already in Teal's layout.
void write_packed(Slot& s, std::size_t index, nb::bytes packed) {
    TensorDesc& planned = s.tensor(index, false);
    if (packed.size() > planned.capacity)
        throw Error(Code::invalid_argument, std::to_string(packed.size()) + " bytes of strings, the slot has room for " + std::to_string(planned.capacity));
    std::memcpy(s.slot->base + planned.offset, packed.data(), packed.size());
    planned.nbytes = packed.size();
    s.store(index, false);
    ++s.stats->copies_in;
    s.stats->bytes_in += packed.size();
}

std::string message_of(const Slot& s) {
    if ((flags_of(s.word()) & word_message) == 0) return {};
    const std::byte* block = s.slot->base + s.slot->offset;
    DescriptorHeader head;
    std::memcpy(&head, block, sizeof head);
    const std::size_t at = sizeof head + (s.slot->inputs.size() + s.slot->outputs.size()) * sizeof(TensorDesc);
    if (head.message_size > max_message || head.message_size > head.message_capacity) return {};
    return std::string(reinterpret_cast<const char*>(block + at), head.message_size);
}

struct Call {
    nb::object slot_object;
    nb::object outputs;
    nb::object on_other_end;  // called with the slot when it did not end plainly; returns the outputs or raises
    Slot* slot = nullptr;
    std::uint64_t timeout_ns = 0;
    std::int32_t priority = 0;

    nb::object run() {
        const std::uint64_t deadline = timeout_ns == 0 ? 0 : static_cast<std::uint64_t>(monotonic_ns()) + timeout_ns;
        slot->submit(priority, deadline);
        slot->wait(0);
        if (slot->plain_success()) return outputs;
        return on_other_end(slot_object);
    }
};

nb::object result_tuple(const Slot& s) {
    const std::uint64_t word = s.word();
    const CompletionLine& line = *s.slot->line;
    return nb::make_tuple(static_cast<unsigned>(state_of(word)), static_cast<unsigned>(reason_of(word)), line.detail.load(std::memory_order_relaxed),
                          line.version.load(std::memory_order_relaxed), line.copied_in.load(std::memory_order_relaxed),
                          line.copied_out.load(std::memory_order_relaxed));
}

nb::object loan(const Home& home) {
    std::shared_ptr<ClientSlot> loaned = home.home->loan();
    if (!loaned) return nb::none();
    auto* slot = new Slot(home.home->session_pointer(), home.stats, home.home.get(), home.model, home.version);
    slot->slot = std::move(loaned);
    return nb::cast(slot, nb::rv_policy::take_ownership);
}

void bind_slot(nb::module_& m) {
    nb::class_<Stats>(m, "ModelStats", "Counters and histograms of one Model object in this process.")
        .def(nb::init<>())
        .def_ro("requests", &Stats::requests)
        .def_ro("copies_in", &Stats::copies_in)
        .def_ro("bytes_in", &Stats::bytes_in)
        .def("histogram", [](const Stats& s, const std::string& stage) {
            return histogram_list(stage == "wake" ? s.wake : stage == "copy" ? s.copy : s.total);
        }, nb::sig("def histogram(self, stage: str) -> list[tuple[int, int]]"), "(nanoseconds, count) of each bucket that is not empty.");
    nb::class_<Home>(m, "SlotHome", "Loans slots of one model and one set of shapes.")
        .def("__init__",
             [](Home* self, std::shared_ptr<ClientSession> session, std::shared_ptr<Stats> stats, std::uint32_t model, std::uint32_t version,
                const std::vector<nb::tuple>& inputs, const std::vector<nb::tuple>& outputs, std::size_t keep) {
                 new (self) Home{std::make_shared<SlotHome>(std::move(session), plans_of(inputs), plans_of(outputs), keep), std::move(stats), model, version};
             },
             nb::arg("session"), nb::arg("stats"), nb::arg("model"), nb::arg("version"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("keep") = 64,
             nb::sig("def __init__(self, session: Session, stats: ModelStats, model: int, version: int, inputs: list[tuple[str, tuple[int, ...] | None, int, int]], "
                     "outputs: list[tuple[str, tuple[int, ...] | None, int, int]], keep: int = 64) -> None"))
        .def("loan", &loan, nb::sig("def loan(self) -> Slot | None"), "A slot, or None when the session's regions have no room for one.")
        .def("made", [](const Home& h, const Slot& s) { return s.home == h.home.get(); }, nb::arg("slot"))
        .def("forget_idle", [](Home& h) { h.home->forget_idle(); }, "Gives the memory of idle slots back.");
    nb::class_<Slot>(m, "Slot", "Memory and completion line of one call, on loan.")
        .def("input", &input_tensor, nb::sig("def input(self, index: int, /) -> Tensor | None"))
        .def("ready", &ready, nb::sig("def ready(self) -> Slot | None"), "This slot, or a sibling when its outputs are still looked at; None: no room.")
        .def("output", &ended_output, nb::sig("def output(self, index: int, /) -> Tensor | None"))
        .def("write", &write_input, nb::sig("def write(self, index: int, array: typing.Any, /) -> None"), "Copies an array into input `index`; counted.")
        .def("write_packed", &write_packed, nb::sig("def write_packed(self, index: int, packed: bytes, /) -> None"))
        .def("place_of", [](nb::handle self, const Tensor& t) { return t.slot.is(self) ? static_cast<int>(t.position) : -1; },
             nb::sig("def place_of(self, tensor: Tensor, /) -> int"), "Which input of this slot the tensor is, or -1.")
        .def_prop_ro("n_given", [](const Slot& s) {
            std::size_t given = 0;
            for (const TensorDesc& tensor : s.slot->inputs) given += (tensor.flags & tensor_absent) == 0 ? 1 : 0;
            return given;
        })
        .def_ro("model", &Slot::model)
        .def_prop_ro("nbytes", [](const Slot& s) {
            std::uint64_t total = 0;
            for (const auto* list : {&s.slot->inputs, &s.slot->outputs})
                for (const TensorDesc& tensor : *list) total += tensor.capacity + tensor_align;
            return total + descriptor_bytes(s.slot->inputs.size(), s.slot->outputs.size(), max_message);
        }, "An upper bound of the shared memory it takes.")
        .def("submit", &Slot::submit, nb::arg("priority"), nb::arg("deadline_ns"))
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
        .def("__init__",
             [](Call* self, nb::object slot, nb::object outputs, nb::object on_other_end, std::uint64_t timeout_ns, std::int32_t priority) {
                 new (self) Call{slot, std::move(outputs), std::move(on_other_end), nb::cast<Slot*>(slot), timeout_ns, priority};
             },
             nb::arg("slot"), nb::arg("outputs"), nb::arg("on_other_end"), nb::arg("timeout_ns"), nb::arg("priority"),
             nb::sig("def __init__(self, slot: Slot, outputs: typing.Any, on_other_end: typing.Callable[[Slot], typing.Any], timeout_ns: int, priority: int) -> None"))
        .def("__call__", &Call::run, nb::sig("def __call__(self) -> typing.Any"), "Runs the request and returns the outputs object, the same one every time.")
        .def_ro("outputs", &Call::outputs, nb::sig("def outputs(self) -> typing.Any"))
        .def_ro("slot", &Call::slot_object, nb::sig("def slot(self) -> Slot"))
        .def_prop_ro("last_run_ns", [](const Call& c) {
            const CompletionLine& line = *c.slot->slot->line;
            const std::uint64_t started = line.started.load(std::memory_order_relaxed);
            const std::uint64_t ended = line.ended.load(std::memory_order_relaxed);
            return ended > started ? ticks_to_ns(ended - started) : 0;
        }, "Nanoseconds the last run spent in the kernel, in the worker.");
    m.def("slot_of", [](const Tensor& t) { return t.slot.is_valid() ? t.slot : nb::none(); }, nb::sig("def slot_of(tensor: Tensor, /) -> Slot | None"),
          "The slot that the tensor is an input of.");
}

}  // namespace

void bind_client(nb::module_& m) {
    nb::class_<ClientSession>(m, "Session", "One client's connection to one pool, as memory.")
        .def(nb::new_([](int fd, std::uint32_t index, std::uint32_t epoch, std::uint32_t slots, std::uint64_t idle_ns, int socket) {
                 return std::make_shared<ClientSession>(map_session(fd, index, epoch, slots), idle_ns, socket);
             }),
             nb::arg("fd"), nb::arg("index"), nb::arg("epoch"), nb::arg("slots"), nb::arg("idle_ns"), nb::arg("socket"))
        .def("add_region", &ClientSession::add_region, nb::arg("id"), nb::arg("fd"))
        .def("take_empty_regions", &ClientSession::take_empty_regions, nb::arg("keep_bytes"))
        .def("allocate", [](ClientSession& s, const std::string& dtype, const std::vector<std::int64_t>& shape, std::uint64_t align) -> nb::object {
            TensorDesc desc{};
            desc.dtype = static_cast<std::uint8_t>(dtype_from_name(dtype));
            if (desc.dtype == 0 || static_cast<Dtype>(desc.dtype) == Dtype::bytes) throw Error(Code::invalid_argument, "dtype '" + dtype + "' cannot be allocated");
            if (shape.size() > max_rank) throw Error(Code::invalid_argument, "rank " + std::to_string(shape.size()) + ", expected at most 8");
            std::uint64_t count = 0;
            if (!tensor_bytes(static_cast<Dtype>(desc.dtype), shape.data(), shape.size(), count, desc.nbytes))
                throw Error(Code::invalid_argument, "shape: a negative extent, or more than 2^63 bytes");
            auto block = s.allocate(desc.nbytes, std::max<std::uint64_t>(align, tensor_align));
            if (!block) return nb::none();
            desc.rank = static_cast<std::uint8_t>(shape.size());
            std::copy(shape.begin(), shape.end(), desc.shape);
            desc.offset = block->offset;
            desc.capacity = desc.nbytes;
            std::memset(block->memory->base() + block->offset, 0, desc.nbytes);
            return make_tensor(desc, block->memory->base(), block->memory, block, false);
        }, nb::arg("dtype"), nb::arg("shape"), nb::arg("align") = 256, nb::sig("def allocate(self, dtype: str, shape: typing.Sequence[int], align: int = 256) -> Tensor | None"))
        .def("peer_gone", &ClientSession::peer_gone)
        .def("close", &ClientSession::close)
        .def_prop_ro("bytes_used", &ClientSession::bytes_used)
        .def_prop_ro("region_bytes", &ClientSession::region_bytes)
        .def_prop_ro("slots_out", &ClientSession::slots_out)
        .def_prop_ro("page_bytes", [](const ClientSession& s) { return std::uint64_t{1} << s.largest_page_shift(); })
        .def_prop_ro("spin_ns", &ClientSession::spin_budget_ns);
    bind_slot(m);
    nb::class_<Notifier>(m, "Notifier", "Calls back when requests have ended; one thread, started by the first add().")
        .def(nb::init<std::shared_ptr<ClientSession>>(), nb::arg("session"))
        .def("add", [](Notifier& n, const Slot& s, nb::object callback) {
            check_not_forked(s.forks);
            auto held = std::shared_ptr<nb::object>(new nb::object(std::move(callback)), [](nb::object* object) {
                const nb::gil_scoped_acquire gil;
                delete object;
            });
            n.add(s.slot, s.deadline_ns, [held] {
                const nb::gil_scoped_acquire gil;
                try {
                    (*held)();
                } catch (nb::python_error& error) {
                    error.discard_as_unraisable("teal notifier");
                }
            });
        }, nb::arg("slot"), nb::arg("callback"), nb::sig("def add(self, slot: Slot, callback: typing.Callable[[], typing.Any]) -> None"))
        .def("stop", &Notifier::stop, nb::call_guard<nb::gil_scoped_release>());
    // Outputs that were too large for their slot come in a region of their own.
    m.def("spilled_tensors", [](int fd, const std::vector<nb::tuple>& layout) {
        auto region = Region::adopt(fd, RegionKind::spill, true);
        region->close_fd();
        nb::list tensors;
        for (const nb::tuple& item : layout) {  // (dtype, shape, offset, nbytes)
            TensorDesc desc{};
            const auto shape = nb::cast<std::vector<std::int64_t>>(item[1]);
            desc.dtype = static_cast<std::uint8_t>(dtype_from_name(nb::cast<std::string>(item[0])));
            desc.offset = nb::cast<std::uint64_t>(item[2]);
            desc.nbytes = nb::cast<std::uint64_t>(item[3]);
            desc.capacity = desc.nbytes;
            std::uint64_t count = 0;
            std::uint64_t bytes = 0;
            if (desc.dtype == 0 || shape.size() > max_rank || !tensor_bytes(static_cast<Dtype>(desc.dtype), shape.data(), shape.size(), count, bytes) ||
                bytes > desc.nbytes || desc.offset > region->size() || desc.nbytes > region->size() - desc.offset)
                throw Error(Code::internal_error, "spilled output: its layout does not fit its region");
            desc.rank = static_cast<std::uint8_t>(shape.size());
            std::copy(shape.begin(), shape.end(), desc.shape);
            tensors.append(make_tensor(desc, region->base(), region, region, false));
        }
        return tensors;
    }, nb::arg("fd"), nb::arg("layout"), nb::sig("def spilled_tensors(fd: int, layout: list[tuple[str, tuple[int, ...], int, int]]) -> list[Tensor]"));
}

}  // namespace teal
