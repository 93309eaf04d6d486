#include "link/measure.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/error.hpp"

namespace teal {
namespace {

constexpr std::uint32_t most = 1'000'000;
constexpr std::uint32_t bulk = 4096;  // bytes of the DMA that is measured

std::uint32_t interval_ns(std::uint64_t start, std::uint64_t end) noexcept {
    const auto interval = static_cast<std::int64_t>(end - start);
    return interval <= 0 ? 0 : static_cast<std::uint32_t>(std::min<std::int64_t>(ticks_to_ns(static_cast<std::uint64_t>(interval)), UINT32_MAX));
}

// The other thread may be on the same core.
void relax(unsigned turn) noexcept {
    if (turn % 256 == 255) std::this_thread::yield();
    else cpu_relax();
}

// `step` does it once and returns how many ticks it took.
LinkDelay measured(std::string name, std::uint64_t asked_ns, std::uint32_t n, const std::function<std::uint32_t(std::uint32_t)>& step) {
    LinkDelay delay{std::move(name), asked_ns, {}};
    delay.delivered_ns.reserve(n);
    for (std::uint32_t i = 0; i < n; ++i) delay.delivered_ns.push_back(step(i));
    return delay;
}

// From a stamp on this thread until it has `arrived` on another one: asked again and again, it returns when, or 0 for not yet.
LinkDelay across(std::string name, std::uint64_t asked_ns, std::uint32_t n, const std::function<std::uint64_t()>& send,
                 const std::function<std::uint64_t(std::uint64_t)>& arrived) {
    LinkDelay delay{std::move(name), asked_ns, std::vector<std::uint32_t>(n)};
    std::atomic<std::uint64_t> stamp{0};
    std::atomic<std::uint32_t> sent{0}, seen{0};
    std::thread other([&] {
        for (std::uint32_t i = 1; i <= n; ++i) {
            // SYNC: acquire pairs with the sender's release store of `sent`; release below with its acquire load of `seen`.
            for (unsigned turn = 0; sent.load(std::memory_order_acquire) != i; ++turn) relax(turn);
            const std::uint64_t when = stamp.load(std::memory_order_relaxed);
            std::uint64_t there = 0;
            while (there == 0) there = arrived(when);
            delay.delivered_ns[i - 1] = interval_ns(when, there);
            seen.store(i, std::memory_order_release);
        }
    });
    for (std::uint32_t i = 1; i <= n; ++i) {
        stamp.store(send(), std::memory_order_relaxed);
        sent.store(i, std::memory_order_release);
        for (unsigned turn = 0; seen.load(std::memory_order_acquire) != i; ++turn) relax(turn);
    }
    other.join();
    return delay;
}

// One that does only this.
LinkSpec only(const LinkSpec& spec, bool LinkTricks::* trick) {
    LinkSpec bare{spec.kind, spec.figures, {}};
    bare.tricks.write_combining = bare.tricks.prefetch = bare.tricks.dma = false;
    if (trick != nullptr) bare.tricks.*trick = true;
    return bare;
}

template <typename Action> std::uint32_t timed(Action action) {
    const std::uint64_t start = ticks();
    action();
    return interval_ns(start, ticks());
}

void measure_accesses(const LinkSpec& spec, std::uint32_t n, std::vector<LinkDelay>& found) {
    const LinkFigures& f = spec.figures;
    Link bare(only(spec, nullptr));
    found.push_back(measured("read, 8 bytes", f.read, n, [&](std::uint32_t) { return timed([&] { bare.charge_read(8); }); }));
    found.push_back(measured("write, 8 bytes", f.write, n, [&](std::uint32_t) { return timed([&] { bare.charge_write(8, 1); }); }));
    Link combining(only(spec, &LinkTricks::write_combining));
    for (const std::uint32_t lines : {1U, 4U})
        found.push_back(measured("line and flush, " + std::to_string(64 * lines) + " bytes", std::uint64_t{lines} * f.line + f.flush, n,
                                 [&, lines](std::uint32_t) { return timed([&] { combining.charge_write(64 * lines, lines); }); }));
    Link ahead(only(spec, &LinkTricks::prefetch));
    found.push_back(measured("read, 64 bytes", f.read, n, [&](std::uint32_t) { return timed([&] { ahead.charge_read(64); }); }));
    found.push_back(measured("prefetched, claimed at once", f.read, n, [&](std::uint32_t i) {
        return timed([&] { ahead.prefetch(0, i, ticks()); ahead.read_slot(0, i); });
    }));
    found.push_back(measured("prefetched, claimed when it is there", 0, n, [&](std::uint32_t i) {
        const std::uint64_t issued = ticks();
        ahead.prefetch(0, i, issued);
        while (ticks() - issued <= ahead.read_cost(64)) {}
        return timed([&] { ahead.read_slot(0, i); });
    }));
}

void measure_bulk(const LinkSpec& spec, std::uint32_t n, std::vector<LinkDelay>& found) {
    LinkSpec always = only(spec, &LinkTricks::dma);
    Link mover(always);
    if (mover.write_cost(bulk, bulk / 64) <= ns_to_ticks(spec.figures.dma_setup)) return;  // this link never takes that path
    std::vector<std::uint32_t> transit;
    found.push_back(measured("dma_setup, 4 KiB", spec.figures.dma_setup, n, [&](std::uint32_t) {
        const std::uint64_t start = ticks();
        const std::uint64_t leaves = mover.charge_write(bulk, bulk / 64);
        const std::uint64_t end = ticks();
        transit.push_back(interval_ns(start, leaves));
        return interval_ns(start, end);
    }));
    const std::uint64_t asked = spec.figures.dma_setup + std::uint64_t{bulk / 1024} * spec.figures.dma_per_kib;
    found.push_back({"dma_setup and wire, 4 KiB", asked, std::move(transit)});
}

void measure_arrivals(const LinkSpec& spec, std::uint32_t n, std::vector<LinkDelay>& found) {
    const LinkFigures& f = spec.figures;
    Link link(only(spec, &LinkTricks::write_combining));
    found.push_back(across("one_way", f.one_way, n, [&] { return link.charge_write(64, 1); }, [&](std::uint64_t when) {
        const std::uint64_t now = ticks();
        return link.is_visible(when, now) ? now : 0;
    }));
    found.push_back(measured("kick_send", f.kick_send, n, [&](std::uint32_t) { return timed([&] { link.send_kick(); }); }));
    found.push_back(measured("kick_receive", f.kick_receive, n, [&](std::uint32_t) { return timed([&] { link.receive_kick(0); }); }));
    Link receiver(only(spec, nullptr));
    found.push_back(across("kick, end to end", f.kick, n, [&] {
        const std::uint64_t sent = ticks();
        link.send_kick();
        return sent;
    }, [&](std::uint64_t sent) {
        receiver.receive_kick(sent);
        return ticks();
    }));
}

}  // namespace

std::vector<LinkDelay> measure_link(const LinkSpec& spec, std::uint32_t n) {
    if (n == 0 || n > most) throw Error(Code::invalid_argument, "measure_link: n = " + std::to_string(n) + ", expected 1 to 1000000");
    std::vector<LinkDelay> found;
    measure_accesses(spec, n, found);
    measure_bulk(spec, n, found);
    measure_arrivals(spec, n, found);
    return found;
}

}  // namespace teal
