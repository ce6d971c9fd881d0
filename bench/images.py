"""Rows `images`: how fast an image is unpacked, compared with `tar`, and how often it is pulled when many ask at once.

The image is made of files of this machine, as many as a Python image has for its size, in three layers; it lies in an
OCI layout, so that no network is in the figure. Both read the same gzip; ours writes what it knows to the disk besides,
holds every layer against its digest, and keeps its entries inside.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import registry as registries
from tests.support.images import Made
from tests.support.registry import BadProxy, bad_proxy, registry

from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.images.messages import Image, Policy, Wanted, decode_told, encode

_FROM = ("/usr/lib/python3", "/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/share", "/usr/bin")
_LAYERS, _ASKERS, _ROUNDS = 3, 10, 3


def measure(sizes: Sizes) -> Iterator[Row]:
    folder = new_folder("images")
    made = Made(_layers(folder, sizes.image_mib << 20))
    layout = made.to_layout(folder / "layout")
    mib = sum(map(len, made.plain)) / (1 << 20)
    ours, theirs = [], []
    for number in range(_ROUNDS):
        theirs.append(mib / _by_tar(layout, made, folder / f"tar-{number}"))
        ours.append(mib / _by_us(layout, folder / f"cache-{number}"))
    yield Row(
        "images",
        f"an image of {mib:,.0f} MiB unpacked, gzip",
        statistics.median(ours),
        "MiB/s",
        floor=statistics.median(theirs),
        target=Target(">=", 0.5, of_ratio=True),
        note="floor: tar -xzf of the same layers",
        details={"ours": ours, "tar": theirs, "files": sum(len(files) for _, _, files in os.walk(folder / "tar-0"))},
    )
    if not registries.missing():
        yield from _pulled_once(made, folder)


def _layers(folder: Path, most: int) -> Sequence[bytes]:
    """Files of this machine, split by their number into as many layers as there are."""
    chosen: dict[str, None] = {}
    size = 0
    for base in _FROM:
        for path, _, files in os.walk(base):
            for name in sorted(files):
                file = os.path.join(path, name)
                if size < most and file not in chosen and os.path.isfile(file) and not os.path.islink(file):
                    chosen[file] = None
                    size += os.path.getsize(file)
    layers = []
    for number in range(_LAYERS):
        with tarfile.open(folder / "layer.tar", "w") as tar:
            for file in list(chosen)[number::_LAYERS]:
                tar.add(file, file.lstrip("/"), recursive=False)
        layers.append((folder / "layer.tar").read_bytes())
    return layers


def _by_tar(layout: Path, made: Made, target: Path) -> float:
    target.mkdir()
    blobs = sorted(layout.glob("blobs/sha256/*"), key=lambda path: path.stat().st_size)[-_LAYERS:]
    began = time.monotonic()
    for blob in blobs:
        subprocess.run(["tar", "-C", target, "--no-same-owner", "-xzf", blob], check=True)
    return time.monotonic() - began


def _by_us(layout: Path, cache: Path) -> float:
    began = time.monotonic()
    asker = _asker(str(layout), Policy(cache=str(cache)))
    took = 0.0
    assert asker.stdout is not None
    for line in asker.stdout:
        if isinstance(decode_told(line), Image):
            took = time.monotonic() - began
    assert asker.wait() == 0
    return took


def _pulled_once(made: Made, folder: Path) -> Iterator[Row]:
    with registry(folder / "registry") as behind, bad_proxy(behind.host) as proxy:
        made.push(behind.host, "bench/made")
        policy = Policy(cache=str(folder / "shared"), insecure=(proxy.host,), fresh_s=60)
        began = time.monotonic()
        askers = [_asker(f"{proxy.host}#bench/made:1", policy) for _ in range(_ASKERS)]
        roots = set()
        for asker in askers:
            assert asker.stdout is not None
            told = [decode_told(line) for line in asker.stdout]
            roots |= {each.root for each in told if isinstance(each, Image)}
            assert asker.wait() == 0
        took = time.monotonic() - began
        assert len(roots) == 1
        yield Row(
            "images",
            f"pulls of an image that {_ASKERS} jobs ask for at once",
            max(_asked(proxy)),
            "pulls",
            target=Target("<", 1.5),
            details={"seconds": took},
        )


def _asked(proxy: BadProxy) -> list[int]:
    return [times for path, times in proxy.asked.items() if "/blobs/" in path]


def _asker(image: str, policy: Policy) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "bireme.images"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(encode(Wanted(image=image, policy=policy)))
    process.stdin.close()
    return process
