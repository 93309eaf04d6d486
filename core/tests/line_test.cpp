// A client, a line, and the resident kernel of the cpu device: answers, parking, a hostile client, a kernel that is gone.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

#include "check.hpp"
#include "device/line.hpp"
#include "device/resident.hpp"
#include "queue/wait.hpp"

namespace {

using namespace teal;

constexpr std::uint64_t second = 1'000'000'000;
constexpr std::size_t region_bytes = 65536;

// A region with two lines and a directory beside it; the keeper of teal.device.resident, in small.
struct Bench {
    std::uint8_t* region = static_cast<std::uint8_t*>(std::aligned_alloc(4096, region_bytes));
    std::unique_ptr<Directory> directory = std::make_unique<Directory>();
    std::atomic<bool> running{false};
    std::thread kernel;
    unsigned launches = 0;

    explicit Bench(std::uint64_t idle_ns) {
        for (std::size_t i = 0; i < region_bytes; ++i) region[i] = 0;
        for (unsigned i = 0; i < 2; ++i) new (region + i * 128) DeviceLine{};
        DirectoryHeader& header = directory->header;
        header.magic = directory_magic, header.layout = directory_layout, header.idle = idle_ns, header.backoff = 8, header.count = 2;
        for (unsigned i = 0; i < 2; ++i) {
            DirectoryEntry& entry = directory->entries[i];
            entry.active = 1, entry.batch = 4, entry.line = i * 128;
            for (unsigned k = 0; k < 4; ++k) entry.offsets[k] = 4096 + i * 4096 + k * 256;
        }
        header.version.store(1, std::memory_order_release);
    }
    ~Bench() {
        quit();
        std::free(region);
    }
    void launch() {
        if (running.load(std::memory_order_acquire)) return;
        if (kernel.joinable()) kernel.join();
        directory->header.quit.store(0, std::memory_order_relaxed);
        ++directory->header.epoch;
        ++launches;
        running.store(true, std::memory_order_relaxed);
        kernel = std::thread([this] {
            std::uint8_t* regions[directory_regions] = {region};
            run_resident(find_task("scale"), *directory, regions);
            running.store(false, std::memory_order_release);
        });
    }
    void quit() {
        directory->header.quit.store(1, std::memory_order_relaxed);
        if (kernel.joinable()) kernel.join();
    }
    DeviceLine& line(unsigned i) { return *reinterpret_cast<DeviceLine*>(region + i * 128); }
    float* floats(unsigned i, unsigned part) { return reinterpret_cast<float*>(region + 4096 + i * 4096 + part * 256); }
    // One run, waking the kernel whenever it is parked.
    Answer run(unsigned i, float factor, std::uint64_t spin_ns = second) {
        floats(i, 0)[0] = factor;
        const std::uint32_t generation = ask(line(i));
        for (;;) {
            const Answer answer = await(line(i), generation, 20 * second, spin_ns);
            if (answer != Answer::parked) return answer;
            launch();
            give_way();
        }
    }
};

void answers_are_right_and_each_request_runs_once() {
    Bench bench(second / 5);
    for (unsigned k = 0; k < 4; ++k) bench.floats(0, 1)[k] = static_cast<float>(k);
    for (unsigned n = 1; n <= 20'000; ++n) {
        CHECK(bench.run(0, static_cast<float>(n)) == Answer::done);
        CHECK(bench.floats(0, 2)[3] == 3.0F * static_cast<float>(n));
    }
    bench.quit();
    CHECK_EQ(bench.directory->pulse.runs.load(), 20'000u);
    CHECK_EQ(bench.directory->ledger[0], 20'000u);
    CHECK_EQ(bench.line(0).reply.state.load(), 0u);
}

void no_request_is_lost_around_parking() {
    Bench bench(20'000);
    bench.floats(0, 1)[1] = 1.0F;
    for (unsigned n = 1; n <= 3'000; ++n) {
        CHECK(bench.run(0, static_cast<float>(n), n % 3 == 0 ? 0 : second) == Answer::done);
        CHECK(bench.floats(0, 2)[1] == static_cast<float>(n));
        const auto until = ticks() + ns_to_ticks(static_cast<std::int64_t>(n * 7919 % 40'000));  // around the idle time
        while (ticks() < until) cpu_relax();
    }
    bench.quit();
    CHECK_EQ(bench.directory->pulse.runs.load(), 3'000u);
    CHECK(bench.launches > 1);
}

void a_hostile_client_disturbs_itself_only() {
    Bench bench(second / 5);
    bench.floats(0, 1)[1] = 1.0F;
    std::atomic<bool> stop{false};
    std::thread hostile([&] {
        auto* words = reinterpret_cast<std::atomic<std::uint32_t>*>(bench.region + 128);
        for (std::uint32_t value = 1; !stop.load(std::memory_order_relaxed); value += 2654435761u)
            for (unsigned i = 0; i < 32; ++i) words[i].store(value ^ i, std::memory_order_relaxed);
    });
    for (unsigned n = 1; n <= 2'000; ++n) {
        CHECK(bench.run(0, static_cast<float>(n)) == Answer::done);
        CHECK(bench.floats(0, 2)[1] == static_cast<float>(n));
    }
    stop.store(true);
    hostile.join();
    bench.quit();
    CHECK_EQ(bench.directory->ledger[0], 2'000u);
}

void a_lost_kernel_is_heard_of() {
    Bench bench(second);
    DeviceLine& line = bench.line(0);
    line.reply.state.store(static_cast<std::uint32_t>(LineState::resident));
    std::thread worker([&] { line.reply.state.store(static_cast<std::uint32_t>(LineState::lost), std::memory_order_release); });
    CHECK(await(line, ask(line), 20 * second, second) == Answer::lost);
    worker.join();
    CHECK(await(line, 7, 1'000'000, 0) == Answer::lost);
}

void an_entry_without_its_region_is_answered() {
    Bench bench(second / 5);
    bench.directory->entries[0].regions[2] = 5;    // no such argument
    bench.directory->entries[1].regions[0] = 200;  // its line: nobody can be answered
    CHECK(bench.run(0, 1.0F) == Answer::invalid);
    CHECK(await(bench.line(1), ask(bench.line(1)), 1'000'000, 0) == Answer::parked);
}

}  // namespace

int main() {
    answers_are_right_and_each_request_runs_once();
    no_request_is_lost_around_parking();
    a_hostile_client_disturbs_itself_only();
    a_lost_kernel_is_heard_of();
    an_entry_without_its_region_is_answered();
    return teal::check::summary();
}
