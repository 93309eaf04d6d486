"""`teal load`: makes a model resident in a running host."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from teal.cli import draw, options

if TYPE_CHECKING:
    from teal.host.records import ModelInfo


@click.command("load", short_help="Load a model into a running host.")
@click.argument("name")
@click.argument("source", required=False)
@click.option("--version", type=int, metavar="N", help="Pin this number beside the others [default: replace]")
@click.option("--pool", metavar="NAME", help="Pool whose workers run it [default: where the name is, or default]")
@click.option("--threads", type=int, metavar="N", help="Threads of the engine [default: the host's]")
@click.option(
    "--kernel",
    metavar="KIND",
    help="onnx, openvino, torch, systems, elf, function or builtin [default: as the source is written]",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16"]),
    help="How the engine computes in float32 [default: fp32, as the file says]",
)
@click.option("--idempotent/--no-idempotent", default=None, help="May run again if a worker dies [default: if pure]")
@click.option("--option", "engine", multiple=True, metavar="K=V", help="Option of the engine; repeatable.")
@click.option(
    "--device",
    metavar="NAME",
    help="Device of a systems load (opencl, cuda …) or of OpenVINO (GPU, NPU) [default: the CPU]",
)
@click.option("--path", type=click.Choice(["auto", "apk", "pl", "cpu"]), help="How the device runs it [default: auto]")
@click.option("--concurrency", type=int, metavar="N", help="Workers that run it at once, at most [default: any number]")
@click.option("--digest", metavar="SHA256", help="What the file's SHA-256 must be.")
@click.option(
    "--tuned/--no-tuned", default=None, help="What teal tune kept must be used, or must not [default: if there]."
)
@click.option("--timeout", default="120s", show_default=True, callback=options.seconds, metavar="TIME",
              help="How long it may take.")  # fmt: skip
@options.host_option
@options.json_option
def command(
    name: str,
    source: str | None,
    version: int | None,
    pool: str | None,
    threads: int | None,
    kernel: str | None,
    precision: str | None,
    idempotent: bool | None,
    engine: tuple[str, ...],
    device: str | None,
    path: str | None,
    concurrency: int | None,
    digest: str | None,
    tuned: bool | None,
    timeout: float,
    host: str | None,
    as_json: bool,
) -> None:
    """Load a model into a running host, or replace it under load, losing no request.

    SOURCE is a path of an .onnx, .xml (OpenVINO), .pt2 (PyTorch), .safetensors or .elf (`teal duck cc`) file,
    builtin:identity (sum, sleep, spin), or package.module:callable, which the host's own Python must be able to import.
    Without SOURCE the host looks into its --repository.

    \b
    Examples:
      teal load minilm model.onnx
      teal load minilm model.onnx --kernel openvino --precision bf16 --threads 1
      teal load resnet resnet.pt2 --option compile=1
      teal load gemv gemv.elf --option "inputs=x:float32[1024]" --option "outputs=y:float32[256]" --option ib=w.bin
      teal load mllb mllb.safetensors --device opencl --path apk
      teal load echo builtin:identity --pool fast --json
    """
    settings = options.pairs(engine, "--option")
    with (
        options.reach(host) as reached,
        draw.progress(f"loading {draw.printable(name)[:80]}", silent=as_json),
    ):
        model = reached.load(
            name,
            source,
            version=version,
            pool=pool,
            kernel=kernel,
            precision=precision,
            idempotent=idempotent,
            threads=threads,
            options=settings,
            timeout=timeout,
            device=device,
            path=path,
            digest=digest,
            concurrency=concurrency,
            tuned=tuned,
        )
        info, note = model.info, model.statistics().note
    if as_json:
        draw.emit(asdict(info) | {"note": note})
    else:
        _draw(info, note)


def _draw(info: ModelInfo, note: str) -> None:
    """note: what was tuned, and what could not be had of what was asked for."""
    console = draw.console()
    kind = info.kernel if info.digest else draw.printable(f"{info.kernel} {info.source}")
    kind += f" ({info.precision}, threads {info.threads})" if info.precision else ""
    where = "" if info.pool == "default" else f", pool {info.pool}"
    weight = f", {draw.size(info.bytes)}" if info.bytes else ""
    on = f" on {info.device}" + (f", path {info.path}" if info.path else "") if info.device else ""
    console.print(
        f"{info.name} version {info.version}: {kind}{on}{weight}{where}, loaded in {draw.lasted(info.seconds)}"
    )
    if note:
        console.print(f"  {draw.printable(note)}")
    for word, specs in (("in", info.inputs), ("out", info.outputs)):
        for spec in specs:
            console.print(f"  {word:3}  {draw.tensor(spec)}")
