"""One run of the demo: a host, a resident model, two client processes at once, and the same calls two other ways.

Theory of operation. See the head of the package for the processes. This process starts them, passes the passages out
(one to each client in turn, so that both get short and long ones), watches their events, and keeps the figures. While
the clients work nothing else runs; while the three ways are compared the clients are gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import teal
from teal.demo import embedder, footprint, search, text
from teal.demo.crew import Child, Crew
from teal.demo.measure import Span, Spread, added, overlapping, spread
from teal.demo.outcome import WAYS, Answer, ClientRecord, ModelRecord, Outcome, Question, TextRecord, Way
from teal.demo.passage import Passage, printable
from teal.demo.progress import Show
from teal.errors import InvalidArgument

if TYPE_CHECKING:
    from teal import Host, Model

CLIENTS = 2
COMPARED = 120  # inputs that are run all three ways
MODEL = "minilm"
_CALL_PARTS = ("tokenise", "fill", "pool", "total")  # timed by the clients; the rest by the host


def run(question: Question, show: Show) -> Outcome:
    """Answer `question` and measure where the time went.

    Raises InvalidArgument or NotFound for what the user gave, TealError where a process failed.
    """
    started = time.perf_counter()
    question = check(question)
    embedder.model_path()  # what is not installed is said before anything is started
    embedder.tokenizer_path()
    reading = text.read(question.text, limit=question.passages)
    passages = reading.passages
    show.step(f"read {reading.files} file(s): {len(passages)} passages")
    with hosted(show) as (host, model, record), Crew() as crew:  # the clients go before the host does
        clients = _work(question, passages, host, crew, show)
        stages = _stages(clients, model)
        record = _after_work(record, model, footprint.descendants())
        ways = _ways(question, passages, host, record, crew, show)
    rankings = [done["best"] for done in clients.done]
    best = search.merge(rankings, [passage.text for passage in passages], question.top)
    vectors = np.array([done["question"] for done in clients.done])
    return Outcome(
        question=question,
        text=_text_record(reading, clients),
        answers=tuple(_answer(passages[place], score) for place, score in best),
        clients=clients.records(),
        model=record,
        stages=stages,
        ways=ways,
        client_difference=float(np.max(np.abs(vectors - vectors[0]))),
        seconds=time.perf_counter() - started,
    )


def check(question: Question) -> Question:
    """The question with nothing unprintable in it. Raises InvalidArgument for one that cannot be asked."""
    ask = " ".join(printable(question.ask).split())
    if not any(character.isalnum() for character in ask):
        raise InvalidArgument('the question is empty: ask something in words, --ask "What …?"', path="$.ask")
    if len(ask) > 64 * embedder.MOST_TOKENS:
        raise InvalidArgument(
            f"the question has {len(ask)} characters; the model reads {embedder.MOST_TOKENS} tokens "
            "(about 1,000 characters): ask it shorter, and give long text with --text",
            path="$.ask",
        )
    return replace(question, ask=ask)


@contextmanager
def hosted(show: Show) -> Iterator[tuple[Host, Model, ModelRecord]]:
    """A host of our own with the model on it, gone at the end."""
    path = embedder.model_path()
    start = time.perf_counter()
    with teal.Host() as host:
        up = time.perf_counter()
        model = host.load(MODEL, path, threads=embedder.THREADS)
        load_ms = (time.perf_counter() - up) * 1e3
        show.step(f"host up in {(up - start) * 1e3:.0f} ms, model loaded in {load_ms:.0f} ms: once, for every process")
        yield host, model, ModelRecord(MODEL, path.stat().st_size, (up - start) * 1e3, load_ms, None, 0, 0, 0)


class _Clients:
    """What the client processes said, by client."""

    def __init__(self, children: Sequence[Child], shares: Sequence[Sequence[Any]]) -> None:
        self.children = list(children)
        self.shares = shares
        self.ready: list[dict[str, Any]] = [{} for _ in children]
        self.calls: list[list[dict[str, Any]]] = [[] for _ in children]
        self.done: list[dict[str, Any]] = [{} for _ in children]

    def spans(self, number: int) -> list[Span]:
        """When each of a client's calls was in flight."""
        begun = [(c, c["start"] + (c["tokenise_us"] + c["fill_us"]) / 1e6) for c in self.calls[number]]
        return [(start, start + call["call_us"] / 1e6) for call, start in begun]

    def times(self, part: str) -> list[float]:
        """Microseconds of one part of every call, each client's first answer to the question among them."""
        return [call[f"{part}_us"] for call in [*self.ready, *(c for calls in self.calls for c in calls)]]

    def records(self) -> tuple[ClientRecord, ...]:
        spans = [self.spans(number) for number in range(len(self.children))]
        made = []
        for number, child in enumerate(self.children):
            others = sorted(span for other, some in enumerate(spans) if other != number for span in some)
            calls = self.calls[number]
            seconds = calls[-1]["start"] + calls[-1]["total_us"] / 1e6 - calls[0]["start"] if calls else 0.0
            ready = self.ready[number]
            made.append(
                ClientRecord(child.name, child.process.pid, len(calls), overlapping(spans[number], others),
                             ready["attach_ms"], ready["first_answer_ms"], seconds, self.done[number]["resident_bytes"])
            )  # fmt: skip
        return tuple(made)


