// The Python seam of ducks elsewhere: the network loop of a duck, and a client's connection to one.
//
// Python sees events, and never a call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/duck_line.hpp"
#include "bindings/duck_offer.hpp"
#include "box/caller.hpp"
#include "box/yard.hpp"
#include "cpu/clock.hpp"
#include "duck/box_sink.hpp"
#include "duck/group.hpp"
#include "duck/net.hpp"
#include "duck/remote.hpp"

namespace teal {
namespace {

// ---- the duck's side -------------------------------------------------------------------------------------------------

std::vector<std::byte> bytes_of(nb::bytes bytes) {
    const auto* data = reinterpret_cast<const std::byte*>(bytes.c_str());
    return {data, data + bytes.size()};
}

nb::bytes python_bytes(const std::vector<std::byte>& bytes) { return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

duck::BlobDigest digest_of(nb::bytes bytes) {
    duck::BlobDigest digest{};
    if (bytes.size() != digest.size()) throw Error(Code::invalid_argument, "a SHA-256 of " + std::to_string(bytes.size()) + " bytes: expected 32");
    std::memcpy(digest.data(), bytes.c_str(), digest.size());
    return digest;
}

struct DuckNet {
    std::shared_ptr<duck::Net> net;
    [[nodiscard]] std::shared_ptr<duck::Net> use() const {
        if (!net) throw Error(Code::closed, "the duck is closed");
        return net;
    }
};

nb::object next_event(duck::Net& net) {
    duck::NetEvent event;
    if (!net.next_event(event)) return nb::none();
    // What is held above is for the caches there to say: they drop some of it now and then.
    if (event.id == 1 && (event.kind == duck::NetEventKind::blob || event.kind == duck::NetEventKind::checked)) net.forget(event.digest);
    return nb::make_tuple(static_cast<unsigned>(event.kind), event.connection, event.id, python_bytes(event.bytes), event.text,
                          nb::bytes(reinterpret_cast<const char*>(event.digest.data()), event.digest.size()), event.size, event.fd);
}

nb::dict net_figures(const duck::Net& net) {
    const duck::NetFigures f = net.figures();
    nb::dict found;
    found["connections_now"] = f.connections_now;
    found["connections_opened"] = f.connections_opened;
    found["connections_lost"] = f.connections_lost;
    found["sessions_now"] = f.sessions_now;
    found["calls"] = f.calls;
    found["calls_repeated"] = f.calls_repeated;
    found["calls_refused"] = f.calls_refused;
    found["packets_in"] = f.packets_in;
    found["packets_out"] = f.packets_out;
    found["bytes_in"] = f.bytes_in;
    found["bytes_out"] = f.bytes_out;
    found["dropped_malformed"] = f.dropped_malformed;
    found["dropped_unknown"] = f.dropped_unknown;
    found["dropped_forged"] = f.dropped_forged;
    found["dropped_replayed"] = f.dropped_replayed;
    found["packets_lost"] = f.packets_lost;
    found["packets_probed"] = f.packets_probed;
    found["hellos"] = f.hellos;
    found["hellos_refused"] = f.hellos_refused;
    found["wrong_key"] = f.wrong_key;
    found["messages"] = f.messages;
    found["blobs_had"] = f.blobs_had;
    found["blobs_received"] = f.blobs_received;
    found["blobs_bad"] = f.blobs_bad;
    found["blob_bytes"] = f.blob_bytes;
    found["group_bytes"] = f.group_bytes;
    found["sleeps"] = f.sleeps;
    found["directs"] = f.directs;
    found["directs_refused"] = f.directs_refused;
    return found;
}

// ---- the client's side -----------------------------------------------------------------------------------------------

// Where answers of a remote session go.
struct Mirror {
    std::byte* base = nullptr;
    std::uint64_t bytes;
    explicit Mirror(std::uint64_t size) : bytes(size) {
        if (size == 0) return;
        void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) throw Error(Code::quota_exceeded, system_message("memory for a session's answers", errno));
        base = static_cast<std::byte*>(at);
    }
    ~Mirror() {
        if (base != nullptr) ::munmap(base, bytes);
    }
    Mirror(const Mirror&) = delete;
    Mirror& operator=(const Mirror&) = delete;
};

class FarLine final : public Line {
public:
    FarLine(std::shared_ptr<duck::Remote> remote, std::uint32_t number, std::uint64_t most_args, std::uint64_t ob, std::string who,
            std::unique_ptr<duck::DirectPath> path, std::uint16_t port, std::uint64_t id)
        : Line(std::move(who)), remote_(std::move(remote)), mirror_(std::make_shared<Mirror>(ob)), args_(most_args) {
        args_bytes = most_args;
        ob_bytes = ob;
        session_ = remote_->session(number, {mirror_->base, ob}, mirror_, std::move(path), port, id);
    }

