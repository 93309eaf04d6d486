"""NumPy and torch look at the same shared memory: python examples/views.py."""

import numpy as np
import torch

import teal

with teal.Host() as host:
    tensor = host.empty((2, 3), "bfloat16")
    view = torch.from_dlpack(tensor)
    view += 1.5
    print(
        tensor.numpy().sum(), np.shares_memory(tensor.numpy().view(np.uint16), view.view(torch.uint16).numpy())
    )  # 9 True
    del view
    tensor.release()
