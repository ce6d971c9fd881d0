"""Pages of replicas that mean no good: others have their turns while they are read, and they are read less often."""

from __future__ import annotations

import asyncio

import pytest

from bireme.core.model.serving.scaling import Measure, ScalingTarget
from bireme.daemon.scaling import polls

PAGE = b'x{a="b"} 1\n' * 180_000
REPLICAS = 18
TARGET = ScalingTarget(Measure.METRIC, 1.0, "x")


class Heard:
    """In the place of `Seen`: what the polls tell."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.figures: list[float] = []

    def trouble(self, target: ScalingTarget, why: str) -> None:
        self.troubles.append(why)

    def figure(self, target: ScalingTarget, at: float, value: float) -> None:
        self.figures.append(value)


def polled(monkeypatch: pytest.MonkeyPatch, page: bytes) -> tuple[Heard, list[int], int]:
    """(what was told, the limits of bytes that were asked with, how often others had their turn meanwhile)."""
    limits: list[int] = []

    async def fetch(url: str, *, limit_s: float, limit_bytes: int) -> bytes:
        limits.append(limit_bytes)
        return page

    monkeypatch.setattr(polls, "fetch", fetch)
    heard = Heard()
    asked = polls.Polls(heard, lambda: ["127.0.0.1:1"] * REPLICAS, lambda: "", lambda: 0.0)  # type: ignore[arg-type]

    async def main() -> int:
        asking, turns = asyncio.create_task(asked._ask_replicas([TARGET])), 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert asking.result() > 0
        return turns

    return heard, limits, asyncio.run(main())


def test_others_have_a_turn_between_any_two_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, _, turns = polled(monkeypatch, PAGE)
    assert turns > REPLICAS
    assert not heard.figures
    assert f"{REPLICAS} of {REPLICAS} replicas did not tell it" in heard.troubles[0]


def test_all_replicas_of_a_service_share_what_is_read_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, limits, _ = polled(monkeypatch, b"x 2\n")
    assert heard.figures == [2.0 * REPLICAS]
    assert sum(limits) <= polls.MOST_BYTES_OF_ALL
    assert min(limits) >= polls.LEAST_BYTES


def test_what_takes_long_is_asked_for_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class EnoughError(Exception):
        pass

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        raise EnoughError

    async def ask() -> float:
        return 1.0

    monkeypatch.setattr(polls.asyncio, "sleep", sleep)
    asked = polls.Polls(Heard(), list, lambda: "", lambda: 0.0)  # type: ignore[arg-type]
    with pytest.raises(EnoughError):
        asyncio.run(asked._repeat(2.0, ask))
    assert pauses == [50.0]
