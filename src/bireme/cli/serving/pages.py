"""What is shown of services, as text: records in, lines out. Nothing here asks the daemon or reads a file.

`tails` are the last lines of replicas' output by job, which the caller read with the user's own rights.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bireme.core.scaling.wording import replicas
from bireme.slurm.times import format_elapsed

Record = dict[str, Any]
Stamp = Callable[[float], str]
Tails = Mapping[int, Sequence[str]]
WIDTH, LABEL = 100, 12
_CRASHES = 3
_REVISIONS = 5


def services_table(services: Sequence[Record]) -> Iterator[str]:
    """One line for each service, under a heading."""
    if not services:
        yield "there are no services; `bireme serve SCRIPT` makes one"
        return
    rows = [("NAME", "USER", "STATE", "READY", "BOUNDS", "REVISION", "ADDRESS"), *(_row(each) for each in services)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(service: Record) -> tuple[str, ...]:
    return (
        service["name"],
        service["user_name"],
        service["state"],
        f"{service['ready']}/{service['wanted']}",
        bounds(service),
        str(service["revision"]),
        service["url"],
    )


def bounds(service: Record) -> str:
    least, most = service["replicas_min"], service["replicas_max"]
    return str(least) if least == most else f"{least}-{most}"


class RouterWords(NamedTuple):
    """What is to be said of the router: at most one sentence of each."""

    problems: Sequence[str] = ()
    """Why there is none that answers."""
    warnings: Sequence[str] = ()
    """What is not well with one that does."""

    def lines(self) -> Iterator[str]:
        for text in self.problems:
            yield f"which cannot be reached: {text}; see: bireme doctor"
        for text in self.warnings:
            yield f"{text}; see: bireme doctor"


_NOTHING_SAID = RouterWords()


def service_page(service: Record, now: float, tails: Tails, router: RouterWords = _NOTHING_SAID) -> Iterator[str]:
    """All of one service."""
    yield f"Service {service['name']} of {service['user_name']}: {standing_text(service)}"
    yield from _labelled("Address", [service["url"] or "none: there is no router yet"])
    yield from _labelled("", router.lines())
    if not service["keys"]:
        yield from _labelled("", [f"for this machine alone; bireme service key add {service['name']} lets others in"])
    yield from _labelled("Replicas", [_how_many(service)])
    yield from _labelled("Load", _load(service))
    yield from _labelled("Reasons", (_reason(each, now, tails) for each in service["reasons"]))
    yield from _labelled("Crashes", _crashes(service, now, tails))
    yield from _labelled("Revisions", (_revision(each, now) for each in reversed(service["revisions"][-_REVISIONS:])))
    if service["replicas"]:
        yield ""
        yield from _replicas(service["replicas"], now)


def standing_text(service: Record) -> str:
    ready, wanted = service["ready"], service["wanted"]
    more = f"{ready} ready, {wanted} wanted" if ready > wanted else f"{ready} of {wanted} ready"
    return f"{service['state']}, {more}"


def why_lines(service: Record, now: float, tails: Tails, router: RouterWords = _NOTHING_SAID) -> Iterator[str]:
    """What `bireme why NAME` says of it."""
    yield f"Service {service['name']} of {service['user_name']}: {standing_text(service)}"
    yield from _labelled("Wanted", [_how_many(service)])
    yield from _labelled("Load", _load(service))
    yield from _labelled("Reasons", (_reason(each, now, tails) for each in service["reasons"]))
    if not service["reasons"]:
        yield from _labelled("Reasons", ["none: it has all that it wants"])
    if said := list(router.lines()):
        yield from _labelled("Address", [service["url"] or "none: there is no router yet", *said])
    yield from _labelled("Crashes", _crashes(service, now, tails))


def _how_many(service: Record) -> str:
    fixed = (
        f"; fixed, until its next revision or bireme service scale {service['name']} auto" if service["fixed"] else ""
    )
    of = bounds(service).replace("-", " to ")
    return f"{service['wanted']} wanted (asked for: {of}): {service['wanted_why']}{fixed}"


def _load(service: Record) -> Iterator[str]:
    """What is measured, and what the autoscaler says of it now, where that is more than what it said last."""
    scaling = service.get("scaling") or {}
    for figure in scaling.get("figures", ()):
        if figure["stable"] is not None:
            needs = replicas(figure["needs"])
            yield f"{figure['stable']:.3g} {figure['counted']}, one replica for each {figure['target']:g}: {needs}"
    if scaling and scaling["why"] != service["wanted_why"]:
        yield f"the autoscaler says: {replicas(scaling['wanted'])}: {scaling['why']}"


def _reason(reason: Record, now: float, tails: Tails) -> str:
    text = str(reason["text"])
    if reason["since"] is not None:
        text += f" That was {format_elapsed(max(0, int(now - reason['since'])))} ago."
    if reason["until"] is not None:
        text += f" The next is made in {format_elapsed(max(0, int(reason['until'] - now)))}."
    last = tails.get(reason["job_id"] or 0, ())
    if reason["kind"] == "loading" and last:
        text += f' Its last line: "{last[-1]}"'
    return text


def _crashes(service: Record, now: float, tails: Tails) -> Iterator[str]:
    for crash in reversed(service["crashes"][-_CRASHES:]):
        ago = format_elapsed(max(0, int(now - crash["at"])))
        told = "exit code" in crash["why"] or crash["exit_signal"]
        code = "" if told or not crash["exit_code"] else f" (exit code {crash['exit_code']})"  # 0: Bireme ended it
        who = f"replica {crash['replica']} (revision {crash['revision']}"
        job = f", job {crash['job_id']}" if crash["job_id"] else ""
        yield f"{who}{job}) {ago} ago: {crash['why']}{code}"
        yield from (f"  | {line}" for line in tails.get(crash["job_id"] or 0, ()))


def _revision(revision: Record, now: float) -> str:
    ago = format_elapsed(max(0, int(now - revision["at"])))
    part = f" with {revision['canary_percent']}% of the requests" if revision["canary_percent"] else ""
    why = f": {revision['why']}" if revision["why"] else ""
    counts = f", {revision['ready']} of {revision['replicas']} ready" if revision["replicas"] else ""
    return f"{revision['number']} {revision['phase']}{part}{counts}, by {revision['by']} {ago} ago{why}"


def _replicas(replicas: Sequence[Record], now: float) -> Iterator[str]:
    rows = [("REPLICA", "REVISION", "JOB", "JOBSTATE", "STATE", "SINCE", "NODE", "PORT")]
    for each in replicas:
        since = each["draining_since"] or each["since"]
        job = str(each["job_id"]) if each["job_id"] else "-"
        rows.append(
            (
                str(each["number"]), str(each["revision"]), job, each["job_state"] or "-", each["state"],
                format_elapsed(max(0, int(now - since))), each["node"] or "-", str(each["port"]),
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def event_line(event: Record, stamp: Stamp) -> str:
    """One event of a service's story."""
    said = dict(event["data"])
    said.pop("name", None)
    told = _EVENTS.get(event["kind"])
    text = told(said) if told is not None else event["kind"]
    return f"{stamp(event['at'])}  {text}"


