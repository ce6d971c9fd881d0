"""Before anything is done on a cluster: is it new enough, and is it the one that this home's jobs are on?

Called by the engine when it starts. Invariant: what is refused is said in one sentence, with what to do.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bireme.engines.kubernetes.apiserver.api import OLDEST, TESTED, ApiProblem, KubernetesApi

log = logging.getLogger("bireme.engines.kubernetes")


async def check_version(api: KubernetesApi) -> None:
    """Raises ApiProblem for a Kubernetes that lacks what is needed."""
    found = await api.version()
    words = f"{api.server} runs Kubernetes {_dotted(found)}"
    if found < OLDEST:
        raise ApiProblem(
            f"{words}; Bireme needs {_dotted(OLDEST)} or newer, and is tested with {_dotted(TESTED)}: "
            "upgrade the cluster, or name another with --context"
        )
    if found < TESTED:
        log.warning("%s; Bireme is tested with %s", words, _dotted(TESTED))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_same_cluster(api: KubernetesApi, file: Path) -> None:
    """Jobs of one cluster are nothing that another could find: all would count as lost. Raises ApiProblem.

    `file`: where the home remembers its cluster: its authority, and how it was called.
    """
    authority = api.authority()
    known, _, server = file.read_text().partition(" ") if file.exists() else ("", "", "")
    if known and authority and known != authority:
        raise ApiProblem(
            f"the jobs of this home are on another Kubernetes cluster ({server.strip()}), not on {api.server}: "
            "give each cluster a home of its own (--home DIR); "
            f"if it is the same one with new certificates, remove {file}"
        )
    if authority and not known:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{authority} {api.server}\n")
