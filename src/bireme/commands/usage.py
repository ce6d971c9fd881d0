"""--help and --usage of the commands that look, made from their option tables. Imported only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.commands.optline import Opt

_ABOUT = {
    "account": "jobs of these accounts",
    "accounts": "jobs of these accounts",
    "all": "hidden partitions too",
    "allocations": "one line a job, no steps",
    "allsteps": "every step of a job, not only the first",
    "allusers": "everybody's jobs",
    "array": "one line for each array task",
    "brief": "job id, state and exit code",
    "clusters": "only these clusters, each under its name; all: every one",
    "dead": "only nodes that do not answer",
    "delimiter": "what -p and -P put between fields",
    "details": "more about each record",
    "duplicates": "every start of a requeued job",
    "endtime": "jobs before this time",
    "exact": "group only nodes that are alike",
    "format": "fields, widths and sides",
    "Format": "fields by name: name[:[.]width]",
    "helpformat": "the names --format knows",
    "iterate": "again every so many seconds",
    "jobs": "these jobs: 42, 42_7, 42+1",
    "json": "as JSON",
    "list-reasons": "why nodes are down or drained",
    "long": "more columns",
    "me": "my own jobs",
    "name": "jobs of these names",
    "noconvert": "sizes in their own unit",
    "Node": "one line for each node",
    "nodelist": "jobs on these nodes",
    "nodes": "these nodes",
    "noheader": "no header",
    "norm": "factors from 0 to 1, not weighed",
    "oneliner": "one line for each record",
    "parsable": "fields with '|' after each",
    "parsable2": "fields with '|' between them",
    "partition": "these partitions",
    "pidformat": "the processes of each step",
    "qos": "jobs of these QOS",
    "responding": "only nodes that answer",
    "sort": "order: letters of --format, - for descending",
    "start": "when waiting jobs are expected to start",
    "starttime": "jobs after this time",
    "state": "jobs in these states",
    "states": "in these states, or all",
    "steps": "steps instead of jobs",
    "summarize": "one line for each partition",
    "units": "sizes in K, M, G, T or P",
    "usage": "a short text",
    "user": "jobs of these users",
    "version": "the version",
    "weights": "what each factor is weighed by",
    "yaml": "as YAML",
}
_ABOUT_OF = {("sshare", "all"): "every user, not only oneself", ("sshare", "partition"): "with partitions"}
"""Options that mean something else in one command."""
_COLUMN = 34


def _form(option: Opt) -> str:
    value = {"": "", "required": "=VALUE", "optional": "[=VALUE]"}[option.value]
    return f"-{option.short}, --{option.name}{value}" if option.short else f"    --{option.name}{value}"


def _about(command: str, name: str) -> str:
    return _ABOUT_OF.get((command, name)) or _ABOUT.get(name, "")


def help_text(command: str, table: Sequence[Opt]) -> str:
    lines = [f"Usage: {command} [OPTIONS]"]
    lines += [
        f"  {_form(option):<{_COLUMN}}{_about(command, option.name)}".rstrip()
        for option in table
        if not option.alias_of
    ]
    return "\n".join(lines)


def usage_text(command: str, table: Sequence[Opt]) -> str:
    flags = "".join(option.short for option in table if option.short and not option.value)
    valued = [f"[-{option.short} VALUE]" for option in table if option.short and option.value]
    return f"Usage: {command} [-{flags}] {' '.join(valued)}"
