// Fuzzing of what host and workers read from an agent: the desk of a seat.
//
// One input = a few requests and workers, then steps: bytes written anywhere on the desk, a look of a worker, an end, a worker that goes, a flush. What
// claim() hands out must be a request that waits, may run there, and is named as it is now; all else must be refused, and everything must
// come to an end. With TEAL_LIBFUZZER this is a libFuzzer target; without, main() drives it from a fixed seed:
//
//     fuzz_desk [rounds [seed]]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agents/host_seat.hpp"

namespace {

using namespace teal;

constexpr std::uint32_t workers = 4;
constexpr std::uint32_t records = 16;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "fuzz_desk: %s\n", what);
    std::abort();
}

struct Request {
    enum { none, waits, blocked, runs } state = none;
    std::uint32_t generation = 1;
    std::uint32_t bound = no_object;
};

// The host as it would be, with a model of what it knows beside the seat.
struct Scene {
    std::uint64_t now = 1'000'000;
    std::shared_ptr<HostSeat> host;
    Request requests[records];
    bool there[workers]{};
    std::uint32_t running[workers];

    Scene() {
        SeatSpec spec;
        spec.workers = workers;
        spec.records = records;
        spec.ring_capacity = 16;
        host = HostSeat::create(spec);
    }
    void begin() {
        now = 1'000'000;
        host->set_clock(SeatClock(&now));
        std::memset(host->map().desk + page_bytes + sizeof(DeskHeader), 0, workers * sizeof(WorkerDesk));
        std::memset(host->map().desk + page_bytes + offsetof(DeskHeader, state), 0, sizeof(DeskHeader) - offsetof(DeskHeader, state));
        for (std::uint32_t i = 0; i < records; ++i) {
            requests[i] = Request{};
            host->restate_free(i);
        }
        for (std::uint32_t i = 0; i < workers; ++i) {
            running[i] = no_object;
            there[i] = true;
            host->map().seat_worker(i).next_serial.store(1);
            host->restate_worker(i, worker_online | worker_of_seat, no_object, 0);
        }
        host->activate();
    }
    void ready(std::uint32_t index, std::uint32_t bound) {
        Request& r = requests[index];
        if (r.state == Request::runs) return;
        r.state = Request::waits;
        r.bound = bound < workers ? bound : no_object;
        RequestFacts facts;
        facts.index = index;
        facts.generation = r.generation;
        facts.worker = r.bound;
        facts.arrived = now;
        host->ready(facts);
    }
    void block(std::uint32_t index) {
        if (requests[index].state != Request::waits) return;
        requests[index].state = Request::blocked;
        host->blocked(index);
    }
    void end(std::uint32_t worker) {
        const std::uint32_t index = running[worker];
        if (index == no_object) return;
        running[worker] = no_object;
        requests[index].state = Request::none;
        ++requests[index].generation;
        host->ended(index, true, false);
    }
    void look(std::uint32_t worker) {
        end(worker);
        Claim claims[max_group];
        const unsigned count = host->claim(worker, claims);
        if (count > max_group) fail("more claims than fit");
        for (unsigned i = 0; i < count; ++i) {
            const Claim& claim = claims[i];
            const Decided& d = claim.decided;
            if (claim.worker >= workers || !there[claim.worker]) fail("a claim for nobody");
            if (count > 1 && running[claim.worker] != no_object) fail("a group with a busy worker");
            if (d.object == no_object) {
                if ((d.run_flags & run_local_default) == 0 || count > 1) fail("a claim for nothing");
                host->commit(claim, Outcome::not_found);
                continue;
            }
            if (d.object >= records) fail("a record that does not exist");
            Request& r = requests[d.object];
            if (r.state != Request::waits || r.generation != d.generation) fail("a request that does not wait");
            if (r.bound != no_object && r.bound != claim.worker) fail("a request of another worker");
            r.state = Request::runs;
            running[claim.worker] = d.object;
            host->commit(claim, Outcome::complete);
        }
    }
    void go(std::uint32_t worker) {
        end(worker);
        there[worker] = !there[worker];
        if (there[worker]) host->worker_came(worker);
        else host->worker_gone(worker);
    }
};

