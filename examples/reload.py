"""A model replaced while it is being called, without a lost request: python examples/reload.py."""

import threading

import teal
from teal.bench import models

with teal.Host() as host:
    model = host.load("mlp", models.mlp())
    loading = threading.Thread(target=lambda: [host.load("mlp", models.mlp()) for _ in range(5)])
    loading.start()
    shapes = {model([[0.5] * 64])[0].shape}
    while loading.is_alive():
        shapes.add(model([[0.5] * 64])[0].shape)
    print(host.model("mlp").version, shapes)  # 6 {(1, 8)}
