// Policies between Python and the core: shipped ones as objects, and one adapter through which a mechanism drives a class written in Python.
//
// Theory of operation. The adapter is a Policy like any other, so there is one mechanism. For each request it keeps one Python object, a
// Request, which lives as long as anybody holds it and shows a copy of what was known at the last event about it: nothing in Python
// ever points into a mechanism. Methods are looked up once; an event whose method is the base class's empty one is not called at all. Each
// call takes the GIL, so a mechanism may drive from any thread.
//
// What a policy raises is caught here, kept as text and counted (errors(), last_error()). The event is over then, and the mechanism goes
// on: it is for the mechanism to see the count rise and to hand the pool back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agents/policies/make.hpp"
#include "agents/policies/settings.hpp"
#include "agents/policy.hpp"
#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/raised.hpp"
#include "sim/play.hpp"

namespace teal {
namespace {

struct RequestView {
    PolicyRequest value;             // as of the last event about it
    PolicyRequest* live = nullptr;   // the mechanism's; null once it has ended
    nb::object names[2];             // of its model and of its client; invalid: not told yet
};

nb::object name_of(const RequestView& view, Named kind) {
    const nb::object& name = view.names[kind == Named::session];
    return name.is_valid() ? name : nb::cast("#" + std::to_string(kind == Named::session ? view.value.session : view.value.model));
}

struct WorkerView {
    PolicyWorker value;
    nb::object running;              // Request or None
};

struct PythonDecision {
    nb::object request;
    std::uint64_t slice_ns = 0, expires_ns = 0;
    std::uint8_t commit_flags = 0, run_flags = 0;
};

enum Event : unsigned {
    event_new, event_runnable, event_blocked, event_yielded, event_preempted, event_done, event_departed, event_priority, event_affinity,
    event_latch, event_available, event_busy, event_gone, event_tick, event_timer, event_wakeup, event_pick, event_preempt, event_group, event_count,
};
constexpr const char* event_names[event_count] = {
    "new", "runnable", "blocked", "yielded", "preempted", "done", "departed", "priority_changed", "affinity_changed",
    "latch_failed", "worker_available", "worker_busy", "worker_gone", "tick", "timer", "wakeup", "pick", "preempt", "pick_group",
};
// Those whose default does nothing.
constexpr bool empty_by_default(unsigned event) { return event != event_new && event != event_yielded && event != event_preempted && event != event_latch && event != event_pick; }

// A coroutine or a generator: calling it runs none of its lines. pick_group() alone may be a generator, as its pairs are taken one by one.
bool waits_to_be_run(nb::handle method, unsigned event) {
    constexpr long generator = 0x20, coroutine = 0x80, async_generator = 0x200;  // inspect.CO_…
    const nb::object code = nb::getattr(method, "__code__", nb::none());
    if (!nb::hasattr(code, "co_flags")) return false;
    const long flags = nb::cast<long>(code.attr("co_flags"));
    return (flags & (coroutine | async_generator)) != 0 || ((flags & generator) != 0 && event != event_group);
}

constexpr int most_passed_over = 1000;  // of what pick() offers and has ended
constexpr Py_ssize_t longest_dump = 8'000;  // characters; agent_wire.LONGEST_TEXT

class PythonPolicy final : public Policy {
public:
    explicit PythonPolicy(nb::object policy) : python_(std::move(policy)) {
        const nb::module_ module = nb::module_::import_("teal.agents.policy");
        const nb::object base = module.attr("Policy");
        if (!nb::isinstance(python_, base)) throw Error(Code::invalid_argument, "a policy of a class that does not derive from teal.agents.Policy: use that as its base");
        const nb::handle type = python_.type();
        for (unsigned i = 0; i < event_count; ++i) {
            const bool same = type.attr(event_names[i]).is(base.attr(event_names[i]));
            if (!same || !empty_by_default(i)) methods_[i] = python_.attr(event_names[i]);
            if (!same && waits_to_be_run(methods_[i], i)) {
                throw Error(Code::invalid_argument, "policy " + text_of(type.attr("__name__")) + ": " + event_names[i] +
                                                        "() is async or has a yield, so a call of it does nothing; make it a plain method that returns");
            }
        }
        for (nb::handle outcome : module.attr("Outcome")) outcomes_.push_back(nb::borrow(outcome));
        kinds_[0] = module.attr("NameKind")(0);
        kinds_[1] = module.attr("NameKind")(1);
        tell_name_ = nb::module_::import_("teal.agents.setting").attr("tell_name");
        const nb::object name = python_.attr("name");
        name_ = nb::isinstance<nb::str>(name) ? text_of(name) : std::string();
        if (name_.empty()) name_ = text_of(type.attr("__name__"));
    }

