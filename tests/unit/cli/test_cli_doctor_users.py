"""bireme doctor knows which folders keep other users out."""

from __future__ import annotations

from pathlib import Path

from bireme.cli.doctor import closed_to_others


def test_the_outermost_closed_folder_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "private" / "inner"
    inner.mkdir(parents=True, mode=0o700)
    (tmp_path / "private").chmod(0o700)
    closed = closed_to_others(str(inner / "file"))
    assert closed is not None
    assert str(tmp_path / "private").startswith(closed), "it, or a folder around it that is closed too"


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "python").touch()
    link = tmp_path / "python"
    link.symlink_to(tmp_path / "private" / "python")
    assert closed_to_others(str(link)) is not None


def test_a_system_program_is_open_to_all() -> None:
    assert closed_to_others("/bin/sh") is None
