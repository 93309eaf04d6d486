#include "kernel/builtin.hpp"

#include <cstring>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/clock.hpp"
#include "cpu/sum.hpp"
#include "queue/wait.hpp"

namespace teal {
namespace {

constexpr std::int64_t longest_us = 60'000'000;  // a minute: long enough for any test, short enough to wait out
constexpr std::uint64_t preemptible_bytes = 128 * 1024;  // below, a run is shorter than any slice, and a stack of its own not worth it

// Functions of other libraries are looked up when they are first called, under a lock: not where a kernel may be left.
void look_up() noexcept {
    static volatile std::size_t bytes = 1;
    static std::byte from[1];
    static std::byte to[1];
    std::memmove(to, from, bytes);
    (void)monotonic_ns();
    (void)ticks_to_ns(1);
    (void)sum_f32(nullptr, 0);
    const timespec now{};
    ::syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &now, nullptr);
}

bool refuse(std::string& error, const char* path, const std::string& text) {
    error = std::string(path) + ": " + text;
    return false;
}

bool want(const TensorDesc& tensor, Dtype dtype, const char* path, std::string& error) {
    if ((tensor.flags & (tensor_absent | tensor_unplanned)) != 0) return refuse(error, path, "must be given with its shape");
    if (static_cast<Dtype>(tensor.dtype) == dtype) return true;
    return refuse(error, path, "dtype " + std::string(dtype_info(static_cast<Dtype>(tensor.dtype)).name) + ", expected " + std::string(dtype_info(dtype).name));
}

struct IdentityBinding final : Binding {
    struct Pair { const std::byte* from; std::byte* to; std::uint64_t bytes; };
    std::vector<Pair> pairs;
    std::vector<std::size_t> unplanned;  // strings, whose sizes vary, and what was made of outputs of unknown shape

    bool run(Run& run) noexcept override {
        {
            const Preemptible preemptible(run);
            for (const Pair& pair : pairs)
                // A client may well say that its output overlaps its input: its own business, but not undefined for us.
                if (pair.bytes > 0) std::memmove(pair.to, pair.from, pair.bytes);
        }
        for (const std::size_t i : unplanned) {
            const TensorDesc& from = run.descriptor->inputs[i];
            emit(run, i, static_cast<Dtype>(from.dtype), from.shape, from.rank, run.address(from), from.nbytes);  // bind() saw that it fits
        }
        return true;
    }
};

struct Identity final : Kernel {
    Preemption preemption() const noexcept override { return Preemption::anywhere; }
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override {
        const Descriptor& d = *run.descriptor;
        if (d.inputs.size() != d.outputs.size() || d.inputs.empty()) {
            refuse(error, "$.outputs", std::to_string(d.outputs.size()) + " outputs for " + std::to_string(d.inputs.size()) + " inputs, expected as many");
            return nullptr;
        }
        auto binding = std::make_unique<IdentityBinding>();
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < d.inputs.size(); ++i) {
            const TensorDesc& from = d.inputs[i];
            const TensorDesc& to = d.outputs[i];
            const bool varies = to.flags == tensor_unplanned;
            if ((from.flags & tensor_absent) != 0 || (to.flags != 0 && !varies) || (from.dtype != to.dtype && !varies) || to.capacity < from.nbytes) {
                refuse(error, "$.outputs", "output " + std::to_string(i) + " must have the dtype and at least the size of its input");
                return nullptr;
            }
            if (varies) binding->unplanned.push_back(i);
            else if (run.address(from) != run.address(to))  // in place: nothing to do
                binding->pairs.push_back({run.address(from), run.address(to), from.nbytes}), bytes += from.nbytes;
        }
        if (bytes >= preemptible_bytes) binding->preemption = Preemption::anywhere;
        return binding;
    }
};

struct SumBinding final : Binding {
    const float* from = nullptr;
    std::byte* to = nullptr;
    std::uint64_t count = 0;

    bool run(Run& run) noexcept override {
        const Preemptible preemptible(run);
        const double total = sum_f32(from, count);
        std::memcpy(to, &total, sizeof total);
        return true;
    }
};

