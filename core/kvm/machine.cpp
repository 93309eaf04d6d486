#include "kvm/machine.hpp"

#if defined(__x86_64__)

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <x86intrin.h>

#include "base/error.hpp"
#include "kvm/trap_page.hpp"

namespace teal::kvm {
namespace {

int lent_device = -1;
constexpr std::uint64_t own_pages = 0x2'0000;
constexpr std::uint64_t wanted_xcr0 = 0xe7;   // x87, SSE, AVX, AVX-512; tiles would need a permission first

[[noreturn]] void refuse(const char* what, int error) { throw Error(Code::quota_exceeded, system_message(what, error)); }

kvm_segment user_segment(std::uint16_t selector, std::uint8_t type, bool wide, bool code32) noexcept {
    kvm_segment segment{};
    segment.limit = 0xffff'ffff;
    segment.selector = selector;
    segment.type = type;
    segment.present = 1;
    segment.dpl = 3;
    segment.s = 1;
    segment.g = 1;
    segment.l = wide ? 1 : 0;
    segment.db = code32 ? 1 : 0;
    return segment;
}

const kvm_cpuid_entry2* find_leaf(const CpuidList& list, std::uint32_t function, std::uint32_t index) noexcept {
    for (std::uint32_t i = 0; i < list.count; ++i) {
        if (list.entries[i].function == function && list.entries[i].index == index) {
            return &list.entries[i];
        }
    }
    return nullptr;
}

}  // namespace

Handle::~Handle() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

Handle& Handle::operator=(Handle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

const char* device_path() noexcept {
    const char* path = std::getenv("TEAL_KVM_DEVICE");
    return path == nullptr ? "/dev/kvm" : path;
}

void lend_device(int fd) noexcept { lent_device = fd; }

Handle open_device(int& error) noexcept {
    if (lent_device >= 0) {
        const int copy = ::fcntl(lent_device, F_DUPFD_CLOEXEC, 0);
        error = copy < 0 ? errno : 0;
        return Handle{copy};
    }
    const char* path = device_path();
    error = ENOENT;
    if (*path == '\0' || std::strcmp(path, "none") == 0) {
        return Handle{};
    }
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    error = fd < 0 ? errno : 0;
    return Handle{fd};
}

Machine::~Machine() = default;

Machine::Machine() : cpuid_(std::make_unique<CpuidList>()) {
    int error = 0;
    device_ = open_device(error);
    if (!device_) {
        throw Error(Code::not_found, system_message(device_path(), error));
    }
    if (::ioctl(device_.get(), KVM_GET_API_VERSION, 0) != 12) {
        throw Error(Code::not_found, std::string(device_path()) + " is not KVM, or not version 12 of it");
    }
    machine_ = Handle{::ioctl(device_.get(), KVM_CREATE_VM, 0)};
    if (!machine_) {
        refuse("KVM_CREATE_VM", errno);
    }
    // Pages that KVM wants for itself on CPUs whose guests cannot begin in real mode; below all memory of ours.
    ::ioctl(machine_.get(), KVM_SET_TSS_ADDR, own_pages);
    std::uint64_t identity = own_pages + 0x4000;
    ::ioctl(machine_.get(), KVM_SET_IDENTITY_MAP_ADDR, &identity);
    const int bytes = ::ioctl(device_.get(), KVM_GET_VCPU_MMAP_SIZE, 0);
    if (bytes < static_cast<int>(sizeof(kvm_run))) {
        refuse("KVM_GET_VCPU_MMAP_SIZE", errno);
    }
    shared_bytes_ = static_cast<std::size_t>(bytes);
    cpuid_->count = static_cast<std::uint32_t>(cpuid_->entries.size());
    if (::ioctl(device_.get(), get_supported_cpuid, cpuid_.get()) != 0) {
        refuse("KVM_GET_SUPPORTED_CPUID", errno);
    }
    if (const auto* leaf = find_leaf(*cpuid_, 0xd, 0)) {
        xcr0_ = leaf->eax & wanted_xcr0;
    }
    if (const auto* leaf = find_leaf(*cpuid_, 7, 0)) {
        fsgsbase_ = (leaf->ebx & 1) != 0;
    }
    if (const auto* leaf = find_leaf(*cpuid_, 0x8000'0008, 0)) {
        physical_bits_ = leaf->eax & 0xff;
    }
}

void Machine::add_memory(std::uint32_t slot, std::uint64_t phys, std::uint64_t bytes, void* host, bool read_only) {
    kvm_userspace_memory_region region{};
    region.slot = slot;
    region.flags = read_only ? KVM_MEM_READONLY : 0;
    region.guest_phys_addr = phys;
    region.memory_size = bytes;
    region.userspace_addr = reinterpret_cast<std::uint64_t>(host);
    if (::ioctl(fd(), KVM_SET_USER_MEMORY_REGION, &region) != 0) {
        refuse("KVM_SET_USER_MEMORY_REGION", errno);
    }
}

void Machine::remove_memory(std::uint32_t slot) {
    kvm_userspace_memory_region region{};
    region.slot = slot;
    if (::ioctl(fd(), KVM_SET_USER_MEMORY_REGION, &region) != 0) {
        refuse("KVM_SET_USER_MEMORY_REGION (removal)", errno);
    }
}

Core& Machine::core(unsigned index) {
    while (cores_.size() <= index) {
        cores_.push_back(std::make_unique<Core>(*this, static_cast<unsigned>(cores_.size())));
    }
    return *cores_[index];
}

Core::Core(const Machine& machine, unsigned index)
    : shared_bytes_(machine.shared_bytes()), index_(index), xcr0_(machine.xcr0()), fsgsbase_(machine.has_fsgsbase()) {
    core_ = Handle{::ioctl(machine.fd(), KVM_CREATE_VCPU, index)};
    if (!core_) {
        refuse("KVM_CREATE_VCPU", errno);
    }
    void* page = ::mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, core_.get(), 0);
    if (page == MAP_FAILED) {
        refuse("mmap of a vcpu", errno);
    }
    shared_ = static_cast<kvm_run*>(page);
    if (::ioctl(core_.get(), set_cpuid2, &machine.cpuid()) != 0) {
        const int error = errno;
        ::munmap(page, shared_bytes_);
        refuse("KVM_SET_CPUID2", error);
    }
    code64_ = user_segment(code64_selector, 11, true, false);
    code32_ = user_segment(code32_selector, 11, false, true);
    data_ = user_segment(data_selector, 3, false, true);
    kvm_device_attr offset{};
    offset.group = KVM_VCPU_TSC_CTRL;
    offset.attr = KVM_VCPU_TSC_OFFSET;
    tsc_offset_ = ::ioctl(core_.get(), KVM_HAS_DEVICE_ATTR, &offset) == 0;
    shared_->kvm_valid_regs = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS;
}

Core::~Core() {
    ::munmap(shared_, shared_bytes_);
}

// What ring 3 cannot change, and so is set once.
void Core::set_up() {
    MsrList list;
    list.count = 4;
    list.entries[0] = {0xc000'0081, 0, 0x18ULL << 48 | 0x08ULL << 32};   // STAR: the segments of ring 0
    list.entries[1] = {0xc000'0082, 0, stub(syscall_port)};              // LSTAR: where syscall goes
    // CSTAR: the same from 32-bit code, else ring 0 would run at address 0
    list.entries[2] = {0xc000'0083, 0, stub(syscall_port)};
    list.entries[3] = {0xc000'0084, 0, 0x4'7700};                        // FMASK: flags it clears
    if (::ioctl(core_.get(), set_msrs, &list) != 4) {
        refuse("KVM_SET_MSRS", errno);
    }
    if (xcr0_ != 0) {
        kvm_xcrs xcrs{};
        xcrs.nr_xcrs = 1;
        xcrs.xcrs[0].value = xcr0_;
        if (::ioctl(core_.get(), KVM_SET_XCRS, &xcrs) != 0) {
            refuse("KVM_SET_XCRS", errno);
        }
    }
    set_up_ = true;
}

void Core::set_tsc_offset(std::uint64_t offset) {
    kvm_device_attr attribute{};
    attribute.group = KVM_VCPU_TSC_CTRL;
    attribute.attr = KVM_VCPU_TSC_OFFSET;
    attribute.addr = reinterpret_cast<std::uint64_t>(&offset);
    if (::ioctl(core_.get(), KVM_SET_DEVICE_ATTR, &attribute) != 0) {
        refuse("KVM_VCPU_TSC_OFFSET", errno);
    }
}

void Core::reset(const Start& start) {
    kvm_sregs special{};
    if (::ioctl(core_.get(), KVM_GET_SREGS, &special) != 0) {
        refuse("KVM_GET_SREGS", errno);
    }
    special.cr0 = 0x8001'0033;                                 // paging, write protection, native FPU errors, protected mode
    special.cr2 = 0;
    special.cr3 = start.root;
    special.cr4 = 0x20 | 0x200 | 0x400 | (fsgsbase_ ? 0x1'0000u : 0u) | (xcr0_ != 0 ? 0x4'0000u : 0u);  // PAE, SSE, FSGSBASE, XSAVE
    special.efer = 0x1 | 0x100 | 0x400 | 0x800;                // SCE, LME, LMA, NXE
    special.cs = start.code32 ? code32_ : code64_;
    special.ss = special.ds = special.es = special.fs = special.gs = data_;
    special.fs.base = start.fs_base;
    special.gs.base = 0;
    special.tr = {};
    special.tr.base = task_state(index_);
    special.tr.limit = 0x67;
    special.tr.selector = task_selector(index_);
    special.tr.type = 11;
    special.tr.present = 1;
    special.ldt = {};
    special.ldt.unusable = 1;
    special.gdt.base = segment_table;
    special.gdt.limit = static_cast<std::uint16_t>(64 + most_guest_cores * 16 - 1);
    special.idt.base = interrupt_table;
    special.idt.limit = (int80_port + 1) * 16 - 1;
    if (::ioctl(core_.get(), KVM_SET_SREGS, &special) != 0) {
        refuse("KVM_SET_SREGS", errno);
    }
    if (!set_up_) {
        set_up();
    }
    XsaveArea state;                                            // no component marked present: each as after power-up
    const std::uint16_t control = 0x37f;
    const std::uint32_t mxcsr = 0x1f80;
    std::memcpy(state.bytes.data(), &control, sizeof control);
    std::memcpy(state.bytes.data() + 24, &mxcsr, sizeof mxcsr);
    if (::ioctl(core_.get(), set_xsave, &state) != 0) {
        refuse("KVM_SET_XSAVE", errno);
    }
    kvm_regs registers{};
    registers.rip = start.rip;
    registers.rsp = start.rsp;
    registers.rflags = start.rflags;
    registers.rdi = start.rdi;
    registers.rcx = start.rcx;
    registers.r11 = start.r11;
    if (::ioctl(core_.get(), KVM_SET_REGS, &registers) != 0) {
        refuse("KVM_SET_REGS", errno);
    }
    shared_->immediate_exit = 0;
    shared_->kvm_dirty_regs = 0;
    if (tsc_offset_ && (start.zero_tsc || start.same_tsc)) {
        set_tsc_offset(start.same_tsc ? 0 : -__rdtsc());
    }
}

void Core::resume(std::uint64_t rip, std::uint64_t rsp, std::uint64_t rflags) noexcept {
    kvm_sregs& now = special();
    const bool wide = (now.cs.selector & 3) == 3 ? now.cs.l != 0 : true;
    now.cs = wide ? code64_ : code32_;
    now.ss = data_;
    registers().rip = rip;
    registers().rsp = rsp;
    registers().rflags = (rflags & 0xcd5) | 2;                  // what a program may have set
    shared_->kvm_dirty_regs = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS;
}

int Core::run() noexcept {
    return ::ioctl(core_.get(), KVM_RUN, 0) == 0 ? 0 : errno;
}

}  // namespace teal::kvm

#endif
