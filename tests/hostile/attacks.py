"""What a hostile client does. Each attack runs in a process of its own (tests/crash/nursery.py) for its rounds.

An attack may be hung up on at any time and comes back; it must end by itself. What it must not do is in test_attack.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from attacker import ABSENT, BYTES, F32, F64, HEADER, I64, LINE, MAGIC, TENSOR, UNPLANNED, Attacker, HungUp
from file_lies import lying_files

WILD = [
    *(0, 1, 2, 7, 63, 64, 255, 4095, 4096, 65535, 65536, 1 << 18),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 46, 1 << 62, (1 << 63) - 1),
]


def attack(address: str, name: str, seed: int, rounds: int, done: str) -> None:
    """Runs one of the attacks below by its name. Makes the file ``done`` when the attack itself went as it should."""
    dice = random.Random(seed)
    for _ in range(rounds):
        with contextlib.suppress(HungUp, RuntimeError, TimeoutError), Attacker(address) as attacker:
            ATTACKS[name](attacker, dice)
    Path(done).touch()


# ---- through the socket ----------------------------------------------------------------------------------------------


def random_bytes(attacker: Attacker, dice: random.Random) -> None:
    """Datagrams of any length with anything in them, before and after the handshake."""
    if dice.random() < 0.7:
        attacker.enter()
    for _ in range(20):
        size = dice.choice([0, 1, 2, 10, 1000, 100_000, 163_840, 163_841, 200_000])
        attacker.send(dice.randbytes(size))
        attacker.answer()


def wrong_types(attacker: Attacker, dice: random.Random) -> None:
    """Valid msgpack: messages whose fields are missing, too many, of other types, or enormous."""
    values: list[Any] = [
        *(None, True, -1, 1 << 63, (1 << 64) - 1, 1e308, float("nan"), "", "x" * 1000, "\0", "../..", b"", [], {}),
        *([[[]]] * 10, {"t": "hello"}, dice.randbytes(50)),
    ]
    kinds = [
        *(
            "hello",
            "open_session",
            "make_region",
            "free_region",
            "load",
            "unload",
            "lookup",
            "list_models",
            "statistics",
        ),
        *("take_spill", "quit", "ready", "loaded", "add_region", "", "stop!"),
    ]
    names = [
        *(
            "protocol",
            "abi",
            "version",
            "pid",
            "pool",
            "session",
            "nbytes",
            "pages",
            "region",
            "name",
            "source",
            "kernel",
        ),
        *("idempotent", "threads", "has_file", "options", "force", "spill", "drain"),
    ]
    attacker.enter()
    for _ in range(10):
        body = {"t": dice.choice(kinds), **{dice.choice(names): dice.choice(values) for _ in range(dice.randint(0, 5))}}
        identity = dice.choice([1, 0, -1, 1 << 63, "one", None])
        attacker.send(msgspec.msgpack.encode({"id": identity, "body": body}))
        attacker.answer()


def wild_numbers(attacker: Attacker, dice: random.Random) -> None:
    """Messages of the right form that ask for nonsense."""
    attacker.enter()
    number = lambda: dice.choice([*WILD, -1, -(1 << 63), (1 << 64) - 1])  # noqa: E731
    for _ in range(30):
        with contextlib.suppress(RuntimeError):
            match dice.randint(0, 6):
                case 0:
                    attacker.make_region(dice.choice([1, 4096, 1 << 20]))
                case 1:
                    attacker.ask("make_region", session=number(), nbytes=number())
                case 2:
                    attacker.ask("free_region", session=dice.choice([attacker.session, number()]), region=number())
                case 3:
                    attacker.ask("take_spill", session=attacker.session, spill=number())
                case 4:
                    name = dice.choice(["", "..", "a" * 300, "x\0y", "identity"])
                    attacker.ask("lookup", name=name, version=number())
                case 5:
                    source = dice.choice(["builtin:none", "../x.onnx", "a:b"])
                    attacker.ask("load", name="x", source=source, threads=number(), version=number())
                case 6:
                    attacker.ask("open_session", pool=dice.choice(["default", "x" * 100_000, "\1" * 100_000]))


def talk_without_listening(attacker: Attacker, dice: random.Random) -> None:
    """Thousands of questions, no answer read, descriptors beside them."""
    attacker.enter()
    read, write = os.pipe()
    try:
        for _ in range(3000):
            fds = (read, write)[: dice.randint(0, 2)]
            kind = dice.choice(["statistics", "list_models", "lookup", "hello"])
            body = {"name": "identity"} if kind == "lookup" else {}
            if kind == "hello":
                body = {"protocol": 1, "abi": 1, "version": "x" * 1000, "pid": 1}
            try:
                attacker.post(kind, fds, socket.MSG_DONTWAIT, **body)
            except BlockingIOError:
                if dice.random() < 0.01:
                    break
                time.sleep(0.0005)
    finally:
        os.close(read)
        os.close(write)


def stray_descriptors(attacker: Attacker, dice: random.Random) -> None:
    """Descriptors beside messages that take none, more than any message may have, and beside rubbish."""
    with tempfile.TemporaryFile() as file:
        if dice.random() < 0.5:
            attacker.enter()
        for _ in range(20):
            fds = (file.fileno(),) * dice.choice([1, 2, 4, 5, 50, 200])
            if dice.random() < 0.3:
                attacker.send(dice.randbytes(dice.choice([0, 10])), fds)
            else:
                attacker.post(dice.choice(["statistics", "list_models", "free_region"]), fds)
            attacker.answer()


def ask_and_leave(attacker: Attacker, dice: random.Random) -> None:
    """Leaves in the middle of what it asked for: its session must not outlive it."""
    attacker.hello()
    attacker.post("open_session", pool="default")
    if dice.random() < 0.5:
        body, fds = attacker.answer()
        for fd in fds:
            os.close(fd)
        for _ in range(dice.randint(0, 12)):
            attacker.post("make_region", session=body["body"]["index"], nbytes=1 << 16)


def same_region_twice(attacker: Attacker, dice: random.Random) -> None:
    """Gives regions back twice at a time, while others come."""
    attacker.enter()
    for _ in range(10):
        region = attacker.make_region(4096)
        for _ in range(dice.randint(2, 5)):
            attacker.post("free_region", session=attacker.session, region=region)
    attacker.ask("list_models")


# ---- through shared memory -------------------------------------------------------------------------------------------


def _model(attacker: Attacker, dice: random.Random) -> tuple[str, int]:
    name = dice.choice(["identity", "sum", "square", "affine", "count", "strings"])
    return name, int(attacker.ask("lookup", name=name)[0]["index"])


def scribble(attacker: Attacker, dice: random.Random) -> None:
    """Random bytes all over the session region: header, ring, completion lines, statistics."""
    attacker.enter()
    size = len(attacker.memory)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        at = dice.randrange(0, size - 4096)
        attacker.memory[at : at + 64] = dice.randbytes(64)
        if dice.random() < 0.05:
            attacker.memory[at : at + 4096] = dice.choice([b"\xff", b"\0", b"\x01"]) * 4096
        if dice.random() < 0.05:
            attacker.knock()


def wild_entries(attacker: Attacker, dice: random.Random) -> None:
    """Entries where the consumer looks next, with wild fields, over good and bad descriptor blocks."""
    attacker.enter()
    _, model = _model(attacker, dice)
    attacker.describe(4096, [attacker.tensor(8192)], [attacker.tensor(12288)])
    attacker.describe(16384, [], [], header=dice.randbytes(64))
    numbers = [number for number in WILD if number < 1 << 32]
    for _ in range(200):
        fields: dict[str, int] = {
            "slot": dice.randrange(attacker.slots),
            "generation": dice.randrange(1, 5),
            "model": model,
            "offset": dice.choice([4096, 4096, 16384]),
            "stamp": dice.randrange(4),
        }
        names = ["op", "slot", "generation", "model", "version", "stamp", "region"]
        for name in dice.sample(names, dice.randint(0, 3)):
            fields[name] = dice.choice(numbers) & (0xFFFF if name == "op" else 0xFFFFFFFF)
        if dice.random() < 0.3:
            fields["priority"] = dice.choice([-(1 << 31), (1 << 31) - 1])
        if dice.random() < 0.3:
            fields["deadline"] = dice.choice([1, time.monotonic_ns() + 1_000_000, (1 << 64) - 1])
        if dice.random() < 0.3:
            fields["offset"] = dice.choice([*WILD, (1 << 64) - 64])
        fields["submitted"] = dice.choice([0, (1 << 64) - 1, time.monotonic_ns()])
        attacker.push(**fields)
        if dice.random() < 0.2:
            attacker.push_raw(dice.randbytes(60))
        if dice.random() < 0.1:
            attacker.knock()
            time.sleep(0.0005)
    attacker.knock()
    time.sleep(0.02)


Fields = list[int]  # of a TensorDesc: dtype, rank, flags, region, offset, capacity, nbytes, eight extents


def _fields(attacker: Attacker, dtype: int, offset: int, *shape: int, flags: int = 0, capacity: int = 0) -> Fields:
    nbytes = 4 if dtype == F32 else 8
    for extent in shape:
        nbytes *= extent
    extents = [*shape, *[0] * (8 - len(shape))]
    return [dtype, len(shape), flags, attacker.region, offset, capacity or nbytes, 0 if flags else nbytes, *extents]


def _honest(attacker: Attacker, name: str) -> tuple[list[Fields], list[Fields]]:
    """Inputs and outputs that the model would run."""
    match name:
        case "sum":
            return [_fields(attacker, F32, 8192, 8)], [_fields(attacker, F64, 12288)]
        case "count":
            return [_fields(attacker, I64, 8192)], [_fields(attacker, F64, 12288, flags=UNPLANNED, capacity=4096)]
        case "strings":
            text = [
                BYTES,
                1,
                0,
                attacker.region,
                8192,
                32,
                32,
                3,
                *[0] * 7,
            ]  # three empty strings, or what the bytes there say
            return [text], [_fields(attacker, I64, 12288, flags=UNPLANNED, capacity=4096)]
        case _:
            return [_fields(attacker, F64, 8192, 4)], [_fields(attacker, F64, 12288, 4)]


def _lie(dice: random.Random, fields: Fields) -> None:
    """Changes one thing about a tensor."""
    wild = [*WILD, (1 << 64) - 1, (1 << 64) - 4096]
    match dice.randint(0, 10):
        case 0:
            fields[0] = dice.choice([0, 1, 14, 15, 16, 17, BYTES, 19, 255])
        case 1:
            fields[1] = dice.choice([0, 2, 8, 9, 255])
        case 2:
            fields[2] = dice.choice([ABSENT, UNPLANNED, 3, 4, 65535])
        case 3:
            fields[3] = dice.choice([1, 2, 1 << 16, (1 << 32) - 1])
        case 4:
            fields[4] = dice.choice(wild)
        case 5:
            fields[5] = dice.choice(wild)
        case 6:
            fields[6] = dice.choice(wild)
        case 7:
            fields[7] = dice.choice([-1, -(1 << 63), *WILD])
        case 8:
            fields[8:15] = [dice.choice([0, 1, -1, 1 << 62, (1 << 63) - 1]) for _ in range(7)]
        case 9:  # over the other tensors, the descriptor block itself, the region's header
            fields[4] = dice.choice([0, 8, 4096, 4096 + 64, 8192, 8200, 12288, 12296])
        case 10:  # truly another shape
            extents = [dice.choice([0, 1, 2, 4, 100, 4000]) for _ in range(dice.randint(0, 4))]
            size = 8
            for extent in extents:
                size *= extent
            fields[1] = len(extents)
            fields[5] = fields[6] = size
            fields[7:] = [*extents, *[0] * (8 - len(extents))]


def lying_descriptors(attacker: Attacker, dice: random.Random) -> None:
    """Blocks whose tensors overlap, leave their region, have negative, huge or too many extents."""
    attacker.enter()
    for _ in range(60):
        name, model = _model(attacker, dice)
        inputs, outputs = _honest(attacker, name)
        for _ in range(dice.choice([0, 1, 1, 1, 2])):
            _lie(dice, dice.choice(inputs + outputs))
        if dice.random() < 0.1:
            inputs, outputs = inputs * dice.choice([0, 2, 30]), outputs * dice.choice([0, 2, 30])
        header = None
        if dice.random() < 0.1:
            counts = dice.choices([0, 1, 512, 65535], k=2)
            header = HEADER.pack(MAGIC, *counts, dice.choice([0, 4096, (1 << 32) - 1]), 0)
        memory = attacker.regions[attacker.region]
        offset = dice.choice([4096, 4096, 4096, 4096, 64, 0, len(memory) - 64])
        memory[8192:8256] = dice.choice([bytes(64), struct.pack("<8q", *range(8)), b"\xff" * 64])
        attacker.describe(offset, [TENSOR.pack(*t) for t in inputs], [TENSOR.pack(*t) for t in outputs], header=header)
        state, _ = attacker.call(model, slot=dice.randrange(attacker.slots), offset=offset)
        assert state >= 4, f"a call of {name} never ended: {inputs} {outputs} {header!r} at {offset}"


def lying_chains(attacker: Attacker, dice: random.Random) -> None:
    """Requests that take outputs of others, and say of these what is not so; some wait for each other."""
    attacker.enter()
    afters = attacker.lines + attacker.slots * LINE
    memory = attacker.regions[attacker.region]
    wild = [0, 1, 3, 7, 1024, 65535, (1 << 32) - 2, -1, -(1 << 63), (1 << 63) - 1]
    for _ in range(60):
        name, source = _model(attacker, dice)
        inputs, outputs = _honest(attacker, name)
        memory[8192:8200] = struct.pack("<q", dice.choice([0, 3, 100, 5000]))
        attacker.describe(4096, [TENSOR.pack(*t) for t in inputs], [TENSOR.pack(*t) for t in outputs])
        first, second = dice.sample(range(attacker.slots), 2)
        state, _ = attacker.call(source, slot=first, offset=4096)
        assert state >= 4
        link = [0, 0, attacker.region, 4096]
        chained = [outputs[0][0], 0, 4, attacker.region, 12288, 4096, 4096, *link, 0, 0, 0, 0]
        awaited = [first, attacker.generations[first]]
        for _ in range(dice.choice([0, 1, 1, 2])):
            at = dice.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
            chained[at] = dice.choice(wild) & ((1 << (8, 8, 16, 32)[at]) - 1) if at < 4 else dice.choice(wild)
            if at in (4, 5, 6):
                chained[at] &= (1 << 64) - 1
        if dice.random() < 0.3:
            awaited[dice.randrange(2)] = dice.choice([0, second, attacker.generations[first] + 1, (1 << 32) - 1])
        _, target = _model(attacker, dice)
        attacker.describe(16384, [TENSOR.pack(*chained)], [attacker.tensor(20480, flags=UNPLANNED, capacity=4096)])
        count = dice.choice([1, 1, 1, 1, 0, 2, 7, 8, (1 << 32) - 1])
        at = afters + second * LINE
        memory_of_lines = struct.pack("<II14I", count, 0, *awaited, *([first, attacker.generations[first]] * 6))
        attacker.memory[at : at + LINE] = memory_of_lines
        attacker.generations[second] += 1
        attacker.stamp += 1
        attacker.push(
            slot=second,
            generation=attacker.generations[second],
            model=target,
            stamp=attacker.stamp,
            offset=16384,
            flags=dice.choice([1, 1, 1, 1, 0, 2, 65535]),
            deadline=time.monotonic_ns() + 20_000_000,  # what it waits for may never come
        )
        attacker.knock()
        until = time.monotonic() + 30
        while attacker.word(second)[0] != attacker.generations[second] or attacker.word(second)[1] < 4:
            assert time.monotonic() < until, f"a chained call of {name} never ended: {chained} {awaited} {count}"
            time.sleep(0.0005)


def lying_strings(attacker: Attacker, dice: random.Random) -> None:
    """BYTES tensors whose offset tables go backwards, past the end, or are not there."""
    attacker.enter()
    model = attacker.ask("lookup", name="strings")[0]["index"]
    memory = attacker.regions[attacker.region]
    for _ in range(60):
        count = dice.choice([0, 1, 3, 100])
        table = sorted(dice.randrange(0, 200) for _ in range(count + 1))
        table[0] = 0
        for _ in range(dice.randint(0, 3)):
            table[dice.randrange(len(table))] = dice.choice([*WILD, (1 << 64) - 1, (1 << 64) - 8])
        memory[8192 : 8192 + 8 * len(table)] = struct.pack(f"<{len(table)}Q", *table)
        nbytes = 8 * len(table) + dice.choice([0, 200, 200, -8, 1 << 40])
        nbytes &= (1 << 64) - 1
        text = attacker.tensor(8192, (count,), dtype=BYTES, capacity=dice.choice([4096, 4096, nbytes]), nbytes=nbytes)
        room = dice.choice([0, 8, 4096])
        output = attacker.tensor(20480, (), dtype=I64, flags=UNPLANNED, capacity=room, nbytes=0)
        attacker.describe(4096, [text], [output])
        state, _ = attacker.call(model, slot=dice.randrange(attacker.slots), offset=4096)
        assert state >= 4, f"a call never ended: {count} {nbytes} {table}"


def racing_descriptors(attacker: Attacker, dice: random.Random) -> None:
    """Good calls, while a second thread rewrites descriptor, ring and completion lines."""
    attacker.enter()
    name, model = _model(attacker, dice)
    memory = attacker.regions[attacker.region]
    inputs, outputs = _honest(attacker, name)
    good = TENSOR.pack(*inputs[0]), TENSOR.pack(*outputs[0])
    stop = threading.Event()

    def race() -> None:
        other = random.Random(dice.random())
        while not stop.is_set():
            at = 4096 + HEADER.size + other.choice([0, TENSOR.size])
            fields = list(other.choice(inputs + outputs))
            _lie(other, fields)
            memory[at : at + TENSOR.size] = TENSOR.pack(*fields)
            memory[at : at + TENSOR.size] = other.choice(good)
            line = attacker.lines + other.randrange(attacker.slots) * LINE
            if other.random() < 0.05:
                attacker.memory[line : line + 64] = other.randbytes(64)
            if other.random() < 0.05:
                entry = attacker.ring + other.randrange(attacker.capacity) * LINE
                attacker.memory[entry + 4 : entry + 64] = other.randbytes(60)

    thread = threading.Thread(target=race)
    thread.start()
    try:
        for _ in range(60):
            attacker.describe(4096, [good[0]], [good[1]])
            memory[8192:8256] = dice.randbytes(64) if name != "count" else struct.pack("<8q", *range(8))
            attacker.call(model, slot=dice.randrange(attacker.slots), offset=4096, patience=0.02)
    finally:
        stop.set()
        thread.join()


def flood(attacker: Attacker, dice: random.Random) -> None:
    """A ring that is always full, of calls and of rubbish, at the highest priority, never waiting for an answer."""
    attacker.enter()
    _, model = _model(attacker, dice)
    attacker.describe(4096, [attacker.tensor(8192)], [attacker.tensor(12288)])
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        for slot in range(attacker.capacity):
            if dice.random() < 0.1:
                attacker.push_raw(dice.randbytes(60))
            else:
                generation = attacker.position & 0xFFFFFF or 1
                slot %= attacker.slots
                attacker.push(slot=slot, generation=generation, model=model, offset=4096, priority=(1 << 31) - 1)
        attacker.knock()


def poisoned_numbers(attacker: Attacker, dice: random.Random) -> None:
    """The numbers that the host shows people about this client's calls."""
    attacker.enter()
    stages = attacker.lines + attacker.slots * LINE
    for at in range(stages, len(attacker.memory) - 64, 64):
        attacker.memory[at : at + 64] = dice.choice([b"\xff" * 64, dice.randbytes(64)])
    attacker.ask("statistics")


ATTACKS: dict[str, Callable[[Attacker, random.Random], None]] = {
    function.__name__: function
    for function in (
        *(random_bytes, wrong_types, wild_numbers, talk_without_listening, stray_descriptors, ask_and_leave),
        *(same_region_twice, scribble, wild_entries, lying_descriptors, lying_strings, racing_descriptors, flood),
        *(lying_chains, poisoned_numbers, lying_files),
    )
}
