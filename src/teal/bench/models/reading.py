"""The OCR pipeline as a lane: a host with two workers, and pages read stage by stage or as a pipeline.

A call reads `PAGES` pages. "steps": one page after the other, the client between the stages. "pipeline": all pages are
submitted at once, each as a chain of six futures, so that one worker prepares a page while the other runs a model.
"apart": two readers that know nothing of each other have half of the pages each, stage by stage: what two cores gain at
most, since engines that run beside each other share caches and memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from teal.bench.rivals import lane
from teal.demo import ocr

PAGES, WORKERS = 4, 2


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject. Raises NotFound without the models or the page."""
    page = ocr.page()
    ocr.parts()
    host = import_module(config["subject"]).Host(workers=WORKERS)
    single, double = ocr.Reader(host, 1), ocr.Reader(host, 2, "ocr2")

    def steps(reader: ocr.Reader) -> lane.Variant:
        return lane.Variant(lambda: [reader.read_in_steps(page) for _ in range(PAGES)], lambda: said(reader.read(page)))

    def pipeline(reader: ocr.Reader) -> lane.Variant:
        def call() -> list[Any]:
            futures = [reader.submit(page) for _ in range(PAGES)]
            return [reader.text(future.result()[0].numpy()) for future in futures]

        return lane.Variant(call, lambda: said(call()[-1]))

    def apart() -> lane.Variant:
        def half() -> list[Any]:
            return [single.read_in_steps(page) for _ in range(PAGES // WORKERS)]

        def call() -> list[Any]:
            return [lines for reader in [pool.submit(half) for _ in range(WORKERS)] for lines in reader.result()]

        return lane.Variant(call, lambda: said(single.read(page)))

    pool = ThreadPoolExecutor(WORKERS)

    def close() -> None:
        pool.shutdown()
        host.close()

    return lane.Contender(
        variants={
            "steps": lambda: steps(single),
            "pipeline": lambda: pipeline(single),
            "apart": apart,
            "steps, 2 threads": lambda: steps(double),
        },
        note=f"{PAGES} pages a call, {WORKERS} workers",
        close=close,
    )


def said(lines: list[tuple[str, float]]) -> bytes:
    return "\n".join(text for text, _ in lines).encode()


if __name__ == "__main__":
    lane.main(client)
