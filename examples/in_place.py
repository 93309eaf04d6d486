"""An ONNX model without a single copy: python examples/in_place.py [MODEL.onnx]."""

import sys

import numpy as np

import teal
from teal.bench import models

with teal.Host() as host:
    model = host.load("mlp", sys.argv[1] if len(sys.argv) > 1 else models.mlp())
    x = model.new_inputs(batch=4)  # tensors in shared memory
    for tensor in x.values():
        tensor.numpy()[...] = np.random.default_rng(0).random(tensor.shape)
    out = model(**x)
    numbers = model.statistics()
    print(out[0].shape, numbers.copies_in, numbers.copies_out)  # (4, 8) 0 0
