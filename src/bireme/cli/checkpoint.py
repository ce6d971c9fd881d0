"""bireme checkpoint: a job says that it has saved its work.

Called by scripts and training loops inside jobs. When others must make way, the planner ends those first that lose the
least: what a job did since it last said this, or since it started. Nothing is copied or looked at.
"""

from __future__ import annotations

import os

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.client.transport import BiremeError
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command


def main(argv: list[str]) -> int:
    return run_command("bireme checkpoint", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme checkpoint",
        description="Say that a job has saved its work. If it is preempted, only what it does from now on is lost.",
    )
    parser.add_argument("job", nargs="?", default=os.environ.get("SLURM_JOB_ID"), help="default: the job this runs in")
    job = parser.parse_args(argv).job
    if not job:
        raise CommandFailure("this is not inside a job: name one (bireme checkpoint 42)")
    with make_transport() as transport:
        try:
            transport.post(f"/v1/jobs/{job}/checkpoint")
        except BiremeError as error:
            raise refused_by_daemon(f"job {job}", error) from error
    return 0
