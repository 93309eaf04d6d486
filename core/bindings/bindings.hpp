// What the binding files share.
#pragma once

#include <nanobind/nanobind.h>

#include "queue/histogram.hpp"

namespace teal {

namespace nb = nanobind;

void bind_cpu(nb::module_& m);
void bind_confine(nb::module_& m);
void bind_device(nb::module_& m);
void bind_tensor(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_watch(nb::module_& m);
void bind_client(nb::module_& m);
void bind_slot(nb::module_& m);
void bind_event(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_host(nb::module_& m);
void bind_worker(nb::module_& m);
void bind_systems(nb::module_& m);
void bind_bpf(nb::module_& m);
void bind_trace(nb::module_& m);
void bind_seat(nb::module_& m);
void bind_seat_numbers(nb::module_& m);
void bind_link(nb::module_& m);
void bind_wave(nb::module_& m);
void bind_policy(nb::module_& m);
void bind_sim(nb::module_& m);
void bind_box_bench(nb::module_& m);
void bind_duck_bench(nb::module_& m);
void bind_elf(nb::module_& m);
void bind_duck_line(nb::module_& m);
void bind_duck_memory(nb::module_& m);
void bind_duck_yard(nb::module_& m);
void bind_kvm(nb::module_& m);
void bind_duck_net(nb::module_& m);

// (lower bound in nanoseconds, count) of each bucket that is not empty.
inline nb::list histogram_list(const Histogram& histogram) {
    nb::list list;
    for (unsigned i = 0; i < Histogram::bucket_count; ++i) {
        const std::uint32_t count = histogram.buckets[i].load(std::memory_order_relaxed);
        if (count > 0) list.append(nb::make_tuple(Histogram::bucket_floor(i), count));
    }
    return list;
}

}  // namespace teal
