"""What a call returns: tensors in the model's order that also take names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import SupportsIndex, overload

from teal._core import Tensor
from teal.errors import NotFound


class Outputs(tuple[Tensor, ...]):
    """A tuple of tensors; ``outputs["name"]`` and ``dict(outputs)`` work too. Each tensor keeps the memory it shows."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, tensors: list[Tensor], names: tuple[str, ...]) -> Outputs:
        made = cls(tensors)
        made.names = names
        return made

    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> Tensor: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, key: str | SupportsIndex | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(key, str):
            try:
                key = self.names.index(key)
            except ValueError:
                raise NotFound(f"output {key!r}; the outputs are {list(self.names)}") from None
        return super().__getitem__(key)

    def __contains__(self, item: object) -> bool:
        return item in self.names if isinstance(item, str) else super().__contains__(item)

    def keys(self) -> tuple[str, ...]:
        """The names."""
        return self.names

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) pairs."""
        return zip(self.names, self, strict=True)

    def __repr__(self) -> str:
        return "Outputs(" + ", ".join(f"{name}={tensor!r}" for name, tensor in self.items()) + ")"
