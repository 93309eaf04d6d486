"""Shared memory as people meet it: ``teal.memory.leaks()`` lists what is still on loan. See docs/ownership.md."""

from teal.memory.loans import Loan, leaks

__all__ = ["Loan", "leaks"]
