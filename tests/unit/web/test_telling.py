"""What the daemon told, as pages can be sent with it."""

from __future__ import annotations

import pytest

from bireme.store.codec import dumps
from bireme.web.upstream import RefusedError, told_in


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"name": "b\udcff17", "of": ["\udce4x", 3]}, {"name": "b\ufffd17", "of": ["\ufffdx", 3]}),
        ({"\udcff": "\U0001f600 \udcff"}, {"\ufffd": "\U0001f600 \ufffd"}),
        ({"name": "\\udcff é \U0001f600"}, {"name": "\\udcff é \U0001f600"}),
    ],
)
def test_what_is_no_utf8_is_shown_and_the_rest_is_as_it_was(told: object, shown: object) -> None:
    assert told_in(dumps(told)) == shown


def test_a_refusal_can_be_shown_too() -> None:
    assert RefusedError(400, dumps({"error": {"message": "no \udcff"}})).message == "no \ufffd"
