"""What may be called what: above all, who cannot be mistaken for the router itself."""

from __future__ import annotations

import pytest

from bireme.core.model.serving.names import is_host


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3", "localhost", "localhost.localdomain", "1", "::1", "A.example"]
)
def test_no_service_has_an_address_or_a_name_of_every_machine(host: str) -> None:
    assert not is_host(host)


@pytest.mark.parametrize("host", ["chat.example", "chat", "chat.localhost", "a1.b2.example", "7b.example"])
def test_host_names_are_names(host: str) -> None:
    assert is_host(host)