    void on_new(PolicyRequest& request, std::uint64_t now) override {
        const nb::gil_scoped_acquire gil;
        drop(request.index);
        call(event_new, now, view_of(request));
    }
    void on_runnable(PolicyRequest& request, std::uint64_t now) override { about(event_runnable, request, now); }
    void on_blocked(PolicyRequest& request, std::uint64_t now) override { about(event_blocked, request, now); }
    void on_yield(PolicyRequest& request, std::uint64_t now) override { about(event_yielded, request, now); }
    void on_preempt(PolicyRequest& request, std::uint64_t now) override { about(event_preempted, request, now); }
    void on_done(PolicyRequest& request, std::uint64_t now) override { ended(event_done, request, now); }
    void on_departed(PolicyRequest& request, std::uint64_t now) override { ended(event_departed, request, now); }
    void on_affinity(PolicyRequest& request, std::uint64_t now) override { about(event_affinity, request, now); }
    void on_priority(PolicyRequest& request, std::int32_t before, std::uint64_t now) override {
        const nb::gil_scoped_acquire gil;
        call(event_priority, now, view_of(request), nb::int_(before));
    }
    void on_latch_failure(PolicyRequest& request, Outcome why, std::uint64_t now) override {
        const nb::gil_scoped_acquire gil;
        call(event_latch, now, view_of(request), outcomes_[static_cast<std::size_t>(why) % outcomes_.size()]);
    }
    void on_worker_available(PolicyWorker& worker, std::uint64_t now) override { about(event_available, worker, now); }
    void on_worker_busy(PolicyWorker& worker, std::uint64_t now) override { about(event_busy, worker, now); }
    void on_worker_gone(PolicyWorker& worker, std::uint64_t now) override { about(event_gone, worker, now); }
    void on_tick(std::uint64_t now) override { alone(event_tick, now); }
    void on_timer(std::uint64_t now) override { alone(event_timer, now); }
    void on_wakeup(std::uint64_t now) override { alone(event_wakeup, now); }

    Decision pick(PolicyWorker& worker, std::uint64_t now) override {
        const nb::gil_scoped_acquire gil;
        nb::object first;
        bool same = true;
        for (int i = 0; i < most_passed_over; ++i) {
            const nb::object picked = call(event_pick, now, view_of(worker));
            if (!picked.is_valid() || picked.is_none()) return {};
            Decision decision;
            if (read(picked, worker, decision)) return decision;
            if (!first.is_valid()) first = picked;
            same = same && picked.is(first);
        }
        if (same) fail("pick() returns " + shown(first) + " again and again, which has ended or may not run now; take what it returns out of the queue");
        return {};
    }
    bool preempt(const PolicyWorker& worker, std::uint64_t now) override {
        if (!methods_[event_preempt].is_valid()) return false;
        const nb::gil_scoped_acquire gil;
        const nb::object said = call(event_preempt, now, view_of(worker));
        return said.is_valid() && PyObject_IsTrue(said.ptr()) == 1;
    }
    bool preempts() const override { return methods_[event_preempt].is_valid(); }
    bool groups() const override { return methods_[event_group].is_valid(); }
    unsigned pick_group(std::span<const PolicyWorker* const> idle, std::span<GroupMember> out, std::uint64_t now) override {
        if (!methods_[event_group].is_valid()) return 0;
        const nb::gil_scoped_acquire gil;
        nb::list workers;
        for (const PolicyWorker* worker : idle) workers.append(view_of(*worker));
        for (int i = 0; i < most_passed_over; ++i) {
            const nb::object picked = call(event_group, now, workers);
            if (!picked.is_valid() || picked.is_none()) return 0;
            unsigned count = 0;
            bool whole = true;
            guarded([&] { count = read_group(picked, idle, out, whole); });
            if (whole) return count;
            // One has ended, or may not run now. The others are the policy's again, and it is asked once more.
            for (unsigned m = 0; m < count; ++m) call(event_latch, now, view_of(*out[m].decision.request), outcomes_[static_cast<std::size_t>(Outcome::poisoned)]);
        }
        return 0;
    }
    std::uint64_t timer_ns(std::uint64_t) override { return number("wake_at", UINT64_MAX, 0); }
    unsigned depth() const override { return static_cast<unsigned>(number("depth", stage_depth, 1)); }
    bool moves() const override { return number("moves", 1, 0) != 0; }
    bool work_conserving() const override { return number("work_conserving", 1, 0) != 0; }

