"""Sessions over the API: who may begin one, whose request a token makes, and what a token may not do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.unkept import Unkept
from tests.unit.api.conftest import SmallCluster, ask_as

from bireme.api.app import create_app
from bireme.api.cluster import Service
from bireme.api.serving.peers import Peer
from bireme.identity.sessions import Patience, Sessions
from bireme.store.journal import SqliteStore

OWNER, ANN, BEN = 0, 4001, 4002


class Desk:
    """The API of a daemon that serves pages."""

    def __init__(self, store: SqliteStore) -> None:
        self.opened = 0
        self.is_off = False
        self.url = "http://bireme.localhost:8700"
        cluster = SmallCluster(store)
        sessions = Sessions(Unkept(), cluster.clock.now, lambda: Patience(36_000.0, 3600.0))
        service = Service(version="1", pid=1, up_since=0.0, owner_uid=OWNER, sessions=sessions, pages=self)
        self.app = create_app(cluster, store, service)  # type: ignore[arg-type]

    async def open(self) -> str:
        self.opened += 1
        self.is_off = False
        return self.url

    async def close(self) -> None:
        self.is_off = True

    def ask(
        self, method: str, path: str, who: int | Peer, body: Any = None, token: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        status, text = asyncio.run(ask_as(self.app, method, path, who, body, headers))
        return status, json.loads(text)

    def enter(self, uid: int) -> tuple[str, str]:
        """A token, and its session's id."""
        status, told = self.ask("POST", "/v1/web/links", uid, {})
        assert status == 200
        code = told["url"].rpartition("/")[2]
        status, told = self.ask("POST", "/v1/web/sessions", 65534, {"code": code, "about": "Firefox"})
        assert status == 200
        return told["token"], told["session"]["id"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    store = SqliteStore(str(tmp_path / "journal.db"))
    yield Desk(store)
    store.close()


def test_a_token_is_whoever_asked_for_the_link(desk: Desk) -> None:
    token, session = desk.enter(ANN)
    status, me = desk.ask("GET", "/v1/web/me", 65534, token=token)
    assert (status, me["uid"], me["admin"], me["session"]["id"]) == (200, ANN, False, session)
    assert desk.ask("GET", "/v1/web/me", ANN)[1]["session"] is None, "over the socket there is none"


def test_it_is_so_whoever_brings_it(desk: Desk) -> None:
    """The web process is the daemon's own user: that makes nothing more of a session."""
    token, _ = desk.enter(ANN)
    assert desk.ask("GET", "/v1/web/me", OWNER, token=token)[1]["admin"] is False
    assert desk.ask("POST", "/v1/reconfigure", OWNER, {}, token)[0] == 403
    owners, _ = desk.enter(OWNER)
    assert desk.ask("GET", "/v1/web/me", BEN, token=owners)[1]["admin"] is True


@pytest.mark.parametrize("token", ["", "guessed", "Bearer", "\xff"])
def test_a_token_that_is_none_is_refused_and_not_answered_as_the_connections_own(desk: Desk, token: str) -> None:
    status, told = desk.ask("GET", "/v1/jobs", OWNER, token=token)
    assert status == 401
    assert "bireme web" in told["error"]["hint"]


def test_a_session_makes_no_further_ones(desk: Desk) -> None:
    token, _ = desk.enter(OWNER)
    assert desk.ask("POST", "/v1/web/links", 65534, {}, token)[0] == 403


def test_inside_a_job_on_another_machine_nobody_gets_a_link(desk: Desk) -> None:
    assert desk.ask("POST", "/v1/web/links", Peer(ANN, ANN, 1, (), 7), {})[0] == 403


def test_ones_own_sessions_are_listed_and_ended(desk: Desk) -> None:
    mine, mine_id = desk.enter(ANN)
    his, his_id = desk.enter(BEN)
    listed = desk.ask("GET", "/v1/web/sessions", 65534, token=mine)[1]["sessions"]
    assert [(each["id"], each["own"], each["about"]) for each in listed] == [(mine_id, True, "Firefox")]
    assert desk.ask("GET", "/v1/web/sessions?all=1", ANN)[0] == 403
    assert desk.ask("POST", "/v1/web/sessions/revoke", ANN, {"sessions": [his_id]})[0] == 404
    assert desk.ask("POST", "/v1/web/sessions/revoke", ANN, {"everybody": True})[0] == 403
    assert desk.ask("POST", "/v1/web/sessions/revoke", ANN, {"all": True})[1] == {"ended": [mine_id]}
    assert desk.ask("GET", "/v1/web/me", 65534, token=mine)[0] == 401
    assert desk.ask("GET", "/v1/web/me", 65534, token=his)[0] == 200
    everybody = desk.ask("GET", "/v1/web/sessions?all=1", OWNER)[1]["sessions"]
    assert [each["uid"] for each in everybody] == [BEN]
    assert desk.ask("POST", "/v1/web/sessions/revoke", OWNER, {"sessions": [his_id]})[1] == {"ended": [his_id]}


def test_operators_switch_the_pages_off_and_on(desk: Desk) -> None:
    assert desk.ask("POST", "/v1/web/off", ANN, {})[0] == 403
    assert desk.ask("POST", "/v1/web/off", OWNER, {})[0] == 200
    status, told = desk.ask("POST", "/v1/web/links", ANN, {})
    assert (status, desk.opened) == (403, 0)
    assert "an operator" in told["error"]["message"]
    assert desk.ask("POST", "/v1/web/links", OWNER, {})[0] == 200
    assert desk.ask("POST", "/v1/web/links", ANN, {})[0] == 200


def test_a_link_says_whose_it_is_and_is_not_used_up_by_that(desk: Desk) -> None:
    code = desk.ask("POST", "/v1/web/links", BEN, {})[1]["url"].rpartition("/")[2]
    for _ in range(2):
        status, told = desk.ask("POST", "/v1/web/links/whose", 65534, {"code": code})
        assert (status, told["uid"]) == (200, BEN)
    assert desk.ask("POST", "/v1/web/sessions", 65534, {"code": code})[0] == 200
    for body in ({"code": code}, {"code": "guessed"}):
        assert desk.ask("POST", "/v1/web/links/whose", 65534, body)[0] == 403
    assert desk.ask("POST", "/v1/web/links/whose", 65534, {})[0] == 400


@pytest.mark.parametrize("body", [{}, {"code": 7}, {"code": "x", "about": []}, {"code": "x" * 100_000}])
def test_a_code_that_is_none_begins_nothing(desk: Desk, body: dict[str, Any]) -> None:
    status, told = desk.ask("POST", "/v1/web/sessions", 65534, body)
    assert status in (400, 403)
    assert "token" not in told