    std::byte* args() override { return args_.base; }
    void begin(const void* args, std::uint64_t bytes, box::AskOp op) override {
        seq_ = session_->submit({static_cast<const std::byte*>(args), bytes}, static_cast<std::uint32_t>(op));
    }
    void begin_in_place(std::uint64_t bytes) override { begin(args_.base, bytes, box::AskOp::call); }
    bool wait(std::uint64_t until_ns, CallEnd& end) override {
        std::uint64_t timeout = 0;
        if (until_ns != 0) {
            const auto now = static_cast<std::uint64_t>(monotonic_ns());
            timeout = until_ns > now ? until_ns - now : 0;
        }
        duck::CallAnswer answer;
        if (!session_->wait(seq_, timeout, answer)) return false;
        switch (answer.outcome) {
            case duck::Outcome::ran:
                end.result = answer.result;
                end.program_ns = answer.took_ns;
                return true;
            case duck::Outcome::fate: {
                over_ = true;
                const auto raw = static_cast<std::uint64_t>(answer.result);
                throw_fate(who_, static_cast<box::Fate>(raw >> 32), static_cast<std::int32_t>(raw & 0xffffffffU));
            }
            case duck::Outcome::refused:
                if (answer.result == E2BIG)
                    throw Error(Code::invalid_argument, "$.args: longer than the " + std::to_string(args_bytes) + " bytes that the session was opened with (args=)");
                throw Error(Code::busy, "a call of this session is still running; wait for it, or open another session");
            case duck::Outcome::cancelled: throw Error(Code::cancelled, who_ + ": the call was taken back before it began");
            case duck::Outcome::unknown: over_ = true; throw Error(Code::closed, who_ + ": the session is closed");
            case duck::Outcome::forgotten:
                throw Error(Code::peer_died, "duck: the answer of " + who_ + " was lost on the way and is not kept any more; the call may have run");
        }
        throw Error(Code::internal_error, who_ + ": an answer that is not understood");
    }
    std::byte* output() override { return mirror_->base; }
    void take_back() override { session_->cancel(seq_); }
    bool ended() override { return over_; }
    bool over() override { return over_ || !remote_->alive(); }
    void close() override { over_ = true; }
    [[nodiscard]] bool near() const override { return false; }
    [[nodiscard]] std::uint64_t direct_calls() const override { return session_->direct_calls(); }
    [[nodiscard]] bool direct() const override { return session_->direct(); }

private:
    std::shared_ptr<duck::Remote> remote_;
    std::shared_ptr<Mirror> mirror_;
    Mirror args_;
    std::unique_ptr<duck::RemoteSession> session_;
    std::uint64_t seq_ = 0;
    bool over_ = false;
};

struct DuckPath {
    std::unique_ptr<duck::DirectPath> path;
};

struct DuckRemote {
    std::shared_ptr<duck::Remote> remote;
    std::uint32_t forks = fork_generation.load(std::memory_order_relaxed);
    ~DuckRemote() {
        if (forks != fork_generation.load(std::memory_order_relaxed)) new std::shared_ptr<duck::Remote>(std::move(remote));  // the parent's business
    }
};

class PackedBytes {  // of an object with a buffer, as long as this lives
public:
    explicit PackedBytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    }
    ~PackedBytes() { PyBuffer_Release(&view_); }
    PackedBytes(const PackedBytes&) = delete;
    PackedBytes& operator=(const PackedBytes&) = delete;
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)}; }

