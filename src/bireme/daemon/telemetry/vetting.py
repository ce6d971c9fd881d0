"""What a node of another machine may say: held against its size, its own name and the jobs that run there. Pure.

Called by `outer_door` with every message before anybody else sees it; `door` has sizes and numbers checked here too. A
node that lies can tell wrong figures of itself, of its GPUs and of jobs that have it; of nothing else.
Invariant: what leaves here names one node, the speaker's, and jobs only as the daemon knows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bireme.daemon.telemetry.intake import MOST_NO
from bireme.gather.messages import AnyTold, Devices, Frame, Happening, Hello, ProtocolError, Round, Value

MOST_LATE_S = 8 * 86_400.0
"""A round that waited longer with its node is not kept."""
_EARLY_S = 60.0
_MOST_FRAMES, _MOST_FRAMES_HERE = 64, 4_096
"""In one round: of a node; of a machine that may have many virtual ones."""
_MOST_SUBJECTS = 20_000
_MOST_DEVICES = 512
_MOST_HELD = 8 * _MOST_DEVICES
"""GPUs that pods have, each counted once for every pod that has a part of it."""
_MOST_HAPPENINGS = 1_000
_MOST_NAME = 128
_MOST_NUMBER = 2**31
"""Of a process, or an Xid."""
_MOST_S = 2.0**40
_SHORTEST_S, _LONGEST_S = 0.1, 3_600.0
_TASK = re.compile(
    r"(?P<name>[1-9]\d{0,9}|pod-[0-9a-f-]{32,64})\.0\.(?P<step>-?\d{1,10})\.(?P<task>\d{1,7})(?P<gpu>@[\w./:-]{1,128})?"
)

_POD = re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")


class Start(NamedTuple):
    """A start of a job, as the daemon numbers both."""

    job_id: int
    generation: int


def vetted(told: AnyTold, machine: str) -> AnyTold:
    """A message of the node `machine` as it is, or without what is too old to be kept. Raises ProtocolError."""
    if isinstance(told, Devices):
        return _vetted_devices(told, machine)
    if isinstance(told, Round):
        return _vetted_round(told, machine)
    assert isinstance(told, Hello), "there are three kinds"
    raise ProtocolError("a second hello")


def bounded(told: AnyTold) -> AnyTold:
    """A message of this machine's own gatherer, which may speak of several nodes: nothing in it is larger than what a
    node of another machine may say. Raises ProtocolError."""
    if isinstance(told, Devices):
        if told.held:
            raise ProtocolError("GPUs of pods, on a machine that has none")
        return _bounded_devices(told)
    if isinstance(told, Round):
        _check_round(told, _MOST_FRAMES_HERE)
        if not 0.0 <= told.at < _MOST_S:
            raise ProtocolError("a round of no time")
        return _timely(told) if told.sent else told
    raise ProtocolError("a second hello")


def check_name(*texts: str) -> None:
    """Raises ProtocolError for what is too long for a name, or cannot be shown."""
    _short(*texts)


def names_in(told: Round | Devices) -> set[str]:
    """The jobs and pods that it speaks of, as its cluster names them. Raises ProtocolError."""
    if isinstance(told, Devices):
        return {each.holder for each in told.held}
    ids = [each for frame in told.frames if frame.about in ("task", "use") for each in frame.ids]
    ids += [happening.task for happening in told.happenings if happening.task]
    return {_parts(each)["name"] for each in ids}


def renamed(told: Round | Devices, starts: Mapping[str, Start]) -> Round | Devices:
    """With the daemon's names of jobs; what is of no job is not in it. `starts`: what `names_in` found are these."""
    if isinstance(told, Devices):
        held = [
            msgspec.structs.replace(each, holder=f"{start.job_id}.{start.generation}")
            for each in told.held
            if (start := starts.get(each.holder)) is not None
        ]
        return msgspec.structs.replace(told, held=held)
    frames = [kept for frame in told.frames if (kept := _renamed_frame(frame, starts)).ids]
    happenings = [_renamed_happening(each, starts) for each in told.happenings]
    return msgspec.structs.replace(told, frames=frames, happenings=happenings)


def _vetted_devices(told: Devices, machine: str) -> Devices:
    for device in told.devices:
        _own(device.node, machine)
    if len(told.held) > _MOST_HELD or not all(_POD.fullmatch(each.holder) for each in told.held):
        raise ProtocolError("GPUs of more pods than a node has, or of what is no pod")
    return _bounded_devices(told)


