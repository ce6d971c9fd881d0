"""Messages between gatherers and the daemon, in whatever pieces they come."""

from __future__ import annotations

import pytest

from bireme.gather import messages as m

ROUND = m.Round(
    no=7,
    at=1_800_000_000.5,
    interval_s=10.0,
    frames=[m.Frame(about="gpu", node="n1", ids=["GPU-1"], columns={"gpu_util": [97], "gpu_power": [None]})],
    happenings=[m.Happening(at=1_800_000_000.0, node="n1", kind="xid", uuid="GPU-1", code=43, pid=12)],
)


@pytest.mark.parametrize("piece", [1, 3, 10_000])
def test_a_stream_in_pieces(piece: int) -> None:
    stream = m.encode(m.Hello(id="a", machine="n1")) + m.encode(ROUND)
    splitter = m.FrameSplitter()
    bodies = [body for i in range(0, len(stream), piece) for body in splitter.feed(stream[i : i + piece])]
    assert [m.read_told(body) for body in bodies] == [m.Hello(id="a", machine="n1"), ROUND]


def test_what_the_daemon_says_is_not_what_gatherers_say() -> None:
    with pytest.raises(m.ProtocolError):
        m.read_told(m.encode(m.Kept(no=1))[4:])


def test_a_message_that_is_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(m.ProtocolError, match="longer"):
        m.FrameSplitter().feed((m.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_fields_of_a_later_release_are_passed_over() -> None:
    import msgspec

    body = msgspec.msgpack.encode({"op": "kept", "no": 3, "since_then": "new"})
    assert m.read_said(body) == m.Kept(no=3)