def _deployed(said: Record) -> str:
    return f"revision {said['number']} was made by {said['by']}"


def _backed_off(revision: int, back_off: Record) -> str:
    """A first crash is followed by another try at once."""
    if back_off["until"] <= back_off["since"]:
        return f"revision {revision} is tried again at once: {back_off['why']}"
    return f"replicas of revision {revision} are held back: {back_off['why']}"


_EVENTS: dict[str, Callable[[Record], str]] = {
    "ServiceDeployed": _deployed,
    "ServiceScaled": lambda said: (
        f"{replicas(said['wanted'])} {'is' if said['wanted'] == 1 else 'are'} wanted: {said['why']}"
    ),
    "ServiceStopping": lambda said: f"{said['by']} stops it",
    "ServiceRemoved": lambda said: "it is gone",
    "ServiceKeyAdded": lambda said: f"key {said['key']['id']} was made by {said['key'].get('made_by', '?')}",
    "ServiceKeyRevoked": lambda said: f"key {said['key_id']} was revoked by {said['by']}",
    "RevisionChosen": lambda said: f"revision {said['number']} was chosen by {said['by']}",
    "RevisionShifted": lambda said: (
        f"revision {said['number']} has {said['percent']}% of the requests, by {said['by']}"
    ),
    "RevisionSettled": lambda said: f"revision {said['number']} serves",
    "RevisionRetired": lambda said: f"revision {said['number']} is retired",
    "RevisionFailed": lambda said: f"revision {said['number']} was given up: {said['why']}",
    "RevisionBackedOff": lambda said: _backed_off(said["number"], said["back_off"]),
    "ReplicaAdded": lambda said: (
        f"replica {said['replica']} of revision {said['revision']}: job {said['job_id']}, port {said['port']}"
    ),
    "ReplicaQueued": lambda said: f"replica {said['replica']} is job {said['job_id']}",
    "ReplicaHealthChanged": lambda said: f"replica {said['replica']} is {said['health']}{_because(said)}",
    "ReplicaDraining": lambda said: f"replica {said['replica']} drains{_because(said)}",
    "ReplicaWithdrawn": lambda said: f"replica {said['replica']} gets no more requests",
    "ReplicaEnding": lambda said: f"replica {said['replica']} is being ended",
    "ReplicaGone": lambda said: f"replica {said['replica']} is gone{_crash_of(said)}",
}


def _because(said: Record) -> str:
    return f": {said['why']}" if said.get("why") else ""


def _crash_of(said: Record) -> str:
    crash = said.get("crash")
    return f": it crashed, {crash.get('why') or 'nobody asked for its end'}" if crash else _because(said)


def keys_table(keys: Sequence[Record], stamp: Stamp) -> Iterator[str]:
    if not keys:
        yield "it has no keys: this machine alone may send requests"
        return
    rows = [("KEY", "MADE", "BY", "PER MINUTE", "AT ONCE", "NOTE")]
    for key in keys:
        limits = (key["requests_per_minute"], key["max_concurrency"])
        shown = tuple("-" if limit is None else str(limit) for limit in limits)
        rows.append((key["id"], stamp(key["made_at"]), key["made_by"], *shown, key["note"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _labelled(label: str, texts: Iterator[str] | list[str]) -> Iterator[str]:
    for text in texts:
        body = text.lstrip()
        indent = " " * (len(text) - len(body))
        yield from textwrap.wrap(
            body,
            WIDTH,
            initial_indent=f"{label:<{LABEL}}{indent}",
            subsequent_indent=" " * LABEL + indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        label = ""
