"""How images are written: Pyxis' and Enroot's spelling, Docker's defaults, and sentences for what is neither."""

from __future__ import annotations

import pytest

from bireme.images.references import LocalPath, Reference, parse_reference
from bireme.images.refusing import RefusedError

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ubuntu", Reference("docker.io", "library/ubuntu")),
        ("docker://ubuntu:24.04", Reference("docker.io", "library/ubuntu", "24.04")),
        ("nvidia/cuda:12.4", Reference("docker.io", "nvidia/cuda", "12.4")),
        ("registry-1.docker.io#library/ubuntu", Reference("docker.io", "library/ubuntu")),
        ("nvcr.io#nvidia/pytorch:24.05-py3", Reference("nvcr.io", "nvidia/pytorch", "24.05-py3")),
        ("nvcr.io/nvidia/pytorch:24.05-py3", Reference("nvcr.io", "nvidia/pytorch", "24.05-py3")),
        ("docker://$oauthtoken@nvcr.io#a/b:1", Reference("nvcr.io", "a/b", "1", user="$oauthtoken")),
        ("localhost:5000#a:1", Reference("localhost:5000", "a", "1")),
        ("localhost:5000/a:1", Reference("localhost:5000", "a", "1")),
        (f"ubuntu@{DIGEST}", Reference("docker.io", "library/ubuntu", digest=DIGEST)),
        (f"me@r.org#a/b:1@{DIGEST}", Reference("r.org", "a/b", "1", DIGEST, "me")),
        ("/images/a.sqsh", LocalPath("/images/a.sqsh")),
        ("../a b", LocalPath("../a b")),
    ],
)
def test_what_names_mean(text: str, meant: Reference | LocalPath) -> None:
    assert parse_reference(text) == meant


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is no image: write IMAGE:TAG, REGISTRY#IMAGE:TAG or a path"),
        ("Ubuntu", "'Ubuntu': names of images are lower case: library/ubuntu"),
        ("a:b:c", "'a:b:c': 'b:c' is no tag"),
        ("a:" + "x" * 129, "is no tag: letters, digits, '_', '.', '-', at most 128"),
        ("../../etc#a", None),
        ("r.org/../..#a", "'r.org/../..' is no registry: write HOST or HOST:PORT before the #"),
        ("a/../b", "is no image"),
        (
            "dockerd://a",
            "are not reached from here; save it with `docker save -o image.tar IMAGE`",
        ),
        ("https://r.org/a", "leave https:// out"),
        ("a\nb", "is no image"),
        ("a@sha256:zz", "a digest is sha256: and 64 digits"),
        ("me@r.org#a@sha512:" + "0" * 64, "a digest is sha256: and 64 digits"),
        ("x" * 5000, "is no image"),
    ],
)
def test_what_is_no_image_is_told_in_a_sentence(text: str, sentence: str | None) -> None:
    if sentence is None:
        assert isinstance(parse_reference(text), LocalPath)
        return
    with pytest.raises(RefusedError) as told:
        parse_reference(text)
    assert sentence in str(told.value)
    assert len(str(told.value)) < 500


def test_a_relative_path_begins_at_the_jobs_folder() -> None:
    assert LocalPath("../a/./b").absolute("/home/me/run") == "/home/me/a/b"
