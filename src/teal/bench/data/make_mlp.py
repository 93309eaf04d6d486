"""Makes mlp.onnx: a perceptron of 64 inputs, 64 hidden units (ReLU) and 8 outputs, float32, free batch dimension.

    python make_mlp.py [PATH]

The same bytes every time: the weights are uniform numbers of a fixed seed, from a generator whose sequence Python
promises to keep. The file is written in ONNX's wire format by hand, which takes fewer lines than the dependency.
Wire format (protocol buffers): a field is a key, `number << 3 | type`, then a varint (type 0) or a length and that many
bytes (type 2); the numbers below are those of onnx.proto.
"""

from __future__ import annotations

import random
import sys
from array import array
from pathlib import Path

SEED = 20
INPUTS, HIDDEN, OUTPUTS = 64, 64, 8
IR_VERSION, OPSET = 8, 17
FLOAT = 1  # TensorProto.DataType


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    return b"".join(field(1, size) for size in shape) + field(2, FLOAT) + field(8, name) + field(9, data)


def value_info(name: str, columns: int) -> bytes:
    """ValueInfoProto of a float matrix (batch, columns): name 1, type 2."""
    shape = field(1, field(2, "batch")) + field(1, field(1, columns))
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape)))


def node(kind: str, inputs: list[str], output: str) -> bytes:
    """NodeProto: input 1, output 2, name 3, op_type 4."""
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(3, output) + field(4, kind)


def model() -> bytes:
    """ModelProto: ir_version 1, producer_name 2, graph 7, opset_import 8."""
    numbers = random.Random(SEED)

    def weights(name: str, *shape: int) -> bytes:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        scale = INPUTS**-0.5
        values = array("f", [scale * (2 * numbers.random() - 1) for _ in range(count)])
        if sys.byteorder == "big":
            values.byteswap()  # raw_data is little-endian
        return tensor(name, shape, values.tobytes())

    tensors = [
        weights("w1", INPUTS, HIDDEN),
        weights("b1", HIDDEN),
        weights("w2", HIDDEN, OUTPUTS),
        weights("b2", OUTPUTS),
    ]
    nodes = [
        node("Gemm", ["x", "w1", "b1"], "h"),
        node("Relu", ["h"], "r"),
        node("Gemm", ["r", "w2", "b2"], "y"),
    ]
    graph = b"".join(field(1, each) for each in nodes) + field(2, "mlp") + b"".join(field(5, each) for each in tensors)
    graph += field(11, value_info("x", INPUTS)) + field(12, value_info("y", OUTPUTS))
    return field(1, IR_VERSION) + field(2, "teal") + field(7, graph) + field(8, field(2, OPSET))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("mlp.onnx")
    target.write_bytes(model())
    print(f"{target}: {target.stat().st_size} bytes")
