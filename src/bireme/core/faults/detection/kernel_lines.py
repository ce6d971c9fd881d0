"""Detectors over lines of a node's kernel: links that went down or flap, file systems that hang or cannot be written.

`heard` takes one line into what is remembered of a node; `judge` says what that comes to at a time. Delay: `nic_s` and
`filesystem_s` (a switch that restarts, a server that is moved: nobody wants to hear of it); none for a file system that
became read-only, a link that flaps and what the kernel itself calls corrupt. Pure.

Invariant: only the kernel's own lines come here; a program that writes such a line is not heard (`gather`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.faults.detection.told import Told
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

Remembered = TypeVar("Remembered")
_NIC = r"(?P<nic>[a-z][\w.-]*\d[\w.-]*):? "
_DOWN = re.compile(_NIC + r"(?:(?:NIC )?[Ll]ink (?:is )?[Dd]own|carrier lost)")
_UP = re.compile(_NIC + r"(?:NIC )?[Ll]ink (?:is )?[Uu]p")
_VIRTUAL = re.compile(r"^(?:veth|docker|br-|virbr|cali|cni|flannel|vxlan|tun|tap|lo$|bond)")
_FAST = re.compile(r"^(?:ib|mlx|hsn|opa|roce|efa)")
"""Names of networks that collectives go over."""
_SERVER_AWAY = re.compile(r"(?:nfs|NFS|Lustre\w*): .*?server (?P<server>\S+).*?not responding", re.DOTALL)
_SERVER_BACK = re.compile(r"(?:nfs|NFS|Lustre\w*): .*?server (?P<server>\S+).*?\bOK\b", re.IGNORECASE)
_READ_ONLY = re.compile(r"[Rr]emounting filesystem read-only|XFS .*[Ss]hutting down|EXT4-fs error|XFS .*[Cc]orrupt")
_HUNG = re.compile(r"INFO: task (?P<task>\S+?):\d+ blocked for more than (?P<s>\d+) seconds")
_FLAPS_WITHIN_S = 600.0
_CALM_S = 1_800.0
"""A link that has not gone down for so long does not flap any more; hung tasks are said every two minutes."""
_HUNG_CALM_S = 300.0
_MOST = 64
"""Links and servers of one node that are remembered."""


@dataclass(frozen=True, slots=True)
class Link:
    downs: tuple[Told, ...] = ()
    """Within the last `_CALM_S`, newest last."""
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What the kernel of one node said and what still counts."""

    links: Mapping[str, Link] = field(default_factory=dict)
    away: Mapping[str, Told] = field(default_factory=dict)
    """File servers that do not answer, by the line that said so first."""
    broken: Told | None = None
    """A file system went read-only or is corrupt."""
    hung: tuple[Told, ...] = ()
    over: frozenset[str] = frozenset()
    """Detectors of which the kernel has said that something is well again: without it nobody knows."""


def heard(before: Heard, told: Told) -> Heard:
    """With one line more; as it was where the line says nothing of these."""
    assert told.kind == "kernel"
    if _READ_ONLY.search(told.text):
        return replace(before, broken=before.broken or told)
    if found := _SERVER_AWAY.search(told.text):
        return replace(before, away=_bounded({**before.away, found["server"]: before.away.get(found["server"], told)}))
    if found := _SERVER_BACK.search(told.text):
        left = {name: line for name, line in before.away.items() if name != found["server"]}
        return replace(before, away=left, over=before.over | {"filesystem"})
    if _HUNG.search(told.text):
        return replace(before, hung=(*before.hung, told)[-_MOST:])
    if found := _DOWN.search(told.text):
        return _with_link(before, found["nic"], told, is_down=True)
    if found := _UP.search(told.text):
        after = _with_link(before, found["nic"], told, is_down=False)
        return replace(after, over=before.over | {"nic"}) if after is not before else before
    return before


def _with_link(before: Heard, nic: str, told: Told, *, is_down: bool) -> Heard:
    if _VIRTUAL.match(nic):
        return before
    known = before.links.get(nic, Link())
    recent = tuple(each for each in known.downs if told.at - each.at < _CALM_S)
    link = Link((*recent, told)[-_MOST:] if is_down and not known.is_down else recent, is_down)
    return replace(before, links=_bounded({**before.links, nic: link}))


def _bounded(known: dict[str, Remembered]) -> dict[str, Remembered]:
    return dict(list(known.items())[-_MOST:])


