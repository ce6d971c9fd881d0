"""Bodies that were read before: told by what stands before their key, by who sent them and by the configuration."""

from __future__ import annotations

from dataclasses import replace

from bireme.api.submitted import Submission, Submitted
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.refusals import Caller

ADA = Caller(uid=1000, gid=1000, user="ada", admin=False, group="users", groups=(1000,), group_names=("users",))
BOB = replace(ADA, uid=1001, user="bob")
CONFIG = ClusterConfig(name="tiny", nodes=(), partitions=())
READ = Submission((JobSpec(owner=Owner(uid=1000, gid=1000, user="ada", group="users")),), "1000:k0")
BLOBS = (b"#!/bin/sh\n", b"{}")


def body(key: str, *, name: str = "a") -> bytes:
    return f'{{"spec":{{"name":"{name}"}},"script":"#!/bin/sh","idempotency_key":"{key}"}}'.encode()


def knowing() -> tuple[Submitted, list[tuple[bytes, int]]]:
    put: list[tuple[bytes, int]] = []

    def keep(data: bytes, uid: int) -> str:
        put.append((data, uid))
        return "name"

    submitted = Submitted(keep)
    submitted.remember(body("k0"), ADA, CONFIG, READ, BLOBS)
    return submitted, put


def test_the_same_with_another_key_is_known_and_its_blobs_are_put_again() -> None:
    submitted, put = knowing()
    assert submitted.find(body("k1"), ADA, CONFIG) == replace(READ, key="1000:k1")
    assert put == [(blob, 1000) for blob in BLOBS]


def test_anything_else_is_not_known() -> None:
    submitted, put = knowing()
    assert submitted.find(body("k1", name="b"), ADA, CONFIG) is None
    assert submitted.find(body("k1"), BOB, CONFIG) is None
    assert submitted.find(body("k1"), ADA, replace(CONFIG)) is None, "another configuration, whatever it says"
    assert put == []


def test_a_body_whose_key_is_not_the_last_that_is_said_of_it_is_read() -> None:
    submitted, _ = knowing()
    whole = body("k1")
    for other in (
        whole[:-1] + b',"uid":0}',
        whole + b" ",
        body('k1","uid":"0'),
        body("k1\\u0031"),
        body(""),
        body("k" * 65),
        b"",
        b'"}',
    ):
        assert submitted.find(other, ADA, CONFIG) is None, other


def test_only_the_last_are_remembered() -> None:
    submitted, _ = knowing()
    for number in range(100):
        submitted.remember(body("k0", name=f"other{number}"), ADA, CONFIG, READ, BLOBS)
    assert submitted.find(body("k1"), ADA, CONFIG) is None
    assert submitted.find(body("k1", name="other99"), ADA, CONFIG) is not None
    large = body("k0", name="x" * 40_000)
    submitted.remember(large, ADA, CONFIG, READ, BLOBS)
    assert submitted.find(large, ADA, CONFIG) is None
