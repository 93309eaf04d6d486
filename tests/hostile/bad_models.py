"""ONNX files that lie, as bytes by name. Made with the onnx package where it lets us, and by hand where it does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

FLOAT = TensorProto.FLOAT


def value(name: str, shape: list[Any] | None, dtype: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(graph: GraphProto, opset: int = 17) -> ModelProto:
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def good() -> ModelProto:
    """y = x @ w + b, with weights of 64 KiB: something to truncate."""
    weights = helper.make_tensor("w", FLOAT, [128, 128], [0.5] * (128 * 128))
    bias = helper.make_tensor("b", FLOAT, [128], [1.0] * 128)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    return model(helper.make_graph(nodes, "good", [value("x", ["n", 128])], [value("y", ["n", 128])], [weights, bias]))


def truncated() -> Iterator[tuple[str, bytes]]:
    whole = good().SerializeToString()
    for part in range(1, 20):
        yield f"truncated-{part}-of-20", whole[: len(whole) * part // 20]


def flipped(dice: random.Random, count: int) -> Iterator[bytes]:
    """A good model with one to eight bits changed; half of them where the structure is, not the weights."""
    whole = good().SerializeToString()
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 8)):
            at = (
                dice.randrange(len(data))
                if dice.random() < 0.5
                else dice.choice([dice.randrange(200), -dice.randrange(1, 400)])
            )
            data[at] ^= 1 << dice.randrange(8)
        yield bytes(data)


def lying_shape() -> ModelProto:
    """The initialiser says it is a thousand times as large as its bytes."""
    lying = good()
    lying.graph.initializer[0].dims[:] = [128_000, 128]
    return lying


def lying_bytes(raw: bytes, dims: list[int]) -> ModelProto:
    """An initialiser in raw_data that is not what its dims say."""
    weights = TensorProto(name="w", data_type=FLOAT, raw_data=raw)
    weights.dims[:] = dims
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", ["n", 128])], [value("y", None)], [weights]))


def huge_dims() -> ModelProto:
    """An input of 2^62 by 2^62, and a constant of as many."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1 << 62, 1 << 62])], [value("y", [1 << 62, 1 << 62])]))


def huge_constant(extent: int) -> ModelProto:
    """ConstantOfShape of 2^40 and more elements: folded when it is loaded, or made when it runs."""
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [extent])
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["c", "x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1])], [value("y", None)], [shape]))


def negative_dims() -> ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [-5])], [value("y", [-5])]))


def cyclic() -> ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["a", "x"], ["b"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1])], [value("b", [1])]))


def self_loop() -> ModelProto:
    return model(
        helper.make_graph([helper.make_node("Add", ["y", "x"], ["y"])], "g", [value("x", [1])], [value("y", [1])])
    )


def missing_node() -> ModelProto:
    return model(helper.make_graph([], "g", [value("x", [1])], [value("y", [1])]))


def nested(depth: int) -> ModelProto:
    """If in If in If, ``depth`` times."""
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["leaf"])], "leaf", [], [value("leaf", [1])])
    for level in range(depth):
        node = helper.make_node(
            "If", ["c"], [f"o{level}"], then_branch=inner, else_branch=inner if level < 3 else _leaf(level)
        )
        inner = helper.make_graph([node], f"g{level}", [], [value(f"o{level}", [1])])
    name = inner.output[0].name
    graph = helper.make_graph(
        list(inner.node), "g", [value("x", [1]), value("c", [], TensorProto.BOOL)], [value(name, [1])]
    )
    return model(graph)


def _leaf(level: int) -> GraphProto:
    return helper.make_graph(
        [helper.make_node("Identity", ["x"], [f"e{level}"])], f"else{level}", [], [value(f"e{level}", [1])]
    )


def recursive_function() -> ModelProto:
    """A function that calls itself."""
    node = helper.make_node("F", ["x"], ["y"], domain="d")
    function = helper.make_function(
        "d", "F", ["x"], ["y"], [node], [helper.make_opsetid("d", 1), helper.make_opsetid("", 17)]
    )
    graph = helper.make_graph([node], "g", [value("x", [1])], [value("y", [1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=[function])


def unknown_operator() -> ModelProto:
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1])], [value("y", [1])]))


def future(opset: int = 17, ir_version: int = 8) -> ModelProto:
    made = good()
    made.opset_import[0].version = opset
    made.ir_version = ir_version
    return made


def bad_dtype() -> ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1], 999)], [value("y", [1], 999)]))


def external(location: str, nbytes: int, offset: int = 0) -> ModelProto:
    """Weights in another file. Reading that one as bytes is what an attacker wants of it."""
    weights = TensorProto(name="w", data_type=TensorProto.UINT8, data_location=TensorProto.EXTERNAL)
    weights.dims[:] = [nbytes]
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(nbytes))):
        weights.external_data.add(key=key, value=text)
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    return model(helper.make_graph(nodes, "g", [], [value("y", [nbytes], TensorProto.UINT8)], [weights]))


def many_dimensions() -> ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model(helper.make_graph(nodes, "g", [value("x", [1] * 12)], [value("y", [1] * 12)]))


def refused() -> Iterator[tuple[str, bytes]]:
    """Files that are no models, and models that nobody could run."""
    yield "zero-bytes", b""
    yield "text", b"this is not a model\n" * 100
    yield "zeros", bytes(10_000)
    yield from truncated()
    made: dict[str, ModelProto] = {
        "lying-shape": lying_shape(),
        "raw-too-short": lying_bytes(b"x" * 16, [128, 128]),
        "raw-of-2-to-62": lying_bytes(b"x" * 16, [1 << 31, 1 << 31]),
        "raw-overflow": lying_bytes(b"x" * 16, [1 << 32, 1 << 32]),
        "raw-negative": lying_bytes(b"x" * 16, [-1, 128]),
        "raw-negative-product": lying_bytes(b"x" * 16, [-4, -1]),
        "cyclic": cyclic(),
        "self-loop": self_loop(),
        "missing-node": missing_node(),
        "recursive-function": recursive_function(),
        "unknown-operator": unknown_operator(),
        "opset-of-the-future": future(opset=9999),
        "ir-of-the-future": future(ir_version=9999),
        "bad-dtype": bad_dtype(),
    }
    for name, one in made.items():
        yield name, one.SerializeToString()


def survived() -> Iterator[tuple[str, bytes]]:
    """Loads or not, as the engine likes; calls fail or not; nothing dies."""
    made: dict[str, ModelProto] = {
        "huge-dims": huge_dims(),
        "negative-dims": negative_dims(),
        "huge-constant": huge_constant(1 << 40),
        "overflowing-constant": huge_constant((1 << 63) - 1),
        "negative-constant": huge_constant(-5),
        "nested": nested(30),
        "twelve-dimensions": many_dimensions(),
    }
    for name, one in made.items():
        yield name, one.SerializeToString()
