"""One cluster of fake nodes, and one daemon, for all tests of others' pods; each test leaves it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import missing, running
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import NODES, PODS, Bireme


@pytest.fixture(scope="package")
def bireme() -> Iterator[Bireme]:
    why = missing(fake=True, scheduler=True)
    if why:
        pytest.skip(why)
    with running(fake=NODES) as kubernetes:
        one = Bireme(kubernetes, kubernetes.slot.folder / "home")
        one.home.mkdir(mode=0o700)
        (one.home / "bireme.toml").write_text('[kubernetes]\ntolerations = ["example.com/special"]\n')
        one.up()
        try:
            yield one
        finally:
            one.run("down")


@pytest.fixture(autouse=True)
def _empty(bireme: Bireme) -> Iterator[None]:
    yield
    bireme.kubernetes.api.delete(PODS)
    wait_for(lambda: not bireme.kubernetes.api.get(PODS)["items"], "no pods")
    wait_for(lambda: not bireme.queue(), "an empty queue")
