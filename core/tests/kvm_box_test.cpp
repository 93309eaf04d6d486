// Resident programs in guests: all that is asked of process boxes (box_test.cpp), asked of teal-kvm-box.
//
// The two kinds have one interface, so they have one set of tests. Skips where no guest can run.
#define main box_test_main
#include "box_test.cpp"
#undef main

#include <algorithm>

#include "kvm/probe.hpp"

namespace {

// The median of calls with 64 bytes, by kind of box.
double median_call_us(Yard& yard, const Loaded& actor) {
    Opened opened = open(yard, order_of(actor));
    std::uint64_t words[8] = {act_echo};
    std::vector<std::uint64_t> took;
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t began = ticks();
        opened.caller->call(words, sizeof words);
        took.push_back(ticks() - began);
    }
    std::nth_element(took.begin(), took.begin() + 10'000, took.end());
    return static_cast<double>(took[10'000]) / static_cast<double>(ticks_per_second()) * 1e6;
}

void compares_calls(const Loaded& actor) {
    for (const char* program : {TEAL_PROCESS_BOX, TEAL_BOX}) {
        YardOptions options;
        options.program = program;
        Yard yard(options);
        const double first = median_call_us(yard, actor);
        std::printf("call of 64 bytes, p50, %s: %.3f us; open %.0f us\n", program == std::string(TEAL_BOX) ? "guest" : "process", first,
                    static_cast<double>(yard.statistics().last_open_ns) / 1e3);
    }
}

}  // namespace

int main() {
    std::printf("%s\n", kvm::describe(kvm::probe()).c_str());
    if (!kvm::probe().available) {
        std::printf("skipped: no guest can run here\n");
        return check::summary();
    }
    compares_calls(load_resident("box_actor"));
    return box_test_main();
}
