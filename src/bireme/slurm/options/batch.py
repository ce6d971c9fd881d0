"""`sbatch` from end to end, but for the files and the cluster: arguments and the script's bytes in, jobs out.

`cli/` asks `script_of` which file to read (none for --wrap; standard input without a name), reads it, and calls
`read_batch`. `bireme explain` does the same and stops there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bireme.slurm.options.arbitrary import name_hosts
from bireme.slurm.options.catalogue.help import notices
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import refused
from bireme.slurm.options.foreign import with_foreign
from bireme.slurm.options.job import JobRequest, build_het_specs
from bireme.slurm.options.layers import Options, find_script, means_yes, peek, resolve
from bireme.slurm.options.own_lines import fields_of_lines
from bireme.slurm.script import Directives, directives, read_script, wrap
from bireme.slurm.serving.flags import AS_OPTIONS


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """What one sbatch submits. `requests` has one entry, or one for each component of a heterogeneous job."""

    requests: tuple[JobRequest, ...]
    script: str
    options: Options
    """Of the first component: --parsable, --wait, --test-only, --quiet, --verbose."""
    components: tuple[Options, ...]
    notices: tuple[str, ...]
    """What to say on standard error, once: remarks, and options that are accepted but not applied."""


def script_of(argv: Sequence[str]) -> str | None:
    """The name of the script to read, "" for standard input, None for --wrap. Raises for a bad command line."""
    words = find_script(argv)
    if "wrap" in peek(Command.SBATCH, argv):
        if words:
            raise refused("Script arguments not permitted with --wrap option")
        return None
    return words[0] if words else ""


def read_batch(
    argv: Sequence[str],
    script: bytes | None,
    context: SubmitContext,
    script_path: str = "",
    *,
    is_job: bool = True,
) -> BatchSubmission:
    """The jobs that `sbatch argv` submits.

    `script` is what the file or standard input holds (None with --wrap), `script_path` where the file was found.
    `is_job` False: its `#BIREME` lines are a service's, which somebody else reads.
    """
    written = peek(Command.SBATCH, argv)
    name = script_of(argv)
    if name is None:
        text, found = wrap(written["wrap"] or ""), None
    else:
        text = read_script(script or b"")
        found = _directives(text, name, written, context)
    moment = context.moment(Command.SBATCH)
    components = resolve(Command.SBATCH, argv, context.environment, moment, found)
    name_hosts(components, context)
    requests = build_het_specs(components, context)
    if found is not None and is_job:
        asked = fields_of_lines(text, (name or "").rpartition("/")[2] or "(stdin)", AS_OPTIONS)
        requests = tuple(replace(request, spec=request.spec.revised(**asked)) for request in requests)
    if script_path:
        requests = tuple(replace(request, spec=replace(request.spec, command=script_path)) for request in requests)
    remarks = [*(found.warnings if found else ())]
    for request in requests:
        remarks += request.warnings
    for options in components:
        remarks += notices(options)
    return BatchSubmission(requests, text, components[0], components, tuple(dict.fromkeys(remarks)))


def _directives(text: str, name: str, written: dict[str, str | None], context: SubmitContext) -> Directives:
    found = directives(text, name.rpartition("/")[2] or "(stdin)")
    ignore = context.environment.get("SBATCH_IGNORE_PBS")
    if "ignore-pbs" in written or (ignore is not None and means_yes(ignore)):
        return found
    return with_foreign(found)
