"""What `make` and the benchmarks offer is what there is, and it is documented."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from bench.__main__ import SECTIONS
from bench.sections import add_only
from bench.telemetry import of_a_cluster

ROOT = Path(__file__).resolve().parents[2]


def test_every_section_is_listed_and_described() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    listed = re.findall(r"# some of (.+)", text)
    assert listed == [", ".join(SECTIONS)]
    assert set(SECTIONS) <= set(re.findall(r"^\| (\w+) \|", text, re.MULTILINE))


def test_only_sections_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_only(parser, ("gang", "late"))
    assert parser.parse_args([]).only == ("gang", "late")
    assert parser.parse_args(["--only", "late"]).only == ("late",)
    with pytest.raises(SystemExit):
        parser.parse_args(["--only", "late,singles"])
    assert "unknown: singles; there are gang, late" in capsys.readouterr().err


def test_every_phony_target_has_a_rule() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)", text, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def test_the_page_that_is_measured_has_all_that_a_page_is_made_of() -> None:
    """Who gives pages something new gives it to the benchmark, too."""
    taken, _ = of_a_cluster()
    assert taken.rounds
    assert taken.measured.gpus
