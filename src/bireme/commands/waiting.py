"""Waiting for a job that a command submitted: `sbatch --wait` ends when it does, and as it does.

Light, because it runs in the process of who asked, while the job starts: by `sbatch` itself where that runs near, else
by what is left of it when the daemon has taken the job (`cli/awaiting.py`).
"""

from __future__ import annotations

from typing import Any

from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import Port
from bireme.commands.voice import CommandFailure

_WAIT_S = 300.0
_EXIT_FIELDS = "state,exit_code,exit_signal"


def wait_for_end(transport: Port, job: str) -> int:
    """Until the job (every task, every component) ended; the largest exit code of them."""
    transport.patience_s = max(transport.patience_s, 60.0)
    path = path_of("jobs", job, "wait")
    while True:
        try:
            answer = transport.get(path, {"timeout": _WAIT_S, "fields": _EXIT_FIELDS}, timeout_s=_WAIT_S + 30)
        except BiremeUnavailable:
            # A daemon that stops closes its waiting requests; the next connection waits for it to come back.
            answer = transport.get(path, {"timeout": 0, "fields": _EXIT_FIELDS})
        except ApiError as error:
            raise CommandFailure(f"Job {job}: {error.message}") from error
        if answer["done"]:
            return max((exit_code_of(record) for record in answer["jobs"]), default=1)


def exit_code_of(record: dict[str, Any]) -> int:
    """A job's exit code for its waiter: what a signal, a limit or a cancellation ended counts as 1."""
    code = int(record.get("exit_code") or 0)
    if code:
        return code & 0xFF
    return 0 if record.get("state") == "COMPLETED" and not record.get("exit_signal") else 1
