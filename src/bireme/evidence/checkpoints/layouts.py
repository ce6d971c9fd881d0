"""What checkpoints look like on disk: each layout known by its own marks, and when one of it is whole.

A layout is asked about a folder (`of_folder`) or a file (`of_file`), and answers with what it found. Known are HF
Trainer's `checkpoint-500/`, torch.distributed.checkpoint (`.metadata`, written last), orbax (`_CHECKPOINT_METADATA`),
DeepSpeed and Megatron (a file beside the folders names the newest one), Lightning's `epoch=3-step=500.ckpt`, folders of
weights that a step's number names, and single files of weights.
Invariant: what a layout's own mark of its end is missing from is not whole, however large it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from bireme.evidence.checkpoints.files import TORCH, WEIGHTS, UnsoundError, check, is_temporary

_HF = re.compile(r"checkpoint-(\d+)\Z")
_STEP_FOLDER = re.compile(r"(?:global_?step|step|iter|iteration|epoch|ckpt|checkpoint|model)[-_=]?0*(\d+)", re.I)
_STEP_IN_NAME = re.compile(r"(?:global_?step|step|iter|iteration)[-_=]?0*(\d+)", re.I)
_NUMBER = re.compile(r"0*(\d+)\Z")
_DEEPSPEED, _MEGATRON = re.compile(r"global_step(\d+)\Z"), re.compile(r"iter_0*(\d+)\Z")
_ORBAX_MARKS = ("_CHECKPOINT_METADATA", "commit_success.txt")
_STATE = "trainer_state.json"
_MOST_STATE = 64 << 20
_MOST_FILES = 4_096
"""Of one checkpoint that are looked at; of a larger one the rest is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Something that looks like a checkpoint."""

    path: str
    layout: str
    saved_at: float = 0.0
    step: int | None = None
    size: int = 0
    wrong: str = ""
    """Why it is not whole; empty: it is."""
    proven: bool = False
    """Its own layout says that nothing is still written to it: its size need not be watched."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder's path, and what lies directly in it."""

    path: str
    files: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def has(self, *names: str) -> bool:
        return any(name in self.files for name in names)


def of_folder(folder: Folder, parent: Folder | None) -> Seen | None:
    """The checkpoint that a whole folder is; None: it is none, and what is in it may be."""
    for layout in (_distributed, _orbax, _trainer, _tracked, _numbered):
        seen = layout(folder, parent)
        if seen is not None:
            return seen
    return None


def of_file(path: str, *, asked: bool) -> Seen | None:
    """The checkpoint that a file is. `asked`: a person has named it, so that its name need not say so."""
    name = os.path.basename(path)
    if is_temporary(name) or not (asked or name.endswith(WEIGHTS)):
        return None
    layout = "lightning" if name.endswith(".ckpt") and "=" in name else "file"
    found = _STEP_IN_NAME.search(name)
    step = int(found[1]) if found else None
    try:
        status = check(path)
    except UnsoundError as error:
        return Seen(path=path, layout=layout, step=step, wrong=str(error), saved_at=_changed_at(path))
    proven = name.endswith(".safetensors") or (name.endswith(TORCH) and _is_archive(path))
    return Seen(path=path, layout=layout, saved_at=status.st_mtime, step=step, size=status.st_size, proven=proven)


# -- folders ---------------------------------------------------------------------------------------------------------


def _distributed(folder: Folder, parent: Folder | None) -> Seen | None:
    """torch.distributed.checkpoint, also below FSDP and Lightning: `.metadata` is put there when all ranks are done."""
    shards = [name for name in folder.files if name.endswith(".distcp")]
    if not shards and ".metadata" not in folder.files:
        return None
    wrong = "has no .metadata: not all ranks were done" if ".metadata" not in folder.files else ""
    wrong = wrong or ("has no shard" if not shards else "")
    return _whole(folder, "torch.distributed", _step_of(folder.name), wrong, shards, ".metadata")


def _orbax(folder: Folder, parent: Folder | None) -> Seen | None:
    if ".orbax-checkpoint-tmp" in folder.name:
        return Seen(path=folder.path, layout="orbax", wrong="was never committed", saved_at=_changed_at(folder.path))
    mark = next((name for name in _ORBAX_MARKS if name in folder.files), None)
    return _whole(folder, "orbax", _step_of(folder.name), "", (), mark) if mark is not None else None


