"""Every detector has its switch, every threshold its setting, and both say the same by default."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from bireme.core.faults.detection.thresholds import DETECTORS, SOURCES, Thresholds
from bireme.daemon.faults.detecting.sensitivity import thresholds_of
from bireme.daemon.settings import Settings, describe


def test_the_defaults_are_the_same_in_both_places() -> None:
    assert thresholds_of(Settings()) == Thresholds()


def test_every_detector_and_every_threshold_has_a_setting() -> None:
    keys = {row.key.removeprefix("detectors.") for row in describe() if row.key.startswith("detectors.")}
    assert keys - {"health_s"} == {*DETECTORS, *(field.name for field in fields(Thresholds) if field.name != "off")}


def test_where_each_default_is_from_is_said_and_stands_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "healing.md").read_text()
    known = [field for field in fields(Thresholds) if field.name != "off"]
    assert SOURCES.keys() == {field.name for field in known}
    for field in known:
        assert f"| `detectors.{field.name}` | {field.default:g} | {SOURCES[field.name]} |" in page


def test_a_switch_and_a_threshold_reach_the_detectors() -> None:
    for name in DETECTORS:
        assert not thresholds_of(replace(Settings(), **{f"detect_{name}": "off"})).on(name)
        assert thresholds_of(replace(Settings(), **{f"detect_{name}": "on"})).on(name)
    for field in fields(Thresholds):
        if field.name != "off":
            changed = thresholds_of(replace(Settings(), **{f"detect_{field.name}": 77}))
            assert getattr(changed, field.name) == 77, field.name
