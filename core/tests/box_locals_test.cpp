// Thread-local variables of resident programs: each core has its own, as the file says, where the linker has counted that they are.
#include <array>
#include <set>

#include "check.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

struct Said {
    std::uint64_t wrong, address, calls;
};

void cores_have_their_own(Yard& yard, const std::string& program, std::uint64_t align) {
    constexpr std::uint32_t cores = 3;
    const Loaded loaded = load_resident(program);
    CHECK_EQ(loaded.image.tls_align, align);
    SessionOrder order = order_of(loaded);
    order.cores = cores;
    Opened opened = open(yard, order);
    for (std::uint64_t call = 1; call <= 3; ++call) {
        CHECK_EQ(opened.call({0}).result, cores * sizeof(Said));
        const auto said = output<std::array<Said, cores>>(*opened.caller);
        std::set<std::uint64_t> addresses;
        for (std::uint32_t core = 0; core < cores; ++core) {
            if (!CHECK_EQ(said[core].wrong, 0)) std::printf("    %s, core %u\n", program.c_str(), core);
            CHECK_EQ(said[core].calls, call);
            addresses.insert(said[core].address);
        }
        CHECK_EQ(addresses.size(), cores);
    }
}

}  // namespace

int main() {
    Yard yard(yard_options());
    for (const std::uint64_t align : {8u, 32u, 256u, 4096u}) cores_have_their_own(yard, "box_locals_" + std::to_string(align), align);
    return check::summary();
}
