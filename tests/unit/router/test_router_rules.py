"""Addresses, choice of replica, keys and counting: without a socket or a clock."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.router.board import BLOCK, BLOCKS, Blocks, Board, NoRoomError, mapped, new_memory
from bireme.router.messages import BUCKETS_S, Key, Replica, Service, Table
from bireme.router.rules import tables
from bireme.router.rules.addresses import Directory, Own, model_of_body
from bireme.router.rules.balance import Choice, Ring, least
from bireme.router.rules.heads import read_answer
from bireme.router.rules.keys import KeyRing, Rate, not_ours
from bireme.router.rules.locations import address_below, below
from bireme.router.rules.tally import Area, Tally
from bireme.router.rules.websocket import GOING_AWAY, Frames, goodbye


@dataclass
class Candidate:
    id: str
    load: int = 0
    weight: float = 1.0
    revision: int = 1
    avoid_until: float = 0.0


SERVICES = (
    Service(name="chat", hosts=("chat.example",)),
    Service(name="embed", models=("org/e5", "chat")),
    Service(name="other", models=("org/e5",)),
)


@pytest.mark.parametrize(
    ("host", "target", "name", "rest", "prefix"),
    [
        (b"h", b"/chat/a/b?c=d", "chat", b"/a/b?c=d", b"/chat"),
        (b"h", b"/chat", "chat", b"/", b"/chat"),
        (b"h", b"/chat?x=/y", "chat", b"/?x=/y", b"/chat"),
        (b"h", b"/chat//x", "chat", b"//x", b"/chat"),
        (b"h", b"/chat/../embed", "chat", b"/../embed", b"/chat"),
        (b"CHAT.example:8080", b"/embed/x", "chat", b"/embed/x", b""),
        (b"chat.example.", b"/embed/x", "chat", b"/embed/x", b""),
        (b"chat.example:", b"/embed/x", "chat", b"/embed/x", b""),
        (b"chat.example.:80", b"/embed/x", "chat", b"/embed/x", b""),
        (b"h", b"/v1/x?model=chat&model=embed", Own.TWO_MODELS, b"/v1/x?model=chat&model=embed", b""),
        (b"h", b"/v1/realtime?model=org%2Fe5", "embed", b"/v1/realtime?model=org%2Fe5", b""),
        (b"h", b"/chatter/x", Own.UNKNOWN, b"/chatter/x", b""),
        (b"h", b"/CHAT/x", Own.UNKNOWN, b"/CHAT/x", b""),
        (b"h", b"/", Own.UNKNOWN, b"/", b""),
        (b"h", b"/-/health", Own.HEALTH, b"/-/health", b""),
        (b"h", b"/v1/models", Own.MODELS, b"/v1/models", b""),
        (b"h", b"/v1/models/org/e5", Own.MODELS, b"/v1/models/org/e5", b""),
        (b"h", b"/v1/chat/completions", Own.BY_MODEL, b"/v1/chat/completions", b""),
        (b"[::1]:80", b"/chat/x", "chat", b"/x", b"/chat"),
    ],
)
def test_addresses(host: bytes, target: bytes, name: str | Own, rest: bytes, prefix: bytes) -> None:
    found, *others = Directory(SERVICES).find(host, target)
    assert (found if isinstance(found, Own) else found.name) == name
    assert others == [rest, prefix]


@pytest.mark.parametrize(
    ("address", "below"),
    [
        (b"/who", b"/chat/who"),
        (b"/", b"/chat/"),
        (b"/chatter", b"/chat/chatter"),
        (b"http://Router:8600/who?next=/x#y", b"/chat/who?next=/x#y"),
        (b"https://router:8600", b"/chat/"),
        (b"//router:8600?x=1", b"/chat/?x=1"),
        (b"http://127.0.0.1:30034/who", b"/chat/who"),
    ],
)
def test_an_address_of_the_service_itself_is_put_below_its_prefix(address: bytes, below: bytes) -> None:
    assert address_below(address, b"/chat", {b"router:8600", b"127.0.0.1:30034"}) == below


@pytest.mark.parametrize(
    "address",
    [
        b"/chat", b"/chat/who", b"/chat?x=1", b"http://router:8600/chat/who",  # it knows its prefix
        b"who", b"../draw/", b"?x=1", b"",  # relative: to where the client is
        b"https://elsewhere.example/who", b"//elsewhere.example/who", b"http://me@router:8600/who", b"mailto:me",
    ],
)  # fmt: skip
def test_an_address_of_others_is_left_alone(address: bytes) -> None:
    assert address_below(address, b"/chat", {b"router:8600"}) == address


def test_an_answer_that_leads_somewhere_is_changed_for_one_prefix_and_kept_for_others() -> None:
    answer = read_answer(b"HTTP/1.1 201 Created\r\ncontent-location:\t/a\r\nX-At: /a\r\nLocation: http://h/a")
    assert answer.leads
    assert below(answer, b"/chat", {b"h"}).lines == [b"content-location: /chat/a", b"X-At: /a", b"Location: /chat/a"]
    assert below(answer, b"/draw", {b"h"}).lines[0] == b"content-location: /draw/a"
    assert answer.lines[0] == b"content-location:\t/a"
    assert not read_answer(b"HTTP/1.1 200 OK\r\nX-Location: /a").leads


def test_a_services_name_is_its_own_and_the_first_has_a_model() -> None:
    directory = Directory(SERVICES)
    named = {model: directory.by_model(model) for model in ("chat", "org/e5", "nobody")}
    assert {model: service and service.name for model, service in named.items()} == {
        "chat": "chat", "org/e5": "embed", "nobody": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "model"),
    [
        (b'{"model": "a\\u00fc", "messages": []}', b"application/json", "aü"),
        (b'{"messages": [{"model": "no"}]}', b"", ""),
        (b'{"messages": ["half an emoji \\ud83d"], "model": "chat"}', b"", "chat"),
        (b'{"messages": ["\\\\ud83d, and \\uDE00"], "model": "chat"}', b"", "chat"),
        (b"", b"", ""),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc\r\n--x\r\n'
            b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x--\r\n',
            b"multipart/form-data; boundary=x",
            "whisper-1",
        ),
    ],
)
def test_the_model_of_a_body(body: bytes, kind: bytes, model: str) -> None:
    assert model_of_body(body, kind) == model


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"model": 3}', b"\xff", b'{"model":' + b"[" * 5000, b'{"model": "\\ud83']
)
def test_a_body_that_names_no_model_in_json(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body is no JSON object"):
        model_of_body(body, b"application/json")


def test_a_body_that_is_too_deep_is_said_to_be() -> None:
    with pytest.raises(ValueError, match="too deep"):
        model_of_body(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b',"model":"chat"}', b"application/json")


def test_the_least_loaded_is_chosen_for_its_weight() -> None:
    strong, weak = Candidate("strong", load=3, weight=4.0), Candidate("weak", load=1)
    assert least([strong, weak], 0, 0, 0.0) is strong
    assert least([strong, weak], 3, 0, 0.0) is weak
    assert least([strong, weak], 1, 0, 0.0) is None


def test_equals_take_turns() -> None:
    equals = [Candidate(str(number)) for number in range(3)]
    assert [least(equals, 0, turn, 0.0) for turn in range(4)] == [*equals, equals[0]]


def test_one_that_failed_is_left_alone_while_there_is_another() -> None:
    failed, other = Candidate("failed", avoid_until=5.0), Candidate("other", load=9)
    assert least([failed, other], 0, 0, 1.0) is other
    assert least([failed], 0, 0, 1.0) is failed
    assert least([failed, other], 0, 0, 6.0) is failed


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 5), st.binary(max_size=8))
def test_nothing_above_the_limit_is_chosen(loads: list[int], limit: int, value: bytes) -> None:
    candidates = [Candidate(str(number), load) for number, load in enumerate(loads)]
    choice = Choice(candidates, {})
    chosen = choice.choose(limit, 3, 0.0, 0.5, value)
    if limit and min(loads) >= limit:
        assert chosen is None
    else:
        assert chosen is not None
        assert not limit or chosen.load < limit


def test_weights_of_revisions() -> None:
    old, new, off = Candidate("old"), Candidate("new", revision=2), Candidate("off", revision=3)
    choice = Choice([old, new, off], {1: 90.0, 2: 10.0, 3: 0.0})
    found = Counter(choice.choose(0, 0, 0.0, number / 1000).id for number in range(1000))  # type: ignore[union-attr]
    assert found == {"old": 900, "new": 100}
    new.load = 5
    assert choice.choose(5, 0, 0.0, 0.95) is old, "the part of who is full goes to the others"
    assert Choice([off], {3: 0.0}).choose(0, 0, 0.0, 0.0) is None


def test_few_change_their_replica_when_one_goes() -> None:
    candidates = [Candidate(str(number)) for number in range(8)]
    values = [f"client {number}".encode() for number in range(800)]
    homes = {value: Ring(candidates).choose(value, 0, 0.0) for value in values}
    spread = Counter(home.id for home in homes.values() if home)
    assert len(spread) == 8
    assert max(spread.values()) < 250
    fewer = Ring(candidates[1:])
    assert all(fewer.choose(value, 0, 0.0) is home for value, home in homes.items() if home is not candidates[0])


def test_who_sticks_does_not_overload() -> None:
    candidates = [Candidate(str(number)) for number in range(4)]
    ring = Ring(candidates)
    for _ in range(100):
        chosen = ring.choose(b"everybody", 0, 0.0)
        assert chosen
        chosen.load += 1
    assert max(each.load for each in candidates) <= 34


def test_keys_are_found_by_their_hashes() -> None:
    key = Key(id="a", sha256=hashlib.sha256(b"sk-1").hexdigest().upper())
    ring = KeyRing([key])
    line = b"Authorization: Bearer sk-1"
    assert ring.find([(b"authorization", b"bearer sk-1", line)]) == (key, line)
    assert ring.find([(b"x-api-key", b"sk-1", b"")]) == (key, b"")
    for name, value in ((b"authorization", b"sk-1"), (b"authorization", b"Bearer sk-2"), (b"api-key", b"")):
        assert ring.find([(name, value, b"")]) is None
    assert KeyRing([Key(id="e", sha256=hashlib.sha256(b"").hexdigest())]).find([(b"api-key", b"", b"")]) is None


@pytest.mark.parametrize("name", [b"authorization", b"api-key", b"x-api-key"])
def test_keys_that_we_made_are_not_for_replicas(name: bytes) -> None:
    ours, theirs = b"bireme-" + b"aB3_-" * 8 + b"abc", b"sk-1"
    lines = [(name, value, name + b": " + value) for value in (ours, theirs, b"Basic " + ours, b"bireme-short")]
    assert [value for _, value, _ in not_ours(lines)] == [theirs, b"bireme-short"]


def rates(workers: int) -> list[tuple[Rate, Board]]:
    memory = memoryview(bytearray(8 * workers * BLOCK * BLOCKS)).cast("q")
    boards = [Board(memory, workers, row) for row in range(workers)]
    return [(Rate(1, board.all, board.write), board) for board in boards]


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 4)), max_size=200), st.integers(1, 20))
def test_a_rate_holds_for_all_workers_together(arrivals: list[tuple[int, float]], limit: int) -> None:
    both = rates(2)
    now, taken = 1e9, []
    for worker, pause in arrivals:
        now += pause
        rate, board = both[worker]
        wait = rate.take((board.mine[1], board.mine[2]), limit, now)
        if not wait:
            taken.append(now)
        assert 0 <= wait <= 120
    for start in taken:  # a sliding window of two halves may be off by what it assumes to be even
        assert len([at for at in taken if start <= at < start + 60]) <= 2 * limit
    for number in range(int(1e9) // 60, int(now) // 60 + 1):
        assert len([at for at in taken if at // 60 == number]) <= limit


def test_a_rate_lets_in_again_when_it_said() -> None:
    ((rate, board),) = rates(1)
    now = 6e8

    def take(at: float) -> float:
        return rate.take((board.mine[1], board.mine[2]), 2, at)

    assert [take(now), take(now)] == [0.0, 0.0]
    wait = take(now)
    while wait:
        now += wait
        wait = take(now)
    assert now <= 6e8 + 121


def test_blocks_are_given_once_and_come_back() -> None:
    blocks = Blocks()
    first = blocks.give(["a", "b"])
    assert blocks.give(["b", "c"])["b"] == first["b"]
    assert blocks.others(["b"]).keys() == {"a", "c"}
    blocks.take_back("a")
    assert blocks.give(["d"])["d"] == first["a"]
    with pytest.raises(NoRoomError):
        blocks.give(map(str, range(BLOCKS)))
    assert blocks.others([]).keys() == {"b", "c", "d"}


def test_no_number_of_keys_keeps_replicas_out() -> None:
    blocks = Blocks()
    given = blocks.give(["replica"], map(str, range(BLOCKS)))
    assert "replica" in given
    assert len(given) < BLOCKS
    assert blocks.give(map("r{}".format, range(1000)), given).keys() > {"r0", "r999", "0"}


def test_a_supervisor_that_follows_another_gives_what_that_gave_and_nothing_that_is_counted() -> None:
    board = Board(mapped(new_memory(1), 1), 1, 0)
    before = Blocks()
    given = before.give(["a", "gone", "b"])
    board.write(given["gone"], 1)
    after = Blocks()
    after.restore({name: given[name] for name in "ab"}, board)
    again = after.give(["a", "b", *map(str, range(100))])
    assert (again["a"], again["b"]) == (given["a"], given["b"])
    assert given["gone"] not in again.values()


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frames_of_a_websocket_end_where_they_end(piece: int) -> None:
    parts = [
        b"\x81\x05hello",
        b"\x82\x7e\x01\x00" + b"x" * 256,
        b"\x82\x7f" + bytes(5) + b"\x01\x00\x00" + b"y" * 65536,
    ]
    wire, ends, frames = b"".join(parts), set(), Frames()
    for start in range(0, len(wire), piece):
        frames.take(wire[start : start + piece])
        if frames.is_between:
            ends.add(min(start + piece, len(wire)))
    if piece == 1:
        assert ends == {7, 7 + 260, len(wire)}
    assert frames.is_between
    frames.take(goodbye(GOING_AWAY, "so long"))
    assert not frames.is_between, "nothing follows a goodbye"


def test_so_many_frames_are_looked_at_as_were_asked_for() -> None:
    frames, wire = Frames(), b"\x89\x00" * 1000 + b"\x81\x03ab"
    assert frames.take(wire, 0, 10) == 20
    assert frames.take(wire, 20) == len(wire)
    assert not frames.is_between


def test_counts_are_added_up() -> None:
    one, other = Tally(), Tally()
    assert not one
    one.began(0.003)
    one.ended(200, 0.02)
    other.whole(503, 400.0)
    one.add(other)
    counts = one.counts()
    assert counts.requests == (0, 1, 0, 0, 1)
    assert counts.latency[-1] == counts.ttfb[-1] == 2
    assert counts.latency[BUCKETS_S.index(0.025)] == 1
    assert counts.ttfb[BUCKETS_S.index(0.005)] == 1
    assert Tally().counts().latency == ()


def test_an_average_needs_no_samples() -> None:
    area = Area()
    area.up(10.0)
    area.up(11.0)
    area.down(12.0)
    assert area.take(14.0) == pytest.approx(5.0)
    assert area.take(16.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "table",
    [
        Table(serial=0),
        Table(serial=1, services=(Service(name="a"), Service(name="a"))),
        Table(serial=1, services=(Service(name="v1"),)),
        Table(serial=1, services=(Service(name="a b"),)),
        Table(serial=1, services=(Service(name="a", revision_weights={1: -1.0}),)),
        Table(serial=1, services=(Service(name="a", revision_weights={1: float("nan")}),)),
        Table(serial=1, services=(Service(name="a", affinity_header="X Y"),)),
        Table(serial=1, services=(Service(name="a", replicas=(Replica(id="x", host="", port=1),)),)),
        Table(serial=1, services=(Service(name="a", replicas=(Replica(id="x", host="h", port=1, weight=0.0),)),)),
        Table(serial=1, services=(Service(name="a", replicas=(Replica(id="x", host="h", port=1),) * 2),)),
        Table(serial=1, services=(Service(name="a", keys=(Key(id="k", sha256="zz"),)),)),
    ],
)
def test_tables_that_cannot_be_gone_by(table: Table) -> None:
    assert tables.mistake(table)
    assert not tables.mistake(Table(serial=1, services=SERVICES))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "x": {"y": [1, "}"]}, "model": "a"}',
        b'{"model": "a", "text": "\\\\\\"", "mod\\u0065l": "b"}',
        b'{"\\u006dodel": "a", "model": "b"}',
    ],
)
def test_a_body_with_two_models_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="two models"):
        model_of_body(body, b"application/json")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "tools": [{"model": "b"}]}',
        b'{"text": "say \\"model\\": or", "model": "a", "of": {"model": 1, "model": 2}}',
        b'{"model": "a", "word": "model"}',
        b'{"model": "a", "mod\\u0065": 1}',
    ],
)
def test_models_further_inside_or_that_are_no_names_do_not_count(body: bytes) -> None:
    assert model_of_body(body, b"application/json") == "a"


def test_what_is_too_complicated_to_be_looked_through_is_refused() -> None:
    with pytest.raises(ValueError, match="too complicated"):
        model_of_body(b'{"model": "a", "x": [' + b"[]," * 100_000 + b'{"model": 1}]}', b"application/json")
