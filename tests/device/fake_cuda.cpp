// A libcuda.so.1 that has no GPU: what teal.device.cuda calls of the driver, with its kernels run on the CPU.
//
// Theory of operation. It checks how the driver is called (arguments, order, what is registered, what is freed when), which needs
// no GPU; it says nothing about memory order across a bus or about speed. Streams run what they get at once, except the
// resident kernel, which runs on a thread. A module's image is the source of its task, by which the task is known. Every
// function the bindings ask for that is not here fails with CUDA_ERROR_UNKNOWN.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/resident.hpp"
#include "queue/wait.hpp"

namespace {

enum : int { ok = 0, invalid = 1, not_ready = 600, registered = 712, unknown = 999 };

struct Stream {
    std::shared_ptr<std::atomic<bool>> running;  // the resident kernel's, if one was launched
};
struct Event {
    std::shared_ptr<std::atomic<bool>> running;
};
struct Module {
    teal::DeviceTask task;
};
struct Function {
    std::string name;
    teal::DeviceTask task;
};
struct Graph {
    std::vector<std::function<void()>> steps;
};

std::mutex mutex;
std::map<std::uintptr_t, std::size_t> regions;
std::map<std::uintptr_t, std::size_t> memory;
Graph* capturing = nullptr;

void hang(const std::uint8_t*, const std::uint8_t*, std::uint8_t*, std::uint8_t*, std::uint32_t, std::uint32_t, std::uint32_t, std::uint8_t*) {
    const auto start = teal::monotonic_ns();
    while (teal::monotonic_ns() - start < 4'000'000'000) teal::cpu_relax();
}

bool covered(const void* address, std::size_t size) {
    for (const auto& table : {regions, memory})
        for (const auto& [base, length] : table)
            if (reinterpret_cast<std::uintptr_t>(address) >= base && reinterpret_cast<std::uintptr_t>(address) + size <= base + length) return true;
    return false;
}

int enqueue(std::function<void()> step) {
    if (capturing != nullptr) {
        capturing->steps.push_back(std::move(step));
    } else {
        step();
    }
    return ok;
}

template <typename T>
T argument(void** arguments, int i) {
    T value;
    std::memcpy(&value, arguments[i], sizeof(T));
    return value;
}

using Bytes = std::uint8_t*;

int launch_task(const Function& function, unsigned groups, void** a) {
    Bytes parts[4];
    for (int i = 0; i < 4; ++i) parts[i] = argument<Bytes>(a, 2 * i) + argument<std::uint64_t>(a, 2 * i + 1);
    const auto batch = argument<std::uint32_t>(a, 8), items = argument<std::uint32_t>(a, 9);
    const std::uint64_t strides[3] = {argument<std::uint64_t>(a, 10), argument<std::uint64_t>(a, 11), argument<std::uint64_t>(a, 12)};
    for (const Bytes part : parts)
        if (!covered(part, 1)) return 700;  // CUDA_ERROR_ILLEGAL_ADDRESS
    return enqueue([=, task = function.task] {
        std::vector<std::uint8_t> scratch(teal::scratch_bytes);
        for (unsigned group = 0; group < groups; ++group) {
            const std::uint64_t first = std::uint64_t{group} * items;
            if (first >= batch) break;
            const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(items, batch - first));
            task(parts[0], parts[1] + first * strides[0], parts[2] + first * strides[1], parts[3] + first * strides[2], count, 0, 1, scratch.data());
        }
    });
}

int launch_resident(const Function& function, Stream* stream, void** a) {
    auto running = std::make_shared<std::atomic<bool>>(true);
    auto* directory = argument<teal::Directory*>(a, 0);
    std::vector<Bytes> given;
    for (int i = 1; i <= static_cast<int>(teal::directory_regions); ++i) given.push_back(argument<Bytes>(a, i));
    auto before = stream->running;  // a stream runs one thing after another
    std::thread([=, task = function.task] {
        while (before && before->load()) std::this_thread::yield();
        Bytes array[teal::directory_regions];
        std::copy(given.begin(), given.end(), array);
        teal::run_resident(task, *directory, array);
        running->store(false);
    }).detach();
    stream->running = running;
    return ok;
}

}  // namespace

extern "C" {

int fake_cuInit(unsigned) { return ok; }
int fake_cuDeviceGetCount(int* count) { return *count = 1, ok; }
int fake_cuDeviceGet(int* device, int number) { return *device = number, ok; }
int fake_cuDeviceGetName(char* name, int length, int) { return std::strncpy(name, "no GPU at all", static_cast<std::size_t>(length)), ok; }
int fake_cuDeviceGetAttribute(int* value, int attribute, int) { return *value = attribute == 75 ? 9 : 0, ok; }
int fake_cuCtxCreate(void** context, void*, unsigned, int) { return *context = new int(0), ok; }
int fake_cuCtxSetCurrent(void* context) { return context != nullptr ? ok : invalid; }
int fake_cuCtxDestroy(void*) { return regions.empty() ? ok : invalid; }  // the real one takes it; ours frees in order
int fake_cuStreamCreate(void** stream, unsigned flags) { return *stream = new Stream, flags == 1 ? ok : invalid; }
int fake_cuStreamQuery(Stream* stream) { return stream->running && stream->running->load() ? not_ready : ok; }
int fake_cuStreamSynchronize(Stream* stream) {
    while (fake_cuStreamQuery(stream) == not_ready) std::this_thread::yield();
    return ok;
}
int fake_cuEventCreate(void** event, unsigned flags) { return *event = new Event, flags == 2 ? ok : invalid; }
int fake_cuEventRecord(Event* event, Stream* stream) { return event->running = stream->running, ok; }
int fake_cuEventQuery(Event* event) { return event->running && event->running->load() ? not_ready : ok; }
int fake_cuEventSynchronize(Event* event) {
    while (fake_cuEventQuery(event) == not_ready) std::this_thread::yield();
    return ok;
}
int fake_cuEventDestroy(Event* event) { return delete event, ok; }

int fake_cuModuleLoadData(void** module, const char* image) {
    const std::string source(image);
    const bool hangs = source.find("4000000000") != std::string::npos, scales = source.find("factor") != std::string::npos;
    *module = new Module{hangs ? hang : teal::find_task(scales ? "scale" : "identity")};
    return ok;
}
int fake_cuModuleGetFunction(void** function, Module* module, const char* name) {
    *function = new Function{name, module->task};
    return ok;
}
int fake_cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream* stream,
                        void** arguments, void** extra) {
    if (y != 1 || z != 1 || bx != 256 || by != 1 || bz != 1 || shared != 0 || extra != nullptr || stream == nullptr) return invalid;
    const std::lock_guard lock(mutex);
    if (function->name == "teal_launch") return launch_task(*function, x, arguments);
    if (!covered(argument<Bytes>(arguments, 0), 1)) return 700;
    if (function->name == "teal_resident") return launch_resident(*function, stream, arguments);
    return enqueue([region = argument<Bytes>(arguments, 0), at = argument<std::uint64_t>(arguments, 1)] { teal::run_probe(region, at); });
}