    void on_name(Named kind, std::uint16_t index, std::string_view name) override {
        const nb::gil_scoped_acquire gil;
        guarded([&] {
            const nb::object& which = kinds_[kind == Named::session];
            const nb::str text(name.data(), name.size());
            std::vector<nb::object>& names = names_[kind == Named::session];
            if (index >= names.size()) names.resize(index + std::size_t{1});
            names[index] = text;
            for (nb::object& view : views_)  // those that came before their name
                if (view.is_valid()) give_names(*nb::inst_ptr<RequestView>(view));
            tell_name_(python_, which, index, text);
            python_.attr("named")(which, index, text);
        });
    }
    // These two are asked for by a person, who gets what the policy raises.
    bool set(std::string_view name, std::string_view value) override {
        const nb::gil_scoped_acquire gil;
        const nb::object taken = python_.attr("set")(nb::str(name.data(), name.size()), nb::str(value.data(), value.size()));
        if (!nb::isinstance<nb::bool_>(taken)) throw Error(Code::invalid_argument, "set() of the policy returned " + shown(taken) + ", expected True or False");
        return taken.is(nb::handle(Py_True));
    }
    PolicySettings settings() const override {
        const nb::gil_scoped_acquire gil;
        PolicySettings all;
        for (nb::handle pair : python_.attr("settings")()) all.emplace_back(text_of(pair[0]), text_of(pair[1]));
        return all;
    }
    std::string_view name() const override { return name_; }
    std::string dump() const override {
        const nb::gil_scoped_acquire gil;
        // For people too, and asked for in the midst of serving: what it raises is what they see.
        const nb::object text = nb::steal(PyObject_CallMethod(python_.ptr(), "dump", nullptr));
        return text.is_valid() ? text_of(text, longest_dump) : "dump() raised " + text_with_calls(nb::python_error());
    }
    std::uint64_t errors() const override { return errors_; }
    std::string last_error() const override { return last_error_; }
    const nb::object& python() const noexcept { return python_; }

private:
    template <class Do>
    void guarded(Do&& work) const {
        try {
            work();
        } catch (const nb::python_error& error) {
            fail(text_with_calls(error));
        } catch (const std::exception& error) {  // what is said below; no memory
            fail(error.what());
        }
    }
    void fail(std::string what) const {
        ++errors_;
        last_error_ = std::move(what);
    }
    std::uint64_t number(const char* attribute, std::uint64_t most, std::uint64_t least) const {
        const nb::gil_scoped_acquire gil;
        std::uint64_t value = least;
        guarded([&] {
            const nb::object said = python_.attr(attribute);
            const nb::object whole = nb::steal(PyNumber_Long(said.ptr()));  // 2.5e6 is a number too
            value = whole.is_valid() && PyLong_Check(whole.ptr()) ? PyLong_AsUnsignedLongLong(whole.ptr()) : UINT64_MAX;
            if (PyErr_Occurred() == nullptr) return;
            PyErr_Clear();
            value = least;
            throw Error(Code::invalid_argument, std::string(attribute) + " is " + shown(said) + ", expected a number, 0 or more");
        });
        return std::min(std::max(value, least), most);
    }

