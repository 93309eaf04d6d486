// The Python seam of calls to ducks: DuckLine, DuckCall, and lines on this machine.
#include "bindings/duck_line.hpp"

#include <nanobind/stl/string.h>

#include <csignal>
#include <cstring>
#include <poll.h>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/slot.hpp"
#include "box/caller.hpp"
#include "cpu/clock.hpp"
#include "memory/dtype.hpp"

namespace teal {
namespace {

// ---- near ------------------------------------------------------------------------------------------------------------

class NearLine final : public Line {
public:
    NearLine(int control, int fate, const box::SessionFacts& facts, int socket, std::string who)
        : Line(std::move(who)), caller_(control, fate, facts), socket_(socket) {
        args_bytes = facts.args_bytes;
        ob_bytes = facts.ob_bytes;
    }

    std::byte* args() override { return caller_.args(); }
    void begin(const void* args, std::uint64_t bytes, box::AskOp op) override { check(caller_.submit(args, bytes, op)); }
    void begin_in_place(std::uint64_t bytes) override { check(caller_.submit_in_place(bytes)); }
    bool wait(std::uint64_t until_ns, CallEnd& end) override {
        box::Answer answer = until_ns == 0 ? caller_.poll() : caller_.wait(until_ns);
        if (answer.outcome == box::Outcome::pending && caller_.ending().fate != box::Fate::running) {
            answer = caller_.poll();  // it may have answered before it ended
            if (answer.outcome == box::Outcome::pending) answer.outcome = box::Outcome::ended;
        }
        switch (answer.outcome) {
            case box::Outcome::done: {
                end.result = answer.result;
                const std::uint64_t took = answer.done - answer.began;  // ticks of the box's: for people only
                end.program_ns = static_cast<std::int64_t>(took) < 0 ? 0 : static_cast<std::uint64_t>(ticks_to_ns(took));
                return true;
            }
            case box::Outcome::pending:
            case box::Outcome::late:
                if (until_ns != 0 && duck_gone()) throw Error(Code::peer_died, "duck: its process is gone");
                return false;
            default: check(answer.outcome);
        }
        return false;
    }
    std::byte* output() override { return caller_.output(); }
    bool ended() override { return caller_.ending().fate != box::Fate::running; }
    bool over() override { return ended() || duck_gone(); }
    void close() override { socket_ = -1; }
    [[nodiscard]] bool near() const override { return true; }

private:
    // The connection to the duck is closed, and all of its sessions with it.
    [[nodiscard]] bool duck_gone() const {
        if (socket_ < 0) return true;
        pollfd look{socket_, POLLRDHUP, 0};
        return ::poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
    }
    void check(box::Outcome outcome) {
        switch (outcome) {
            case box::Outcome::busy: throw Error(Code::busy, "a call of this session is still running; wait for it, or open another session");
            case box::Outcome::too_long:
                throw Error(Code::invalid_argument, "$.args: longer than the " + std::to_string(args_bytes) + " bytes that the session was opened with (args=)");
            case box::Outcome::ended: {
                const box::Ending ending = caller_.ending();
                throw_fate(who_, ending.fate, ending.detail);
            }
            case box::Outcome::lost: throw Error(Code::peer_died, "duck: its process is gone");
            default: return;
        }
    }

    box::Caller caller_;
    int socket_;  // the client's; its connection's end is the duck's
};

// ---- what Python calls -----------------------------------------------------------------------------------------------

// Any object with packed bytes.
struct Bytes {
    Py_buffer view{};
    bool held = false;
    const void* data = nullptr;
    std::uint64_t size = 0;

    explicit Bytes(nb::handle object) {
        if (object.is_none()) return;
        if (PyBytes_CheckExact(object.ptr()) != 0) {
            data = PyBytes_AS_STRING(object.ptr());
            size = static_cast<std::uint64_t>(PyBytes_GET_SIZE(object.ptr()));
            return;
        }
        if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            throw Error(Code::invalid_argument, "$.args: expected bytes or a packed array");
        }
        held = true;
        data = view.buf;
        size = static_cast<std::uint64_t>(view.len);
    }
    ~Bytes() {
        if (held) PyBuffer_Release(&view);
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
};

TensorDesc bytes_desc(std::uint64_t offset, std::uint64_t bytes) {
    TensorDesc desc{};
    desc.dtype = static_cast<std::uint8_t>(Dtype::u8);
    desc.rank = 1;
    desc.shape[0] = static_cast<std::int64_t>(bytes);
    desc.offset = offset;
    desc.nbytes = desc.capacity = bytes;
    return desc;
}

nb::object tensor_of(const std::shared_ptr<Line>& line, std::byte* base, std::uint64_t bytes, bool readonly) {
    return make_tensor(bytes_desc(0, bytes), base, nullptr, line, readonly);
}

constexpr std::uint64_t nap_ns = 100'000;  // between looks at a line that another thread waits on

// A repeated call whose arguments are written in place.
struct DuckCall {
    nb::object line_object;
    DuckLine* line;
    std::uint64_t bytes;
    nb::object args;

