"""Which hosts an arbitrary distribution names, one for each task: -w, --nodefile, or the file of SLURM_HOSTFILE.

SLURM_HOSTFILE makes any job or step arbitrary that has no --nodelist of its own, whatever --distribution says. Its
hosts become options here, so that what builds jobs and steps of options knows of no file. Pure: the caller read it.
"""

from __future__ import annotations

from collections import Counter

from bireme.core.model.distribution import Distribution, NodeMethod
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import refused
from bireme.slurm.options.layers import Options, Setting, Source
from bireme.slurm.options.values import NodeCount

HOST_FILE = "SLURM_HOSTFILE"
_NO_HOSTS = "With Arbitrary distribution you need to specify a nodelist or hostfile with the -w option"
_FAILURE = "Failure getting NodeNames from hostfile"


def is_arbitrary(options: Options) -> bool:
    distribution = options.typed("distribution", Distribution)
    return distribution is not None and distribution.nodes is NodeMethod.ARBITRARY


def name_hosts(components: tuple[Options, ...], context: SubmitContext, *, inside_job: bool = False) -> None:
    """Takes over what SLURM_HOSTFILE says; raises where tasks are to follow a list of hosts and there is none."""
    for options in components:
        if "nodelist" in options or "nodefile" in options:
            continue
        if context.host_file is not None:
            hosts = _hosts_of_tasks(options, _read(context))
            options.settings["nodelist"] = Setting(hosts, ",".join(hosts), Source.ENVIRONMENT)
            distribution = Distribution(NodeMethod.ARBITRARY)
            options.settings["distribution"] = Setting(distribution, "arbitrary", Source.ENVIRONMENT)
        elif is_arbitrary(options) and not (inside_job and options.from_environment("distribution")):
            # A job that is arbitrary says so to the steps in it, which may be dealt as they fit.
            raise refused(_NO_HOSTS, f"or name a file with one host for each task in {HOST_FILE}")


def most_tasks_of_a_host(hosts: tuple[str, ...]) -> int:
    return max(Counter(hosts).values(), default=1)


def _read(context: SubmitContext) -> tuple[str, ...]:
    name = context.environment.get(HOST_FILE, "")
    if context.host_file_fault:
        raise refused(f"Unable to open {name!r}, which {HOST_FILE} names: {context.host_file_fault}", _FAILURE)
    try:
        hosts = tuple(expand(",".join((context.host_file or "").split())))
    except SlurmSyntaxError as error:
        raise refused(f"{name}: {error}", _FAILURE) from error
    if not hosts:
        raise refused(f"Hostlist is empty! ({HOST_FILE}={name})", _FAILURE)
    return hosts


def _hosts_of_tasks(options: Options, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The first of them, as many as tasks (or nodes) were asked for by hand."""
    nodes = options.typed("nodes", NodeCount)
    if options.asked("ntasks"):
        wanted = options.number("ntasks")
    else:
        wanted = nodes.minimum if nodes is not None and options.asked("nodes") else None
    if wanted is not None and wanted > len(hosts):
        raise refused(f"Too few NodeNames in Slurm Hostfile ({len(hosts)} for {wanted} tasks)", _FAILURE)
    return hosts[:wanted]