int fake_cuMemHostRegister(void* address, std::size_t size, unsigned flags) {
    const auto base = reinterpret_cast<std::uintptr_t>(address);
    if (base % 4096 != 0 || size % 4096 != 0 || (flags & 3) != 3) return invalid;
    for (const auto& [other, length] : regions)
        if (base < other + length && other < base + size) return registered;
    regions[base] = size;
    return ok;
}
int fake_cuMemHostUnregister(void* address) { return regions.erase(reinterpret_cast<std::uintptr_t>(address)) == 1 ? ok : 713; }
int fake_cuMemHostGetDevicePointer(std::uintptr_t* pointer, void* address, unsigned flags) {
    if (!covered(address, 1) || flags != 0) return invalid;
    *pointer = reinterpret_cast<std::uintptr_t>(address);
    return ok;
}
int fake_cuMemAlloc(std::uintptr_t* pointer, std::size_t size) {
    *pointer = reinterpret_cast<std::uintptr_t>(new std::uint8_t[size]);
    memory[*pointer] = size;
    return ok;
}
int fake_cuMemFree(std::uintptr_t pointer) {
    if (memory.erase(pointer) != 1) return invalid;
    delete[] reinterpret_cast<std::uint8_t*>(pointer);
    return ok;
}
int fake_cuMemcpyHtoDAsync(std::uint8_t* to, const void* from, std::size_t size, void*) {
    return covered(to, size) && covered(from, size) ? enqueue([=] { std::memcpy(to, from, size); }) : invalid;
}
// Takes any host memory, as the real one does: it is over when it returns.
int fake_cuMemcpyHtoD(std::uint8_t* to, const void* from, std::size_t size) {
    return covered(to, size) ? (std::memcpy(to, from, size), ok) : invalid;
}
int fake_cuMemcpyDtoHAsync(void* to, const std::uint8_t* from, std::size_t size, void*) {
    return covered(to, size) && covered(from, size) ? enqueue([=] { std::memcpy(to, from, size); }) : invalid;
}

int fake_cuStreamBeginCapture(void*, int mode) { return capturing = new Graph, mode == 1 ? ok : invalid; }
int fake_cuStreamEndCapture(void*, void** graph) { return *graph = capturing, capturing = nullptr, ok; }
int fake_cuGraphInstantiate(void** made, Graph* graph, unsigned long) { return *made = new Graph(*graph), ok; }
int fake_cuGraphDestroy(Graph* graph) { return delete graph, ok; }
int fake_cuGraphExecDestroy(Graph* graph) { return delete graph, ok; }
int fake_cuGraphLaunch(Graph* graph, void*) {
    for (const auto& step : graph->steps) step();
    return ok;
}

int not_here() { return unknown; }

}  // extern "C"

#define ENTRY(name) {#name, reinterpret_cast<void*>(fake_##name)}
const std::map<std::string, void*> functions = {
    ENTRY(cuInit), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetAttribute), ENTRY(cuCtxCreate),
    ENTRY(cuCtxSetCurrent), ENTRY(cuCtxDestroy), ENTRY(cuStreamCreate), ENTRY(cuStreamQuery), ENTRY(cuStreamSynchronize), ENTRY(cuEventCreate),
    ENTRY(cuEventRecord), ENTRY(cuEventQuery), ENTRY(cuEventSynchronize), ENTRY(cuEventDestroy), ENTRY(cuModuleLoadData), ENTRY(cuModuleGetFunction),
    ENTRY(cuLaunchKernel), ENTRY(cuMemHostRegister), ENTRY(cuMemHostUnregister), ENTRY(cuMemHostGetDevicePointer), ENTRY(cuMemAlloc), ENTRY(cuMemFree),
    ENTRY(cuMemcpyHtoDAsync), ENTRY(cuMemcpyHtoD), ENTRY(cuMemcpyDtoHAsync), ENTRY(cuStreamBeginCapture), ENTRY(cuStreamEndCapture), {"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(fake_cuGraphInstantiate)},
    ENTRY(cuGraphDestroy), ENTRY(cuGraphExecDestroy), ENTRY(cuGraphLaunch),
};

extern "C" int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int* status) {
    const auto found = functions.find(symbol);
    *function = found != functions.end() ? found->second : reinterpret_cast<void*>(not_here);
    if (status != nullptr) *status = 0;
    return ok;
}
extern "C" int cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
