"""Ducks: native programs that are sent to another machine, or another process, and called there."""
