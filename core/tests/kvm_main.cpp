// main() of the tests of boxes when they are made for guests: skips where no guest can run.
#include <cstdio>

#include "check.hpp"
#include "kvm/probe.hpp"

int box_main();   // main() of the test's own file, by a definition for the whole target

#undef main
int main() {
    const teal::kvm::Probe& found = teal::kvm::probe();
    std::printf("%s\n", teal::kvm::describe(found).c_str());
    if (found.available) return box_main();
    std::printf("skipped: no guest can run here\n");
    return teal::check::summary();
}
