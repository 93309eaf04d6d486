"""One changed line in a PyTorch program, as a lane: the perceptron by torch.compile's own backend, and by Teal's.

torch must be in Teal's own environment. Both are called under inference_mode, one thread each; Teal's worker has a core
of its own, as in the contests of small models.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from teal.bench.rivals import lane, zoo


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject, client_core, server_core. Raises ImportError without torch."""
    import torch

    from teal.bench.rivals.nets.attention import Perceptron

    teal = import_module(config["subject"])
    if "teal" not in torch._dynamo.list_backends():
        raise ImportError("torch does not list a backend called teal")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    host = teal.Host(cores=[config["server_core"]])  # which must be among our own, so we bind ourselves only now
    lane.pin(config["client_core"])
    module = Perceptron().eval()
    x = torch.from_numpy(zoo.rows(1, 0)["x"])

    def variant(**backend: Any) -> lane.Variant:
        call = torch.compile(module, **backend)

        def run() -> Any:
            with torch.inference_mode():
                return call(x)

        return lane.Variant(run, lambda: bytes(run().numpy().tobytes()))

    return lane.Contender(
        variants={
            "inductor": variant,
            "teal": lambda: variant(backend="teal", options={"host": host.address, "threads": 1}),
        },
        note=f"torch {torch.__version__}, 1 thread",
        close=host.close,
    )


if __name__ == "__main__":
    lane.main(client)
