"""What the garbage collector of the daemon looks at, and that requests leave nothing for it to find."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.unit.api.conftest import Running

from bireme import collector
from bireme.client.transport import ApiError, Transport
from bireme.commands import parcels

OF_REQUESTS = ("bireme.api", "uvicorn", "starlette", "asyncio", "_asyncio")


COMMANDS = (
    "squeue", "squeue -j 999", "squeue -o %65535j", "squeue --bad", "squeue -u nobody-has-this-name", "sacct -a",
    "sacct -j x", "scontrol hold 999", "scontrol show job 999", "scontrol update JobId=999 TimeLimit=+5", "scancel 999",
    "sbatch", "sbatch -p nowhere --wrap true", "sstat -j 999", "sinfo", "sprio",
)  # fmt: skip


@pytest.fixture
def own_settings() -> Iterator[None]:
    """The collector's settings are the process's."""
    threshold, callbacks = gc.get_threshold(), gc.callbacks.copy()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()


def ask_all_sorts(home: str) -> None:
    with Transport(home, timeout_s=20, tool="test") as transport:
        job_id = transport.post("/v1/jobs", {"spec": {"name": "one"}, "script": "x"})["job_id"]
        transport.get("/v1/jobs")
        transport.get(f"/v1/jobs/{job_id}")
        transport.post(f"/v1/jobs/{job_id}/hold")
        for line in COMMANDS:
            command, *words = line.split()
            body = b"".join(parcels.pack(parcels.ARGUMENT, word.encode()) for word in words)
            transport.request("POST", f"/v1/commands/{command}", body=body)
        for path in ("/v1/jobs/999999", "/v1/nothing", "/v1/jobs?job=1_["):
            with pytest.raises(ApiError):
                transport.get(path)
        with pytest.raises(ApiError):
            transport.post("/v1/jobs", b"[[[")


def test_requests_leave_no_cycles_behind(api: Running) -> None:
    for _ in range(3):
        ask_all_sorts(api.home)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            ask_all_sorts(api.home)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith(OF_REQUESTS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


@pytest.mark.usefixtures("own_settings")
def test_what_a_look_at_everything_has_left_alone_is_not_looked_at_again() -> None:
    kept = [[each] for each in range(5_000)]
    collector.collect_in_small_steps()
    collector.collect_in_small_steps()
    assert gc.callbacks.count(collector._put_aside) == 1
    gc.collect()
    assert gc.get_freeze_count() >= len(kept)
    assert len(gc.get_objects(generation=2)) < len(kept)


@pytest.mark.usefixtures("own_settings")
def test_a_little_is_collected_where_there_is_enough() -> None:
    gc.set_threshold(1_000_000, 1_000_000, 1_000_000)
    gc.collect()
    collector.collect_a_little()
    assert gc.get_count()[1] == 0
    kept = [[each] for each in range(1_000)]
    collector.collect_a_little()
    assert gc.get_count()[1] == 1
    assert kept


@pytest.mark.usefixtures("own_settings")
def test_nothing_is_collected_while_what_stays_is_made_also_when_that_fails() -> None:
    def fail() -> None:
        with collector.nothing_collected():
            assert not gc.isenabled()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert gc.isenabled()
