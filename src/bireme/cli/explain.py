"""bireme explain: what Bireme understood of a script, and what it does not apply, without asking any cluster.

The understanding is `slurm/understood`, and of a script with `#BIREME` lines `slurm/serving/understood` too; here it is
read from files and printed, in colour on a terminal, plain elsewhere, or as JSON for tools.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from bireme.cli.parsing import Arguments
from bireme.commands.sbatch import read_named_script
from bireme.commands.submitting.caller import plain, submit_context
from bireme.commands.voice import run_command
from bireme.core.model.serving.services import ServiceSpec
from bireme.slurm.annotated import asks_for_service
from bireme.slurm.formats.visible import visible
from bireme.slurm.options.batch import read_batch, script_of
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.layers import peek
from bireme.slurm.serving.building import read_service
from bireme.slurm.serving.reading import read_line
from bireme.slurm.serving.understood import describe_service
from bireme.slurm.understood import Understood, as_json, describe

_ABOUT = "What Bireme understood of a batch script or a service: resources, time, files, and what it ignores and why."
_EPILOG = (
    "Everything after --json is read as sbatch would: bireme explain [--json] [SBATCH OPTIONS] train.sh [ARGUMENTS]; "
    "a script with a service's #BIREME lines as bireme serve would."
)


def main(argv: list[str]) -> int:
    return run_command("bireme explain", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    as_data, words = False, list(argv)
    if words[:1] in (["-h"], ["--help"]) or not words:
        Arguments(
            prog="bireme explain",
            usage="bireme explain [--json] [SBATCH OPTIONS] SCRIPT",
            description=_ABOUT,
            epilog=_EPILOG,
        ).print_help()
        return 0
    if "--json" in (words[0], words[-1]):  # sbatch has no such option, so before and after are both unmistakable
        as_data = True
        words = words[1:] if words[0] == "--json" else words[:-1]
    told, notices, service = _understand(words)
    if as_data:
        data = [as_json(each) for each in told]
        if service is not None:
            data[0]["service"] = {name: value for name, value in plain(service).items() if name != "job"}
        print(json.dumps(data[0] if len(data) == 1 else {"het": data}, indent=2))
    elif sys.stdout.isatty():
        _print_rich(told, notices)
    else:
        print("\n\n".join(plain_text(each) for each in told))
        for line in _remarks(told, notices):
            print(f"Note      {line}")
    return 0


def _understand(words: list[str]) -> tuple[list[Understood], Sequence[str], ServiceSpec | None]:
    """What was understood of each component, what there is to say beyond it, and the service, where it is one."""
    script, is_service = _script(words)
    if not is_service:
        batch = read_batch(words, script, submit_context(Command.SBATCH, words))
        return [describe(request.spec, request.warnings) for request in batch.requests], batch.notices, None
    line = read_line(words)
    asked = read_service(line, script, submit_context(Command.SBATCH, line.sbatch))
    told = describe(asked.spec.job)
    return [replace(told, sections=describe_service(asked.spec))], asked.notices, asked.spec


def _script(words: list[str]) -> tuple[bytes | None, bool]:
    """What it holds (None with --wrap), and whether it has lines or flags that only a service has."""
    try:
        script_of(words)
    except OptionError:  # sbatch cannot read it: `read_line` says why, if it cannot either
        return _named(read_line(words).sbatch), True
    text = _named(words)
    return text, asks_for_service((text or b"").decode(errors="replace"))


def _named(words: Sequence[str]) -> bytes | None:
    return read_named_script(words, peek(Command.SBATCH, words).get("chdir"))


def plain_text(understood: Understood) -> str:
    """One component, as aligned text."""
    component = understood.spec.het_component
    title = understood.name if component is None else f"{understood.name} (component {component})"
    lines = [visible(title)]
    width = max((len(label) for section in understood.sections for label, _ in section.rows), default=0)
    for section in understood.sections:
        lines += ["", section.title]
        lines += [f"  {label:<{width}}  {visible(value)}" for label, value in section.rows]
    if understood.ignored:
        lines += ["", "Accepted, not applied"]
        lines += [f"  {each.option}: {each.reason}" for each in understood.ignored]
    if understood.warnings:
        lines += ["", "Remarks"]
        lines += [f"  {warning}" for warning in understood.warnings]
    return "\n".join(lines)


def _remarks(told: list[Understood], notices: Sequence[str]) -> list[str]:
    """What sbatch would say that the explanation has not said already."""
    said = {f"{each.option} is accepted but not applied: {each.reason}" for one in told for each in one.ignored}
    said |= {warning for one in told for warning in one.warnings}
    return [notice for notice in notices if notice not in said]


def _print_rich(told: list[Understood], notices: Sequence[str]) -> None:
    # Late: a terminal is the only place where rich is worth its start-up time.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for understood in told:
        component = understood.spec.het_component
        console.print(
            Text(visible(understood.name), style="bold") + Text("" if component is None else f"  component {component}")
        )
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for section in understood.sections:
            table.add_row(Text(section.title, style="bold"), "")
            for label, value in section.rows:
                table.add_row(f"  {label}", Text(visible(value)))
        for each in understood.ignored:
            table.add_row(Text("  not applied", style="yellow"), Text(visible(f"{each.option}: {each.reason}")))
        for warning in understood.warnings:
            table.add_row(Text("  remark", style="yellow"), Text(visible(warning)))
        console.print(table)
    for line in _remarks(told, notices):
        console.print(Text(f"  {visible(line)}", style="yellow"))
