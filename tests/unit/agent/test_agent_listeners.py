"""Whose program is at the other end: asked of this machine's kernel."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from bireme.agent.system.listeners import NOBODY, SocketOwners

HERE = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
OTHER = 65534


@pytest.fixture
def kernel() -> Iterator[SocketOwners]:
    with closing(SocketOwners()) as asked:
        yield asked


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """What is made within is another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("family", "address"), HERE)
def test_who_listens_accepts_and_connects_is_told(kernel: SocketOwners, family: int, address: str) -> None:
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert kernel.of_listener(address, port) == os.geteuid()
        with socket.create_connection((address, port)) as near:
            mine, other = near.getsockname()[:2], near.getpeername()[:2]
            assert kernel.of_other_end(mine, other) == NOBODY, "nobody has accepted it"
            with listener.accept()[0]:
                assert kernel.of_other_end(mine, other) == os.geteuid()
                assert kernel.of_other_end(other, mine) == os.geteuid()
            assert not kernel.is_anothers(mine, other, {os.geteuid()})
    assert kernel.of_listener(address, port) == NOBODY


def test_another_users_listener_is_not_taken_for_anybody_else(kernel: SocketOwners) -> None:
    with as_somebody_else():
        listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as near:
        mine, other = near.getsockname(), near.getpeername()
        assert kernel.is_anothers(mine, other, {0}), "before it has accepted"
        assert not kernel.is_anothers(mine, other, {OTHER})
        with as_somebody_else():
            far, _ = listener.accept()
        with far:
            assert kernel.is_anothers(mine, other, {0})


def test_who_accepted_and_gave_the_port_back_is_not_who_listens_now(kernel: SocketOwners) -> None:
    with as_somebody_else():
        listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname()) as near:
        mine, other = near.getsockname(), near.getpeername()
        with as_somebody_else():
            far, _ = listener.accept()
        listener.close()
        with far, socket.socket() as rightful:
            rightful.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rightful.bind(other)
            rightful.listen()
            assert kernel.of_listener(*other) == 0
            assert kernel.is_anothers(mine, other, {0})


def test_of_another_machine_nothing_is_said(kernel: SocketOwners) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        assert not kernel.is_anothers(("192.0.2.1", 40000), ("192.0.2.2", port), {12345})
