"""bireme sim run and bireme sim compare: a workload replayed in the simulator, measured, and written as a report.

Arguments in, tables and files out; what happens in between is `bireme.sim`. No cluster is needed, unless the workload
is `history`, which asks the running one for what it has done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bireme.cli.parsing import Arguments
from bireme.cli.simulator import faults as sim_faults
from bireme.cli.simulator import hardware as sim_hardware
from bireme.cli.simulator import placement as sim_placement
from bireme.cli.simulator import serve as sim_serve
from bireme.cli.simulator.inputs import (
    AS_CONFIGURED,
    CLUSTER,
    WORKLOAD,
    add_inputs,
    cluster_of,
    options_of,
    workload_of,
)
from bireme.commands.voice import CommandFailure, Voice, run_command
from bireme.sim.compare import MEASURES, Case, Compared, compare
from bireme.sim.metrics import Report, Watts, measure
from bireme.sim.policies import POLICIES, SimPolicy, UnknownPolicyError, find_policy
from bireme.sim.replay import Progress as Tell
from bireme.sim.replay import Result, simulate
from bireme.sim.report.files import comparison_numbers, missing_plots, to_json, write_comparison, write_run
from bireme.sim.report.words import duration, measured, number, percent
from bireme.sim.workloads.described import BadDescriptionError
from bireme.sim.workloads.generator import BadGeneratorError
from bireme.sim.workloads.trace import BadTraceError, Workload
from bireme.slurm.conf.altered import BadClusterError

FAILURES = (BadTraceError, BadGeneratorError, BadDescriptionError, BadClusterError, UnknownPolicyError)

ABOUT = """\
A workload is a file (an SWF log, a `sacct -P` dump, a Philly, ITP or openb table; plain or .gz), `history` (what the
running cluster has done), jobs in a line ("jobs:2x8 for 12h at 00:00, 10x1 for 30min at 06:00": two of 8 GPUs, ten of
one), or a generator: "generate:jobs=2000 seed=7 arrival=weekly sizes=1:70,8:30 hours=2 users=20".
A cluster is a slurm.conf, an openb node list, one line ("128x8:h100 leaf=16"), or `fit enough=0.9` for one that is as
large as the workload needs. A policy is one of: {policies}; or a file with lines of slurm.conf.
"""


def main(argv: list[str]) -> int:
    return run_command("bireme sim", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = _parser()
    given, more = parser.parse_known_args(argv)
    if more and not getattr(given, "takes_more", False):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    given.more = more
    try:
        return int(given.command(given))
    except FAILURES as error:
        raise CommandFailure(*str(error).splitlines()) from error
    except OSError as error:
        raise CommandFailure(f"{error.filename}: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme sim",
        description="Replay a workload on a cluster that need not exist, with the real planner.",
        epilog=ABOUT.format(policies=", ".join(POLICIES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="run | compare | serve | placement | world | soak")
    run = commands.add_parser("run", help="one workload, one cluster, one policy")
    _shared(run)
    run.add_argument("--journal", default="", metavar="FILE", help="keep the simulation's journal")
    run.set_defaults(command=_run)
    several = commands.add_parser("compare", help="policies or clusters side by side")
    several.add_argument("cases", nargs="+", metavar="CASE", help="policies, fragments of slurm.conf, or clusters")
    _shared(several)
    several.add_argument("--seeds", type=int, default=1, help="so many times, each with other random numbers")
    several.set_defaults(command=_compare)
    sim_hardware.add_arguments(commands.add_parser("faults", help="training on hardware that fails, under policies"))
    sim_serve.add_arguments(commands.add_parser("serve", help="a day of requests against a service's policy"))
    sim_faults.add_commands(commands)
    sim_placement.add_arguments(commands.add_parser("placement", help="how tightly placement policies pack a cluster"))
    return parser


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-w", "--workload", required=True, help=WORKLOAD)
    parser.add_argument("-c", "--cluster", default="", help=CLUSTER)
    parser.add_argument("-p", "--policy", default=AS_CONFIGURED, help="how it is scheduled")
    add_inputs(parser)
    parser.add_argument("--launch-s", type=float, default=0.0, metavar="S", help="what starting a job takes")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out rows that are no jobs and jobs that cannot run"
    )
    parser.add_argument("--watts", metavar="gpu=700,idle=90,node=800", help="for the energy")
    parser.add_argument("-o", "--out", metavar="FOLDER", help="write report.html, report.json, CSV and plots there")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


# -- run -------------------------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    workload = workload_of(given)
    config, policy = cluster_of(given, given.cluster, workload), find_policy(given.policy)
    options = replace(options_of(given), journal=given.journal)
    with _bar(len(workload.jobs)) as tell:
        result = simulate(workload, config, policy, options, tell(policy.name))
    report = measure(result, _watts(given.watts))
    if given.json:
        sys.stdout.write(to_json(report.numbers))
    else:
        _show(result, report)
    if given.out:
        _announce(write_run(given.out, result, report), given.out)
    return 0


def _watts(text: str | None) -> Watts | None:
    if text is None:
        return None
    try:
        return Watts(**{name: float(value) for name, _, value in (part.partition("=") for part in text.split(","))})
    except (TypeError, ValueError):
        raise CommandFailure(f"--watts {text}: write it as gpu=700,idle=90,node=800") from None


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], Tell]]:
    """A bar on standard error, where somebody sees it."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    # Without a thread of its own, which a simulation that forks must not have: it tells of itself often enough.
    seen = console.is_terminal
    with Progress(*columns, console=console, disable=not seen, auto_refresh=False) as progress:

        def begin(name: str) -> Tell:
            task = progress.add_task(name, total=total)
            return lambda ended, now: progress.update(task, completed=ended, refresh=True)

        yield begin


