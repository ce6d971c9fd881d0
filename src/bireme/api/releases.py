"""Which processes of the cluster are of another release than its daemon, for `GET /v1/ping`.

Agents, gatherers and the router outlive the daemon, and so an upgrade: what the new release can do, they cannot. Not
here: what to do about it (`cli/lifecycle.releases_words`), and what each of them says to be (its first message).
Invariant: where nodes are hidden from who asks, only their number is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.requests import Request

from bireme.api.routing import Context
from bireme.slurm.hostlist import compress


def other_releases(api: Context, request: Request) -> list[dict[str, Any]]:
    """`part` (`agent`, `gatherer`, `router`), its `release`, how many there are, and the `nodes` that they are of."""
    own, shows = api.service.version, not api.viewer(api.caller(request)).hidden("nodes")
    told = []
    for part, release, nodes in [*_agents(api), *_gatherers(api), *_router(api)]:
        if release != own:
            count = max(1, len(nodes))
            told.append({"part": part, "release": release, "count": count, "nodes": compress(nodes) if shows else ""})
    return told


def _agents(api: Context) -> Iterator[tuple[str, str, list[str]]]:
    if api.cluster.engine.capabilities.agents is not None:  # of others a node tells the release of what it runs there
        nodes = api.cluster.state.nodes.values()
        yield from _by_release("agent", ((node.agent, node.name) for node in nodes))


def _gatherers(api: Context) -> Iterator[tuple[str, str, list[str]]]:
    if (telemetry := api.service.telemetry()) is not None:
        yield from _by_release("gatherer", ((each.release, each.node) for each in telemetry.newest_rounds()))


def _router(api: Context) -> Iterator[tuple[str, str, list[str]]]:
    about = api.service.router()
    if release := str(about.get("release") or ""):
        yield "router", release, []


def _by_release(part: str, known: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, list[str]]]:
    """`known`: release and node; without a release nothing is known of it yet."""
    found = defaultdict[str, list[str]](list)
    for release, node in known:
        if release:
            found[release].append(node)
    for release, nodes in sorted(found.items()):
        yield part, release, sorted(nodes)
