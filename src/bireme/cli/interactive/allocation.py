"""An interactive allocation while somebody holds it: waiting for it, its lease, giving it back.

Used by salloc and by an srun outside a job. The lease is a connection the daemon watches: when it breaks because
this process died, the allocation ends. It is read by a thread, which also learns that the job ended.
Invariant: `release` is safe to call in any state, any number of times.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable
from typing import Any

from bireme.cli.connection import PATIENCE_S
from bireme.client.transport import ApiError, BiremeError, BiremeUnavailable, Stream, Transport
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon

IMMEDIATE_FAILED = "Unable to allocate resources: Immediate execution impossible, insufficient priority"
_GIVES_UP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_AT_ONCE_S = 1.0
_WAIT_S = 300.0
_RESTART_S = 5.0
"""How long a daemon that is not there is waited for without a word."""
ENDED_STATES = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED DEADLINE BOOT_FAIL REVOKED".split()  # noqa: SIM905
)


class Interrupted(Exception):  # noqa: N818  (something that happened, not a fault)
    """A signal came while the allocation was waited for."""


class Allocation:
    """One interactive job of ours."""

    def __init__(self, transport: Transport, job_id: int, voice: Voice) -> None:
        self.transport = transport
        transport.patience_s = max(transport.patience_s, PATIENCE_S)
        self.job_id = job_id
        self.voice = voice
        self.ended = threading.Event()
        self.outcome = ""
        self._lease: Stream | None = None
        self._on_end: Callable[[], None] | None = None
        self._released = False

    # --- waiting -------------------------------------------------------------------------------------------

    def await_start_or_signal(self, immediate_s: int | None, *, announce_pending: bool) -> None:
        """As `await_start`; Ctrl-C and the like, while it waits, raise Interrupted."""

        def give_up(_number: int, _frame: object) -> None:
            raise Interrupted

        before = {number: signal.signal(number, give_up) for number in _GIVES_UP}
        try:
            self.await_start(immediate_s, announce_pending=announce_pending)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def await_start(self, immediate_s: int | None, *, announce_pending: bool) -> dict[str, Any]:
        """The job's record once it runs. Says that it waits when it does not start at once, as Slurm does."""
        patience = _AT_ONCE_S if immediate_s is None else float(max(immediate_s, _AT_ONCE_S))
        answer = self._wait(patience)
        if not answer["done"] and immediate_s is not None:
            self.release(0)
            raise CommandFailure(IMMEDIATE_FAILED)
        if not answer["done"]:
            if announce_pending:
                self.voice.say(f"Pending job allocation {self.job_id}")
            self.voice.say(f"job {self.job_id} queued and waiting for resources")
            while not answer["done"]:
                answer = self._wait(_WAIT_S)
            if not _is_over(answer["jobs"]):
                self.voice.say(f"job {self.job_id} has been allocated resources")
        if _is_over(answer["jobs"]):
            self.ended.set()
            raise CommandFailure(f"{self.voice.command}: Job allocation {self.job_id} has been revoked", bare=True)
        return dict(answer["jobs"][0])

    def _wait(self, timeout_s: float) -> Any:
        path = f"/v1/jobs/{self.job_id}/wait"
        params: dict[str, str | int | float | None] = {"until": "started", "timeout": timeout_s}
        try:
            return self.transport.get(path, params, timeout_s=timeout_s + 30)
        except BiremeUnavailable:
            # The daemon went away while we waited: the job is still in its journal, so wait for both.
            with Transport(self.transport.paths.home, patience_s=PATIENCE_S) as again:
                return again.get(path, {**params, "timeout": 0})

    def variables(self) -> dict[str, str]:
        """The SLURM_ variables of the allocation."""
        try:
            answer = self.transport.get(f"/v1/jobs/{self.job_id}/environment", {"scope": "allocation"})
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon(f"Unable to get the environment of job {self.job_id}", error) from error
        return dict(answer["variables"])

    # --- the lease -----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keeps the lease from now on."""
        self._lease = self.transport.stream(f"/v1/jobs/{self.job_id}/hold-open")
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def notify(self, on_end: Callable[[], None]) -> None:
        """Calls `on_end`, from another thread, when the job ended by other hands; at once if it did already."""
        self._on_end = on_end
        if self.ended.is_set():
            on_end()

    def _keep(self) -> None:
        while not self._released:
            try:
                assert self._lease is not None
                for line in self._lease.lines():
                    if line and json.loads(line).get("kind") == "JobEnding":
                        self._ended()
            except Exception:
                pass
            if self._released or self._find_out():
                return
            if not self._reconnect():
                self._ended()
                return

    def _find_out(self) -> bool:
        """Whether the job is over, once a daemon answers again."""
        try:
            with Transport(self.transport.paths.home, patience_s=PATIENCE_S) as fresh:
                records = fresh.get(f"/v1/jobs/{self.job_id}")["jobs"]
        except ApiError:
            records = []
        except BiremeUnavailable:
            return False
        if _is_over(records):
            self.outcome = str(records[0].get("state", "")) if records else ""
            self._ended()
            return True
        return False

    def _reconnect(self) -> bool:
        with contextlib.suppress(BiremeError):
            fresh = Transport(self.transport.paths.home, patience_s=PATIENCE_S)
            self._lease = fresh.stream(f"/v1/jobs/{self.job_id}/hold-open")
            return True
        return False

    def _ended(self) -> None:
        if not self._released and not self.ended.is_set():
            self.ended.set()
            if self._on_end is not None:
                self._on_end()

    def release(self, exit_code: int) -> None:
        """Gives it back, saying how its command ended."""
        if self._released:
            return
        self._released = True
        if not self.ended.is_set():
            body = {"exit_code": exit_code & 0xFF, "signal": 0}
            try:
                self._give_back(body)
            except BiremeError as error:
                self.voice.error(f"Unable to clean up job allocation {self.job_id}: {error}")
        if self._lease is not None:
            self._lease.close()

    def _give_back(self, body: dict[str, int]) -> None:
        """Waits for a daemon that is being restarted: what nobody gives back it ends, but not with our exit code."""
        path, home = f"/v1/jobs/{self.job_id}/complete", self.transport.paths.home
        try:
            with Transport(home, patience_s=_RESTART_S) as fresh:
                fresh.post(path, body)
        except BiremeUnavailable:
            self.voice.say(f"No daemon answers; trying for {PATIENCE_S:g} s to give back job allocation {self.job_id}")
            with Transport(home, patience_s=PATIENCE_S) as fresh:
                fresh.post(path, body)


def _is_over(records: list[dict[str, Any]]) -> bool:
    return all(record.get("state") in ENDED_STATES or record.get("state") == "COMPLETING" for record in records)
