"""Sessions: a code is good once and soon, a token as long as it is used, and what was ended stays so."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.support.unkept import Unkept

from bireme.identity.keeping import SessionFile
from bireme.identity.sessions import CODE_S, MOST_CODES, MOST_SESSIONS, Identity, Kept, Patience, Session, Sessions

ANN, BEN = Identity(1001, 1001, (1001, 20)), Identity(1002, 1002)
HOUR_S = 3600.0


class Desk:
    """Sessions with a clock that is set by hand."""

    def __init__(self, kept: Kept | None = None) -> None:
        self.now = 1000.0
        self.kept = kept or Unkept()
        self.sessions = self.again()

    def again(self) -> Sessions:
        """As after a restart of the daemon."""
        self.sessions = Sessions(self.kept, lambda: self.now, lambda: Patience(10 * HOUR_S, HOUR_S))
        return self.sessions

    def enter(self, whose: Identity = ANN, about: str = "Firefox") -> tuple[str, Session]:
        made = self.sessions.redeem(self.sessions.offer(whose), about)
        assert made is not None
        return made


def test_a_code_is_good_once() -> None:
    desk = Desk()
    code = desk.sessions.offer(ANN)
    made = desk.sessions.redeem(code, "Firefox")
    assert made is not None
    assert made[1].whose == ANN
    assert desk.sessions.redeem(code, "Firefox") is None
    assert desk.sessions.redeem("another", "Firefox") is None


def test_a_code_is_good_for_five_minutes() -> None:
    desk = Desk()
    code = desk.sessions.offer(ANN)
    desk.now += CODE_S
    assert desk.sessions.redeem(code, "") is None


def test_only_the_newest_codes_of_a_user_are_good() -> None:
    desk = Desk()
    other = desk.sessions.offer(BEN)
    codes = [desk.sessions.offer(ANN) for _ in range(MOST_CODES + 2)]
    good = [desk.sessions.redeem(code, "") is not None for code in codes]
    assert good == [False, False, *[True] * MOST_CODES]
    assert desk.sessions.redeem(other, "") is not None


def test_a_token_is_its_owner_until_it_was_not_used_for_long() -> None:
    desk = Desk()
    token, made = desk.enter()
    for _ in range(9):
        desk.now += 0.9 * HOUR_S
        found = desk.sessions.find(token)
        assert found is not None
        assert found.id == made.id
    desk.now += HOUR_S
    assert desk.sessions.find(token) is None
    assert desk.sessions.of() == []


def test_a_token_ends_however_much_it_is_used() -> None:
    desk = Desk()
    token, made = desk.enter()
    while desk.now < made.ends_at:
        assert desk.sessions.find(token) is not None
        desk.now += 0.5 * HOUR_S
    assert desk.sessions.find(token) is None


@pytest.mark.parametrize("wrong", ["", "x", "ä", "\ud800"])
def test_what_is_no_token_is_nobody(wrong: str) -> None:
    desk = Desk()
    token, _ = desk.enter()
    assert desk.sessions.find(wrong) is None
    assert desk.sessions.find(token + wrong) is None or wrong == ""


def test_one_more_than_may_be_takes_the_place_of_the_one_that_was_used_least_lately() -> None:
    desk = Desk()
    tokens = []
    for _ in range(MOST_SESSIONS):
        tokens.append(desk.enter()[0])
        desk.now += 1.0
    others, _ = desk.enter(BEN)
    desk.sessions.find(tokens[0])
    tokens.append(desk.enter()[0])
    ended = [place for place, token in enumerate(tokens) if desk.sessions.find(token) is None]
    assert ended == [1]
    assert desk.sessions.find(others) is not None


def test_one_ends_ones_own_sessions_and_nobody_elses() -> None:
    desk = Desk()
    mine, his = desk.enter(ANN), desk.enter(BEN)
    assert desk.sessions.revoke([mine[1].id, his[1].id], ANN.uid) == [mine[1]]
    assert desk.sessions.find(mine[0]) is None
    assert desk.sessions.find(his[0]) is not None
    assert [each.id for each in desk.sessions.revoke([his[1].id])] == [his[1].id], "an operator ends anybody's"


def test_codes_end_with_everything_else() -> None:
    desk = Desk()
    mine, his = desk.sessions.offer(ANN), desk.sessions.offer(BEN)
    desk.sessions.revoke_codes(ANN.uid)
    assert desk.sessions.redeem(mine, "") is None
    assert desk.sessions.redeem(his, "") is not None


def test_what_cannot_be_written_did_not_happen() -> None:
    kept = Unkept()
    desk = Desk(kept)
    token, made = desk.enter()
    kept.fails = True
    with pytest.raises(OSError, match="No space"):
        desk.sessions.revoke([made.id])
    assert desk.sessions.find(token) is not None
    code = desk.sessions.offer(ANN)
    with pytest.raises(OSError, match="No space"):
        desk.sessions.redeem(code, "")
    assert len(desk.sessions.of()) == 1


def test_what_a_browser_says_of_itself_is_one_short_line() -> None:
    _, made = Desk().enter(about="a\x1b[31m\n" + "b" * 1000)
    assert made.about.startswith("a?[31m?b")
    assert len(made.about) == 160


def test_sessions_outlive_the_daemon_and_their_end_does_too(tmp_path: Path) -> None:
    desk = Desk(SessionFile(str(tmp_path / "identity" / "sessions")))
    stays, ends = desk.enter(ANN), desk.enter(BEN)
    desk.sessions.revoke([ends[1].id])
    again = desk.again()
    assert again.of() == [stays[1]]
    assert again.find(stays[0]) is not None
    assert again.find(ends[0]) is None


def test_use_is_written_down_now_and_then(tmp_path: Path) -> None:
    desk = Desk(SessionFile(str(tmp_path / "identity" / "sessions")))
    token, made = desk.enter()
    desk.now += 0.9 * HOUR_S
    desk.sessions.find(token)
    desk.sessions.note_use()
    assert [each.seen_at for each in desk.again().of()] == [desk.now]
    assert made.seen_at < desk.now


def test_no_token_is_on_disk_and_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "identity" / "sessions"
    desk = Desk(SessionFile(str(path)))
    token, _ = desk.enter()
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoilt", ["", "x", "[]\n0", '[{"id": 1}]\n'])
def test_of_a_spoilt_file_nobody_is_logged_in(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "identity" / "sessions"
    desk = Desk(SessionFile(str(path)))
    token, _ = desk.enter()
    path.write_text(spoilt)
    assert desk.again().find(token) is None
    desk.enter()
    assert len(json.loads(path.read_text().rpartition("\n")[0])) == 1
