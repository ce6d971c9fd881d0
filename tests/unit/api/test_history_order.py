"""The order of the history: what `sacct` prints from top to bottom."""

from __future__ import annotations

from typing import Any

from bireme.api.routes.history import _place


def record(job_id: int, array: int | None = None, task: int | None = None, restarts: int = 0) -> dict[str, Any]:
    return {"job_id": job_id, "array_job_id": array, "array_task_id": task, "restarts": restarts}


def test_an_arrays_tasks_stand_together_in_their_order() -> None:
    mixed = [record(9), record(4, 4, 2), record(6, 4, 0), record(7, 4, 1), record(5, restarts=1), record(5), record(3)]
    assert [(each["job_id"], each["array_task_id"]) for each in sorted(mixed, key=_place)] == [
        (3, None),
        (6, 0),
        (7, 1),
        (4, 2),
        (5, None),
        (5, None),
        (9, None),
    ]