struct Input {
    const std::uint8_t* at;
    std::size_t left;
    std::uint32_t take(unsigned bytes) {
        std::uint32_t value = 0;
        for (unsigned i = 0; i < bytes && left > 0; ++i, ++at, --left) value |= std::uint32_t{*at} << 8 * i;
        return value;
    }
};

// A transaction that is right but for what the input says.
void stage(Scene& scene, Input& input, std::uint32_t worker) {
    const std::uint32_t serial = scene.host->map().seat_worker(worker).next_serial.load() + input.take(1) % 3 * (input.take(1) % 2);
    Transaction& slot = scene.host->map().worker_desk(worker).slots[serial % stage_depth];
    RequestWord word{};
    slot.object = input.take(1) % records;
    scene.host->map().request_word(slot.object).copy_own(word);
    slot.generation = word.generation;
    slot.tseq = word.tseq;
    slot.version = agent_protocol;
    slot.commit_flags = 0;
    slot.run_flags = 0;
    slot.group = 0;
    slot.members = 0;
    slot.expires_ns = 0;
    slot.staged = scene.now;
    if (input.take(1) % 3 == 0) {
        slot.commit_flags = commit_group;
        slot.group = 1 + input.take(1) % 2;
        slot.members = 1 + input.take(1) % 5;
    }
    if (input.take(1) % 4 == 0) {  // one field is something else
        const std::size_t field = sizeof slot.word + input.take(1) % (sizeof(Transaction) - sizeof slot.word);
        *(reinterpret_cast<std::uint8_t*>(&slot) + field) = static_cast<std::uint8_t>(input.take(1));
    }
    slot.word.store(transaction_word(serial, static_cast<TransactionState>(input.take(1) % 8 == 0 ? input.take(1) : 1)));
}

void scribble(Scene& scene, Input& input) {
    const std::uint64_t size = sizeof(DeskHeader) + workers * sizeof(WorkerDesk);
    const std::uint64_t offset = input.take(2) % size;
    const std::uint64_t count = std::min<std::uint64_t>({input.take(1) % 16, size - offset, input.left});
    std::memcpy(scene.host->map().desk + page_bytes + offset, input.at, count);
    input.at += count;
    input.left -= count;
}

}  // namespace

namespace {
std::uint64_t seen[teal::outcome_count];
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static Scene scene;
    scene.begin();
    Input input{data, size};
    while (input.left > 0) {
        scene.now += 10;
        const std::uint32_t what = input.take(1);
        const std::uint32_t worker = what / 8 % workers;
        switch (what % 8) {
            case 0:
            case 1: scene.ready(input.take(1) % records, input.take(1) % 12); break;
            case 2: scribble(scene, input); break;
            case 3:
            case 4: stage(scene, input, worker); break;
            case 5:
                scene.host->flush(true);
                scene.block(input.take(1) % records);
                break;
            case 6:
                if (input.take(1) % 8 == 0) scene.go(worker);
                break;
            default: scene.look(worker);
        }
    }
    for (std::uint32_t turn = 0; turn < workers; ++turn) scene.look(turn);
    scene.host->deactivate(Outcome::no_agent);
    Claim claims[max_group];
    for (std::uint32_t i = 0; i < workers; ++i)
        if (scene.host->claim(i, claims) != 0) fail("a claim without an agent");
    for (std::size_t i = 0; i < outcome_count; ++i) seen[i] = scene.host->numbers().outcomes[i].load();
    return 0;
}

#ifndef TEAL_LIBFUZZER
int main(int argc, char** argv) {
    const std::uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300'000;
    std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    std::vector<std::uint8_t> input;
    for (std::uint64_t i = 0; i < rounds; ++i) {
        input.resize(random() % 400);
        for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    // Inputs that get nowhere find nothing.
    for (std::size_t i = 0; i < teal::outcome_count && rounds >= 300'000; ++i)
        if (seen[i] == 0 && i != static_cast<std::size_t>(Outcome::invalid_worker)) fail(("never refused as " + std::to_string(i)).c_str());
    std::printf("%llu inputs\n", static_cast<unsigned long long>(rounds));
    return 0;
}
#endif
