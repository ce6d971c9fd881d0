"""Which faults concern a job: one rule for its timeline and for why it died."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bireme.api.looking_back.befallen import Stay, befallen, machines_of
from bireme.ports import Happened, Holding, Series

HELD = Holding(7, 1, "n1", "GPU-a", False, 100.0, 120.0)
STAYS = [Stay(100.0, 120.0, machines_of(["n1"], {"n1": "host1"})), Stay(200.0, None, machines_of(["n2"], {}))]
XID = Happened(110.0, "n1", "xid", "GPU-a", 79, 0, "", "fell off the bus")
LINE = Happened(110.0, "host1", "kernel", "", 0, 0, "", "nfs: server x not responding")


class Kept:
    """Holdings and happenings as a store gives them."""

    def __init__(self, holdings: list[Holding], *happened: Happened) -> None:
        self._holdings, self._happened = holdings, happened

    def holdings(self, *, job_id: int | None = None, uuid: str | None = None, **_: Any) -> list[Holding]:
        return [one for one in self._holdings if job_id in (None, one.job_id) and uuid in (None, one.uuid)]

    def happenings(self, *, task_prefix: str, uuids: Any, start: float, end: float) -> list[Happened]:
        mine = (one for one in self._happened if one.uuid in uuids or one.task.startswith(task_prefix))
        return [one for one in mine if start <= one.at <= end]


def concerns(one: Happened, *holdings: Holding) -> bool:
    series = cast(Series, Kept(list(holdings or [HELD]), one))
    return befallen(series, 7, STAYS, (90.0, 300.0)) == [one]


@pytest.mark.parametrize(
    ("at", "holdings", "is_its"),
    [
        (110.0, [HELD], True),
        (99.0, [HELD], False),
        (121.0, [HELD], True),  # nobody had it yet: the card died with the job
        (123.0, [HELD], False),
        (121.0, [HELD, replace(HELD, job_id=8, start=120.5, end=None)], False),
        (110.0, [replace(HELD, shared=True)], False),
    ],
)
def test_a_fault_of_a_gpu_is_of_who_had_it_whole(at: float, holdings: list[Holding], is_its: bool) -> None:
    assert concerns(replace(XID, at=at), *holdings) is is_its


def test_a_fault_with_its_process_is_of_that_processes_job() -> None:
    assert concerns(replace(XID, uuid="GPU-b", pid=5, task="7.1.0.3"))
    assert not concerns(replace(XID, pid=5, task="8.1.0.3")), "though the job had that GPU"
    assert not concerns(replace(XID, task="71.1.0.3", uuid=""))


@pytest.mark.parametrize(
    ("line", "is_its"),
    [
        (LINE, True),
        (replace(LINE, node="n1"), True),
        (replace(LINE, at=121.5), True),
        (replace(LINE, at=150.0), False),
        (replace(LINE, at=250.0), False),
        (replace(LINE, at=250.0, node="n2"), True),
        (replace(LINE, pid=4711), False),
    ],
)
def test_a_fault_of_a_whole_node_is_of_who_was_there(line: Happened, is_its: bool) -> None:
    assert concerns(line) is is_its
