"""Every engine that we ship, spoken to through its port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conformance.embedded import EmbeddedBench
from tests.conformance.simulated import CrewBench, ReplayBench

from bireme.testing.conformance.checks import Check, NotApplicable
from bireme.testing.conformance.port import PORT_CHECKS, Bench, PortBody, run_port_check

BENCHES = {"embedded": EmbeddedBench, "simulated crew": CrewBench, "simulated": ReplayBench}


@pytest.mark.parametrize("check", list(PORT_CHECKS), ids=str)
@pytest.mark.parametrize("engine", BENCHES)
def test_engine(engine: str, check: Check[PortBody], tmp_path: Path) -> None:
    bench: Bench = BENCHES[engine](tmp_path)
    try:
        asyncio.run(run_port_check(check, bench))
    except NotApplicable as reason:
        pytest.skip(str(reason))
