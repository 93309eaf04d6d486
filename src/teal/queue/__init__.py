"""The queue primitives (core/queue) as Python sees them: only their numbers, in statistics()."""