private:
    Py_buffer view_{};
};

std::uint64_t put(DuckRemote& r, nb::bytes digest, nb::handle object, std::uint64_t timeout_ns) {
    check_not_forked(r.forks);
    const duck::BlobDigest name = digest_of(digest);
    const PackedBytes data(object);
    const nb::gil_scoped_release release;
    return r.remote->put(name, data.bytes(), timeout_ns).sent_bytes;
}

nb::tuple put_group(const std::vector<DuckRemote*>& ducks, nb::bytes digest, nb::handle object, const std::string& group, const std::string& interface,
                    std::uint64_t bytes_per_second, std::size_t datagram_bytes, std::uint64_t timeout_ns) {
    std::vector<std::shared_ptr<duck::Remote>> remotes;
    for (const DuckRemote* each : ducks) {
        check_not_forked(each->forks);
        remotes.push_back(each->remote);
    }
    const duck::BlobDigest name = digest_of(digest);
    const PackedBytes data(object);
    duck::GroupPut put;
    {
        const nb::gil_scoped_release release;
        put = duck::put_group(remotes, name, data.bytes(), {group, interface, bytes_per_second, datagram_bytes, timeout_ns, {}});
    }
    nb::list sent;
    for (const duck::PutResult& each : put.ducks) sent.append(each.sent_bytes);
    return nb::make_tuple(put.group_bytes, sent);
}

}  // namespace

