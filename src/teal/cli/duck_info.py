"""`teal duck info`: a duck's machine, versions, budget, and what confines its programs."""

from __future__ import annotations

import click

from teal.cli import draw, duck_options, options


@click.command("info", short_help="Machine, versions, budget and sandbox of a duck.")
@duck_options.duck_options
@options.json_option
def command(duck: str | None, key_file: str | None, tcp: bool, as_json: bool) -> None:
    """Say what a duck is: its machine, its versions, its budget, and what confines the programs in it.

    \b
    Examples:
      teal duck info
      teal duck info --duck 10.0.0.2:7311 --key-file duck.key --json
    """
    with duck_options.reach(duck, key_file, tcp) as reached:
        info = reached.info()
    if as_json:
        draw.emit(info)
        return
    vitals, budget = info["vitals"], info["budget"]
    degrees = (
        "unknown" if vitals["temperature"] is None else f"{vitals['temperature']:.1f} °C ({vitals['temperature_of']})"
    )
    mhz = "" if vitals["cpu_mhz"] is None else f", {vitals['cpu_mhz']:.0f} MHz"
    rows = {
        "duck": f"{info['address']}" + (f", {info['listening']}" if info["listening"] else ""),
        "process": f"{info['pid']}, up {draw.lasted(info['uptime'])}, teal {info['version']}",
        "cpu": f"{vitals['cpu_model']}, microcode {vitals['microcode'] or 'unknown'}, {vitals['cores']} cores{mhz}, "
               f"{vitals['isa']}",
        "temperature": degrees,
        "system": f"{vitals['system']} {vitals['machine']}",
        "memory": f"{draw.size(vitals['memory_available'])} available of {draw.size(vitals['memory'] or 0)}",
        "budget": f"sessions {draw.size(budget['sessions'])}, programs {draw.size(budget['programs'])}, data "
                  f"{draw.size(budget['data'])}",
        "sandbox": info["sandbox"],
        "sessions": str(len(info["sessions"])),
    }  # fmt: skip
    for name, text in rows.items():
        click.echo(draw.printable(f"{name:12} {text}"))
    for guard in info["guards"]:
        click.echo(
            draw.printable(
                f"  {guard['sandbox']}: {'used' if guard['used'] else 'none':5} {guard['name']:18} {guard['detail']}"
            )
        )
