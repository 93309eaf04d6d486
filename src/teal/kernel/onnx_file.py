"""What engines do not say of an ONNX file: its inputs as they were declared, weights in other files, labels.

onnxruntime shows "a scalar" and "any shape" both as ``[]``, and OpenVINO forgets the names of extents, and inputs that
nothing reads. All are in the file: ModelProto.graph (7) → GraphProto.input (11), .output (12) → ValueInfoProto.name
(1), .type (2) → TypeProto.tensor_type (1) → TypeProto.Tensor.elem_type (1), .shape (2), which is there or not →
TensorShapeProto.dim (1) → .dim_value (1) or .dim_param (2). Weights are TensorProtos: GraphProto.initializer (5),
.sparse_initializer (15), .node (1) → NodeProto.attribute (5) → AttributeProto.t (5), .g (6), .tensors (10), .graphs
(11), ModelProto.functions (25) → FunctionProto.node (7); one has its .name (8), and with an external_data entry (13) it
lies in another file. A node has its .output (2) and .op_type (4); the .ints (8) or .strings (9) of an attribute, by its
.name (1), are the labels of a ZipMap. Wire format (protocol buffers): a field is a key, number << 3 | kind, then by
kind a varint (0), 8 bytes (1), a length and that many bytes (2) or 4 bytes (5).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_GRAPH, _INPUT, _OUTPUT, _NAME, _TYPE, _TENSOR, _SHAPE, _DIMENSION, _PARAM = 7, 11, 12, 1, 2, 1, 2, 1, 2
_FUNCTIONS, _INITIALIZER, _SPARSE, _NODE, _FUNCTION_NODE, _ATTRIBUTE, _EXTERNAL = 25, 5, 15, 1, 7, 5, 13
_ELEMENT_TYPE, _VALUE, _TENSOR_NAME = 1, 1, 8
_NODE_OUTPUT, _OP_TYPE, _INTS, _STRINGS = 2, 4, 8, 9
_FIXED = {1: 8, 5: 4}


def unranked(model: bytes | mmap.mmap) -> frozenset[str]:
    """Names of the inputs and outputs without a declared shape. Nothing for a file that is not understood."""
    names: set[str] = set()
    try:
        for graph in _fields(memoryview(model), _GRAPH):
            for number in (_INPUT, _OUTPUT):
                for info in _fields(graph, number):
                    tensors = [tensor for kind in _fields(info, _TYPE) for tensor in _fields(kind, _TENSOR)]
                    if tensors and not any(True for tensor in tensors for _ in _fields(tensor, _SHAPE)):
                        names.update(bytes(name).decode() for name in _fields(info, _NAME))
    except (ValueError, IndexError):
        return frozenset()
    return frozenset(names)


def signature(model: bytes) -> tuple[list[str], list[str]]:
    """Names of the inputs and of the outputs, in their order. Nothing for a file that is not understood."""
    found: tuple[list[str], list[str]] = ([], [])
    try:
        for graph in _fields(memoryview(model), _GRAPH):
            for number, names in zip((_INPUT, _OUTPUT), found, strict=True):
                for info in _fields(graph, number):
                    names.extend(bytes(name).decode() for name in _fields(info, _NAME))
    except (ValueError, IndexError):
        return [], []
    return found


Shape = list[int | str | None]


def inputs(model: bytes) -> dict[str, tuple[int, Shape | None]]:
    """TensorProto.DataType and shape of each input that is a tensor and no weight. Nothing for a file that is not
    understood."""
    found: dict[str, tuple[int, Shape | None]] = {}
    try:
        for graph in _fields(memoryview(model), _GRAPH):
            weights = {bytes(name) for each in _fields(graph, _INITIALIZER) for name in _fields(each, _TENSOR_NAME)}
            for info in _fields(graph, _INPUT):
                (name,) = [bytes(each) for each in _fields(info, _NAME)]
                for tensor in (tensor for kind in _fields(info, _TYPE) for tensor in _fields(kind, _TENSOR)):
                    if name not in weights:
                        (kind,) = _numbers(tensor, _ELEMENT_TYPE)
                        shapes = [list(map(_extent, _fields(each, _DIMENSION))) for each in _fields(tensor, _SHAPE)]
                        found[name.decode()] = (kind, shapes[-1] if shapes else None)
    except (ValueError, IndexError):
        return {}
    return found


def dimensions(model: bytes) -> dict[str, list[str | None]]:
    """Names of the extents of each input, None for those without. Nothing for a file that is not understood."""
    found: dict[str, list[str | None]] = {}
    try:
        for graph in _fields(memoryview(model), _GRAPH):
            for info in _fields(graph, _INPUT):
                (name,) = [bytes(each).decode() for each in _fields(info, _NAME)]
                for kind in _fields(info, _TYPE):
                    for tensor in _fields(kind, _TENSOR):
                        for shape in _fields(tensor, _SHAPE):
                            found[name] = [_param(dimension) for dimension in _fields(shape, _DIMENSION)]
    except (ValueError, IndexError):
        return {}
    return found


def _param(dimension: memoryview) -> str | None:
    names = [bytes(name).decode() for name in _fields(dimension, _PARAM)]
    return names[-1] or None if names else None


def _extent(dimension: memoryview) -> int | str | None:
    values = list(_numbers(dimension, _VALUE))
    return values[-1] if values else _param(dimension)


def external(model: bytes) -> bool:
    """Does it keep weights in files of their own? True for a file that is not understood."""
    try:
        whole = memoryview(model)
        waiting = list(_fields(whole, _GRAPH))
        nodes = [node for function in _fields(whole, _FUNCTIONS) for node in _fields(function, _FUNCTION_NODE)]
        while waiting or nodes:
            tensors: list[memoryview] = []
            if nodes:
                for attribute in _fields(nodes.pop(), _ATTRIBUTE):
                    tensors += [*_fields(attribute, 5), *_fields(attribute, 10)]
                    waiting += [*_fields(attribute, 6), *_fields(attribute, 11)]
            else:
                graph = waiting.pop()
                nodes += _fields(graph, _NODE)
                tensors += _fields(graph, _INITIALIZER)
                for sparse in _fields(graph, _SPARSE):
                    tensors += [*_fields(sparse, 1), *_fields(sparse, 2)]
            if any(True for tensor in tensors for _ in _fields(tensor, _EXTERNAL)):
                return True
    except (ValueError, IndexError):
        return True
    return False


def labels(model: bytes | mmap.mmap) -> dict[str, list[int | str]]:
    """The keys of each ZipMap's maps, by the name of its output, in the order of the columns that it reads. Nothing
    for a file that is not understood."""
    found: dict[str, list[int | str]] = {}
    try:
        for graph in _fields(memoryview(model), _GRAPH):
            for node in _fields(graph, _NODE):
                if [bytes(kind) for kind in _fields(node, _OP_TYPE)] == [b"ZipMap"]:
                    (name,) = [bytes(each).decode() for each in _fields(node, _NODE_OUTPUT)]
                    found[name] = [label for attribute in _fields(node, _ATTRIBUTE) for label in _labels(attribute)]
    except (ValueError, IndexError):
        return {}
    return found


def _labels(attribute: memoryview) -> Iterator[int | str]:
    (name,) = [bytes(each) for each in _fields(attribute, _NAME)]
    if name == b"classlabels_int64s":
        for number in _numbers(attribute, _INTS):
            yield number - (1 << 64) if number >> 63 else number
    elif name == b"classlabels_strings":
        for text in _fields(attribute, _STRINGS):
            yield bytes(text).decode()


def _numbers(message: memoryview, wanted: int) -> Iterator[int]:
    """Every varint of that number, one by one or packed. Raises ValueError, IndexError."""
    for number, kind, field in _all_fields(message):
        at = 0
        while number == wanted and kind in (0, 2) and at < len(field):
            value, at = _varint(field, at)
            yield value


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The contents of every field of that number that has a length. Raises ValueError, IndexError."""
    return (field for number, kind, field in _all_fields(message) if number == wanted and kind == 2)


def _all_fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Number, kind and contents of every field. Raises ValueError, IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        start = at
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2:
            size, start = _varint(message, at)
            at = start + size
        else:
            at += _FIXED[kind] if kind in _FIXED else len(message) + 1
        if at > len(message):
            raise ValueError("a field leaves its message")
        yield number, kind, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
