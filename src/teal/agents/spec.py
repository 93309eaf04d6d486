"""Policies by their words: "shinjuku:quantum=50us,slo.bert=1ms", "mine.py:Mine:size=3", "package.module:Class".

Theory of operation: what is in front of the first colon is the name of a shipped policy, a file, or a module; behind
the latter two comes a class. Then settings, which the policy itself checks. Shipped ones run in the core.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from teal import _core
from teal.agents.policy import Policy
from teal.errors import InvalidArgument, NotFound

_PYTHON = {
    "fifo": "fifo:Fifo",
    "fifo-per-worker": "fifo_per_worker:FifoPerWorker",
    "edf": "edf:Edf",
    "fair": "fair:Fair",
    "shinjuku": "shinjuku:Shinjuku",
    "composite": "composite:Composite",
}
_numbers = itertools.count(1)
_files: dict[tuple[Path, int], ModuleType] = {}


def policy_names() -> tuple[str, ...]:
    """The shipped policies."""
    return tuple(_core.policy_names())


@dataclass(frozen=True)
class PolicySpec:
    """A policy in words. ``target``: a shipped policy's name, a path that ends in .py, or a module; ``class_name``: the
    class in it, empty for a shipped one; ``settings``: in the order in which they were given."""

    target: str
    class_name: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """Reads "NAME", "NAME:k=v,…", "file.py:Class", "file.py:Class:k=v,…", "module:Class:…". Raises InvalidArgument
        when it is none of these. Nothing is loaded, and no setting looked at."""
        target, _, rest = text.partition(":")
        class_name = ""
        if target not in policy_names():
            class_name, _, rest = rest.partition(":")
            if not target or not class_name.isidentifier():
                raise InvalidArgument(
                    f"policy {text[:120]!r}: expected {', '.join(policy_names())}, file.py:Class or module:Class,"
                    " each with :name=value,… behind it if need be"
                )
        return cls(target, class_name, _settings(text, rest))

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in self.settings.items())
        return ":".join(part for part in (self.target, self.class_name, settings) if part)


def _settings(text: str, words: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for word in words.split(",") if words else []:
        name, equals, value = word.strip().partition("=")
        if not name or not equals:
            raise InvalidArgument(
                f"policy {text[:120]!r}: {word[:80]!r}, expected settings as in name=value,name=value"
            )
        if name in settings:
            raise InvalidArgument(f"policy {text[:120]!r}: {name[:80]!r} is set twice; give it once")
        settings[name] = value
    return settings


def parse_policy(text: str) -> _core.Policy:
    """The policy that the words name, ready to be driven by a mechanism. Raises InvalidArgument, NotFound."""
    spec = PolicySpec.parse(text)
    return make(spec.target, spec.class_name, spec.settings)


def make(target: str, class_name: str = "", settings: Mapping[str, str] | None = None) -> _core.Policy:
    """A policy from a spec's parts. One written in Python is in ``.python``."""
    if not class_name:
        policy = _core.make_policy(target)
        if policy is None:
            raise NotFound(f"policy {target[:80]!r}: expected one of {', '.join(policy_names())}")
    else:
        policy = _core.PythonPolicy(load(target, class_name)())
    for name, value in (settings or {}).items():
        policy.set(name, value)
    return policy


def load(target: str, class_name: str) -> Callable[[], Policy]:
    """The class of a file or a module. Raises NotFound, InvalidArgument; what the file itself raises passes."""
    if target.endswith(".py"):
        path = Path(target)
        if not path.is_file():
            raise NotFound(f"policy file {target!r}: there is no such file; give its path")
        # One module for all policies of a file, so that they can have something in common; another one once it is
        # changed.
        key = (path.resolve(), path.stat().st_mtime_ns)
        module = _files.get(key) or _files.setdefault(key, _module(path))
    else:
        try:
            module = importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{target}.".startswith(f"{error.name}."):
                raise  # the module is there, and what it imports is not
            raise NotFound(
                f"policy module {target!r}: there is none; give package.module:Class or file.py:Class"
            ) from None
    made = getattr(module, class_name, None)
    if not isinstance(made, type) or not issubclass(made, Policy):
        raise InvalidArgument(
            f"policy {target}:{class_name}: expected a class there that derives from teal.agents.Policy"
        )
    if made.pick is Policy.pick and made.pick_group is Policy.pick_group:
        raise InvalidArgument(f"policy {target}:{class_name}: it never decides; give the class a method pick()")
    return made


def _module(path: Path) -> ModuleType:
    name = f"teal_policy_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a path that ends in .py has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def shipped(name: str) -> Callable[[], Policy] | None:
    """The Python form of a shipped policy."""
    if name not in _PYTHON:
        return None
    module, _, class_name = _PYTHON[name].partition(":")
    found: Callable[[], Policy] = getattr(importlib.import_module(f"teal.agents.sched.{module}"), class_name)
    return found


def set_or_raise(policy: Policy, name: str, value: str) -> None:
    """``policy.set``, and InvalidArgument that names the settings there are for one that it does not know."""
    if not policy.set(name, value):
        known = ", ".join(setting for setting, _ in policy.settings()) or "none"
        raise InvalidArgument(
            f"policy {policy.name or type(policy).__name__} has no setting {name[:80]!r}; it has {known}"
        )
