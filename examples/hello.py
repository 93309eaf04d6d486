"""One call of a resident kernel: python examples/hello.py."""

import numpy as np

import teal

with teal.Host() as host:
    model = host.load("sum", "builtin:sum")
    out = model(x=np.arange(10, dtype=np.float32))
    print(out["sum"].numpy())  # 45.0