    nb::object run() {
        line->check_ready();
        line->line->begin_in_place(bytes);
        line->pending = true;
        ++line->generation;
        ++line->prepared_calls;
        line->wait(0);
        return line->answer();
    }
};

}  // namespace

void throw_fate(const std::string& who, box::Fate fate, std::int32_t detail) {
    const std::string number = std::to_string(detail);
    switch (fate) {
        case box::Fate::running:
        case box::Fate::closed: throw Error(Code::closed, who + ": the session is closed");
        case box::Fate::exited: throw Error(Code::peer_died, "program: " + who + " ended by itself with exit status " + number);
        case box::Fate::killed: {
            const char* name = sigabbrev_np(detail);
            throw Error(Code::peer_died, "program: " + who + " was ended by signal " + number + (name == nullptr ? "" : std::string(" SIG") + name));
        }
        case box::Fate::overdue:
            throw Error(Code::deadline_exceeded, who + ": the call took longer than the session's bound of " + number + " ms; its program was ended");
        case box::Fate::memory: throw Error(Code::quota_exceeded, who + ": the program wanted more memory than the session has (memory=); it was ended");
        case box::Fate::refused: throw Error(Code::kernel_failed, who + ": duck_init() returned " + number);
        case box::Fate::not_started: throw Error(Code::internal_error, who + ": " + system_message("starting the box", detail));
        case box::Fate::lost: break;
    }
    throw Error(Code::peer_died, "duck: whoever ran " + who + " is gone");
}

DuckLine::~DuckLine() {
    if (forks != fork_generation.load(std::memory_order_relaxed)) new std::shared_ptr<Line>(std::move(line));  // the parent's business
}

void DuckLine::check_ready() {
    check_not_forked(forks);
    if (closed) throw Error(Code::closed, "the session is closed");
    if (pending && look() && abandoned) pending = false;
    if (pending) throw Error(Code::busy, "a call of this session is still running; wait for it, or open another session");
}

bool DuckLine::look() {
    if (!pending) return true;
    if (waiting) return false;
    try {
        if (!line->wait(0, end)) return false;
    } catch (...) {
        pending = abandoned = false;
        throw;
    }
    pending = abandoned = false;
    return true;
}

bool DuckLine::wait(std::uint64_t until_ns) {
    if (!pending) return true;
    const std::uint64_t spin_until = ticks() + ns_to_ticks(static_cast<std::int64_t>(held_spin_ns));
    do {
        if (look()) return true;
    } while (!waiting && ticks() < spin_until);
    check_not_forked(forks);
    for (;;) {
        const auto now = static_cast<std::uint64_t>(monotonic_ns());
        if (until_ns != 0 && now >= until_ns) return look();
        const std::uint64_t slice = waiting ? now + nap_ns : now + signal_slice_ns;
        const std::uint64_t until = until_ns == 0 ? slice : std::min(until_ns, slice);
        if (waiting) {
            const nb::gil_scoped_release release;
            timespec nap{0, static_cast<long>(nap_ns)};
            ::nanosleep(&nap, nullptr);
        } else {
            struct Mark {
                bool& flag;
                explicit Mark(bool& f) : flag(f) { flag = true; }
                ~Mark() { flag = false; }
            };
            bool ended = false;
            CallEnd seen{};
            {
                const Mark mark(waiting);
                const std::shared_ptr<Line> kept = line;
                try {
                    const nb::gil_scoped_release release;
                    ended = kept->wait(until, seen);
                } catch (...) {
                    pending = abandoned = false;
                    throw;
                }
            }
            if (ended) {
                end = seen;
                pending = abandoned = false;
                return true;
            }
        }
        if (!pending) return true;
        if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    }
}

nb::object DuckLine::answer() {
    if (end.result < 0) throw Error(Code::kernel_failed, "the program returned " + std::to_string(end.result));
    const std::uint64_t bytes = std::min<std::uint64_t>(static_cast<std::uint64_t>(end.result), line->ob_bytes);
    if (shown.is_valid()) {
        const Tensor* tensor = nb::inst_ptr<Tensor>(shown);
        if (tensor->nbytes == bytes && !tensor->released) return shown;
    }
    shown = tensor_of(line, line->output(), bytes, false);
    return shown;
}

void DuckLine::close() {
    if (closed) return;
    closed = true;
    shown.reset();
    line->close();
}

nb::object duck_line(std::shared_ptr<Line> line) { return nb::cast(new DuckLine(std::move(line)), nb::rv_policy::take_ownership); }

void bind_duck_line(nb::module_& m) {
    nb::class_<DuckLine>(m, "DuckLine", "The way that calls of one duck session take. One call is out at a time.")
        .def("begin", [](DuckLine& l, nb::handle args) {
            l.check_ready();
            const Bytes bytes(args);
            if (bytes.size > l.line->args_bytes)
                throw Error(Code::invalid_argument, "$.args: longer than the " + std::to_string(l.line->args_bytes) + " bytes that the session was opened with (args=)");
            l.line->begin(bytes.data, bytes.size, box::AskOp::call);
            l.pending = true;
            return ++l.generation;
        }, nb::arg("args").none(), nb::sig("def begin(self, args: typing.Any) -> int"), "Starts a call with these arguments. Returns its number.")
        .def("clear", [](DuckLine& l) {
            l.check_ready();
            l.line->begin(nullptr, 0, box::AskOp::clear);
            l.pending = true;
            ++l.generation;
        }, "Starts zeroing the output buffer; wait() for it.")
        .def("use", [](DuckLine& l, std::uint64_t id) {
            l.check_ready();
            l.line->begin(&id, sizeof id, box::AskOp::map);
            l.pending = true;
            ++l.generation;
            l.wait(0);
            return l.end.result == 0;
        }, nb::arg("id"), "Goes over to an input buffer that the duck has mapped before, 0: to none. False: it is not mapped; ask the duck.")
        .def("wait", [](DuckLine& l, std::uint64_t timeout_ns) {
            return l.wait(timeout_ns == 0 ? 0 : static_cast<std::uint64_t>(monotonic_ns()) + timeout_ns);
        }, nb::arg("timeout_ns"), "True once the call has ended; 0: as long as it takes.")
        .def("look", [](DuckLine& l) {
            check_not_forked(l.forks);
            return l.look();
        }, "Has the call ended?")
        .def("answer", &DuckLine::answer, nb::sig("def answer(self) -> Tensor"), "The output buffer's first bytes, as many as the program said; the same object for the same size.")
        .def("give_up", [](DuckLine& l) {
            if (!l.pending) return;
            l.abandoned = true;
            l.line->take_back();
        }, "The answer is dropped when it comes.")
        .def("prepare", [](nb::handle self, std::uint64_t bytes) {
            DuckLine& l = *nb::inst_ptr<DuckLine>(self);
            if (bytes > l.line->args_bytes)
                throw Error(Code::invalid_argument, "$.args: longer than the " + std::to_string(l.line->args_bytes) + " bytes that the session was opened with (args=)");
            return new DuckCall{nb::borrow(self), &l, bytes, tensor_of(l.line, l.line->args(), bytes, false)};
        }, nb::arg("nbytes"), nb::rv_policy::take_ownership, nb::sig("def prepare(self, nbytes: int) -> DuckCall"))
        .def("ob", [](DuckLine& l) { return tensor_of(l.line, l.line->output(), l.line->ob_bytes, false); }, nb::sig("def ob(self) -> Tensor"))
        .def("close", &DuckLine::close)
        .def_prop_ro("busy", [](DuckLine& l) {
            if (l.closed || !l.pending) return false;
            check_not_forked(l.forks);
            try {
                return !l.look();
            } catch (const Error&) {  // the session is over, and the call with it
                return false;
            }
        })
        .def_prop_ro("ended", [](DuckLine& l) { return l.closed || l.line->ended(); }, "The session is over, as far as can be told without asking.")
        .def_prop_ro("over", [](DuckLine& l) { return l.closed || l.line->over(); }, "The session is over, or its duck is gone.")
        .def_ro("generation", &DuckLine::generation)
        .def_ro("prepared_calls", &DuckLine::prepared_calls)
        .def_prop_ro("direct_calls", [](const DuckLine& l) { return l.line->direct_calls(); }, "Calls that went straight to a box elsewhere, past its duck.")
        .def_prop_ro("direct", [](const DuckLine& l) { return l.line->direct(); }, "The box elsewhere answers such calls.")
        .def_prop_ro("last_program_ns", [](const DuckLine& l) { return l.end.program_ns; });
    nb::class_<DuckCall>(m, "DuckCall", "A repeated call whose arguments are written in place.")
        .def("__call__", &DuckCall::run, nb::sig("def __call__(self) -> Tensor"))
        .def_ro("args", &DuckCall::args, nb::sig("def args(self) -> Tensor"));
    m.def("near_duck_line", [](int control, int fate, const nb::dict& facts, int socket, const std::string& who) {
        box::SessionFacts f;
        const auto number = [&](const char* name) { return nb::cast<std::uint64_t>(facts[name]); };
        f.id = number("id");
        f.cores = static_cast<std::uint32_t>(number("cores"));
        f.box_pid = static_cast<std::uint32_t>(number("box_pid"));
        f.region_bytes = number("region_bytes");
        f.args_bytes = number("args_bytes");
        f.log_offset = number("log_offset");
        f.log_bytes = number("log_bytes");
        f.ob_offset = number("ob_offset");
        f.ob_bytes = number("ob_bytes");
        f.call_limit_ns = number("call_limit_ns");
        return duck_line(std::make_shared<NearLine>(control, fate, f, socket, who));
    }, nb::arg("control"), nb::arg("fate"), nb::arg("facts"), nb::arg("socket"), nb::arg("who"),
       nb::sig("def near_duck_line(control: int, fate: int, facts: dict[str, int], socket: int, who: str) -> DuckLine"),
       "A line to a session on this machine; the descriptors stay the caller's. socket: of the connection to its duck.");
}

}  // namespace teal