def _show(result: Result, report: Report) -> None:
    numbers = report.numbers
    cluster = numbers["cluster"]
    table = Table(
        title=f"{result.policy.name} on {cluster['nodes']} nodes, {cluster['units']} {cluster['unit']}s",
        title_justify="left",
    )
    for head in ("", "mean", "median", "95 %", "99 %", "longest"):
        table.add_column(head, justify="left" if not head else "right")
    for name, words, how in (
        ("wait_s", "wait", duration),
        ("turnaround_s", "turnaround", duration),
        ("slowdown", "bounded slowdown", lambda value: f"{value:.2f}"),
    ):
        row = numbers[name]
        table.add_row(words, *(how(row[key]) for key in ("mean", "p50", "p95", "p99", "max")))
    console = Console()
    console.print(table)
    for label, text in _facts(numbers):
        console.print(f"{label:<14}{text}", highlight=False)


def _facts(numbers: dict[str, object]) -> Iterator[tuple[str, str]]:
    told: dict[str, dict[str, float]] = numbers  # type: ignore[assignment]
    states = ", ".join(f"{count} {state}" for state, count in told["states"].items())
    yield "jobs", f"{number(told['jobs']['submitted'])}: {states}"
    share = told["utilisation"]
    yield (
        "utilisation",
        f"{percent(share['while_submitting'])} while jobs come, {percent(share['mean'])} until the last end",
    )
    yield "makespan", duration(float(numbers["makespan_s"]))  # type: ignore[arg-type]
    fair = told["fairness"]
    yield "fairness", f"Jain {fair['jain_slowdown']:.3f} of users' slowdowns, {fair['jain_use']:.3f} of accounts' use"
    yield "fragmentation", f"{percent(told['fragmentation']['stranded_mean'])} of the GPUs free on nodes partly in use"
    yield "preempted", f"{numbers['preemptions']} times; {numbers['lost_gpu_hours']:.1f} GPU hours lost"
    if "energy" in told:
        yield "energy", f"{number(round(told['energy']['kwh'], 1))} kWh"
    left_out = sum(told["workload"]["rows_skipped"].values()) + told["workload"]["jobs_refused"]  # type: ignore[attr-defined]
    if left_out:
        yield "left out", f"{left_out} rows or jobs (the report says why)"
    run = told["simulation"]
    yield "simulated", f"{number(run['events'])} events in {run['wall_s']:.1f} s"


def _announce(written: Sequence[str], folder: str) -> None:
    voice = Voice("bireme sim")
    voice.say(f"written: {folder}/report.html and {len(written) - 1} more files")
    if missing_plots():
        voice.say(missing_plots())


# -- compare ---------------------------------------------------------------------------------------------------------


def _compare(given: argparse.Namespace) -> int:
    if given.seeds < 1:
        raise CommandFailure("--seeds: at least 1")
    workload = workload_of(given)
    cases = [_case(given, text, workload) for text in given.cases]
    with _bar(len(workload.jobs)) as tell:
        compared = compare(
            workload, given.workload, cases, given.seeds, options_of(given), _watts(given.watts),
            lambda case, seed: tell(f"{case.name}, seed {seed}" if given.seeds > 1 else case.name),
        )  # fmt: skip
    if given.json:
        sys.stdout.write(to_json(comparison_numbers(compared)))
    else:
        _show_comparison(compared)
    if given.out:
        _announce(write_comparison(given.out, compared), given.out)
    return 0


def _case(given: argparse.Namespace, text: str, workload: Workload) -> Case:
    """A policy, if there is one of that name or the file has no nodes; else a cluster."""
    policy = _as_policy(text)
    if policy is not None:
        return Case(policy.name, cluster_of(given, given.cluster, workload), policy)
    return Case(text, cluster_of(given, text, workload), find_policy(given.policy))


def _as_policy(text: str) -> SimPolicy | None:
    try:
        policy = find_policy(text)
    except UnknownPolicyError:
        return None
    return None if "NodeName" in policy.keys else policy


def _show_comparison(compared: Sequence[Compared]) -> None:
    seeds = len(compared[0].reports)
    table = Table(title=f"compared over {seeds} seeds" if seeds > 1 else "compared", title_justify="left")
    table.add_column("")
    for each in compared:
        table.add_column(each.case.name, justify="right")
    for name, (words, _) in MEASURES.items():
        table.add_row(words, *(_cell(name, each.values[name], position) for position, each in enumerate(compared)))
    Console().print(table)


def _cell(name: str, value: dict[str, float], position: int) -> str:
    text = measured(name, value["mean"])
    if value["spread"]:
        text += f" ± {measured(name, value['spread'])}"
    if not position or not value["difference"]:
        return text
    sign = "+" if value["difference"] > 0 else "-"
    return f"{text}\n({sign}{measured(name, abs(value['difference']))})"