def _work(question: Question, passages: Sequence[Passage], host: Host, crew: Crew, show: Show) -> _Clients:
    """Both clients at once over the passages, until both are done."""
    numbered = [(number, passage.embedded) for number, passage in enumerate(passages)]
    shares = [numbered[number::CLIENTS] for number in range(CLIENTS)]
    children = [crew.start(f"client {number + 1}", "teal.demo.client") for number in range(CLIENTS)]
    clients = _Clients(children, shares)
    for child, share in zip(children, shares, strict=True):
        child.send({"client": child.name, "address": host.address, "model": MODEL, "question": question.ask,
                    "top": question.top + CLIENTS, "share": share})  # fmt: skip
    for _ in children:
        child, event = crew.hear("ready")
        clients.ready[children.index(child)] = event
    for child, share in zip(children, shares, strict=True):
        show.part(f"{child.name} (process {child.process.pid})", len(share))
    for child in children:
        child.send("go")
    unfinished = len(children)
    while unfinished:
        child, event = crew.hear("call", "done")
        if event["event"] == "call":
            clients.calls[children.index(child)].append(event)
            show.advance(f"{child.name} (process {child.process.pid})")
        else:
            clients.done[children.index(child)] = event
            unfinished -= 1
    for child in children:
        crew.dismiss(child)
    return clients


def _stages(clients: _Clients, model: Model) -> dict[str, Spread]:
    """Where the time of a call went, in order: the clients' own parts around those that the host measures."""
    mine = {part: spread(clients.times(part)) for part in _CALL_PARTS}
    theirs = model.statistics().stages
    stages = {"tokenise": mine["tokenise"], "fill": mine["fill"]}
    for name in ("queue", "run", "copy", "wake", "total"):
        histogram = theirs[name]
        stages["call" if name == "total" else name] = Spread(
            histogram.count, histogram.p50_us, histogram.p99_us, histogram.p999_us, histogram.max_us
        )
    return {**stages, "pool": mine["pool"], "all": mine["total"]}


def _after_work(record: ModelRecord, model: Model, processes: set[int]) -> ModelRecord:
    """The record with what the work cost: memory of the host's processes, copies made."""
    counts = model.statistics()
    sizes = [size for pid in processes if (size := footprint.resident_bytes(pid)) is not None]
    return ModelRecord(record.name, record.file_bytes, record.start_ms, record.load_ms, sum(sizes) if sizes else None,
                       counts.copies_in, counts.copies_out, counts.bytes_copied)  # fmt: skip


def _ways(question: Question, passages: Sequence[Passage], host: Host, record: ModelRecord, crew: Crew,
          show: Show) -> tuple[Way, ...]:  # fmt: skip
    """The question and a sample of the passages, evenly taken, three ways."""
    step = max(1, -(-len(passages) // (COMPARED - 1)))
    texts = [question.ask, *(passage.embedded for passage in passages[::step])]
    show.step("the same calls three ways, one at a time: resident, in-process, over HTTP")
    server = crew.start("HTTP server", "teal.demo.http")
    _, up = crew.hear("ready")
    compare = crew.start("comparison", "teal.demo.compare")
    compare.send({"address": host.address, "model": MODEL, "port": up["port"], "texts": texts})
    show.part("comparison", len(texts))
    done = 0
    while True:
        _, event = crew.hear("progress", "done")
        if event["event"] == "done":
            break
        show.advance("comparison", event["done"] - done)
        done = event["done"]
    server.send("footprint")
    _, size = crew.hear("footprint")
    crew.dismiss(compare)
    crew.dismiss(server)
    loads = {"teal": record.load_ms, "in_process": event["load_ms"], "http": up["load_ms"]}
    sizes = {"teal": record.resident_bytes, "in_process": event["in_process_bytes"], "http": size["resident_bytes"]}
    times = event["times_us"]
    return tuple(
        Way(way, spread(times[way]), None if way == "in_process" else added(times[way], times["in_process"]),
            event["max_abs_difference"][way], loads[way], sizes[way])
        for way in WAYS
    )  # fmt: skip


def _answer(passage: Passage, score: float) -> Answer:
    return Answer(score=score, **asdict(passage))


def _text_record(reading: text.Reading, clients: _Clients) -> TextRecord:
    notes = list(reading.notes)
    cut = sum(done["cut"] for done in clients.done)
    if clients.ready[0]["cut"]:
        notes.append(f"the question is longer than {embedder.MOST_TOKENS} tokens: its end was not read")
    if cut:
        notes.append(f"{cut} passages are longer than {embedder.MOST_TOKENS} tokens: their ends were not read")
    searched = sum(len(passage.text.encode()) for passage in reading.passages)
    return TextRecord(reading.files, len(reading.passages), searched, reading.bytes_known, reading.complete, cut,
                      tuple(notes))  # fmt: skip


def default_text() -> tuple[str, ...]:
    """This project's own documents: those of the checkout this file is in, else the one that ships with the package."""
    here = Path(__file__).resolve()
    checkout = here.parents[3]
    if (checkout / "pyproject.toml").is_file() and any((checkout / "docs").glob("*.md")):
        return tuple(str(place) for place in (checkout / "README.md", checkout / "docs") if place.exists())
    return (str(here.parent / "data"),)