def _bounded_devices(told: Devices) -> Devices:
    if len(told.devices) > _MOST_DEVICES or len(told.slurm_files) > _MOST_DEVICES:
        raise ProtocolError(f"{len(told.devices)} GPUs on one machine")
    for device in told.devices:
        _short(device.node, device.uuid, device.model, device.pci_bus_id, device.driver, device.parent, device.profile)
    _short(*told.slurm_files)
    return told


def _vetted_round(told: Round, machine: str) -> Round:
    _check_round(told, _MOST_FRAMES)
    if not told.sent:
        raise ProtocolError("a round that does not say when it was sent")
    for frame in told.frames:
        _vet_frame(frame, machine)
    for happening in told.happenings:
        _own(happening.node, machine)
    return _timely(told)


def _timely(told: Round) -> Round:
    """Without what is too old to be kept, or was not yet."""
    if -_EARLY_S <= told.sent - told.at <= MOST_LATE_S:
        return told
    return msgspec.structs.replace(told, frames=[], happenings=[])


def _check_round(told: Round, most_frames: int) -> None:
    if len(told.frames) > most_frames or sum(len(frame.ids) for frame in told.frames) > _MOST_SUBJECTS:
        raise ProtocolError("more subjects than a machine has")
    if not 1 <= told.no < MOST_NO or not 0.0 <= told.sent < _MOST_S or not _SHORTEST_S <= told.interval_s <= _LONGEST_S:
        raise ProtocolError("a round without its number, interval or time")
    if len(told.happenings) > _MOST_HAPPENINGS:
        raise ProtocolError(f"{len(told.happenings)} happenings in one round")
    for frame in told.frames:
        _short(frame.node, *frame.ids)
    for happening in told.happenings:
        _short(happening.node, happening.uuid, happening.task)
        if not 0.0 <= happening.at < _MOST_S or not 0 <= happening.pid < _MOST_NUMBER > abs(happening.code):
            raise ProtocolError("a happening without its time, or of a process that cannot be")


def _vet_frame(frame: Frame, machine: str) -> None:
    _own(frame.node, machine)
    if frame.about == "node" and frame.ids != [machine]:
        raise ProtocolError("figures of another machine as a whole")
    if frame.about == "gpu" and len(frame.ids) > _MOST_DEVICES:
        raise ProtocolError(f"{len(frame.ids)} GPUs on one machine")


def _own(node: str, machine: str) -> None:
    if node != machine:
        raise ProtocolError(f"{machine} speaks of node {node[:_MOST_NAME]!r}")


def _short(*texts: str) -> None:
    if any(len(text) > 2 * _MOST_NAME for text in texts):
        raise ProtocolError("a name that is too long")
    if not all(text.isprintable() for text in texts):
        raise ProtocolError("a name that cannot be shown")


def _parts(text: str) -> re.Match[str]:
    found = _TASK.fullmatch(text)
    if found is None:
        raise ProtocolError(f"{text[:_MOST_NAME]!r} is no task of a cluster's node")
    return found


def _renamed_task(text: str, starts: Mapping[str, Start]) -> str:
    """Empty: of no job."""
    parts = _parts(text)
    start = starts.get(parts["name"])
    if start is None:
        return ""
    return f"{start.job_id}.{start.generation}.{parts['step']}.{parts['task']}{parts['gpu'] or ''}"


def _renamed_frame(frame: Frame, starts: Mapping[str, Start]) -> Frame:
    if frame.about not in ("task", "use"):
        return frame
    names = [_renamed_task(each, starts) for each in frame.ids]
    kept = [index for index, name in enumerate(names) if name]

    def only(column: list[Value]) -> list[Value]:
        return [column[index] for index in kept]

    for name, column in frame.columns.items():
        if len(column) != len(frame.ids):
            raise ProtocolError(f"{len(column)} values of {name[:_MOST_NAME]} for {len(frame.ids)} subjects")
    if frame.ages and len(frame.ages) != len(frame.ids):
        raise ProtocolError(f"{len(frame.ages)} ages of {len(frame.ids)} subjects")
    columns = {name: only(column) for name, column in frame.columns.items()}
    ages = [frame.ages[index] for index in kept] if frame.ages else []
    return msgspec.structs.replace(frame, ids=[names[index] for index in kept], columns=columns, ages=ages)


def _renamed_happening(told: Happening, starts: Mapping[str, Start]) -> Happening:
    return msgspec.structs.replace(told, task=_renamed_task(told.task, starts)) if told.task else told