def judge(node: str, known: Heard, thresholds: Thresholds, since: float, now: float) -> list[o.Observation]:
    """What is wrong there, and what is not any more. `since`: all of the kernel's lines from then on were heard."""
    found: list[o.Observation] = []
    if thresholds.on("nic"):
        found += _seen_or_gone("nic", node, _link_down(node, known, thresholds, now), "nic" in known.over, now)
        found += _seen_or_gone(
            "nic.flaps", node, _link_flaps(node, known, thresholds, now), now - since >= _CALM_S, now
        )
    if thresholds.on("filesystem"):
        found += _seen_or_gone(
            "filesystem", node, _file_system(node, known, thresholds, now), "filesystem" in known.over, now
        )
        found += _seen_or_gone("filesystem.hung", node, _hung(node, known, now), now - since >= _HUNG_CALM_S, now)
    return found


def _seen_or_gone(
    detector: str, node: str, trouble: Trouble | None, is_over: bool, now: float
) -> Iterator[o.Observation]:
    if trouble is not None:
        assert trouble.detector == detector or trouble.lasts
        yield o.TroubleSeen(trouble, now)
    elif is_over:
        yield o.TroubleGone(detector=detector, place=Place(node=node), at=now, why="the kernel said that it is over")


def _link_down(node: str, known: Heard, thresholds: Thresholds, now: float) -> Trouble | None:
    down = {nic: link.downs[-1] for nic, link in known.links.items() if link.is_down and link.downs}
    late = {nic: line for nic, line in down.items() if now - line.at >= thresholds.nic_s}
    if not late:
        return None
    fast = any(_FAST.match(nic) for nic in late)
    return _trouble(
        "nic",
        node,
        Gravity.BROKEN if fast else Gravity.DEGRADED,
        "interconnect" if fast else "network_unreachable",
        f"Network link down: {', '.join(sorted(late))}",
        list(late.values()),
        "Look at cable, transceiver and the port of the switch; ip link says what the node sees.",
    )


def _link_flaps(node: str, known: Heard, thresholds: Thresholds, now: float) -> Trouble | None:
    for nic, link in known.links.items():
        lately = [line for line in link.downs if now - line.at < _CALM_S]
        for last in range(thresholds.nic_flaps - 1, len(lately)):
            if lately[last].at - lately[last - thresholds.nic_flaps + 1].at <= _FLAPS_WITHIN_S:
                title = f"Network link {nic} flaps: down {len(lately)} times in half an hour"
                remedy = "Replace cable or transceiver: a link that flaps costs collectives minutes each time."
                return _trouble("nic.flaps", node, Gravity.DEGRADED, "interconnect", title, lately, remedy)
    return None


def _file_system(node: str, known: Heard, thresholds: Thresholds, now: float) -> Trouble | None:
    if known.broken is not None:
        remedy = "Take the node out, look at the disk (smartctl, dmesg), and check the file system before mounting it."
        title = "A file system became read-only or is damaged"
        trouble = _trouble("filesystem", node, Gravity.BROKEN, "disk_read_only", title, [known.broken], remedy)
        return replace(trouble, lasts=True)
    late = {name: line for name, line in known.away.items() if now - line.at >= thresholds.filesystem_s}
    if not late:
        return None
    title = f"A file server does not answer: {', '.join(sorted(late))}"
    remedy = "Look at the server and at the way to it; jobs on the node wait in uninterruptible sleep meanwhile."
    return _trouble("filesystem", node, Gravity.BROKEN, "storage_stale", title, list(late.values()), remedy)


def _hung(node: str, known: Heard, now: float) -> Trouble | None:
    lately = [line for line in known.hung if now - line.at < _HUNG_CALM_S]
    if not lately:
        return None
    title = "Programs hang in the kernel, as on a file system or device that does not answer"
    remedy = "The next lines of dmesg say where they hang; a hung mount is found by: timeout 5 stat on each."
    return _trouble("filesystem.hung", node, Gravity.DEGRADED, "storage_stale", title, lately, remedy)


def _trouble(
    detector: str, node: str, gravity: Gravity, cause: str, title: str, lines: list[Told], remedy: str
) -> Trouble:
    quotes = tuple(Quote(text=line.text, source="kernel", at=line.at, node=line.node) for line in lines[-3:])
    return Trouble(
        detector=detector,
        place=Place(node=node),
        gravity=gravity,
        cause=cause,
        title=title,
        since=min(line.at for line in lines),
        quotes=quotes,
        remedy=remedy,
        lasts=False,
    )
