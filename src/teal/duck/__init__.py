"""Ducks: native programs that stay resident in a sandbox, here or on another machine, and are called from there.

``teal.Duck`` is the client; ``teal.duck.Server`` is a duck inside a program (`teal duck serve` is one of its own).
"""

from teal.duck.server import Server

__all__ = ["Server"]