    nb::object call_raw(unsigned event, PyObject* const* arguments, std::size_t count) {
        PyObject* const result = PyObject_Vectorcall(methods_[event].ptr(), arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
        if (result != nullptr) return nb::steal(result);
        const nb::python_error error;  // takes what was raised
        fail(text_with_calls(error));
        return {};
    }
    // Invalid: nothing was called, or it raised.
    template <class... Arguments>
    nb::object call(unsigned event, std::uint64_t now, const Arguments&... arguments) {
        if (!methods_[event].is_valid()) return {};
        tell_time(now);
        PyObject* slots[sizeof...(Arguments) + 1] = {nullptr, arguments.ptr()...};
        return call_raw(event, slots + 1, sizeof...(Arguments));
    }
    void tell_time(std::uint64_t now) {
        if (now == told_) return;
        told_ = now;
        static PyObject* const attribute = PyUnicode_InternFromString("now");
        const nb::object value = nb::steal(PyLong_FromUnsignedLongLong(now));
        if (!value.is_valid() || PyObject_SetAttr(python_.ptr(), attribute, value.ptr()) != 0) fail(text_with_calls(nb::python_error()));
    }

    void about(unsigned event, PolicyRequest& request, std::uint64_t now) {
        const nb::gil_scoped_acquire gil;
        const nb::object& view = view_of(request);  // refreshed also where nobody listens
        call(event, now, view);
    }
    void about(unsigned event, const PolicyWorker& worker, std::uint64_t now) {
        if (!methods_[event].is_valid()) return;
        const nb::gil_scoped_acquire gil;
        call(event, now, view_of(worker));
    }
    void alone(unsigned event, std::uint64_t now) {
        if (!methods_[event].is_valid()) return;
        const nb::gil_scoped_acquire gil;
        call(event, now);
    }
    void ended(unsigned event, PolicyRequest& request, std::uint64_t now) {
        const nb::gil_scoped_acquire gil;
        call(event, now, view_of(request));
        drop(request.index);
    }

    const nb::object& view_of(PolicyRequest& request) {
        if (request.index >= views_.size()) views_.resize(request.index + std::size_t{1});
        nb::object& view = views_[request.index];
        const bool anew = !view.is_valid();
        if (anew) view = nb::cast(RequestView{});
        RequestView& inside = *nb::inst_ptr<RequestView>(view);
        inside.value = request;
        inside.live = &request;
        if (anew) give_names(inside);
        return view;
    }
    void give_names(RequestView& view) const {
        const std::size_t index[2] = {view.value.model, view.value.session};
        for (int i = 0; i < 2; ++i)
            if (index[i] < names_[i].size()) view.names[i] = names_[i][index[i]];
    }
    const nb::object& view_of(const PolicyWorker& worker) {
        if (worker.index >= workers_.size()) workers_.resize(worker.index + std::size_t{1});
        nb::object& view = workers_[worker.index];
        if (!view.is_valid()) view = nb::cast(WorkerView{});
        WorkerView& inside = *nb::inst_ptr<WorkerView>(view);
        inside.value = worker;
        const bool known = worker.running != nullptr && worker.running->index < views_.size() && views_[worker.running->index].is_valid();
        inside.running = known ? views_[worker.running->index] : nb::none();
        return view;
    }
    void drop(std::uint32_t index) {
        if (index >= views_.size() || !views_[index].is_valid()) return;
        nb::inst_ptr<RequestView>(views_[index])->live = nullptr;
        views_[index] = nb::object();
    }

    // What pick() gave, checked. False: it is passed over, ask again.
    bool read(const nb::object& picked, const PolicyWorker& worker, Decision& decision) {
        nb::handle request = picked;
        if (nb::isinstance<PythonDecision>(picked)) {
            const PythonDecision& given = *nb::inst_ptr<PythonDecision>(picked);
            decision = {.slice_ns = given.slice_ns, .commit_flags = given.commit_flags, .run_flags = given.run_flags, .expires_ns = given.expires_ns};
            request = given.request;
            if (request.is_none()) return true;
        }
        if (!nb::isinstance<RequestView>(request)) {
            fail("pick() returned " + shown(picked) + ", expected a Request, a Decision or None");
            decision = {};
            return true;
        }
        PolicyRequest* const live = nb::inst_ptr<RequestView>(request)->live;
        if (live == nullptr || live->staged || !live->runnable) return false;
        if (live->worker != no_object && live->worker != worker.index) {
            fail("pick() for worker " + std::to_string(worker.index) + " returned request " + std::to_string(live->index) + ", which only worker " +
                 std::to_string(live->worker) + " can go on with; see Request.worker, or use WaitList");
            decision = {};
            return true;
        }
        decision.request = live;
        return true;
    }

    // Pairs of a worker and what it is to do, checked. `whole` becomes false when one may not run (any more), and the result is the others.
    unsigned read_group(const nb::object& picked, std::span<const PolicyWorker* const> idle, std::span<GroupMember> out, bool& whole) {
        unsigned count = 0;
        for (nb::handle pair : picked) {
            if (count == out.size()) throw Error(Code::invalid_argument, "pick_group() decides for more workers than it was shown");
            if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2 || !nb::isinstance<WorkerView>(pair[0]))
                throw Error(Code::invalid_argument, "pick_group(): expected pairs (worker, request or Decision), or None");
            const PolicyWorker& worker = nb::inst_ptr<WorkerView>(pair[0])->value;
            const auto shown = [&](const PolicyWorker* one) { return one->index == worker.index; };
            if (std::none_of(idle.begin(), idle.end(), shown))
                throw Error(Code::invalid_argument, "pick_group() decides for worker " + std::to_string(worker.index) + ", which is not one that it was shown");
            const nb::object what = nb::borrow(pair[1]);
            Decision decision;
            if (!read(what, worker, decision)) {
                whole = false;
                continue;
            }
            if (decision.request == nullptr) throw Error(Code::invalid_argument, "pick_group(): each worker of a group is given a request");
            for (unsigned i = 0; i < count; ++i)
                if (out[i].worker == worker.index || out[i].decision.request == decision.request)
                    throw Error(Code::invalid_argument, "pick_group(): a worker or a request twice");
            out[count++] = {worker.index, decision};
        }
        if (whole && count == 1) throw Error(Code::invalid_argument, "pick_group(): one worker makes no group; leave it to pick()");
        return count;
    }

