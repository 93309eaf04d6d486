// A virtual machine without devices, and its cores: file descriptors of /dev/kvm with the handful of ioctls we use.
//
// Theory of operation. A Machine is memory at guest-physical addresses (slots: ranges of our own address space) and cores. A Core is one
// vcpu; run() stays in the guest until something has to be seen here. Registers travel in the page that a vcpu shares with us
// (KVM_CAP_SYNC_REGS), so an exit costs one system call. All that a core starts with is set by reset(): it begins in ring 3 at once; no
// code of a guest ever has to run in ring 0 to get there.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <memory>
#include <vector>

#include "kvm/api.hpp"

namespace teal::kvm {

// An owned descriptor.
class Handle {
public:
    explicit Handle(int fd = -1) noexcept : fd_(fd) {}
    ~Handle();
    Handle(Handle&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Handle& operator=(Handle&& other) noexcept;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_;
};

// Opens TEAL_KVM_DEVICE (for tests; empty or "none": as if there were none), else /dev/kvm. Not open: a negative errno.
Handle open_device(int& error) noexcept;
const char* device_path() noexcept;
// From now on open_device() gives copies of this descriptor: for a process that cannot open files.
void lend_device(int fd) noexcept;

class Core;

class Machine {
public:
    // Throws not_found where there is no usable KVM, quota_exceeded where it gives us no machine.
    Machine();
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    // Guest-physical [phys, phys + bytes) is `host` from now on. Slots are numbered by whoever adds them. Throws.
    void add_memory(std::uint32_t slot, std::uint64_t phys, std::uint64_t bytes, void* host, bool read_only);
    void remove_memory(std::uint32_t slot);

    // Made when asked for, with those before it. Throws.
    Core& core(unsigned index);

    [[nodiscard]] int fd() const noexcept { return machine_.get(); }
    [[nodiscard]] const CpuidList& cpuid() const noexcept { return *cpuid_; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return shared_bytes_; }
    [[nodiscard]] std::uint64_t xcr0() const noexcept { return xcr0_; }    // what a guest gets; 0: no XSAVE
    [[nodiscard]] bool has_fsgsbase() const noexcept { return fsgsbase_; }
    [[nodiscard]] unsigned physical_bits() const noexcept { return physical_bits_; }

private:
    Handle device_, machine_;
    std::unique_ptr<CpuidList> cpuid_;
    std::vector<std::unique_ptr<Core>> cores_;
    std::size_t shared_bytes_ = 0;
    std::uint64_t xcr0_ = 0;
    bool fsgsbase_ = false;
    unsigned physical_bits_ = 36;
};

// How a core begins.
struct Start {
    std::uint64_t rip = 0, rsp = 0, rflags = 2;
    std::uint64_t rdi = 0;        // for code of ours; programs begin with every register zero
    std::uint64_t rcx = 0, r11 = 0;
    std::uint64_t fs_base = 0;
    bool code32 = false;          // in a 32-bit segment
    std::uint64_t root = 0;       // of the page tables
    bool zero_tsc = false;        // the time stamp counter begins at 0, where KVM can do that
    bool same_tsc = false;        // it is that of this machine
};

class Core {
public:
    Core(const Machine& machine, unsigned index);
    ~Core();
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    // All registers as `start` says, vector and floating-point state as after power-up.
    void reset(const Start& start);
    // To ring 3 with the registers as they are in registers(), at rip/rsp/rflags.
    void resume(std::uint64_t rip, std::uint64_t rsp, std::uint64_t rflags) noexcept;
    void set_fs_base(std::uint64_t value) noexcept { special().fs.base = value; }
    void set_gs_base(std::uint64_t value) noexcept { special().gs.base = value; }

    // 0: left the guest (see shared()); else an errno: EINTR when a signal or stop() did it.
    int run() noexcept;
    // Out of the guest, or not into it, as soon as may be. From a signal handler of this thread.
    void stop() noexcept { shared_->immediate_exit = 1; }
    void unstop() noexcept { shared_->immediate_exit = 0; }

    [[nodiscard]] const kvm_run& shared() const noexcept { return *shared_; }
    [[nodiscard]] kvm_run* shared_page() noexcept { return shared_; }
    [[nodiscard]] kvm_regs& registers() noexcept { return shared_->s.regs.regs; }
    [[nodiscard]] kvm_sregs& special() noexcept { return shared_->s.regs.sregs; }
    [[nodiscard]] int fd() const noexcept { return core_.get(); }
    [[nodiscard]] bool has_tsc_offset() const noexcept { return tsc_offset_; }

private:
    void set_up();
    void set_tsc_offset(std::uint64_t offset);

    Handle core_;
    kvm_run* shared_ = nullptr;
    std::size_t shared_bytes_;
    unsigned index_;
    std::uint64_t xcr0_;
    bool fsgsbase_;
    bool tsc_offset_ = false, set_up_ = false;
    kvm_segment code64_{}, code32_{}, data_{};
};

}  // namespace teal::kvm

#endif
