"""bireme whatif: a change to the running cluster, tried in the simulator, and what it does to every waiting job.

The daemon gives its snapshot and its history; here the words of the change are read and the answer becomes a table or
JSON. Nothing of the cluster is changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.cli.simulator.set_keys import add_set, keys_of
from bireme.commands.reports import make_stamp
from bireme.commands.sbatch import read_named_script
from bireme.commands.submitting.caller import submit_context
from bireme.commands.voice import CommandFailure, run_command
from bireme.core.model.jobs import JobSpec
from bireme.sim.report.words import duration, percent
from bireme.sim.whatif import Change, Outcome, Waiter, what_if
from bireme.sim.workloads.reading import workload_of_history
from bireme.sim.workloads.trace import BadTraceError, Workload
from bireme.slurm.conf.altered import BadChangeError, BadClusterError
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.layers import peek
from bireme.slurm.times import Infinite, parse_time_limit

DAY_S = 86_400.0
SAME_S = 1.0
"""Starts that are closer together than this are the same."""
ABOUT = """\
Try a change to the running cluster in the simulator: when would each waiting job start?
Run times are guessed from history, else from time limits. Nothing is changed.
"""
EXAMPLES = """\
examples:
  bireme whatif --add-nodes 8x8:h100
  bireme whatif --drain leaf2
  bireme whatif --set PriorityWeightFairshare=100000
  bireme whatif --submit big.sh
"""


def main(argv: list[str]) -> int:
    return run_command("bireme whatif", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    change = Change(
        add_nodes=tuple(given.add_nodes),
        keys=keys_of(given.set),
        drain=tuple(given.drain),
        submit=tuple(_specs(words) for words in given.submit),
        submit_run_s=None if given.run is None else _seconds(given.run),
    )
    if change == Change(submit_run_s=change.submit_run_s):
        raise CommandFailure("what is to change? --add-nodes, --set, --drain or --submit (see --help)")
    with make_transport() as transport:
        snapshot = transport.get_bytes("/v1/snapshot")
        history = _history(transport.get("/v1/history")["jobs"])
    try:
        outcome = what_if(snapshot, change, history, given.again_days * DAY_S)
    except (BadChangeError, BadClusterError) as error:
        raise CommandFailure(str(error)) from error
    if given.json:
        print(json.dumps(asdict(outcome), indent=2))
    else:
        _show(outcome)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme whatif",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--add-nodes", action="append", default=[], metavar="NxGPUS:TYPE", help='"8x8:h100", "4x8:h100 partition=train"'
    )
    add_set(parser)
    parser.add_argument("--drain", action="append", default=[], metavar="SWITCH|NODES", help="leaf2, n[1-4]")
    parser.add_argument(
        "--submit", action="append", nargs=1, default=[], metavar="SCRIPT", help="a script, with its #SBATCH lines"
    )
    parser.add_argument("--run", metavar="TIME", help="how long submitted scripts run (default: their limit)")
    parser.add_argument(
        "--again-days", type=float, default=0.0, metavar="DAYS", help="what came in the last days comes again"
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    return parser


def _specs(words: list[str]) -> tuple[JobSpec, ...]:
    context = submit_context(Command.SBATCH, words)
    batch = read_batch(words, read_named_script(words, peek(Command.SBATCH, words).get("chdir")), context)
    return tuple(replace(request.spec, script="what if") for request in batch.requests)


def _seconds(text: str) -> float:
    limit = parse_time_limit(text)
    if isinstance(limit, Infinite):
        raise CommandFailure(f"--run {text}: how long is that?")
    return float(limit)


def _history(records: list[dict[str, object]]) -> Workload | None:
    try:
        return workload_of_history(records, "history")
    except BadTraceError:
        return None


# -- the answer ------------------------------------------------------------------------------------------------------


HEADS = ("JOB", "NAME", "USER", "NODES", "GPUS", "START NOW", "START THEN", "CHANGE")
TO_THE_RIGHT = frozenset({"NODES", "GPUS"})


def _show(outcome: Outcome) -> None:
    stamp = make_stamp("", outcome.now)
    rows = [_cells(waiter, outcome, stamp) for waiter in outcome.waiters]
    print("\n".join(_aligned([HEADS, *rows])) if rows else "No job waits.")
    print("\n".join(_summary(outcome)))


def _cells(waiter: Waiter, outcome: Outcome, stamp: Callable[[float], str]) -> tuple[str, ...]:
    before = "-" if waiter.submitted else _when(waiter.before, stamp)
    new = "new" if waiter.component is None else f"new+{waiter.component}"
    label = new if waiter.submitted else waiter.job
    sizes = (str(waiter.nodes), str(waiter.gpus))
    return (label, waiter.name, waiter.user, *sizes, before, _when(waiter.after, stamp), _changed(waiter, outcome))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Never cut: a job's name matters more than the width of the screen."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = zip(HEADS, row, widths)
        padded = (cell.rjust(width) if head in TO_THE_RIGHT else cell.ljust(width) for head, cell, width in cells)
        yield "  ".join(padded).rstrip()


def _when(at: float | None, stamp: Callable[[float], str]) -> str:
    return "never" if at is None else stamp(at)


def _changed(waiter: Waiter, outcome: Outcome) -> str:
    if waiter.submitted:
        return "" if waiter.after is None else f"in {duration(waiter.after - outcome.now)}"
    if waiter.before is None or waiter.after is None:
        return "" if waiter.before == waiter.after else "starts" if waiter.before is None else "does not start"
    difference = waiter.after - waiter.before
    if abs(difference) < SAME_S:
        return "the same"
    return f"{duration(abs(difference))} {'later' if difference > 0 else 'sooner'}"


def _summary(outcome: Outcome) -> Iterator[str]:
    unit = f"{outcome.unit}s"
    yield ""
    yield (
        f"{unit} in use: {percent(outcome.used_before)} of {outcome.units_before} now, "
        f"{percent(outcome.used_after)} of {outcome.units_after} then (the next {duration(outcome.window_s)})"
    )
    yield (
        f"All of today's jobs have ended: in {duration(outcome.ends_before - outcome.now)} now, "
        f"in {duration(outcome.ends_after - outcome.now)} then"
    )
    if outcome.preempted_after > 0:
        yield f"{outcome.preempted_after} more jobs are preempted."
    yield f"Run times: {outcome.guessed} of {outcome.jobs} jobs by those like them before, the rest by their limits."
