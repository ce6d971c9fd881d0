"""The rules that ship, each by its own examples, and a site's folder beside them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bireme.core.diagnosis.judging import judge
from bireme.core.diagnosis.model import SIGNS, Line, Rule
from bireme.core.faults import detection
from bireme.core.faults.detection import node_checks, xids
from bireme.evidence.patterns import is_slow
from bireme.evidence.rulebook import MOST_RULES, Loaded, load, problems_of

LOADED = load()
BOOK = LOADED.book()
ANOTHER_CAUSE = {
    "mpi-abort": {"host_out_of_memory"},  # "exited on signal 9 (Killed)" says more than that a rank ended
}
"""Rules whose examples the whole book may tell otherwise."""

A_RULE = """
[[rule]]
id = "acme-mount"
cause = "storage_stale"
words = ["acmefs"]
pattern = 'acmefs: lost (?P<where>\\S+)'
meaning = "The site's file system at {where} went away."
examples = ["acmefs: lost /acme"]
"""


@pytest.mark.parametrize("rule", LOADED.rules.values(), ids=lambda rule: rule.id)
def test_a_rules_examples_are_told_with_its_cause_by_the_whole_book(rule: Rule) -> None:
    wanted = {rule.cause or "unknown"} | ANOTHER_CAUSE.get(rule.id, set())
    for source in rule.sources:
        for text in rule.examples:
            told = judge(BOOK.clues(Line(text=text, source=source, file="log", order=1)), LOADED.causes)
            if source == rule.sources[0] or told.cause.id != "unknown":
                assert told.cause.id in wanted, text


@pytest.mark.parametrize("rule", LOADED.rules.values(), ids=lambda rule: rule.id)
def test_no_pattern_is_catastrophic(rule: Rule) -> None:
    """The limit is far from what any of them takes, and near to what one that goes wrong does."""
    assert not is_slow(re.compile(rule.pattern), rule.examples, limit_s=1.0)


def test_every_cause_can_be_told_and_is_acted_on() -> None:
    told = {rule.cause for rule in LOADED.rules.values() if rule.role not in SIGNS}
    of_detectors = {cause.id for cause in LOADED.causes.values() if cause.family == "detected"}
    assert LOADED.causes.keys() - told == {"unknown", "completed", *of_detectors}
    assert all(cause.actions and cause.title for cause in LOADED.causes.values())


def test_nothing_leads_to_itself() -> None:
    """A fault before its effect and the effect before the fault: one of the two is wrong."""
    for cause in LOADED.causes.values():
        assert cause.id not in cause.leads_to
        for effect in cause.leads_to:
            assert cause.id not in LOADED.causes[effect].leads_to, (cause.id, effect)


def test_words_of_health_are_asked_for_apart() -> None:
    assert "it/s" in BOOK.words_of_health
    assert "it/s" not in BOOK.words
    assert "cuda error" in BOOK.words


def test_a_site_adds_a_rule_and_replaces_one_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "acme.toml").write_text(A_RULE + A_RULE.replace("acme-mount", "estale"))
    loaded = load(tmp_path)
    assert loaded.problems == []
    answer = judge(loaded.book().clues(Line(text="acmefs: lost /acme")), loaded.causes)
    assert (answer.cause.id, answer.summary) == ("storage_stale", "The site's file system at /acme went away.")
    stale = Line(text="OSError: [Errno 116] Stale file handle: '/nfs/a'")
    assert judge(BOOK.clues(stale), LOADED.causes).cause.id == "storage_stale"
    assert judge(loaded.book().clues(stale), loaded.causes).cause.id == "python_error"


def test_a_site_adds_a_cause(tmp_path: Path) -> None:
    cause = '[[cause]]\nid = "acme_down"\ntitle = "ACME is down"\nwho = "platform"\nactions = ["ring them"]\n'
    (tmp_path / "acme.toml").write_text(cause + A_RULE.replace("storage_stale", "acme_down"))
    assert load(tmp_path).causes["acme_down"].family == "acme"


def test_a_folder_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    assert load(tmp_path / "none").problems == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[rule]]", "[[rul]]"), "rul is no table of a file of rules"),
        (("[[rule]]", "[rule]"), "rule is no table of a file of rules"),
        (("[[rule]]", "[[rule"), "Expected"),
        (("[[rule]]", f"a = {'[' * 20_000}"), "nested too deeply"),
        (("storage_stale", "storage_stail"), "there is no cause storage_stail"),
        (('id = "acme-mount"', 'id = "Acme mount"'), "each rule has an id of small letters"),
        (('id = "acme-mount"\n', ""), "each rule has an id of small letters"),
        (("pattern", "patern"), "there is no patern; there are id, cause, pattern"),
        (('words = ["acmefs"]', 'words = "acmefs"'), "words is a list of texts"),
        (('words = ["acmefs"]', "words = []"), "words are in lower case"),
        (('words = ["acmefs"]', 'words = ["AcmeFS"]'), "words are in lower case"),
        (('words = ["acmefs"]', ""), "words is missing"),
        (("(?P<where>", "(?P<where"), "missing >"),
        (("{where}", "{place}"), "meaning may have {NAME} for a named group"),
        (("{where}", "{where:>99999999}"), "meaning may have {NAME} for a named group"),
        (('["acmefs: lost /acme"]', '["nothing of it"]'), "do not know its example 'nothing of it'"),
        (('["acmefs: lost /acme"]', "[]"), "examples has at least one line"),
        (("\nmeaning", '\nrole = "culprit"\nmeaning'), "role is of cause, general"),
        (("\nmeaning", '\nsure = "very"\nmeaning'), "sure is of high, medium"),
        (("\nmeaning", '\nsources = ["syslog"]\nmeaning'), "sources is of output, kernel"),
        (("\nmeaning", '\ncounterexamples = ["acmefs: lost x"]\nmeaning'), "its pattern knows its counterexample"),
        (("lost (?P<where>\\S+)", "lost (?P<where>(?:/\\w+)+)+$"), "its pattern takes long on some lines"),
    ],
)
def test_a_sites_file_with_a_mistake_is_left_out_whole_and_said(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    assert change[0] in A_RULE
    (tmp_path / "a.toml").write_text(A_RULE.replace(*change))
    (tmp_path / "b.toml").write_text(A_RULE.replace("acme-mount", "other"))
    loaded = load(tmp_path)
    assert [str(tmp_path / "a.toml") in each and said in each for each in loaded.problems] == [True], loaded.problems
    assert "acme-mount" not in loaded.rules
    assert "other" in loaded.rules
    assert len(problems_of([tmp_path / "a.toml", tmp_path / "b.toml"])) == 1


def test_the_list_of_what_is_unknown_is_not_a_sites_to_change(tmp_path: Path) -> None:
    cause = '[[cause]]\nid = "unknown"\ntitle = "All is well"\nwho = "you"\nactions = []\n'
    (tmp_path / "a.toml").write_text(cause)
    assert "not a site's to change" in load(tmp_path).problems[0]
    assert load(tmp_path).causes["unknown"].title == "Not explained"


def test_too_much_of_a_site_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "c.toml")
    (tmp_path / "d.toml").mkdir()
    problems = load(tmp_path).problems
    assert [each.partition(" is not used: ")[2].partition(":")[0] for each in problems] == [
        "it is longer than 1048576 bytes",
        "it is not UTF-8",
        "[Errno 21] Is a directory",
    ]
    many = "".join(A_RULE.replace("acme-mount", f"r{place}") for place in range(MOST_RULES + 1))
    (tmp_path / "a.toml").write_text(many)
    assert f"at most {MOST_RULES} rules" in load(tmp_path).problems[0]


def test_a_sites_cause_replaces_ours_with_other_actions(tmp_path: Path) -> None:
    cause = '[[cause]]\nid = "storage_quota"\ntitle = "Quota"\nwho = "platform"\nactions = ["myquota"]\n'
    (tmp_path / "a.toml").write_text(cause)
    loaded: Loaded = load(tmp_path)
    answer = judge(loaded.book().clues(Line(text="OSError: [Errno 122] Disk quota exceeded")), loaded.causes)
    assert answer.actions == ("myquota",)


def test_every_cause_that_a_detector_names_is_published() -> None:
    """In their source a cause is a keyword, a value of a table, or the argument after a gravity."""
    folder = Path(detection.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    named = {*re.findall(r'cause="(\w+)"', text), *re.findall(r'Gravity\.\w+, "(\w+)"', text)}
    named |= {*xids._CAUSES.values(), *node_checks._CAUSES.values()}
    assert len(named) > 12
    assert named <= LOADED.causes.keys()
