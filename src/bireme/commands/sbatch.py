"""sbatch: a script, its options and the environment become a job.

Reads the script's file (or standard input, or --wrap), has `slurm/options` understand it, sends it, and says
`Submitted batch job 42`. With --wait it stays until the job ended and ends as the job did.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bireme.commands.submitting.caller import submit_context
from bireme.commands.submitting.submission import (
    cluster_of,
    clusters_asked,
    submission_body,
    submit,
    tell_of_engine,
    tell_options,
    test_only,
)
from bireme.commands.surroundings import Port, around
from bireme.commands.voice import CommandFailure, Voice, run_command
from bireme.commands.waiting import wait_for_end
from bireme.slurm.options.batch import BatchSubmission, read_batch, script_of
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.catalogue.words import SUBMISSION_FAILED
from bireme.slurm.options.layers import peek


def main(argv: list[str]) -> int:
    return run_command("sbatch", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    written = peek(Command.SBATCH, argv)
    if answer := answered_at_once(Command.SBATCH, written):
        around().write(answer)
        return 0
    context = submit_context(Command.SBATCH, argv)
    batch = read_batch(argv, read_named_script(argv, written.get("chdir")), context)
    waits_here = batch.options.flag("wait") and not around().leaves_waiting
    if waits_here or any(request.spec.get_user_env for request in batch.requests):
        around().only_near()  # it waits, or runs the submitter's login shell
    quiet = any(options.flag("quiet") for options in batch.components)
    voice = Voice("sbatch", quiet=quiet, verbose=batch.options.times("verbose"))
    for notice in batch.notices:
        voice.say(notice)
    tell_options(voice, batch.options)
    transport = around().port(acts=True)
    tell_of_engine(voice, transport, batch.components)
    return _send(transport, batch, voice)


def answered_at_once(command: Command, written: dict[str, str | None]) -> str:
    """The text that --help, --usage or --version asks for; empty when none does."""
    if "help" not in written and "usage" not in written and "version" not in written:
        return ""
    # Late: the help text is made from the whole catalogue, which no submission needs.
    from bireme.slurm.options.catalogue.help import help_text, usage_text
    from bireme.slurm.version import VERSION_LINE

    if "version" in written:
        return VERSION_LINE + "\n"
    return help_text(command) if "help" in written else usage_text(command)


def read_named_script(argv: Sequence[str], chdir: str | None) -> bytes | None:
    """The bytes of the script on this command line; None with --wrap."""
    name = script_of(argv)
    if name is None:
        return None
    places = script_places(name, chdir or "") if name else ()
    try:
        return around().read_file(*places, name)
    except IsADirectoryError:
        return b""
    except OSError as error:
        raise CommandFailure(f"Unable to open file {name}") from error


def script_places(name: str, chdir: str) -> list[str]:
    """As Slurm looks for it: where the job will run, here, then along PATH. A name with . or / in front is itself."""
    if name.startswith(("/", ".")):
        return [posixpath.join(chdir, name), name]
    folders = [chdir, "", *around().environment.get("PATH", "").split(":")]
    return [posixpath.join(folder, name) for folder in folders]


def _send(transport: Port, batch: BatchSubmission, voice: Voice) -> int:
    requests = batch.requests
    if any(request.spec.get_user_env for request in requests):
        # Late: few jobs begin with a login, and sbatch starts often.
        from bireme.commands.submitting.login_environment import with_login_environment

        requests = with_login_environment(requests, voice)
    clusters = clusters_asked(transport, batch.options)
    body = submission_body(requests, batch.script, clusters)
    if batch.options.flag("test-only"):
        return test_only(transport, body, voice)
    job_id = submit(transport, body, SUBMISSION_FAILED[Command.SBATCH], voice)
    cluster = cluster_of(transport, job_id) if clusters else ""
    if voice.quiet:
        pass  # as in Slurm, also with --parsable
    elif batch.options.flag("parsable"):
        around().write(f"{job_id};{cluster}\n" if cluster else f"{job_id}\n")
    else:
        around().write(f"Submitted batch job {job_id}" + (f" on cluster {cluster}\n" if cluster else "\n"))
    around().flush()
    if not batch.options.flag("wait"):
        return 0
    if around().leaves_waiting:
        around().leave_waiting(str(job_id))
        return 0
    return wait_for_end(transport, str(job_id))
