"""What `bireme top` is showing, and what each key makes of that. Pure: a view and a key in, a view out.

Invariant: whatever is pressed, the selected job is one that is shown, or there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bireme.cli.top.looking import Picture

Record = dict[str, Any]
Mode = Literal["list", "job", "log", "help", "over"]
Upper = Literal["auto", "gpus", "gpu nodes", "nodes"]
SORTS = ("state", "use", "gpus", "time", "user")
_ORDER = {"RUNNING": 0, "SUSPENDED": 1, "COMPLETING": 2, "CONFIGURING": 3, "PENDING": 4}
_UPPERS: tuple[Upper, ...] = ("auto", "gpus", "gpu nodes", "nodes")
_LONGEST_FILTER = 40


@dataclass(frozen=True, slots=True)
class View:
    """The state of the screen."""

    mode: Mode = "list"
    sort: str = "state"
    filter: str = ""
    is_typing: bool = False
    """Keys are letters of the filter."""
    selected: int | None = None
    """The job that is marked, or whose page is shown, by its id."""
    upper: Upper = "auto"
    page: int = 0
    """Of the upper table."""


def shown_jobs(picture: Picture, view: View) -> list[Record]:
    """Those that the filter lets through, sorted."""
    words = view.filter.lower().split()
    jobs = [job for job in picture.jobs if all(word in _text(job) for word in words)]
    return sorted(jobs, key=_keys(picture)[view.sort])


def _text(job: Record) -> str:
    fields = ("job_id", "array_job_id", "name", "user_name", "partition", "state", "node_list", "reason")
    return " ".join(str(job.get(name) or "") for name in fields).lower()


def gpus_of_job(job: Record) -> int:
    return int((job.get("tres_allocated") or job.get("tres_requested") or {}).get("gres/gpu", 0))


def _keys(picture: Picture) -> dict[str, Callable[[Record], Any]]:
    def usual(job: Record) -> tuple[Any, ...]:
        return (_ORDER[job["state"]], -(job.get("priority") or 0), job["job_id"])

    def use(job: Record) -> float:
        """Those that use the least of their GPUs first: they are what one looks for."""
        spark = picture.sparks.get(job["job_id"])
        of_gpus = spark is not None and spark.word != "CPUs" and gpus_of_job(job) > 0
        return spark.newest if of_gpus and spark is not None and spark.newest is not None else 1000.0

    return {
        "state": usual,
        "use": lambda job: (use(job), *usual(job)),
        "gpus": lambda job: (-gpus_of_job(job), *usual(job)),
        "time": lambda job: (-(job.get("elapsed_s") or 0), *usual(job)),
        "user": lambda job: (job.get("user_name") or "", *usual(job)),
    }


def pressed(view: View, key: str, picture: Picture) -> View:
    """What is shown after a key: a letter, or a name as `up`, `enter`, `escape`, `backspace`, `page down`."""
    if view.is_typing:
        return _typed(view, key)
    if key in ("q", "Q", "end of input"):
        return replace(view, mode="over")
    if key == "?":
        return replace(view, mode="list" if view.mode == "help" else "help")
    if view.mode != "list":
        return _on_a_page(view, key)
    return _in_the_list(view, key, picture)


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(view, filter=(view.filter + key)[:_LONGEST_FILTER])
    return replace(view, mode="over") if key == "end of input" else view


def _on_a_page(view: View, key: str) -> View:
    if key in ("escape", "backspace", "h", "left"):
        back: Mode = "job" if view.mode == "log" else "list"
        return replace(view, mode=back)
    if key == "l" and view.mode == "job":
        return replace(view, mode="log")
    return view


def _in_the_list(view: View, key: str, picture: Picture) -> View:
    jobs = shown_jobs(picture, view)
    if key == "escape":
        # As ever it leaves; where something is filtered, that goes first.
        return replace(view, filter="") if view.filter else replace(view, mode="over")
    if key in ("up", "k", "down", "j", "home", "end"):
        return replace(view, selected=_moved(jobs, view.selected, key))
    if key in ("enter", "o", "right", "l"):
        chosen = _marked(jobs, view.selected)
        if chosen is None:
            return view
        return replace(view, mode="log" if key == "l" else "job", selected=chosen)
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
    if key == "/":
        return replace(view, is_typing=True)
    if key == "g":
        return replace(view, upper=_UPPERS[(_UPPERS.index(view.upper) + 1) % len(_UPPERS)], page=0)
    if key in ("]", "page down"):
        return replace(view, page=view.page + 1)
    if key in ("[", "page up"):
        return replace(view, page=max(0, view.page - 1))
    return view


def _marked(jobs: Sequence[Record], selected: int | None) -> int | None:
    ids = [job["job_id"] for job in jobs]
    return selected if selected in ids else ids[0] if ids else None


def _moved(jobs: Sequence[Record], selected: int | None, key: str) -> int | None:
    ids = [job["job_id"] for job in jobs]
    if not ids:
        return None
    if key in ("home", "end"):
        return int(ids[0 if key == "home" else -1])
    if selected not in ids:
        return int(ids[0])
    step = 1 if key in ("down", "j") else -1
    return int(ids[max(0, min(len(ids) - 1, ids.index(selected) + step))])
