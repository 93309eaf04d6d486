"""A module that fails when a worker imports it."""

raise RuntimeError("half a module")
