#include "kvm/probe.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.hpp"

#if defined(__x86_64__)

#include <ctime>

#include "kvm/guest.hpp"

namespace teal::kvm {
namespace {

constexpr std::uint64_t code_at = 0x40'0000, data_at = 0x60'0000;
constexpr std::uint64_t table_count = 16;

std::uint64_t now_ns() noexcept {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

// mov $7,%edi; again: mov $60,%eax; syscall; jmp again
constexpr std::array<std::uint8_t, 14> exits = {0xbf, 7, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7};
// vpcmpeqd %ymm1,%ymm1,%ymm1; vextracti128 $1,%ymm1,%xmm0; vmovq %xmm0,%rdi; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 22> wide = {0xc5, 0xf5, 0x76, 0xc9, 0xc4, 0xe3, 0x7d, 0x39, 0xc8, 0x01, 0xc4,
                                               0xe1, 0xf9, 0x7e, 0xc7, 0xb8, 60,   0,    0,    0,    0x0f, 0x05};
// vpternlogd $255,%zmm1,%zmm1,%zmm1; vextracti64x4 $1,%zmm1,%ymm0; vmovq %xmm0,%rdi; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 26> widest = {0x62, 0xf3, 0x75, 0x48, 0x25, 0xc9, 0xff, 0x62, 0xf3, 0xfd, 0x48, 0x3b, 0xc8,
                                                 0x01, 0xc4, 0xe1, 0xf9, 0x7e, 0xc7, 0xb8, 60,   0,    0,    0,    0x0f, 0x05};
// mov $0x600010,%edi; wrfsbase %rdi; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 17> base = {0xbf, 0x10, 0, 0x60, 0, 0xf3, 0x48, 0x0f, 0xae, 0xd7, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};
// pxor %xmm0,%xmm0; mov $1,%eax; mov $9,%ebx; int $0x80 (of 32-bit code; where KVM interprets it, there are no vectors)
constexpr std::array<std::uint8_t, 16> narrow = {0x66, 0x0f, 0xef, 0xc0, 0xb8, 1, 0, 0, 0, 0xbb, 9, 0, 0, 0, 0xcd, 0x80};
// mov 0x600000,%eax; mov %eax,0x601000; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 21> touch = {0x8b, 0x04, 0x25, 0, 0, 0x60, 0, 0x89, 0x04, 0x25, 0, 0x10, 0x60, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};
// mov $20000000,%ecx; back: dec %ecx; jnz back; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 16> loop = {0xb9, 0x00, 0x2d, 0x31, 0x01, 0xff, 0xc9, 0x75, 0xfc, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};

// rdtsc; shl $32,%rdx; lea (%rdx,%rax),%rdi; mov $60,%eax; syscall
constexpr std::array<std::uint8_t, 17> ticks = {0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x8d, 0x3c, 0x02, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};

class Trial {
public:
    Trial() : guest_(1, table_count, 4) {
        code_ = &guest_.add(code_at, page_bytes, {.user = true, .write = false, .execute = true});
        guest_.add(data_at, 4 * page_bytes, {.user = true, .write = true, .execute = false});
        guest_.commit();
    }

