"""Settings of policies: class attributes that say what may be set, from which words, and what it is unless set.

Theory of operation: descriptors. ``quantum = Time("50us")`` makes ``self.quantum`` nanoseconds and ``quantum=2ms``
something that ``Policy.set`` takes. ``slo = PerName(Time("1ms"))`` takes ``slo=1ms`` for all and ``slo.bert=50us`` for
one; ``self.slo.of(kind, index)`` answers by the index that requests carry. Names become known as the mechanism tells
them; until then a model is called "#INDEX". The words and their meaning are the core's (core/agents/policies).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from teal import _core
from teal.errors import InvalidArgument

if TYPE_CHECKING:
    from teal.agents.policy import NameKind, Policy

T = TypeVar("T")


class Setting(Generic[T]):
    """One setting. ``usual``: the words of its value unless set; ``name``: where it is not the attribute's."""

    def __init__(self, usual: str, name: str = "") -> None:
        self.usual = usual
        self.name = name
        self.attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name
        self.name = self.name or name

    @overload
    def __get__(self, policy: None, owner: type) -> Self: ...
    @overload
    def __get__(self, policy: Policy, owner: type) -> T: ...
    def __get__(self, policy: Policy | None, owner: type) -> Self | T:
        if policy is None:
            return self
        value: T = self.parse(self.name, self.usual)
        policy.__dict__[self.attribute] = value  # found there from now on
        return value

    def parse(self, setting: str, value: str) -> T:
        raise NotImplementedError

    def show(self, value: T) -> str:
        return str(value)

    def take(self, policy: Policy, name: str, of: str, value: str) -> bool:
        """``name=value`` was said, and ``of`` is what stands behind its dot."""
        if name != self.name:
            return False
        policy.__dict__[self.attribute] = self.parse(name, value)
        return True

    def plain(self, policy: Policy) -> list[tuple[str, str]]:
        return [(self.name, self.show(getattr(policy, self.attribute)))]

    def said(self, policy: Policy) -> list[tuple[str, str]]:
        return []


class Time(Setting[int]):
    """Nanoseconds, from "50us", "2ms", "1.5s"; at least ``least`` unless 0 is allowed too (``never``)."""

    def __init__(self, usual: str, least: str = "0", never: bool = False) -> None:
        super().__init__(usual)
        self.least = _core.parse_time("least", least, 0)
        self.never = never

    def parse(self, setting: str, value: str) -> int:
        return 0 if self.never and value == "0" else _core.parse_time(setting, value, self.least)

    def show(self, value: int) -> str:
        return _core.show_time(value)


class Weight(Setting[int]):
    """Thousandths, from "3" or "0.5"."""

    def parse(self, setting: str, value: str) -> int:
        return _core.parse_weight(setting, value)

    def show(self, value: int) -> str:
        return _core.show_weight(value)


class Whole(Setting[int]):
    """A whole number of ``least`` to ``most``."""

    def __init__(self, usual: str, least: int, most: int) -> None:
        super().__init__(usual)
        self.least, self.most = least, most

    def parse(self, setting: str, value: str) -> int:
        return _core.parse_whole(setting, value, self.least, self.most)


class Flag(Setting[bool]):
    """From 1, 0, yes, no, on, off."""

    def parse(self, setting: str, value: str) -> bool:
        return _core.parse_flag(setting, value)

    def show(self, value: bool) -> str:
        return "1" if value else "0"


class Choice(Setting[str]):
    """One of the words given, the first unless set."""

    def __init__(self, *words: str) -> None:
        super().__init__(words[0])
        self.words = words

    def parse(self, setting: str, value: str) -> str:
        if value not in self.words:
            raise InvalidArgument(f"{setting}={value[:80]!r}: expected one of {', '.join(self.words)}")
        return value


class Table(Generic[T]):
    """What a PerName setting holds in one policy: a usual value, and what was said by name."""

    def __init__(self, usual: T) -> None:
        self.usual = usual
        self.by_name: dict[str, T] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._known: dict[tuple[int, int], T] = {}

    def of(self, kind: NameKind | int, index: int) -> T:
        """The value for model or session ``index``."""
        key = (kind, index)
        value = self._known.get(key)
        if value is None:
            value = self.usual
            for name, said in self.by_name.items():
                if name in (self._names.get(key), f"#{index}"):
                    value = said
            self._known[key] = value
        return value

    def name(self, kind: int, index: int, name: str) -> None:
        self._names[(kind, index)] = name
        self._known.clear()

    def set(self, name: str, value: T) -> None:
        """For ``name``, or without one for all that nothing was said of."""
        if name:
            self.by_name[name] = value
        else:
            self.usual = value
        self._known.clear()


class PerName(Setting[Table[T]], Generic[T]):
    """A setting for each model or session: ``slo=1ms``, ``slo.bert=50us``."""

    def __init__(self, value: Setting[T]) -> None:
        super().__init__(value.usual)
        self.value = value

    def parse(self, setting: str, value: str) -> Table[T]:
        return Table(self.value.parse(setting, value))

    def take(self, policy: Policy, name: str, of: str, value: str) -> bool:
        if name.endswith("."):
            return False
        getattr(policy, self.attribute).set(of, self.value.parse(name, value))
        return True

    def plain(self, policy: Policy) -> list[tuple[str, str]]:
        return [(self.name, self.value.show(getattr(policy, self.attribute).usual))]

    def said(self, policy: Policy) -> list[tuple[str, str]]:
        table: Table[T] = getattr(policy, self.attribute)
        return [(f"{self.name}.{name}", self.value.show(value)) for name, value in table.by_name.items()]


@cache
def settings_of(kind: type) -> dict[str, Setting[Any]]:
    """The settings of a class of policies, by name: its bases' first, in the order in which they are written."""
    found: dict[str, Setting[Any]] = {}
    for base in reversed(kind.__mro__):
        found.update({value.name: value for value in vars(base).values() if isinstance(value, Setting)})
    return found


def tell_name(policy: Policy, kind: int, index: int, name: str) -> None:
    """Model or session ``index`` is called ``name``: what was set by that name counts for it."""
    for setting in settings_of(type(policy)).values():
        if isinstance(setting, PerName):
            getattr(policy, setting.attribute).name(kind, index, name)
