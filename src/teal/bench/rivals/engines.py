"""onnxruntime and OpenVINO in the process itself, on the models of the zoo: the inputs and outputs bound once.

OpenVINO at float32 and at bfloat16 (INFERENCE_PRECISION_HINT), one stream, latency hint; onnxruntime with all graph
optimisations. Both with the same number of threads as everyone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import lane, zoo

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


def onnxruntime(config: dict[str, Any], batch: int) -> lane.Variant:
    """Below the public method, with binding and run options made once: no documented call is faster."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = config["threads"]
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(config["source"], options, providers=["CPUExecutionProvider"])
    feeds = zoo.ZOO[config["model"]].inputs(batch, 0)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    results = [ort.OrtValue.ortvalue_from_numpy(np.empty_like(out)) for out in session.run(None, feeds)]
    for output, result in zip(session.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(output.name, result)
    bound = partial(session._sess.run_with_iobinding, binding._iobinding, ort.RunOptions())

    def answer() -> bytes:
        bound()
        return bytes(results[0].numpy().tobytes())

    return lane.Variant(bound, answer, alive=(session, feeds, results))


def openvino(config: dict[str, Any], batch: int, precision: str) -> lane.Variant:
    """One infer request with its tensors set once."""
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(config["source"]),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": config["threads"],
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
        },
    )
    request = compiled.create_infer_request()
    feeds = zoo.ZOO[config["model"]].inputs(batch, 0)
    for port in compiled.inputs:
        request.set_tensor(port, ov.Tensor(feeds[port.get_any_name()], shared_memory=True))
    request.infer()

    def answer() -> bytes:
        request.infer()
        return bytes(request.get_output_tensor(0).data.tobytes())

    return lane.Variant(request.infer, answer, alive=(compiled, feeds))


def client(config: dict[str, Any]) -> lane.Contender:
    """config: model, source (the ONNX file), batches, threads, cache, engine ("onnxruntime" or "openvino")."""
    zoo.read_text(Path(config["cache"]))
    variants = {}
    versions = {"numpy": np.__version__}
    if config["engine"] == "onnxruntime":
        import onnxruntime as ort

        versions["onnxruntime"] = ort.__version__
        variants = {f"fp32 b{batch}": partial(onnxruntime, config, batch) for batch in config["batches"]}
    else:
        import openvino as ov

        versions["openvino"] = ov.__version__
        for precision in PRECISIONS:
            for batch in config["batches"]:
                variants[f"{precision} b{batch}"] = partial(openvino, config, batch, precision)
    return lane.Contender(variants=variants, note=f"{config['threads']} threads, bound once", versions=versions)


if __name__ == "__main__":
    lane.main(client)
