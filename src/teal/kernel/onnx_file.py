"""What onnxruntime does not say of a model: which inputs and outputs have no declared shape.

onnxruntime shows "a scalar" and "any shape" both as ``[]``. The difference is in the file: ModelProto.graph (7) →
GraphProto.input (11), .output (12) → ValueInfoProto.name (1), .type (2) → TypeProto.tensor_type (1) →
TypeProto.Tensor.shape (2), which is there or not. Wire format (protocol buffers): a field is a key, number << 3 | kind,
then by kind a varint (0), 8 bytes (1), a length and that many bytes (2) or 4 bytes (5).
"""

from __future__ import annotations

from collections.abc import Iterator

_GRAPH, _INPUT, _OUTPUT, _NAME, _TYPE, _TENSOR, _SHAPE = 7, 11, 12, 1, 2, 1, 2
_FIXED = {1: 8, 5: 4}


def unranked(model: bytes) -> frozenset[str]:
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


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The contents of every field of that number that has a length. Raises ValueError, IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            if size > len(message) - at:
                raise ValueError("a field leaves its message")
            if number == wanted:
                yield message[at : at + size]
            at += size
        else:
            at += _FIXED[kind] if kind in _FIXED else len(message) + 1
    if at > len(message):
        raise ValueError("a field leaves its message")


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