def _trainer(folder: Folder, parent: Folder | None) -> Seen | None:
    """HF Trainer: weights first, `trainer_state.json` among the last; its `global_step` is the step."""
    named = _HF.match(folder.name)
    if named is None and _STATE not in folder.files:
        return None
    step, wrong = int(named[1]) if named else None, ""
    weights = [name for name in folder.files if name.endswith((*WEIGHTS, ".bin"))]
    if _STATE not in folder.files:
        wrong = f"has no {_STATE}: it was not written to its end"
    else:
        state = _json(os.path.join(folder.path, _STATE))
        said = state.get("global_step") if isinstance(state, dict) else None
        step = said if isinstance(said, int) and not isinstance(said, bool) else step
        wrong = f"has a damaged {_STATE}" if not isinstance(state, dict) else _missing_shards(folder)
    if not wrong and not weights and not folder.folders:
        wrong = "has no weights"
    return _whole(folder, "hf-trainer", step, wrong, weights, _STATE)


def _missing_shards(folder: Folder) -> str:
    """Large models are in several files, which an index names."""
    for name in folder.files:
        if not name.endswith(".index.json"):
            continue
        index = _json(os.path.join(folder.path, name))
        placed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(placed, dict):
            return f"has a damaged {name}"
        absent = sorted({str(shard) for shard in placed.values()} - set(folder.files))
        if absent:
            return f"lacks {absent[0]}, which its index names"
    return ""


def _tracked(folder: Folder, parent: Folder | None) -> Seen | None:
    """DeepSpeed and Megatron: what the file beside the folders names is whole, and what is newer is not."""
    for pattern, marker, layout in (
        (_DEEPSPEED, "latest", "deepspeed"),
        (_MEGATRON, "latest_checkpointed_iteration.txt", "megatron"),
    ):
        named = pattern.match(folder.name)
        if named is None or parent is None or marker not in parent.files:
            continue
        step = int(named[1])
        newest = _number_in(os.path.join(parent.path, marker))
        wrong = f"is not the one that {marker} names, nor older" if newest is None or newest < step else ""
        weights = [name for name in folder.files if name.endswith(WEIGHTS)]
        return _whole(folder, layout, step, wrong, weights, None)
    return None


def _numbered(folder: Folder, parent: Folder | None) -> Seen | None:
    """A folder that a step's number names, with files of weights in it: they belong together."""
    named = _STEP_FOLDER.search(folder.name)
    weights = [name for name in folder.files if name.endswith(WEIGHTS)]
    if named is None or not weights or any(_STEP_IN_NAME.search(name) for name in weights):
        return None
    wrong = "still has unfinished files" if any(map(_is_unfinished, folder.files)) else ""
    return _whole(folder, "folder", int(named[1]), wrong, weights, None)


def _is_unfinished(name: str) -> bool:
    return is_temporary(name) and name != ".metadata"


# -- what a folder is made of ----------------------------------------------------------------------------------------


def _whole(folder: Folder, layout: str, step: int | None, wrong: str, names: Sequence[str], mark: str | None) -> Seen:
    """`names`: files that have to be sound; `mark`: the one that is written when the others are done."""
    saved_at, size = 0.0, 0
    looked_at = [*names[:_MOST_FILES], *filter(None, (mark if mark in folder.files else None,))]
    for name in looked_at:
        try:
            if name.endswith(WEIGHTS):
                status = check(os.path.join(folder.path, name))
            else:
                status = os.stat(os.path.join(folder.path, name))
                if not status.st_size and not wrong:
                    wrong = f"has an empty {name}"
        except UnsoundError as error:
            wrong = wrong or f"has {name}, which {error}"
            continue
        saved_at, size = max(saved_at, status.st_mtime), size + status.st_size
    saved_at = saved_at or _changed_at(folder.path)
    proven = mark is not None and layout != "hf-trainer"
    return Seen(path=folder.path, layout=layout, saved_at=saved_at, step=step, size=size, wrong=wrong, proven=proven)


def _step_of(name: str) -> int | None:
    found = _STEP_IN_NAME.search(name) or _STEP_FOLDER.search(name) or _NUMBER.match(name)
    return int(found[1]) if found else None


def _changed_at(path: str) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0


def _is_archive(path: str) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"
    return False


def _json(path: str) -> object:
    with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        return json.loads(file.read(_MOST_STATE))
    return None


def _number_in(path: str) -> int | None:
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        found = re.search(r"(\d+)", file.read(256))
        return int(found[1]) if found else None
    return None