    Event run(std::span<const std::uint8_t> program, bool code32 = false) {
        guest_.turn();
        std::memcpy(code_->host, program.data(), program.size());
        Start start;
        start.rip = code_at;
        start.rsp = data_at + 4 * page_bytes;
        start.code32 = code32;
        start.zero_tsc = true;
        guest_.begin(0, start);
        return guest_.run(0);
    }
    // Ended by the system call that it should make, with this number in rdi.
    bool ends(std::span<const std::uint8_t> program, std::uint64_t rdi) {
        const Event event = run(program);
        return event.what == Event::What::syscall && guest_.core(0).registers().rax == 60 && guest_.core(0).registers().rdi == rdi;
    }
    Guest& guest() noexcept { return guest_; }

private:
    Guest guest_;
    Area* code_;
};

std::uint64_t median_exit(Trial& trial) {
    Event event = trial.run(exits);
    std::vector<std::uint64_t> took;
    for (int i = 0; i < 64; ++i) {
        trial.guest().core(0).resume(event.rip, event.rsp, event.rflags);
        const std::uint64_t began = now_ns();
        event = trial.guest().run(0);
        took.push_back(now_ns() - began);
    }
    std::nth_element(took.begin(), took.begin() + 32, took.end());
    return took[32];
}

bool counts_pages(Trial& trial) {
    for (int round = 0; round < 5; ++round) {   // past the last window
        trial.run(touch);
        unsigned touched = 0, written = 0, wrong = 0;
        trial.guest().tables().each_touched(data_at, 4, [&](std::uint64_t page, bool dirty) {
            touched += 1;
            written += dirty ? 1 : 0;
            wrong += page > 1 || dirty != (page == 1) ? 1 : 0;
        });
        if (touched != 2 || written != 1 || wrong != 0) {
            return false;
        }
    }
    return true;
}

// Twenty million rounds of a loop take under a tenth of a second on anything, unless each instruction is interpreted.
bool is_native(Trial& trial) {
    const std::uint64_t began = now_ns();
    return trial.ends(loop, 0) && now_ns() - began < 400'000'000;
}

void look(Probe& found) {
    int error = 0;
    const Handle device = open_device(error);
    if (!device) {
        found.reason = system_message(device_path(), error) +
                       (error == EACCES ? ": let this user open it (group kvm)" : ": no KVM here, programs run in process boxes");
        return;
    }
    const auto offers = [&](int capability) { return ::ioctl(device.get(), KVM_CHECK_EXTENSION, capability); };
    found.api_version = ::ioctl(device.get(), KVM_GET_API_VERSION, 0);
    found.dirty_log = offers(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) > 0;
    found.dirty_ring = offers(KVM_CAP_DIRTY_LOG_RING) > 0;
    found.read_only_memory = offers(KVM_CAP_READONLY_MEM) > 0;
    found.most_cores = static_cast<unsigned>(std::max(0, offers(KVM_CAP_MAX_VCPUS)));
    if ((offers(KVM_CAP_SYNC_REGS) & 3) != 3 || offers(KVM_CAP_IMMEDIATE_EXIT) <= 0 || !found.read_only_memory) {
        found.reason = std::string(device_path()) + ": too old a KVM (no shared registers, immediate exits or read-only memory)";
        return;
    }
    const std::uint64_t began = now_ns();
    Trial trial;
    found.create_ns = now_ns() - began;
    const Event first = trial.run(exits);
    if (first.what != Event::What::syscall || trial.guest().core(0).registers().rdi != 7) {
        found.reason = std::string(device_path()) + ": a guest's program did not get as far as its first system call (exit " +
                       std::to_string(first.number) + ")";
        return;
    }
    found.ring3 = true;
    found.syscall_in_ring3 = trial.guest().core(0).shared().io.port != 254;
    found.native = is_native(trial);
    found.avx = __builtin_cpu_supports("avx2") != 0 && trial.ends(wide, ~std::uint64_t{0});
    found.avx512 = __builtin_cpu_supports("avx512f") != 0 && trial.ends(widest, ~std::uint64_t{0});
    found.fsgsbase = trial.ends(base, data_at + 16);
    const Event old = trial.run(narrow, true);
    found.code32 = old.what == Event::What::int80 && (trial.guest().core(0).registers().rbx & 0xffff'ffff) == 9;
    found.touched_bits = counts_pages(trial);
    trial.run(ticks);
    found.tsc_offset = trial.guest().core(0).registers().rdi < 1'000'000'000;   // it began a moment ago
    found.exit_ns = median_exit(trial);
    found.available = true;
}

}  // namespace

Probe probe_now() noexcept {
    Probe found;
    try {
        look(found);
    } catch (const std::exception& error) {
        found.available = false;
        found.reason = error.what();
    }
    return found;
}

}  // namespace teal::kvm

#else

namespace teal::kvm {

Probe probe_now() noexcept {
    Probe found;
    found.reason = "the KVM back end is for x86-64";
    return found;
}

}  // namespace teal::kvm

#endif

namespace teal::kvm {

const Probe& probe() noexcept {
    static const Probe found = probe_now();
    return found;
}

std::string describe(const Probe& found) {
    if (!found.available) {
        return "KVM: not used: " + found.reason;
    }
    const auto microseconds = [](std::uint64_t ns) {
        return std::to_string(ns / 1000) + "." + std::to_string(ns / 100 % 10) + " us";
    };
    std::string text = "KVM: API " + std::to_string(found.api_version);
    text += found.native ? ", ring 3 native" : ", ring 3 interpreted";
    text += found.syscall_in_ring3 ? " (paravirtual)" : "";
    text += found.avx512 ? ", AVX-512" : found.avx ? ", AVX2" : ", no wide vectors";
    text += found.code32 ? ", 32-bit code" : ", no 32-bit code";
    text += found.touched_bits ? ", pages counted" : ", pages not counted";
    text += ", exit " + microseconds(found.exit_ns) + ", new guest " + microseconds(found.create_ns);
    return text;
}

}  // namespace teal::kvm
