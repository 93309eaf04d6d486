"""`teal sim`: policies on a virtual clock, one, several side by side, or hunted over many seeds."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from teal.cli import draw, options

if TYPE_CHECKING:
    from teal.sim import Result, Spec

_MOST_SEEDS = 10_000_000
_TYPE = (
    "What is asked for; repeat. Also spread=fixed|exponential|lognormal, sigma=, sessions=, priority=, deadline=,"
    " preemptible=, yields=."
)
_MOST_SHOWN = 20  # failing seeds with all that they say


@click.command("sim", short_help="Policies on a virtual clock.")
@click.argument("named", nargs=-1, metavar="[POLICY]…")
@click.option("--policy", "policies", multiple=True, metavar="POLICY", help="The same; may be repeated.")
@click.option("--compare", is_flag=True, help="The policies that are named, side by side (as without this word).")
@click.option("--workers", default=16, show_default=True, metavar="N", help="1 to 65536.")
@click.option("--agents", default=1, show_default=True, metavar="N", help="1 to 4 that the pool is dealt out to.")
@click.option("--load", default=0.7, show_default=True, metavar="SHARE", help="Of what the workers can do.")
@click.option("--type", "types", multiple=True, metavar="NAME:share=…,mean=…", help=_TYPE)
@click.option("--requests", default=100_000, show_default=True, metavar="N", help="How many come.")
@click.option("--trace", "trace", metavar="FILE", help="CSV of requests (at, type, service) instead of --load.")
@click.option("--faults", metavar="all|NAME=RATE,…", help="What breaks, times a second or a share: `teal.sim.Faults`.")
@click.option(
    "--with", "more", multiple=True, metavar="NAME=VALUE", help="More of `teal.sim.Spec`: link=2us, ring=256."
)
@click.option("--seed", default=1, show_default=True, metavar="N", help="Of all that is by chance.")
@click.option(
    "--seeds", metavar="A-B", help="Many runs, and those that fail: of what is asked for here, else anything."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="SVG: p99 by load.")
@options.json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    named: tuple[str, ...],
    policies: tuple[str, ...],
    compare: bool,
    seeds: str | None,
    plot: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Run policies on a virtual clock: the real policy, loop and seat, over workers and requests that are made up.

    Without --type: 99.5 % requests of 10 us and 0.5 % of 10 ms. A seed decides everything. Exit status 1: something
    was violated (a request lost, run twice, or run after its end), or the policy did not keep what it owes.

    \b
    Examples:
      teal sim shinjuku:quantum=50us --workers 16 --load 0.8 --type short:share=0.995,mean=10us
          --type long:share=0.005,mean=10ms
      teal sim --compare fifo edf shinjuku --load 0.75 --plot load.svg
      teal sim ./mine.py:Mine --faults all --json
      teal sim --policy ./mine.py:Mine --seeds 1-2000
      teal sim fifo --agents 3 --seeds 1-2000
    """
    del compare
    chosen = [*policies, *named] or ["fifo"]
    spec = _spec(how)
    if seeds is not None:
        given = {name for name in how if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
        _hunt(chosen, _seeds(seeds), spec if given - {"seed", "agents"} else None, spec.agents, as_json)
        return
    results = [_one(policy, spec, as_json) for policy in chosen]
    if plot is not None:
        _plot(plot, chosen, spec, as_json)
    if as_json:
        draw.emit([result.as_json() for result in results])
    else:
        from teal.cli import sim_tables

        draw.console().print(sim_tables.latencies(results))
        for result in results:
            click.echo("\n".join(sim_tables.counters(result)))
        if plot is not None:
            click.echo(f"{plot}: p99 by load")
    sys.exit(0 if all(result.ok for result in results) else 1)


def _spec(how: dict[str, Any]) -> Spec:
    """What the options say. Raises InvalidArgument, NotFound."""
    from teal.sim import Faults, Spec, Trace, Type

    fields: dict[str, Any] = {name: how[name] for name in ("workers", "agents", "load", "requests", "seed")}
    if how["types"]:
        fields["types"] = [Type.parse(text) for text in how["types"]]
    if how["trace"] is not None:
        fields["trace"] = Trace.read(how["trace"])
        if not how["types"]:
            fields["types"] = []
    if how["faults"] is not None:
        fields["faults"] = Faults.parse(how["faults"])
    more = options.pairs(how["more"], "--with")
    if clash := sorted({"types", "trace", "faults"} & more.keys()):
        raise click.UsageError(f"--with {clash[0]}=… has an option of its own; give that")
    fields |= {name: int(text) if text.isdigit() else text for name, text in more.items()}
    return Spec().with_(**fields)


def _one(policy: str, spec: Spec, silent: bool) -> Result:
    from teal.sim import simulate

    total = spec.requests if spec.trace is None else len(spec.trace)
    with draw.progress(policy, silent=silent) as say:
        return simulate(policy, spec, progress=lambda came: say(f"{policy}: {came / total:.0%} of {total:,} requests"))


def _seeds(text: str) -> range:
    found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text)
    if found is not None:
        first, last = int(found[1]), int(found[2] or found[1])
        if first <= last < first + _MOST_SEEDS:
            return range(first, last + 1)
    raise click.BadParameter(f"{text[:80]!r}, expected A-B, as in 1-2000, of at most {_MOST_SEEDS:,} seeds",
                             param_hint="--seeds")  # fmt: skip