void bind_duck_net(nb::module_& m) {
    nb::class_<DuckOffer>(m, "DuckOffer", "A socket for direct calls, and their keys.")
        .def_prop_ro("refused", [](const DuckOffer& o) { return o.offer.refused; }, "Why there is none; empty: there is one.")
        .def_prop_ro("port", [](const DuckOffer& o) { return o.offer.port; })
        .def_prop_ro("id", [](const DuckOffer& o) { return o.offer.id; })
        .def_prop_ro("sealed", [](const DuckOffer& o) { return o.offer.cipher != duck::Cipher::none; });
    nb::class_<DuckPath>(m, "DuckPath", "A client's end of direct calls, before its session is open.")
        .def_prop_ro("port", [](const DuckPath& p) { return p.path ? p.path->port() : std::uint16_t{0}; }, "0: it was used.");
    nb::class_<DuckNet>(m, "DuckNet", "The network loop of a duck: a thread with all sockets. After close() every use raises Closed.")
        .def("__init__", [](DuckNet* self, const std::string& udp, const std::string& tcp, nb::bytes key, std::uint64_t idle_ns, std::uint64_t blob_bytes, const std::string& multicast) {
            duck::NetOptions options;
            options.udp = udp;
            options.tcp = tcp;
            options.key = bytes_of(key);
            options.idle_ns = idle_ns;
            options.most_blob_bytes = options.blob_budget_bytes = blob_bytes;
            options.group_interface = multicast;
            new (self) DuckNet{std::make_shared<duck::Net>(options)};
        }, nb::arg("udp"), nb::arg("tcp"), nb::arg("key"), nb::arg("idle_ns"), nb::arg("blob_bytes"), nb::arg("multicast") = "")
        .def("start", [](const DuckNet& n) { n.use()->start(); })
        .def("close", [](DuckNet& n) {
            std::shared_ptr<duck::Net> net = std::move(n.net);
            const nb::gil_scoped_release release;
            if (net) net->stop();
            net.reset();
        }, "Tells every peer, and closes all sockets.")
        .def_prop_ro("udp_port", [](const DuckNet& n) { return n.use()->udp_port(); })
        .def_prop_ro("tcp_port", [](const DuckNet& n) { return n.use()->tcp_port(); })
        .def_prop_ro("event_fd", [](const DuckNet& n) { return n.use()->event_fd(); })
        .def("next_event", [](const DuckNet& n) { return next_event(*n.use()); },
             nb::sig("def next_event(self) -> tuple[int, int, int, bytes, str, bytes, int, int] | None"),
             "(kind: 1 opened, 2 lost, 3 message, 4 blob, 5 checked, 6 wrong_key; connection, id, bytes, text, SHA-256, size, descriptor)")
        .def("reply", [](const DuckNet& n, std::uint64_t connection, std::uint64_t id, nb::bytes bytes) {
            n.use()->reply(connection, id, {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()});
        }, nb::arg("connection"), nb::arg("id"), nb::arg("data"))
        .def("attach", [](const DuckNet& n, std::uint64_t connection, std::shared_ptr<box::Session> session) {
            const auto net = n.use();
            const nb::gil_scoped_release release;
            duck::SessionLimits limits;
            limits.args_bytes = session->facts().args_bytes + sizeof(std::uint64_t);   // and a number; the box's caller has the last word
            limits.result_bytes = session->facts().ob_bytes;
            return net->attach(connection, std::make_shared<duck::BoxSink>(std::move(session)), limits);
        }, nb::arg("connection"), nb::arg("box"))
        .def("direct", [](const DuckNet& n, std::uint64_t connection, std::uint16_t port) {
            const auto net = n.use();
            const nb::gil_scoped_release release;
            return std::make_shared<DuckOffer>(net->direct(connection, port));
        }, nb::arg("connection"), nb::arg("port"), "A socket for the box of that client's next session, which answers it at that port of the client's.")
        .def("detach", [](const DuckNet& n, std::uint32_t session) {
            const auto net = n.net;
            const nb::gil_scoped_release release;
            if (net) net->detach(session);
        }, nb::arg("session"))
        .def("figures", [](const DuckNet& n) { return net_figures(*n.use()); }, nb::sig("def figures(self) -> dict[str, int]"));
    m.def("duck_put_group", &put_group, nb::arg("ducks"), nb::arg("sha256"), nb::arg("data"), nb::arg("group"), nb::arg("interface"), nb::arg("bytes_per_second"),
          nb::arg("datagram_bytes"), nb::arg("timeout_ns"),
          nb::sig("def duck_put_group(ducks: typing.Sequence[DuckRemote], sha256: bytes, data: typing.Any, group: str, interface: str, bytes_per_second: int, "
                  "datagram_bytes: int, timeout_ns: int) -> tuple[int, list[int]]"),
          "Sends a blob to several ducks by multicast, then to each what it lacks. Returns the bytes of both. Raises as put() does.");
    nb::class_<DuckRemote>(m, "DuckRemote", "A client's connection to a duck elsewhere.")
        .def("__init__", [](DuckRemote* self, const std::string& address, nb::bytes key, bool tcp, std::uint64_t connect_ns) {
            duck::RemoteOptions options;
            options.key = bytes_of(key);
            options.tcp = tcp;
            options.connect_timeout_ns = connect_ns;
            const nb::gil_scoped_release release;
            new (self) DuckRemote{duck::Remote::connect(address, options)};
        }, nb::arg("address"), nb::arg("key"), nb::arg("tcp"), nb::arg("connect_ns"))
        .def("request", [](DuckRemote& r, nb::bytes message, std::uint64_t timeout_ns) {
            check_not_forked(r.forks);
            std::vector<std::byte> reply;
            {
                const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(message.c_str()), message.size());
                const nb::gil_scoped_release release;
                reply = r.remote->request(bytes, timeout_ns);
            }
            return python_bytes(reply);
        }, nb::arg("message"), nb::arg("timeout_ns"))
        .def("put", &put, nb::arg("sha256"), nb::arg("data"), nb::arg("timeout_ns"), nb::sig("def put(self, sha256: bytes, data: typing.Any, timeout_ns: int) -> int"),
             "Sends a blob. Returns the bytes that were sent: 0 when the duck had it.")
        .def("direct", [](DuckRemote& r) -> std::shared_ptr<DuckPath> {
            check_not_forked(r.forks);
            auto path = r.remote->direct();
            return path ? std::make_shared<DuckPath>(std::move(path)) : nullptr;
        }, nb::sig("def direct(self) -> DuckPath | None"), "A path for direct calls of the next session; over TCP there is none.")
        .def("line", [](DuckRemote& r, std::uint32_t number, std::uint64_t args_bytes, std::uint64_t ob_bytes, const std::string& who, DuckPath* path,
                        std::uint16_t port, std::uint64_t id) {
            check_not_forked(r.forks);
            return duck_line(std::make_shared<FarLine>(r.remote, number, args_bytes, ob_bytes, who, path != nullptr ? std::move(path->path) : nullptr, port, id));
        }, nb::arg("session"), nb::arg("args_bytes"), nb::arg("ob_bytes"), nb::arg("who"), nb::arg("path").none() = nb::none(), nb::arg("port") = 0, nb::arg("id") = 0,
           nb::sig("def line(self, session: int, args_bytes: int, ob_bytes: int, who: str, path: DuckPath | None = None, port: int = 0, id: int = 0) -> DuckLine"),
           "Calls of a session. path: of direct(), used up; port, id: of the duck's offer.")
        .def("ping", [](DuckRemote& r, std::uint64_t timeout_ns) {
            check_not_forked(r.forks);
            const nb::gil_scoped_release release;
            return r.remote->ping(timeout_ns);
        }, nb::arg("timeout_ns"), "Nanoseconds of one round trip.")
        .def("close", [](DuckRemote& r) {
            if (r.forks != fork_generation.load(std::memory_order_relaxed)) return;
            const nb::gil_scoped_release release;
            r.remote->close();
        })
        .def_prop_ro("alive", [](const DuckRemote& r) { return r.remote->alive(); })
        .def_prop_ro("address", [](const DuckRemote& r) { return r.remote->address(); })
        .def("figures", [](const DuckRemote& r) {
            const duck::RemoteFigures f = r.remote->figures();
            nb::dict found;
            found["calls"] = f.calls;
            found["calls_asked_again"] = f.calls_asked_again;
            found["requests"] = f.requests;
            found["packets_in"] = f.packets_in;
            found["packets_out"] = f.packets_out;
            found["bytes_in"] = f.bytes_in;
            found["bytes_out"] = f.bytes_out;
            found["packets_lost"] = f.packets_lost;
            found["packets_probed"] = f.packets_probed;
            found["dropped_malformed"] = f.dropped_malformed;
            found["dropped_forged"] = f.dropped_forged;
            found["dropped_replayed"] = f.dropped_replayed;
            found["rtt_ns"] = f.rtt_ns;
            found["datagram_bytes"] = f.datagram_bytes;
            found["window_bytes"] = f.window_bytes;
            found["blob_bytes_sent"] = f.blob_bytes_sent;
            found["blobs_had"] = f.blobs_had;
            found["direct_calls"] = f.direct_calls;
            found["direct_again"] = f.direct_again;
            found["direct_moved"] = f.direct_moved;
            found["direct_long"] = f.direct_long;
            found["direct_passed"] = f.direct_passed;
            found["direct_dropped"] = f.direct_dropped;
            return found;
        }, nb::sig("def figures(self) -> dict[str, int]"));
}

}  // namespace teal
