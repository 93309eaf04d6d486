"""Policies as people name them."""

from __future__ import annotations

import os

import pytest

import teal
from teal.host.policy_spec import parse


@pytest.mark.parametrize(
    ("text", "target", "class_name", "settings"),
    [
        ("fifo", "fifo", "", {}),
        ("shinjuku:quantum=50us", "shinjuku", "", {"quantum": "50us"}),
        ("fair:weight.my-model=2,weight.#3=0.5", "fair", "", {"weight.my-model": "2", "weight.#3": "0.5"}),
        ("package.module:Mine", "package.module", "Mine", {}),
        ("module:Mine:depth=2", "module", "Mine", {"depth": "2"}),
        ("/a/b.py:Mine:x=1", "/a/b.py", "Mine", {"x": "1"}),
    ],
)
def test_what_is_understood(text: str, target: str, class_name: str, settings: dict[str, str]) -> None:
    spec = parse(text)
    assert (spec.target, spec.class_name, spec.settings) == (target, class_name, settings)
    assert spec.custom == bool(class_name)
    assert parse(str(spec)) == spec


def test_a_files_path_is_made_absolute() -> None:
    assert parse("mine.py:Mine").target == os.path.abspath("mine.py")


@pytest.mark.parametrize(
    "text",
    ["", ":", "fifo:", "Fifo", "fifo:=1", "a.py", "a.py:", "a.py:1x", "a..b:C", "fifo:a=1,a=2",
     "fifo\0", "x" * 5000, "fifo;rm", "../x:C", "fifo:a=1,"],
)  # fmt: skip
def test_what_is_not(text: str) -> None:
    with pytest.raises(teal.InvalidArgument):
        parse(text)