    nb::object python_;
    nb::object methods_[event_count];
    std::vector<nb::object> outcomes_;
    nb::object kinds_[2];
    std::vector<nb::object> names_[2];  // of models and of clients, by index; told once each
    nb::object tell_name_;
    std::vector<nb::object> views_;    // by record
    std::vector<nb::object> workers_;
    std::string name_;
    std::uint64_t told_ = UINT64_MAX;  // the time that it knows
    mutable std::uint64_t errors_ = 0;
    mutable std::string last_error_;
};

void bind_views(nb::module_& m) {
    nb::class_<RequestView>(m, "Request", nb::dynamic_attr(), nb::is_weak_referenceable(),
                            "A request, as of the last event about it. May carry attributes of the policy's own. Times are nanoseconds on the clock of Policy.now.")
        .def_prop_ro("index", [](const RequestView& v) { return v.value.index; }, "Its record: a number below the most that may be out, used again by others later.")
        .def_prop_ro("generation", [](const RequestView& v) { return v.value.generation; }, "Tells uses of a record apart.")
        .def_prop_ro("model", [](const RequestView& v) { return v.value.model; }, "Index of its model.")
        .def_prop_ro("session", [](const RequestView& v) { return v.value.session; }, "Index of its client's session.")
        .def_prop_ro("model_name", [](const RequestView& v) { return name_of(v, Named::model); }, nb::sig("def model_name(self) -> str"),
                     "Name of its model; '#INDEX' until it is known.")
        .def_prop_ro("client", [](const RequestView& v) { return name_of(v, Named::session); }, nb::sig("def client(self) -> str"),
                     "Its client as 'UID/PID'; '#INDEX' until that is known.")
        .def_prop_ro("priority", [](const RequestView& v) { return v.value.priority; }, "Higher is more urgent.")
        .def_prop_ro("arrived_ns", [](const RequestView& v) { return v.value.arrived_ns; })
        .def_prop_ro("deadline_ns", [](const RequestView& v) { return v.value.deadline_ns; }, "0: none.")
        .def_prop_ro("expected_ns", [](const RequestView& v) { return v.value.expected_ns; }, "What such requests usually take; 0: not known.")
        .def_prop_ro("ran_ns", [](const RequestView& v) { return v.value.ran_ns; }, "How long it has run so far.")
        .def_prop_ro("worker", [](const RequestView& v) -> nb::object { return v.value.worker == no_object ? nb::none() : nb::object(nb::int_(v.value.worker)); },
                     nb::sig("def worker(self) -> int | None"), "The only worker that can go on with it; None: any.")
        .def_prop_ro("runnable", [](const RequestView& v) { return v.value.runnable; }, "It may run.")
        .def_prop_ro("preemptible", [](const RequestView& v) { return v.value.preemptible; }, "It can be taken from its worker ...")
        .def_prop_ro("yields", [](const RequestView& v) { return v.value.yields; }, "... at its own yield points only.")
        .def_prop_rw("staged", [](const RequestView& v) { return v.value.staged; }, [](RequestView& v, bool staged) { v.value.staged = staged; },
                     "A worker has it, or is about to. Setting it changes what this object says, for policies made of policies.")
        .def_prop_ro("over", [](const RequestView& v) { return v.live == nullptr; }, "It has ended.")
        .def("__getattr__", [](nb::handle, const std::string& name) -> nb::object { throw nb::attribute_error(("this request has no attribute '" + name + "': set it first, as in Policy.new()").c_str()); },
             nb::sig("def __getattr__(self, name: str) -> Any"))
        // By what it is, not by where it lies: a set of requests then has the same order in each run of a simulation.
        .def("__hash__", [](const RequestView& v) { return (std::uint64_t{v.value.generation} << 24 ^ v.value.index) & INT64_MAX; })
        .def("__repr__", [](const RequestView& v) { return "<Request " + std::to_string(v.value.index) + " of model " + std::to_string(v.value.model) + ">"; });
    nb::class_<WorkerView>(m, "PolicyWorker", "A worker, as of the last call with it.")
        .def_prop_ro("index", [](const WorkerView& v) { return v.value.index; })
        .def_prop_ro("running", [](const WorkerView& v) { return v.running; }, nb::sig("def running(self) -> Request | None"), "What it is believed to run.")
        .def_prop_ro("since_ns", [](const WorkerView& v) { return v.value.since_ns; }, "Since when it runs or idles.")
        .def_prop_ro("slice_ns", [](const WorkerView& v) { return v.value.slice_ns; }, "How long what runs was given; 0: until it ends.")
        .def_prop_ro("staged", [](const WorkerView& v) { return v.value.staged; }, "Decisions that wait for it.")
        .def_prop_ro("idle", [](const WorkerView& v) { return v.value.idle; })
        .def_prop_ro("online", [](const WorkerView& v) { return v.value.online; });
    nb::class_<PythonDecision>(m, "Decision", "What pick() may return instead of a request: with how it is to run.")
        .def("__init__",
             [](PythonDecision* self, nb::object request, std::uint64_t slice_ns, std::uint64_t expires_ns, bool idle_only, bool may_not_preempt, bool local_default) {
                 const std::uint8_t commit = idle_only ? commit_idle_only : 0;
                 const std::uint8_t run = static_cast<std::uint8_t>((may_not_preempt ? run_may_not_preempt : 0) | (local_default ? run_local_default : 0));
                 new (self) PythonDecision{std::move(request), slice_ns, expires_ns, commit, run};
             },
             nb::arg("request").none(), nb::kw_only(), nb::arg("slice_ns") = 0, nb::arg("expires_ns") = 0, nb::arg("idle_only") = false,
             nb::arg("may_not_preempt") = false, nb::arg("local_default") = false,
             nb::sig("def __init__(self, request: Request | None, *, slice_ns: int = 0, expires_ns: int = 0, idle_only: bool = False, may_not_preempt: bool = "
                     "False, local_default: bool = False) -> None"),
             "slice_ns: how long it may run before it leaves its worker, 0: until it ends. expires_ns: refused when it is taken up after that time. idle_only: "
             "refused unless the worker has nothing to do. may_not_preempt: not even when its slice is over. local_default: with request None, the pool's own order "
             "chooses.")
        .def_prop_ro("request", [](const PythonDecision& d) { return d.request; }, nb::sig("def request(self) -> Request | None"))
        .def_prop_ro("slice_ns", [](const PythonDecision& d) { return d.slice_ns; })
        .def_prop_ro("expires_ns", [](const PythonDecision& d) { return d.expires_ns; });
}

}  // namespace

void bind_policy(nb::module_& m) {
    bind_views(m);
    nb::class_<Policy>(m, "Policy", "A policy as a mechanism drives it: a shipped one, or a PythonPolicy.")
        .def_prop_ro("name", [](const Policy& policy) { return std::string(policy.name()); })
        .def("set", [](Policy& policy, std::string_view name, std::string_view value) { set_or_throw(policy, name, value); }, nb::arg("name"), nb::arg("value"),
             "One setting. Raises InvalidArgument for a name or a value that it does not take.")
        .def("settings", [](const Policy& policy) { return policy.settings(); }, "(name, value) of all settings, as set() takes them.")
        .def("named", [](Policy& policy, int kind, std::uint16_t index, std::string_view name) { policy.on_name(kind == 0 ? Named::model : Named::session, index, name); },
             nb::arg("kind"), nb::arg("index"), nb::arg("name"), "Model (kind 0) or session (1) `index` is called `name`.")
        .def("dump", [](const Policy& policy) { return policy.dump(); }, "Its state, for people.")
        .def_prop_ro("depth", [](const Policy& policy) { return policy.depth(); })
        .def_prop_ro("work_conserving", [](const Policy& policy) { return policy.work_conserving(); })
        .def_prop_ro("errors", [](const Policy& policy) { return policy.errors(); }, "Calls that raised, or made no sense.")
        .def_prop_ro("last_error", [](const Policy& policy) { return policy.last_error(); });
    nb::class_<PythonPolicy, Policy>(m, "PythonPolicy", "Drives an object of a class that derives from teal.agents.Policy.")
        .def(nb::init<nb::object>(), nb::arg("policy"))
        .def_prop_ro("python", [](const PythonPolicy& policy) { return policy.python(); });
    m.def("make_policy", [](std::string_view name) -> std::shared_ptr<Policy> { return make_policy(name); }, nb::arg("name"), "A shipped policy; None: there is none of that name.");
    m.def("policy_names", [] { return std::vector<std::string>(policy_names().begin(), policy_names().end()); });
    m.def("play",
          [](Policy& policy, const std::vector<std::uint32_t>& script, std::uint32_t workers) {
              Played played = play(policy, script, workers);
              return std::pair(std::move(played.decisions), std::move(played.violation));
          },
          nb::arg("policy"), nb::arg("script"), nb::arg("workers") = 4,
          "Plays a sequence of events to a policy, one for each word. Returns what it decided (for each pick the record + 1 and the slice, or 0), and what was wrong with "
          "it, or ''.");
    m.def("parse_time", &parse_time, nb::arg("setting"), nb::arg("value"), nb::arg("least"));
    m.def("parse_weight", &parse_weight, nb::arg("setting"), nb::arg("value"));
    m.def("parse_whole", &parse_whole, nb::arg("setting"), nb::arg("value"), nb::arg("least"), nb::arg("most"));
    m.def("parse_flag", &parse_flag, nb::arg("setting"), nb::arg("value"));
    m.def("show_time", &show_time, nb::arg("ns"));
    m.def("show_weight", &show_weight, nb::arg("thousandths"));
}

}  // namespace teal
