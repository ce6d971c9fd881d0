"""--clusters (-M) and SLURM_CLUSTERS: which of the daemon's clusters is meant, where an engine stands beside another.

Called by the commands that take it. Invariant: a name that no cluster has is refused in Slurm's words, and nothing is
asked or submitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bireme.commands.surroundings import Port

ALL = "all"
VARIABLE = "SLURM_CLUSTERS"
"""What it names is meant where no -M is given."""


class UnknownClusterError(Exception):
    """`str()`: what Slurm's commands say, a line each."""

    def said_by(self, command: str) -> str:
        return "\n".join(f"{command}: error: {line}" for line in str(self).splitlines())


def chosen_clusters(transport: Port, text: str, said_in: str = "--cluster") -> list[str]:
    """The clusters that `-M text` (or a variable, `said_in`) names, in its order: at least one; `all` is every one."""
    known = [str(name) for name in transport.get("/v1/ping")["clusters"]]
    named = list(dict.fromkeys(word for word in text.split(",") if word)) or [""]
    if ALL in named:
        return known
    unknown = [f"No cluster '{name}' known by database.\n" for name in named if name not in known]
    if unknown:
        raise UnknownClusterError(
            f"{''.join(unknown)}'{text}' can't be reached now, or it is an invalid entry for {said_in}.  "
            "Use 'sacctmgr list clusters' to see available clusters."
        )
    return named
