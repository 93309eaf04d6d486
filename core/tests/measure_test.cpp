// Tests of core/host/measure: the figures have the right number and order of size, wrong questions are refused.
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "host/measure.hpp"
#include "tests/check.hpp"
#include "tests/small_pool.hpp"

namespace {

using namespace teal::tests;

std::vector<int> allowed_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
    return cores;
}

template <class Call>
bool refused(teal::Code code, Call&& call) {
    try {
        (void)call();
    } catch (const teal::Error& error) {
        return error.code() == code;
    }
    return false;
}

void test_echo() {
    const std::vector<int> cores = allowed_cores();
    CHECK(refused(teal::Code::invalid_argument, [&] { return teal::measure_echo(0, 10, cores[0], cores[0]); }));
    CHECK(refused(teal::Code::invalid_argument, [&] { return teal::measure_echo(64, 10, -1, cores[0]); }));
    CHECK(refused(teal::Code::invalid_argument, [&] { return teal::measure_echo(64, 10, cores[0], CPU_SETSIZE - 1); }));
    CHECK(allowed_cores() == cores);  // the caller is back where it was
    if (cores.size() < 2) return;     // two spinning threads on one core measure the scheduler
    for (const std::uint64_t nbytes : {1, 64, 5'000}) {
        const auto times = teal::measure_echo(nbytes, 500, cores[0], cores[1]);
        CHECK_EQ(times.size(), 500);
        CHECK(*std::max_element(times.begin(), times.end()) > 0);
    }
    CHECK(allowed_cores() == cores);
}

void test_call() {
    SmallPool pool;
    pool.add_worker();
    pool.load(0, "identity", teal::kernel_pure);
    pool.load(1, 1, std::make_shared<Lambda>([](const std::int64_t& in, std::int64_t& out, teal::Run&) {
        out = ~in;
        return true;
    }));
    const Client client = pool.open();
    const auto slot = client.slot();
    CHECK_EQ(teal::measure_call(*client.session, *slot, 0, 0, 300).size(), 300);
    CHECK(refused(teal::Code::kernel_failed, [&] { return teal::measure_call(*client.session, *slot, 9, 0, 1); }));
    CHECK(refused(teal::Code::kernel_failed, [&] { return teal::measure_call(*client.session, *slot, 1, 0, 1); }));  // not an identity
    const auto empty = client.session->make_slot({}, {});
    CHECK(refused(teal::Code::invalid_argument, [&] { return teal::measure_call(*client.session, *empty, 0, 0, 1); }));
    pool.check_all_free();
}

}  // namespace

int main() {
    test_echo();
    test_call();
    return teal::check::summary();
}
