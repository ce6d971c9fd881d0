"""Tokens of nodes: who calls from another machine proves with one for which nodes it may speak.

A token is the nodes' names and a keyed hash over them, so none has to be stored and a restarted daemon knows them all.
The key is made once; whoever removes its file, and restarts the daemon, makes every token worthless.
Invariant: a token says nothing of a node that is not named in it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand

ALL = "*"
"""Instead of names: every node of the cluster. For Kubernetes, where one Secret serves all nodes."""
_MOST_BYTES = 32 * 1024


class TokenError(ValueError):
    """A token that lets nobody in, or names that make none; the text says why."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of one key."""

    key: bytes

    def made_for(self, nodes: str) -> str:
        """`nodes`: a hostlist as Slurm writes it, or `*`. Raises TokenError."""
        _names(nodes)
        return f"{nodes}:{self._sum(nodes)}"

    def nodes_of(self, token: str) -> frozenset[str] | None:
        """The nodes that its bearer may speak for; None: all. Raises TokenError."""
        nodes, _, proof = token[:_MOST_BYTES].rpartition(":")
        if not hmac.compare_digest(self._sum(nodes).encode(), proof.encode()):
            raise TokenError(
                "this is not a token of this cluster: `bireme node token` on the daemon's machine makes one"
            )
        return _names(nodes)

    def _sum(self, nodes: str) -> str:
        return hmac.new(self.key, b"bireme telemetry\0" + nodes.encode(), hashlib.sha256).hexdigest()


def _names(nodes: str) -> frozenset[str] | None:
    if nodes == ALL:
        return None
    if len(nodes) > _MOST_BYTES // 2:
        raise TokenError("these are too many names for one token")
    try:
        names = frozenset(expand(nodes))
    except SlurmSyntaxError as error:
        raise TokenError(f"{nodes!r} is not a list of nodes: {error}") from error
    if not names or ":" in nodes:
        raise TokenError(f"{nodes!r} names no node; name them as Slurm does (n[1-8]), or * for all")
    return names
