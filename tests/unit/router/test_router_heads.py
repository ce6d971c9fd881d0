"""Heads and chunked bodies: what is refused, and that nobody else reads another message in what is accepted."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bireme.router.rules import heads, rewriting
from bireme.router.rules.bodies import BodyError, ChunkedBody
from bireme.router.rules.heads import HeadError, Request, may_begin_answer, read_answer, read_request

REFUSED = {
    "a length and chunks": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", 400),
    "chunks and a length": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6", 400),
    "two equal lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5", 400),
    "a list of lengths": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5", 400),
    "a length with a sign": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5", 400),
    "a negative length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5", 400),
    "a length with a space": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 5", 400),
    "a hexadecimal length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5", 400),
    "an underscore in a length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0", 400),
    "an empty length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:", 400),
    "a length beyond all": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999", 400),
    "xchunked": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked", 501),
    "gzip, chunked": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked", 501),
    "chunked, identity": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity", 501),
    "identity": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity", 501),
    "a quoted coding": (b'POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "chunked"', 501),
    "chunked twice": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
    "chunks of an old client": (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked", 400),
    "a vertical tab": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked", 400),
    "a space before the colon": (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked", 400),
    "a space before the name": (b"POST / HTTP/1.1\r\n Host: a", 400),
    "a fold": (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c", 400),
    "a fold with a tab": (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tc", 400),
    "a bare LF": (b"GET / HTTP/1.1\r\nHost: a\nX: b", 400),
    "a bare CR": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rContent-Length: 5", 400),
    "a bare LF behind the request line": (b"GET / HTTP/1.1\nHost: a", 400),
    "a NUL": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b", 400),
    "a NUL in a name": (b"GET / HTTP/1.1\r\nHost: a\r\nX\0: b", 400),
    "a name that is none": (b"GET / HTTP/1.1\r\nHost: a\r\n: b", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nX", 400),
    "a name in another script": (b"GET / HTTP/1.1\r\nHost: a\r\nX-\xc3\xa9: b", 400),
    "HTTP/0.9": (b"GET /", 400),
    "HTTP/2": (b"PRI * HTTP/2.0", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a", 400),
    "HTTP/1.10": (b"GET / HTTP/1.10\r\nHost: a", 400),
    "a small http": (b"GET / http/1.1\r\nHost: a", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a", 400),
    "a tab for a space": (b"GET\t/ HTTP/1.1\r\nHost: a", 400),
    "a space in the address": (b"GET /a b HTTP/1.1\r\nHost: a", 400),
    "a fragment": (b"GET /a#b HTTP/1.1\r\nHost: a", 400),
    "bytes in the address": (b"GET /\xff HTTP/1.1\r\nHost: a", 400),
    "no host": (b"GET / HTTP/1.1", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", 400),
    "a host with a path": (b"GET / HTTP/1.1\r\nHost: a/b", 400),
    "a host with a user": (b"GET / HTTP/1.1\r\nHost: a@b", 400),
    "two other hosts": (b"GET http://b/ HTTP/1.1\r\nHost: a", 400),
    "a user in the address": (b"GET http://u@a/ HTTP/1.1\r\nHost: a", 400),
    "another scheme": (b"GET ftp://a/ HTTP/1.1\r\nHost: a", 400),
    "an address without a slash": (b"GET a HTTP/1.1\r\nHost: a", 400),
    "CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443", 501),
    "CONNECT to a path": (b"CONNECT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5", 501),
    "a star": (b"OPTIONS * HTTP/1.1\r\nHost: a", 400),
    "another expectation": (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles", 417),
    "too many fields": (b"GET / HTTP/1.1\r\nHost: a" + b"\r\nX: y" * 200, 431),
    "a long address": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a", 414),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    head, status = REFUSED[name]
    for _ in range(2):  # what was refused once is not remembered as read
        with pytest.raises(HeadError) as refused:
            read_request(head)
        assert refused.value.status == status


REFUSED_BODIES = {
    "no digits": b"\r\nabc\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n",
    "a space behind": b"3 \r\nabc\r\n0\r\n\r\n",
    "a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\n",
    "beyond all": b"FFFFFFFFFFFFFFFFF\r\n",
    "a bare LF": b"3\nabc\n0\n\n",
    "a bare LF behind data": b"3\r\nabc\n0\r\n\r\n",
    "a bare LF in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a bare CR in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "longer than it says": b"3\r\nabcd\r\n0\r\n\r\n",
    "an endless extension": b"3;" + b"a" * 5000,
    "more extensions than data": (b"1;" + b"e" * 100 + b"\r\na\r\n") * 300,
    "framing in a trailer": b"0\r\nContent-Length: 5\r\n\r\n",
    "a coding in a trailer": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no field in a trailer": b"0\r\nGET / HTTP/1.1\r\n\r\n",
    "endless trailers": b"0\r\n" + b"X: yyyyyyyy\r\n" * 3000,
}


def take_byte_by_byte(body: bytes) -> None:
    reader = ChunkedBody()
    for byte in body:
        reader.take(bytes([byte]))


@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_bodies_that_could_end_elsewhere_are_refused(name: str) -> None:
    body = REFUSED_BODIES[name]
    with pytest.raises(BodyError):
        ChunkedBody().take(body)
    with pytest.raises(BodyError):
        take_byte_by_byte(body)


TOKENS = st.text("abcdefXYZ-_.!~0", min_size=1, max_size=8).map(str.encode)
VALUES = st.one_of(
    st.sampled_from([b"chunked", b"5", b"0", b"close", b"keep-alive, x", b"a", b"100-continue", b"Bearer x", b""]),
    st.binary(max_size=12),
)
NAMES = st.one_of(
    TOKENS,
    st.sampled_from(
        [b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"TE", b"Upgrade", b"content_length"]
    ),
    st.binary(max_size=6),
)
LINES = st.tuples(NAMES, st.sampled_from([b": ", b":", b" : ", b":\t"]), VALUES).map(b"".join)
FIRST = st.one_of(
    st.sampled_from([b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"GET http://a/x HTTP/1.1", b"PUT /x HTTP/1.0"]),
    st.binary(max_size=24),
)


@st.composite
def some_heads(draw: st.DrawFn) -> bytes:
    lines = [draw(FIRST), *draw(st.lists(st.one_of(st.just(b"Host: a"), LINES), max_size=5))]
    ends = draw(st.lists(st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"]), min_size=len(lines), max_size=len(lines)))
    return b"".join(line + end for line, end in zip(lines, ends, strict=True)).removesuffix(b"\r\n")


class Seen:
    """What llhttp makes of a message."""

    def __init__(self) -> None:
        self.heads = self.messages = 0
        self.body = b""

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.messages += 1


def passed_on(request: Request) -> bytes:
    return rewriting.request_head(request, request.target, b"X-Forwarded-For: p", [], kept_expectation=True)


def as_llhttp_reads(text: bytes) -> Seen | str:
    """What it saw; else why it read no further."""
    seen = Seen()
    try:
        httptools.HttpRequestParser(seen).feed_data(text)
    except httptools.HttpParserUpgrade:
        return "upgrade"
    except httptools.HttpParserInvalidMethodError:
        return "unknown method"
    except httptools.HttpParserError as error:
        return f"refused: {error}"
    return seen


@given(some_heads())
@example(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3")
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked")
def test_what_is_accepted_is_read_alike_by_another_parser(head: bytes) -> None:
    """Both what came and what is passed on: one head, and a body of the length that was understood."""
    try:
        request = read_request(head)
    except HeadError:
        return
    if request.length > 1000:
        return
    body = b"3\r\nabc\r\n0\r\n\r\n" if request.chunked else b"x" * max(0, request.length)
    as_it_came, as_it_goes = as_llhttp_reads(head + b"\r\n\r\n" + body), as_llhttp_reads(passed_on(request) + body)
    assert isinstance(as_it_goes, Seen) or as_it_goes in ("upgrade", "unknown method"), (as_it_goes, passed_on(request))
    for seen in (as_it_came, as_it_goes):
        if isinstance(seen, Seen):
            assert (seen.heads, seen.messages) == (1, 1)
            assert seen.body == (b"abc" if request.chunked else body)


@given(some_heads())
def test_what_is_passed_on_is_read_again_alike(head: bytes) -> None:
    try:
        request = read_request(head)
    except HeadError:
        return
    again = read_request(passed_on(request).removesuffix(b"\r\n\r\n"))
    assert (again.method, again.target, again.length, again.chunked) == (
        request.method, request.target, request.length, request.chunked
    )  # fmt: skip
    assert again.host == request.host


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)


@given(CHUNKS, st.lists(st.integers(0, 300), max_size=12), st.binary(max_size=10))
def test_a_body_is_the_same_in_whatever_pieces_it_comes(chunks: list[bytes], cuts: list[int], behind: bytes) -> None:
    body = b"".join(b"%x;e=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nX-T: 1\r\n\r\n"
    wire = body + behind
    reader, out, taken = ChunkedBody(), bytearray(), 0
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    for start, stop in pairwise(edges):
        taken += reader.take(wire[start:stop], out)
    assert reader.done
    assert (taken, out) == (len(body), b"".join(chunks))
    assert reader.payload == sum(map(len, chunks))


@given(CHUNKS, st.sampled_from([b"", b";e=1"]), st.integers(1, 4), st.binary(max_size=10))
def test_a_body_is_the_same_however_little_is_looked_through_at_a_time(
    chunks: list[bytes], extension: bytes, most: int, behind: bytes
) -> None:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks) + b"0\r\nX-T: 1\r\n\r\n"
    reader, out, at = ChunkedBody(), bytearray(), 0
    while not reader.done:
        before, at = at, reader.take(body + behind, out, at, most)
        assert at > before
    assert (at, out) == (len(body), b"".join(chunks))


def test_so_many_chunks_are_looked_through_as_were_asked_for() -> None:
    reader = ChunkedBody()
    assert reader.take(b"1\r\na\r\n" * 1000, None, 0, 10) == 60
    assert reader.payload == 10


def test_small_chunks_are_no_excess() -> None:
    """Who streams a letter at a time has five bytes of framing for each."""
    reader = ChunkedBody()
    reader.take(b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n")
    assert reader.done


def test_an_answer_is_read() -> None:
    answer = read_answer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nKeep-Alive: timeout=5\r\nConnection: x-hop\r\nX-Hop: 1"
    )
    assert (answer.status, answer.length, answer.chunked, answer.close) == (200, 3, False, False)
    assert answer.lines == []
    assert read_answer(b"HTTP/1.0 200").close
    assert rewriting.answer_head(answer, closing=True) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\nVia: 1.1 bireme\r\n\r\n"
    )


def test_secrets_are_not_remembered() -> None:
    read_request(b"GET /secrets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer hush\r\nCookie: c=hush\r\nX-API-Key: hush")
    read_answer(b"HTTP/1.1 200 OK\r\nSet-Cookie: c=hush")
    kept = (heads._requests, heads._answers, heads._known_of_requests, heads._known_of_answers)
    assert not any(b"hush" in text for memory in kept for text in memory)


def test_what_is_remembered_is_bounded() -> None:
    for number in range(20_000):
        read_request(b"GET /%d HTTP/1.1\r\nHost: a\r\nX-Number: %d" % (number, number))
        read_answer(b"HTTP/1.1 200 OK\r\nX-Number: %d" % number)
    assert len(heads._requests) <= 1024
    assert len(heads._answers) <= 1024
    assert len(heads._known_of_requests) <= 4096
    assert len(heads._known_of_answers) <= 4096


def test_who_passed_a_request_on_before_is_named() -> None:
    request = read_request(
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: gopher\r\nVia: 1.0 b"
    )
    block = rewriting.forwarded(b"5.6.7.8", b"https", b"a", b"/chat")
    text = rewriting.request_head(request, b"/", block, [], kept_expectation=True)
    assert b"\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8\r\nX-Forwarded-Proto: https\r\n" in text
    assert b"gopher" not in text
    assert text.count(b"\r\nVia: ") == 2


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 200 OK\n", b"hello there", b"HTTP/2 200\r\n", b"\n", b"HTTP/1.1 200 OK\r\n"]
)
def test_what_will_never_be_an_answer_is_not_waited_for(data: bytes) -> None:
    assert may_begin_answer(data) is data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert may_begin_answer(b"HT")


def test_an_answer_has_so_many_fields_and_no_more() -> None:
    with pytest.raises(HeadError, match="128 header fields"):
        read_answer(b"HTTP/1.1 200 OK" + b"\r\nX: y" * 128)
