"""The lines between the daemon and the router: read as they were written, and tolerant of another release."""

from __future__ import annotations

import pytest

from bireme.router import messages
from bireme.router.messages import Key, Replica, Service, Table


def test_a_table_is_read_as_it_was_written() -> None:
    table = Table(
        serial=7,
        services=(
            Service(
                name="chat",
                replicas=(Replica(id="12.1", host="127.0.0.1", port=8000, revision=3, state="draining"),),
                revision_weights={3: 90.0, 4: 10.0},
                keys=(Key(id="alice", sha256="0" * 64, requests_per_minute=60),),
            ),
        ),
    )
    line = messages.encode(table)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert messages.read_order(line) == table


def test_a_load_is_read_as_it_was_written() -> None:
    load = messages.Load(
        serial=1, at=5.0, seconds=1.0, services=(messages.ServiceLoad(name="chat", in_flight=2, concurrency=1.5),)
    )
    assert messages.read_told(messages.encode(load)) == load


def test_what_another_release_says_more_is_passed_over() -> None:
    assert messages.read_order(b'{"op":"ping","id":3,"mood":"good"}') == messages.Ping(id=3)
    assert messages.read_order(b'{"op":"dance"}') is None
    assert messages.read_told(b'{"ev":"sings"}') is None


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"op":"table"}', b'{"op":1}', b"\xff", b'{"op":"table","serial":"x"}'])
def test_what_is_no_message_is_an_error(line: bytes) -> None:
    with pytest.raises(messages.ProtocolError):
        messages.read_order(line)
