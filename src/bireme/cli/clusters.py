"""--clusters (-M): which of the daemon's clusters is meant, where an engine stands beside another.

Called by the commands that take it. Invariant: a name that no cluster has is refused in Slurm's words, and nothing is
asked or submitted.
"""

from __future__ import annotations

from bireme.client.transport import Transport

ALL = "all"


class UnknownClusterError(Exception):
    """`str()`: what Slurm's commands say, a line each."""


def chosen_clusters(transport: Transport, text: str) -> list[str]:
    """The clusters that `-M text` names, in its order; `all` is every one."""
    known = [str(name) for name in transport.get("/v1/ping")["clusters"]]
    named = list(dict.fromkeys(word for word in text.split(",") if word))
    if ALL in named:
        return known
    for name in named:
        if name not in known:
            raise UnknownClusterError(
                f"No cluster '{name}' known by database.\n"
                f"'{name}' can't be reached now, or it is an invalid entry for --cluster.  "
                "Use 'sacctmgr list clusters' to see available clusters."
            )
    return named