struct Sum final : Kernel {
    Preemption preemption() const noexcept override { return Preemption::anywhere; }
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override {
        const Descriptor& d = *run.descriptor;
        if (d.inputs.size() != 1 || d.outputs.size() != 1) {
            refuse(error, "$.inputs", "expected one input and one output");
            return nullptr;
        }
        if (!want(d.inputs[0], Dtype::f32, "$.inputs[0].dtype", error) || !want(d.outputs[0], Dtype::f64, "$.outputs[0].dtype", error)) return nullptr;
        if (d.outputs[0].nbytes != sizeof(double)) {
            refuse(error, "$.outputs[0].shape", "expected a scalar");
            return nullptr;
        }
        auto binding = std::make_unique<SumBinding>();
        binding->from = reinterpret_cast<const float*>(run.address(d.inputs[0]));
        binding->to = run.address(d.outputs[0]);
        binding->count = d.inputs[0].nbytes / sizeof(float);
        if (d.inputs[0].nbytes >= preemptible_bytes) binding->preemption = Preemption::anywhere;
        return binding;
    }
};

struct TimeBinding final : Binding {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    bool spin = false;

    bool run(Run& run) noexcept override {
        std::int64_t us = 0;
        std::memcpy(&us, from, sizeof us);
        if (us < 0 || us > longest_us) {
            run.message = "$.inputs[0]: " + std::to_string(us) + " microseconds, expected 0 to 60000000";
            return false;
        }
        const std::int64_t result = spin ? spin_for_ns(run, us * 1000) : us;
        if (!spin) sleep_until(run, monotonic_ns() + us * 1000);
        std::memcpy(to, &result, sizeof result);
        return true;
    }

    // On the core, and not beside it. Returns how long it was there.
    static std::int64_t spin_for_ns(const Run& run, std::int64_t ns) noexcept {
        const Preemptible preemptible(run);
        const std::int64_t start = monotonic_ns();
        for (;;) {
            const std::int64_t now = monotonic_ns();  // before `away`: left in between, it takes longer and not shorter
            const std::int64_t spent = now - start - ticks_to_ns(run.away_now());
            if (spent >= ns) return spent;
            cpu_relax();
        }
    }

    // By the clock: what passes while it is left is slept too.
    static void sleep_until(const Run& run, std::int64_t until) noexcept {
        const Preemptible preemptible(run);
        const timespec time{until / 1'000'000'000, until % 1'000'000'000};
        // The call itself, which knows nothing of cancelled threads. A signal ends it early.
        while (monotonic_ns() < until) ::syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
    }
};

struct Time final : Kernel {
    explicit Time(bool spins) : spin(spins) {}
    Preemption preemption() const noexcept override { return Preemption::anywhere; }
    std::unique_ptr<Binding> bind(const Run& run, std::string& error) override {
        const Descriptor& d = *run.descriptor;
        if (d.inputs.size() != 1 || d.outputs.size() != 1) {
            refuse(error, "$.inputs", "expected one input and one output");
            return nullptr;
        }
        if (!want(d.inputs[0], Dtype::i64, "$.inputs[0].dtype", error) || !want(d.outputs[0], Dtype::i64, "$.outputs[0].dtype", error)) return nullptr;
        if (d.inputs[0].nbytes != 8 || d.outputs[0].nbytes != 8) {
            refuse(error, "$.inputs[0].shape", "expected a scalar");
            return nullptr;
        }
        auto binding = std::make_unique<TimeBinding>();
        binding->from = run.address(d.inputs[0]);
        binding->to = run.address(d.outputs[0]);
        binding->spin = spin;
        binding->preemption = Preemption::anywhere;
        return binding;
    }
    bool spin;
};

}  // namespace

std::unique_ptr<Kernel> make_builtin(std::string_view name) {
    look_up();
    if (name == "identity") return std::make_unique<Identity>();
    if (name == "sum") return std::make_unique<Sum>();
    if (name == "sleep") return std::make_unique<Time>(false);
    if (name == "spin") return std::make_unique<Time>(true);
    return nullptr;
}

}  // namespace teal
