"""Who gives way when there are too many connections, and how often the same trouble is written down."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from bireme.web import connections
from bireme.web.connections import Crowd, Pages, Said


class Connection:
    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.is_away = crowd, False

    def send_away(self) -> None:
        self.is_away = True
        self.crowd.all.discard(cast(Pages, self))
        self.crowd.silent.pop(cast(Pages, self))


def test_the_oldest_who_has_asked_nothing_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 3)
    crowd = Crowd()
    came = [Connection(crowd) for _ in range(5)]
    for each in came[:3]:
        assert crowd.has_room_for(cast(Pages, each))
    crowd.silent.pop(cast(Pages, came[0]))  # its request is there
    assert crowd.has_room_for(cast(Pages, came[3]))
    assert [each.is_away for each in came] == [False, True, False, False, False]
    crowd.silent.clear()
    assert not crowd.has_room_for(cast(Pages, came[4])), "all have asked something"


def test_the_same_trouble_is_written_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    said = Said()
    loop = cast(asyncio.AbstractEventLoop, None)
    told: dict[str, Any] = {"message": "socket.accept() out of system resource", "exception": OSError(24, "x")}
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            said(loop, told)
        said(loop, {"message": "another"})
    assert [record.getMessage() for record in caplog.records] == [told["message"], "another"]
