"""What an agent of an earlier release says in its first line, and what is told of its node."""

from __future__ import annotations

import pytest

from bireme.agent.messages.lines import LineReader
from bireme.agent.messages.told import Welcome
from bireme.core.model import observations as o
from bireme.engines.crew.engine import answered

EARLIER = b"""{"ev":"welcome","node":"n1","version":"0.0.9","protocol":2,"pid":7,"epoch":1,"holds":[[3,1]],"seq":4}"""


@pytest.mark.parametrize(("line", "asks"), [(EARLIER, False), (EARLIER.replace(b':2,"pid', b':3,"pid'), True)])
def test_it_is_understood_and_said_whether_it_asks_replicas(line: bytes, asks: bool) -> None:
    message: Welcome = LineReader[Welcome](Welcome)(line)
    assert answered("n1", message, 5.0) == o.NodeAnswered("n1", "0.0.9", ((3, 1),), 5.0, asks_replicas=asks)
