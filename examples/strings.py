"""Strings in and out: python examples/strings.py."""

import numpy as np

import teal


def shout(text):
    return np.array([bytes(line).decode().upper() + "!" for line in text])


if __name__ == "__main__":
    with teal.Host() as host:
        out = host.load("shout", "strings:shout")(["grüezi", "hello"])
        print([line.decode() for line in out["output"].numpy()])  # ['GRÜEZI!', 'HELLO!']
