"""The rest of a command that the daemon has answered: it waits for the job, and ends as that does (`sbatch --wait`).

`thin` comes here when all is printed. Apart from it, since hardly any command waits, and this imports what speaks with
the daemon for longer than one question.
"""

from __future__ import annotations

from bireme.cli.near import Process
from bireme.commands.surroundings import around, surrounded_by
from bireme.commands.voice import run_command
from bireme.commands.waiting import wait_for_end


def end_as(command: str, job: str) -> int:
    """The exit code of the job, once it has ended."""
    with surrounded_by(Process()):
        return run_command(command, lambda: wait_for_end(around().port(acts=True), job))
