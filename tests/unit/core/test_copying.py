"""Copies of specifications are what `dataclasses.replace` would have made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.model.copying import copied
from bireme.core.model.jobs import JobSpec, Owner, ResourceRequest

ADA = Owner(uid=1000, gid=1000, user="ada", group="users")
SPEC = JobSpec(owner=ADA, name="train", resources=ResourceRequest(nodes_min=2))


def test_a_copy_has_the_changed_fields_and_all_the_others() -> None:
    made = copied(SPEC, {"account": "physics", "priority": 7})
    assert made == replace(SPEC, account="physics", priority=7)
    assert hash(made) == hash(replace(SPEC, account="physics", priority=7))
    assert SPEC.account == ""


def test_a_copy_of_what_knows_its_hash_works_out_its_own() -> None:
    hash(SPEC.resources)
    made = copied(SPEC.resources, {"nodes_min": 3})
    assert hash(made) == hash(replace(SPEC.resources, nodes_min=3)) != hash(SPEC.resources)


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        copied(SPEC, {"colour": "red"})
