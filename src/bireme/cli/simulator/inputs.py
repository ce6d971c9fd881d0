"""What simulations are given on the command line: a workload, a cluster, keys of slurm.conf, rules for time limits.

Shared by `bireme sim run`, `compare` and `serve`; what the words mean is `bireme.sim`. A workload may be `history`:
what the running cluster has done, which is asked for it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from bireme.cli.connection import make_transport
from bireme.cli.simulator.set_keys import add_set, keys_of
from bireme.commands.voice import CommandFailure
from bireme.core.model.cluster import ClusterConfig
from bireme.sim.clusters import read_cluster
from bireme.sim.replay import Options
from bireme.sim.specs import LimitOf, limit_rule
from bireme.sim.workloads.reading import read_workload, workload_of_history
from bireme.sim.workloads.trace import TraceJob, Workload
from bireme.slurm.conf.altered import with_keys

HISTORY = "history"
AS_CONFIGURED = "as-configured"
WORKLOAD = "a trace, `history`, jobs:... or generate:..."
CLUSTER = "what it runs on; default: what the trace names, or `fit`"


def add_inputs(parser: argparse.ArgumentParser) -> None:
    add_set(parser)
    parser.add_argument(
        "--limits", default="ladder", help="time limits where the trace names none: ladder, exact or x3"
    )
    parser.add_argument("--first", type=int, metavar="N", help="only the first jobs")


def workload_of(given: argparse.Namespace) -> Workload:
    if given.workload == HISTORY:
        with make_transport() as transport:
            found = workload_of_history(transport.get("/v1/history")["jobs"], "the cluster's history")
    else:
        found = read_workload(given.workload, skip_bad=given.skip_bad)
    return found if given.first is None else replace(found, jobs=found.jobs[: max(1, given.first)])


def cluster_of(given: argparse.Namespace, text: str, workload: Workload | None) -> ClusterConfig:
    jobs: tuple[TraceJob, ...] = workload.jobs if workload is not None else ()
    config = read_cluster(text or (workload.cluster_hint if workload is not None else "") or "fit", jobs)
    return with_keys(config, keys_of(given.set)) if given.set else config


def options_of(given: argparse.Namespace) -> Options:
    return Options(rule=rule_of(given), skip_bad=given.skip_bad, launch_s=given.launch_s)


def rule_of(given: argparse.Namespace) -> LimitOf:
    try:
        return limit_rule(given.limits)
    except ValueError as error:
        raise CommandFailure(f"--limits: {error}") from error
