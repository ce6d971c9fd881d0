"""sattach: joins a running step: its output comes here, its input and Ctrl-C go there.

Leaving (Ctrl-C) leaves the step as it is. Which frames are shown can be narrowed to one task.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

from bireme.agent.messages.protocol import ALL_TASKS
from bireme.agent.stdio.stream_client import StepStreams
from bireme.cli.connection import make_transport
from bireme.cli.interactive.session.outputs import Output, Style
from bireme.cli.interactive.session.session import Leg, Manners, Session
from bireme.cli.interactive.session.tally import Tally
from bireme.cli.interactive.session.terminal import RawTerminal, window_size
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.optline import options, read
from bireme.commands.voice import EXIT_INTERRUPTED, CommandFailure, Voice, refused_by_daemon, run_command
from bireme.slurm.hostlist import expand
from bireme.slurm.version import VERSION_LINE

TABLE = options(
    "-l--label --layout --input-filter= --output-filter= --error-filter= --pty -Q--quiet -v--verbose -V--version"
    " --debugger-test -h--help -u--usage"
)
_USAGE = "Usage: sattach [options] <jobid.stepid>"
HELP = f"""{_USAGE}
Joins a running step.

  -l, --label               task number in front of each line
      --layout              how the tasks lie on the nodes, then leave
      --input-filter=TASK   send input to this task only
      --output-filter=TASK  show this task's output only
      --error-filter=TASK   show this task's errors only
      --pty                 join task 0's terminal
  -Q, --quiet               say only what went wrong
  -V, --version             the version
"""
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?)\.(\d+)", re.ASCII)


def main(argv: list[str]) -> int:
    return run_command("sattach", lambda: _main(argv), getopt_exit=1)


def _main(argv: list[str]) -> int:
    given, words = read(TABLE, argv)
    asked = dict(given)
    if "help" in asked or "usage" in asked:
        print(HELP if "help" in asked else _USAGE, end="" if "help" in asked else "\n")
        return 0
    if "version" in asked:
        print(VERSION_LINE)
        return 0
    if len(words) != 1:
        print(_USAGE)
        raise CommandFailure("too many parameters")
    match = _STEP.fullmatch(words[0])
    if match is None:
        print(_USAGE)
        raise CommandFailure("Failed to parse stepid from command line options")
    return _join(match[1], int(match[2]), asked)


def _join(job: str, step_id: int, asked: dict[str, str | None]) -> int:
    with make_transport() as transport:
        try:
            records = transport.get(f"/v1/jobs/{job}/steps")["steps"]
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("Could not get job step info", error) from error
        record = next((each for each in records if each.get("step_id") == step_id), None)
        if record is None:
            raise CommandFailure("Could not get job step info: Invalid job id specified")
        places = record.get("endpoints")
        if "layout" in asked:
            print(layout_text(record))
            return 0
        if not places:
            over = record.get("end_time") is not None
            why = "Job/step already completing or completed" if over else "Access/permission denied"
            raise CommandFailure(f"Could not get job step info: {why}")
        if not all(place["endpoint"] for place in places):
            from bireme.cli.own_command import become_slurms_own  # late: only a Slurm cluster needs it

            become_slurms_own(transport, "sattach")
        return _attend(record, places, asked)


class Bystander:
    """A step that is watched, not owned: nothing that happens here ends it."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.name = f"{record['job_id']}.{record['step_id']}"

    def terminate(self, *, failed: bool = False) -> bool:
        return True

    def settings(self) -> dict[str, Any]:
        return {}


def _attend(record: dict[str, Any], places: list[dict[str, Any]], asked: dict[str, str | None]) -> int:
    node_of = {task: place["node"] for place in places for task in place["tasks"]}
    style = Style(label="label" in asked, by_line=len(node_of) > 1, ntasks=len(node_of))
    stdout = Output(1, style, only_task=_filter(asked, "output-filter"))
    stderr = Output(2, style, only_task=_filter(asked, "error-filter"))
    input_task = _filter(asked, "input-filter")
    pty = "pty" in asked
    manners = Manners(
        stdin_fd=0 if sys.stdin is not None else None,
        stdin_task=0 if pty else ALL_TASKS if input_task is None else input_task,
        pty=pty,
        forward_signals=False,
        closes_input=False,
    )
    endpoints = {place["node"]: place["endpoint"] for place in places}
    voice = Voice("sattach", quiet="quiet" in asked, verbose=int("verbose" in asked))
    with StepStreams(record["job_id"], record["step_id"], record.get("io_key", ""), endpoints, fences=None) as streams:
        streams.connect()
        terminal = RawTerminal(0)
        if pty:
            terminal.enter()
            size = window_size(0)
            if size is not None:
                streams.send_window_size(*size)
        try:
            return Session([Leg(streams, Bystander(record))], Tally(node_of), stdout, stderr, voice, manners).run()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            terminal.restore()


def _filter(asked: dict[str, str | None], name: str) -> int | None:
    text = asked.get(name)
    if text is None or text in ("-", "all"):
        return None
    if not text.isdigit():
        raise CommandFailure(f"--{name}: {text} is not a task number")
    return int(text)


def layout_text(record: dict[str, Any]) -> str:
    """Slurm's picture of a step: how many tasks and nodes, and which tasks are where."""
    nodes = record.get("nodes") or []
    count = record.get("num_tasks") or sum(len(node.get("task_ids", ())) for node in nodes)
    lines = [
        "Job step layout:",
        f"\t{count} tasks, {record.get('node_count') or len(nodes)} nodes ({_names(record)})",
        "",
    ]
    for index, node in enumerate(nodes):
        tasks = node.get("task_ids", ())
        lines.append(f"\tNode {index} ({node['node']}), {len(tasks)} task(s): {' '.join(map(str, tasks))}")
    return "\n".join(lines)


def _names(record: dict[str, Any]) -> str:
    with suppress(ValueError):
        return ",".join(expand(record.get("node_list") or ""))
    return str(record.get("node_list"))
