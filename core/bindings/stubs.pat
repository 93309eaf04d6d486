# Names that the signatures in core/bindings use and nanobind's stub generator does not import by itself.
teal._core.__prefix__:
    from numpy.typing import NDArray
    PlanEntry = tuple[str, tuple[int, ...] | None, int, int, int | None, tuple[int, int] | tuple[int, int, tuple[int, int, int, int]] | None]

# Requests carry attributes of a policy's own.
teal._core.Request.__getattr__:
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
