"""A Python function as a resident kernel, called with its state kept: python examples/function.py."""

import numpy as np

import teal


@teal.signature(inputs={"x": ("float32", ("n", 3))}, outputs={"norm": ("float32", ("n",))}, pure=True)
def norms(x):
    return np.linalg.norm(x, axis=1)


if __name__ == "__main__":
    with teal.Host() as host:
        model = host.load("norms", "function:norms")  # this file, imported by the worker
        print(model([[3, 4, 0], [0, 0, 2]])["norm"].numpy())  # [5. 2.]
