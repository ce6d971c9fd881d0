"""Submissions that have been read, and which of them a body is: people submit the same in loops.

Each has an idempotency key of its own, which our clients write last; what stands before it, who sent it and the
configuration decide all the rest. `routes/submissions.py` asks here before it reads a body.

Invariant: what is found here is what reading the body would have given. A body whose beginning, key apart, was read as
a whole object with the key in it comes to the same with another key: nothing before the key can tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Caller

_KEY = b',"idempotency_key":"'
_END = b'"}'
_LONGEST_KEY = 64
_MOST = 32
_LARGEST = 32 * 1024
"""Bytes of a body that is remembered: a script and an environment."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One job, or all components of a heterogeneous one."""

    specs: tuple[JobSpec, ...]
    key: str = ""
    clusters: tuple[str, ...] = ()
    """Those that may have it; none: its partitions say which."""


@dataclass(frozen=True, slots=True)
class _Read:
    caller: Caller
    config: ClusterConfig
    submission: Submission
    blobs: tuple[bytes, ...]
    """The script and the environment that its specification names."""


class Submitted:
    """The last submissions that were read, of one job each."""

    def __init__(self, put: Callable[[bytes, int], str]) -> None:
        """`put`: keeps a blob until a job that names it is written."""
        self._put = put
        self._read: dict[bytes, _Read] = {}
        """By what stands before the key; the one that was remembered longest ago first."""

    def find(self, body: bytes, caller: Caller, config: ClusterConfig) -> Submission | None:
        """What `body` asks for, if it is known; its blobs are put again. Raises BlobShareError, as reading it would."""
        parts = _apart(body)
        known = None if parts is None else self._read.get(parts[0])
        if parts is None or known is None or known.config is not config:
            return None
        if known.caller is not caller and known.caller != caller:
            return None
        for blob in known.blobs:
            self._put(blob, caller.uid)
        return replace(known.submission, key=within_own(caller, parts[1]))

    def remember(
        self, body: bytes, caller: Caller, config: ClusterConfig, read: Submission, blobs: tuple[bytes, ...]
    ) -> None:
        """What `body` was read as. Its owner is the caller, and nothing but `config` was looked at."""
        parts = _apart(body)
        if parts is None or len(body) > _LARGEST:
            return
        assert len(read.specs) == 1
        assert not read.clusters
        self._read.pop(parts[0], None)
        if len(self._read) >= _MOST:
            del self._read[next(iter(self._read))]
        self._read[parts[0]] = _Read(caller, config, read, blobs)


def within_own(caller: Caller, key: str) -> str:
    """A key within the uid's own names: nobody can find out another's job id by guessing keys."""
    return f"{caller.uid}:{key}" if key else ""


def _apart(body: bytes) -> tuple[bytes, str] | None:
    """What stands before the key, and the key; None where that is not written as our clients do."""
    at = body.rfind(_KEY, -len(_KEY) - _LONGEST_KEY - len(_END))
    key = body[at + len(_KEY) : -len(_END)]
    if at < 0 or not body.endswith(_END) or not key.isalnum():
        return None
    return body[:at], key.decode()
