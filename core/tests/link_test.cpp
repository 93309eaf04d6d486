// Tests of the emulated links: what each access costs, which trick changes it, and that no delay is ever shorter than asked.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "cpu/clock.hpp"
#include "link/link.hpp"
#include "link/measure.hpp"
#include "tests/check.hpp"

namespace {

using teal::Link;
using teal::LinkKind;
using teal::LinkSpec;
using teal::Polling;

// A clock that moves only when somebody waits: what was charged can be read off it.
struct Virtual {
    std::uint64_t time = 1'000'000;

    Link::Clock clock() {
        return {[](void* self) { return static_cast<Virtual*>(self)->time; },
                [](void* self, std::uint64_t until) { static_cast<Virtual*>(self)->time = until; }, this};
    }
    template <typename Action> std::int64_t ns(Action action) {
        const std::uint64_t before = time;
        action();
        return teal::ticks_to_ns(time - before);
    }
    // What is stated, made of so many figures, each of which is rounded up to a tick.
    template <typename Action> bool takes(std::int64_t stated, std::int64_t figures, Action action) {
        const std::int64_t took = ns(action);
        const bool right = took >= stated && took <= stated + figures * (teal::ticks_to_ns(1) + 1);
        if (!right) std::printf("took %lld ns, stated %lld\n", static_cast<long long>(took), static_cast<long long>(stated));
        return right;
    }
};

std::string refusal(std::string_view text) {
    try {
        LinkSpec::parse(text);
    } catch (const teal::Error& error) {
        CHECK(error.code() == teal::Code::invalid_argument);
        return error.what();
    }
    return {};
}

void test_specs_are_read_and_written() {
    CHECK_EQ(LinkSpec::parse("pcie").figures.read, 750);
    CHECK_EQ(LinkSpec::parse("pcie").figures.one_way, 375);
    CHECK_EQ(LinkSpec::parse("pcie").text(), "pcie");
    CHECK_EQ(LinkSpec::parse("cxl:").text(), "cxl");
    const LinkSpec slow = LinkSpec::parse("pcie:read=900ns,kick=2us,prefetch=off,polling=sleep,coalesce=8");
    CHECK_EQ(slow.figures.read, 900);
    CHECK_EQ(slow.figures.one_way, 450);  // follows the read
    CHECK_EQ(slow.figures.kick, 2000);
    CHECK(!slow.tricks.prefetch && slow.tricks.batching && slow.tricks.polling == Polling::sleep);
    CHECK_EQ(slow.tricks.coalesce, 8);
    for (const std::string_view text :
         {"pcie:read=900ns,one_way=375ns", "cxl:tricks=off", "shm:pre_staging=off", "pcie:tricks=off,dma=on,polling=poll,coalesce=64"}) {
        const std::string once = LinkSpec::parse(text).text();
        const LinkSpec spec = LinkSpec::parse(once);
        CHECK_EQ(spec.text(), once);
        CHECK_EQ(spec.figures.one_way, LinkSpec::parse(text).figures.one_way);
    }
    CHECK(LinkSpec::parse("pcie:tricks=off,batching=on").tricks.batching);
    CHECK(!LinkSpec::parse("pcie:tricks=off,batching=on").tricks.dma);
}

void test_nonsense_is_refused() {
    CHECK(refusal("isa").find("expected shm, pcie or cxl") != std::string::npos);
    CHECK(refusal("").find("expected shm, pcie or cxl") != std::string::npos);
    CHECK(refusal("pcie:reed=5ns").find("there are tricks") != std::string::npos);
    CHECK(refusal("pcie:read").find("NAME=VALUE") != std::string::npos);
    for (const std::string_view text :
         {"pcie:read=", "pcie:read=-1ns", "pcie:read=1.5ns", "pcie:read=99999999999999999999ns", "pcie:read=2000ms", "pcie:read=5ps", "pcie:coalesce=0",
          "pcie:coalesce=65", "pcie:coalesce=4ns", "pcie:dma=maybe", "pcie:tricks=some", "pcie:polling=always", "pcie:kick=400ns", "pcie:,", "pcie:kick_send=5s"})
        CHECK(!refusal(text).empty());
}

void test_plain_shm_has_no_link() {
    CHECK(teal::make_link(LinkSpec::parse("shm")) == nullptr);
    CHECK(teal::make_link(LinkSpec::parse("shm:pre_staging=off")) != nullptr);
    CHECK(teal::make_link(LinkSpec::parse("pcie")) != nullptr);
    CHECK(teal::is_visible(nullptr, UINT64_MAX / 4, 0));
    CHECK_EQ(teal::read_slot(nullptr, 0, 1), 0);
    CHECK(teal::batches(nullptr) && teal::stages_ahead(nullptr));
    const auto bare = teal::make_link(LinkSpec::parse("shm:tricks=off"));
    CHECK(!teal::batches(bare.get()) && !teal::stages_ahead(bare.get()));
    CHECK_EQ(teal::most_held_ends(bare.get()), 1);
}

void test_writes_cost_what_their_path_costs() {
    Virtual time;
    Link bare(LinkSpec::parse("pcie:tricks=off"), time.clock());
    CHECK(time.takes(400, 8, [&] { bare.charge_write(64, 1); }));  // eight stores
    CHECK(time.takes(100, 2, [&] { bare.charge_write(9, 1); }));
    Link combining(LinkSpec::parse("pcie:tricks=off,write_combining=on"), time.clock());
    CHECK(time.takes(100, 2, [&] { combining.charge_write(64, 1); }));  // a line and its flush
    CHECK(time.takes(450, 9, [&] { combining.charge_write(512, 8); }));
    Link adaptive(LinkSpec::parse("pcie"), time.clock());
    CHECK(time.takes(100, 2, [&] { adaptive.charge_write(64, 1); }));  // too small for DMA
    std::uint64_t leaves = 0;
    CHECK(time.takes(400, 4, [&] { leaves = adaptive.charge_write(4096, 64); }));
    const std::int64_t wire = teal::ticks_to_ns(leaves - time.time);
    CHECK(wire >= 4 * 64 && wire < 4 * 65);  // each figure is rounded up to a tick
    CHECK_EQ(adaptive.counts().by_dma, 1);
    CHECK_EQ(adaptive.counts().writes, 2);
    CHECK_EQ(adaptive.counts().lines, 65);
    Link coherent(LinkSpec::parse("cxl"), time.clock());
    CHECK(time.takes(40, 2, [&] { coherent.charge_write(128, 2); }));
}

void test_reads_and_prefetches() {
    Virtual time;
    Link bare(LinkSpec::parse("pcie:tricks=off"), time.clock());
    CHECK(time.takes(750, 1, [&] { bare.charge_read(8); }));
    bare.prefetch(0, 1, time.time);
    CHECK(time.takes(750, 1, [&] { bare.read_slot(0, 1); }));  // its first word …
    CHECK(time.takes(7 * 750, 7, [&] { bare.charge_rest_of_slot(); }));  // … and the others
    CHECK_EQ(bare.counts().prefetches, 0);

    Link link(LinkSpec::parse("pcie"), time.clock());
    CHECK(time.takes(750, 1, [&] { link.read_slot(0, 1); }));
    CHECK_EQ(time.ns([&] { link.charge_rest_of_slot(); }), 0);  // it came as a line
    link.prefetch(0, 2, time.time);
    CHECK(time.takes(750, 1, [&] { link.read_slot(0, 2); }));  // at once: the whole of it is left
    link.prefetch(0, 3, time.time);
    time.time += teal::ns_to_ticks(500);
    const std::int64_t rest = time.ns([&] { link.read_slot(0, 3); });
    CHECK(rest >= 249 && rest <= 251);
    link.prefetch(0, 4, time.time);
    link.prefetch(0, 4, time.time + 12'345);  // the first one counts
    time.time += teal::ns_to_ticks(751);
    CHECK_EQ(time.ns([&] { link.read_slot(0, 4); }), 0);
    CHECK(time.takes(750, 1, [&] { link.read_slot(0, 4); }));  // used up
    link.prefetch(0, 5, time.time);
    link.forget(0);
    CHECK(time.takes(750, 1, [&] { link.read_slot(0, 5); }));
    link.prefetch(1, 6, time.time);
    CHECK(time.takes(750, 1, [&] { link.read_slot(0, 6); }));  // another worker's
    link.prefetch(Link::most_workers, 7, time.time);        // out of range: no prefetch, no harm
    CHECK(time.takes(750, 1, [&] { link.read_slot(Link::most_workers, 7); }));
    CHECK_EQ(link.counts().hits, 1);
    CHECK_EQ(link.counts().late, 2);
    CHECK_EQ(link.counts().prefetches, 5);
    CHECK_EQ(link.counts().misses, 5);
}

// A decision staged after the read had passed is not in what the read brings.
void test_what_is_read_is_as_old_as_the_read() {
    Virtual time;
    Link link(LinkSpec::parse("pcie"), time.clock());
    const std::uint64_t early = time.time;
    link.prefetch(0, 1, early);
    const std::uint64_t late = early + teal::ns_to_ticks(500);  // half a read is 375
    time.time += teal::ns_to_ticks(5000);
    const std::uint64_t seen = link.read_slot(0, 1);
    CHECK(link.is_visible(early, seen));
    CHECK(!link.is_visible(late, seen));
    CHECK(link.is_visible(late, link.read_slot(0, 1)));
    CHECK(!link.is_visible(time.time + 1, time.time));  // from the future: not yet
}

void test_kicks() {
    Virtual time;
    Link link(LinkSpec::parse("pcie"), time.clock());
    const std::uint64_t sent = time.time;
    CHECK(time.takes(70, 1, [&] { link.send_kick(); }));
    CHECK(!link.has_arrived(sent, time.time));
    link.receive_kick(sent);
    CHECK_EQ(teal::ticks_to_ns(time.time - sent), 1600);
    CHECK(link.has_arrived(sent, time.time));
    time.time += teal::ns_to_ticks(10'000);
    CHECK(time.takes(350, 1, [&] { link.receive_kick(sent); }));  // it came long ago
    CHECK(time.takes(350, 1, [&] { link.receive_kick(0); }));
    CHECK(time.takes(350, 1, [&] { link.receive_kick(time.time + teal::ns_to_ticks(1'000'000'000)); }));  // a lie delays nobody
    CHECK_EQ(link.counts().kicks_received, 4);
}

void test_no_delay_is_shorter_than_asked() {
    for (const std::string_view text : {"pcie", "cxl", "pcie:read=3us,write=1us,line=1us,flush=200ns,kick_send=500ns,kick=5us,dma_setup=2us"}) {
        const std::vector<teal::LinkDelay> found = teal::measure_link(LinkSpec::parse(text), 200);
        CHECK(found.size() >= 10);
        for (const teal::LinkDelay& delay : found) {
            CHECK_EQ(delay.delivered_ns.size(), 200);
            for (const std::uint32_t ns : delay.delivered_ns)
                if (ns < delay.asked_ns) {
                    std::fprintf(stderr, "%s, %s: %u ns\n", std::string(text).c_str(), delay.name.c_str(), ns);
                    CHECK(ns >= delay.asked_ns);
                }
        }
    }
    try {
        teal::measure_link(LinkSpec::parse("pcie"), 0);
        CHECK(false);
    } catch (const teal::Error& error) {
        CHECK(error.code() == teal::Code::invalid_argument);
    }
}

}  // namespace

int main() {
    test_specs_are_read_and_written();
    test_nonsense_is_refused();
    test_plain_shm_has_no_link();
    test_writes_cost_what_their_path_costs();
    test_reads_and_prefetches();
    test_what_is_read_is_as_old_as_the_read();
    test_kicks();
    test_no_delay_is_shorter_than_asked();
    return teal::check::summary();
}
