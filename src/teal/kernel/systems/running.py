"""Running mean and deviation of features, as kml normalises by: update as samples come, save when a model is made."""

from __future__ import annotations

import numpy as np

from teal.errors import InvalidArgument
from teal.kernel.systems.file import Array


class Running:
    """Mean and deviation of everything seen so far, in one pass, without keeping it."""

    def __init__(self, features: int) -> None:
        self.count = 0
        self.mean: Array = np.zeros(features)
        self._squares: Array = np.zeros(features)  # sum of squared distances from the mean

    def update(self, samples: Array) -> None:
        """samples: (n, features). Raises InvalidArgument when they are not finite, which would stay for ever."""
        samples = np.asarray(samples, np.float64)
        if samples.ndim != 2 or samples.shape[1] != len(self.mean):
            raise InvalidArgument(f"shape {samples.shape}, expected (n, {len(self.mean)})", path="$.samples")
        if not np.isfinite(samples).all():
            raise InvalidArgument("not finite; leave such observations out", path="$.samples")
        if len(samples) == 0:
            return
        total = self.count + len(samples)
        mean = samples.mean(axis=0)
        distance = mean - self.mean
        self._squares += ((samples - mean) ** 2).sum(axis=0) + distance**2 * self.count * len(samples) / total
        self.mean = self.mean + distance * len(samples) / total
        self.count = total

    @property
    def deviation(self) -> Array:
        """Of the samples; 1 for a feature that never changed, so that it can be divided by."""
        deviation = np.sqrt(self._squares / max(self.count, 1))
        return np.where(deviation > 0, deviation, 1.0)
