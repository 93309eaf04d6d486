"""Agents: what decides which request runs where and for how long, outside of the processes that run it.

A policy is the part that a person replaces: a class with a method for each event and one that decides. See
docs/agents.md.
"""

from __future__ import annotations

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.policy import NameKind, Outcome, Policy
from teal.agents.setting import Choice, Flag, PerName, Time, Weight, Whole
from teal.agents.spec import PolicySpec, make, parse_policy, policy_names
from teal.agents.waiting import WaitHeap, WaitList

__all__ = [
    "Choice",
    "Decision",
    "Flag",
    "NameKind",
    "Outcome",
    "PerName",
    "Policy",
    "PolicySpec",
    "Request",
    "Time",
    "WaitHeap",
    "WaitList",
    "Weight",
    "Whole",
    "Worker",
    "make",
    "parse_policy",
    "policy_names",
]
