// Guests without an operating system (core/kvm). Skips all but the first check where there is no KVM.
#include <cstdio>
#include <cstdlib>

#include "check.hpp"
#include "kvm/probe.hpp"

using namespace teal;

namespace {

void test_no_device() {
    ::setenv("TEAL_KVM_DEVICE", "none", 1);
    const kvm::Probe found = kvm::probe_now();
    CHECK(!found.available && !found.reason.empty());
    ::setenv("TEAL_KVM_DEVICE", "/dev/null", 1);
    CHECK(!kvm::probe_now().available);
    ::unsetenv("TEAL_KVM_DEVICE");
}

}  // namespace

int main() {
    const char* chosen = std::getenv("TEAL_KVM_DEVICE");
    const std::string device = chosen == nullptr ? "" : chosen;
    test_no_device();
    if (chosen != nullptr) ::setenv("TEAL_KVM_DEVICE", device.c_str(), 1);
    const kvm::Probe& found = kvm::probe();
    std::printf("%s\n", kvm::describe(found).c_str());
    if (!found.available) {
        std::printf("skipped: no guest can run here\n");
        return check::summary();
    }
    CHECK(found.ring3);
    CHECK(found.touched_bits);
    std::printf("avx %d avx512 %d fsgsbase %d code32 %d native %d tsc offset %d\n", found.avx, found.avx512, found.fsgsbase, found.code32, found.native, found.tsc_offset);
    return check::summary();
}