def _hunt(policies: list[str], seeds: range, spec: Spec | None, agents: int, as_json: bool) -> None:
    from teal.sim import hunt

    documents, failed = [], 0
    for policy in policies:
        start = time.perf_counter()
        with draw.progress(policy, silent=as_json) as say:
            totals, bad = _tally(
                hunt(policy, seeds, spec, agents=agents), len(seeds), lambda words, p=policy: say(f"{p}: {words}")
            )
        failed += len(bad)
        took = time.perf_counter() - start
        if as_json:
            met = {"policy": policy, "seeds": [seeds[0], seeds[-1]], "seconds": took, "totals": totals}
            documents.append(met | {"failed": [result.as_json() for result in bad]})
            continue
        click.echo(f"{policy}: {len(seeds):,} seeds in {draw.lasted(took)}, {len(bad):,} failed")
        click.echo("  " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in totals.items() if count))
        for result in bad[:_MOST_SHOWN]:
            _say_failure(result)
        if len(bad) > _MOST_SHOWN:
            click.echo("  seeds that failed too: " + " ".join(str(result.seed) for result in bad[_MOST_SHOWN:1000]))
    if as_json:
        draw.emit(documents)
    sys.exit(1 if failed else 0)


def _tally(results: Iterable[Result], count: int, say: Any) -> tuple[dict[str, int], list[Result]]:
    """What happened in all of them together, and those that failed."""
    totals: dict[str, int] = {}
    bad: list[Result] = []
    for number, result in enumerate(results, 1):
        for name, value in (*result.counters.items(), *result.met.items()):
            totals[name] = value if name not in totals else totals[name] + value
        if not result.ok:
            bad.append(result)
        if number % 16 == 0:
            say(f"{number:,} of {count:,} seeds, {len(bad):,} failed")
    return totals, bad


def _say_failure(result: Result) -> None:
    for kind, said in (("violation", result.violations), ("breach", result.breaches)):
        for text in said[:1]:
            click.echo(f"  seed {result.seed}: {kind}: {draw.printable(text.splitlines()[0])}")
    words = list(sys.argv[1:])  # the same command, of this seed alone
    if "--seeds" in words:
        words[words.index("--seeds") + 1] = str(result.seed)
        click.echo(f"    again: teal {shlex.join(words)} --json")


def _plot(path: Path, policies: list[str], spec: Spec, silent: bool) -> None:
    from teal.bench.wave import plot
    from teal.sim import simulate

    lines: list[tuple[str, list[tuple[float, float]]]] = []
    first = spec.types[0].name if spec.types else ""
    if spec.trace is not None:
        raise click.UsageError("--plot goes with --load, and a trace has its own; leave --trace out")
    with draw.progress("by load", silent=silent) as say:
        for policy in policies:
            points = []
            for share in (0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
                say(f"{policy} at {share:.0%}")
                points.append((share, simulate(policy, spec, load=share)[first].percentile_us(99)))
            lines.append((policy, points))
    title = f"p99 of {first!r} by load, {spec.workers} workers, on a virtual clock"
    path.write_text(plot.lines(title, "load", "µs", lines), encoding="utf-8")
