"""Every setting is documented, read from where it should be, and refused with a sentence when it is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.daemon.files import write_sealed
from bireme.daemon.paths import Paths
from bireme.daemon.settings import Settings, SettingsError, describe, load, markdown, remember

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_lists_every_setting_as_it_is() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == markdown(), "run: python -m bireme.daemon.settings > docs/settings.md"
    for row in describe():
        assert f"`{row.key}`" in page


def test_none_is_needed(tmp_path: Path) -> None:
    assert load(str(tmp_path), environ={}) == Settings()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "bireme.toml").write_text('[log]\nlevel = "debug"\nkeep = 7\n[access]\noperators = ["ann"]\n')
    found = load(str(tmp_path), environ={"BIREME_LOG_KEEP": "9"})
    assert (found.log_level, found.log_keep, found.operators) == ("debug", 9, ("ann",))
    assert load(str(tmp_path), environ={"BIREME_ACCESS_OPERATORS": "bob, eve"}).operators == ("bob", "eve")


def test_the_command_line_wins_over_slurm_conf_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "bireme.toml").write_text('[cluster]\nconf = "here/slurm.conf"\n')
    home = str(tmp_path)
    assert load(home, environ={}).conf == f"{home}/here/slurm.conf"
    assert load(home, environ={"SLURM_CONF": "/etc/slurm.conf"}).conf == "/etc/slurm.conf"
    assert load(home, "/other/slurm.conf", environ={"SLURM_CONF": "/etc/slurm.conf"}).conf == "/other/slurm.conf"


def test_the_file_may_lie_beside_slurm_conf(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "bireme.toml").write_text("[log]\nkeep = 1\n")
    assert load(str(tmp_path), str(tmp_path / "etc" / "slurm.conf"), environ={}).log_keep == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[log]\nlevle = 1\n", r"bireme\.toml: unknown setting 'log\.levle'; did you mean log\.level\?"),
        ("[zzzzz]\nqqq = 1\n", r"bireme\.toml: unknown setting 'zzzzz\.qqq'; known are: .*log\.level"),
        ("[log]\nlevel = 'loud'\n", r"log\.level: 'loud' is not possible here: it must be one of debug, info"),
        ("[log]\nkeep = 'x'\n", r"log\.keep: 'x' is not possible here: it must be a whole number"),
        ("[log]\nkeep = true\n", r"it must be a whole number"),
        ("[access]\noperators = 'ann'\n", r"it must be a list of texts"),
        ("[log\n", r"cannot read .*bireme\.toml: "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bireme.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        load(str(tmp_path), environ={})
    with pytest.raises(SettingsError, match="BIREME_LOG_KEEP: 'x'"):
        load(str(tmp_path / "elsewhere"), environ={"BIREME_LOG_KEEP": "x"})


def test_the_configuration_of_the_latest_start_counts_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    remember(str(tmp_path), Settings(conf="/etc/some/slurm.conf"))
    assert load(str(tmp_path), environ={}).conf == "/etc/some/slurm.conf"
    assert load(str(tmp_path), environ={"SLURM_CONF": "/other.conf"}).conf == "/other.conf"
    assert load(str(tmp_path), "none", environ={"SLURM_CONF": "/other.conf"}).conf == ""


def test_the_engine_of_the_latest_start_counts_again_unless_something_says_another(tmp_path: Path) -> None:
    home = str(tmp_path)
    (tmp_path / "run").mkdir()
    assert load(home, environ={}).engine == "embedded"
    remember(home, Settings(engine="slurm"))
    assert load(home, environ={}).engine == "slurm"
    assert load(home, environ={}, engine="embedded").engine == "embedded"
    assert load(home, environ={"BIREME_CLUSTER_ENGINE": "kubernetes"}).engine == "kubernetes"
    with pytest.raises(SettingsError, match="'flux' is not possible here: it must be one of embedded, slurm"):
        load(home, environ={}, engine="flux")


def test_the_flag_of_the_latest_start_says_where_metrics_are_served(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path))
    os.makedirs(paths.run)
    assert load(str(tmp_path), environ={"BIREME_METRICS_ADDRESS": "9400"}).metrics_address == "9400"
    write_sealed(paths.metrics_in_force, "9500")
    assert load(str(tmp_path), environ={"BIREME_METRICS_ADDRESS": "9400"}).metrics_address == "9500"
    write_sealed(paths.metrics_in_force, "")
    assert load(str(tmp_path), environ={"BIREME_METRICS_ADDRESS": "9400"}).metrics_address == "9400"
    Path(paths.metrics_in_force).write_text("rotten")
    with pytest.raises(SettingsError, match="bireme up --metrics-port PORT"):
        load(str(tmp_path), environ={})
