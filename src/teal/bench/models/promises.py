"""The bars of `teal bench models`, with their limits."""

from __future__ import annotations

from teal.bench.report import Promise

TIMES = "×"  # noqa: RUF001
PROMISES = {
    "models.b1.geomean_vs_standard": Promise(9.7, "higher", TIMES),
    "models.b1.same_precision.geomean_vs_standard": Promise(0, "higher", TIMES),  # stated, nothing promised
    "models.b1.worst_vs_best_inprocess": Promise(1.03, "lower", TIMES),
    "models.small.vs_standard": Promise(100, "higher", TIMES),
    "models.start.warm_over_cold": Promise(0.35, "lower", TIMES),
    "models.start.hot_over_engine": Promise(1.03, "lower", TIMES),
    "models.switch.p50_us": Promise(5, "lower", "µs"),
    "models.pipeline.gain": Promise(1.5, "higher", TIMES),
    "models.update.failed": Promise(0, "lower", "requests"),
    "models.update.mixed": Promise(0, "lower", "requests"),
    "models.compile.added_us": Promise(5, "lower", "µs"),
}
ALLOWANCE_US = 6.0  # of worst_vs_best_inprocess: what a call from another process may add besides its share
MAX_ERROR = 2e-2  # relative L2 of the tuned model
AGREEMENT = 0.99  # top-1, where weights are real
ERROR_INPUTS = 200
