"""`python -m bench.series_codecs`: ways to keep the same samples, compared. What docs/telemetry.md decides by.

A day of eight nodes with eight GPUs each (`bench.gpu_curves`), every metric, in chunks of one node's GPUs, one metric
and one hour; each way is asked for bytes a sample, CPU time to write a sample, and CPU time to read one metric of all
64 GPUs for the 24 hours. Parquet is compared where `pyarrow` is installed; Bireme does not need it.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
import zlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu_curves import Curves, node_curves
from bireme.core.telemetry.metrics import BY_NAME
from bireme.store.series import columns
from bireme.store.series.cells import STEP_BITS, of_samples

Block = NDArray[np.float64]
"""By GPU and time."""
Codec = tuple[Callable[[Block, float], bytes], Callable[[bytes], Any]]

GPUS = 8
HOUR = 360
"""Samples."""
READ = "gpu_sm_active"


def _planes(values: NDArray[Any]) -> bytes:
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes()


def _from_planes(data: bytes, width: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(width, -1).T)


def _with_mask(block: Block, pack: Callable[[Block], bytes]) -> bytes:
    """Missing values as bits, the others packed."""
    known = ~np.isnan(block.ravel())
    body = pack(block.ravel()[known])
    mask = b"" if known.all() else np.packbits(known).tobytes()
    return zlib.compress(len(mask).to_bytes(2, "little") + mask + body, 1)


def _without_mask(data: bytes, unpack: Callable[[bytes], Block]) -> Block:
    body = zlib.decompress(data)
    size = int.from_bytes(body[:2], "little")
    values = unpack(body[2 + size :])
    if not size:
        return values
    known = np.unpackbits(np.frombuffer(body[2 : 2 + size], np.uint8)).astype(np.bool_)[: GPUS * HOUR]
    found = np.full(len(known), np.nan)
    found[known] = values
    return found


def _ours() -> Codec:
    keys = ((np.arange(GPUS)[:, np.newaxis] + 1) << STEP_BITS | (np.arange(HOUR) + 179_000_000)).ravel()

    def encode(block: Block, grain: float) -> bytes:
        return columns.encode(of_samples(keys[: block.size], block.ravel()), grain, finer_means=False)

    return encode, columns.decode


def _differences() -> Codec:
    """Everywhere, in 32 bits."""

    def encode(block: Block, grain: float) -> bytes:
        return _with_mask(block, lambda known: _planes(np.diff(np.rint(known / grain), prepend=0).astype(np.int32)))

    def unpack(body: bytes) -> Block:
        return np.cumsum(_from_planes(body, 4).view(np.int32).ravel()).astype(np.float64)

    return encode, lambda data: _without_mask(data, unpack)


def _xor() -> Codec:
    """As Gorilla does: floats, each as the bits that differ from the one before; deflate in place of its bit codes."""

    def pack(known: Block) -> bytes:
        bits = known.view(np.uint64)
        return _planes(np.concatenate([bits[:1], bits[1:] ^ bits[:-1]]))

    def unpack(body: bytes) -> Block:
        return np.bitwise_xor.accumulate(_from_planes(body, 8).view(np.uint64).ravel()).view(np.float64)

    return lambda block, grain: _with_mask(block, pack), lambda data: _without_mask(data, unpack)


def _floats() -> Codec:
    return (
        lambda block, grain: zlib.compress(block.tobytes(), 1),
        lambda data: np.frombuffer(zlib.decompress(data), np.float64),
    )


CODECS: dict[str, Codec] = {
    "quantised columns (chosen)": _ours(),
    "quantised, differences of 32 bits": _differences(),
    "XOR of neighbours (Gorilla-like)": _xor(),
    "floats, deflated": _floats(),
}


def _compare(name: str, codec: Codec, nodes: list[Curves]) -> None:
    encode, decode = codec
    kept: dict[str, list[bytes]] = {}
    began = time.process_time()
    for curves in nodes:
        for metric, values in curves.items():
            for hour in range(0, values.shape[1], HOUR):
                block = np.ascontiguousarray(values[:, hour : hour + HOUR])
                kept.setdefault(metric, []).append(encode(block, BY_NAME[metric].grain))
    written = time.process_time() - began
    began = time.process_time()
    for data in kept[READ]:
        decode(data)
    _tell(
        name, sum(len(data) for found in kept.values() for data in found), written, time.process_time() - began, nodes
    )


def _compare_parquet(nodes: list[Curves]) -> None:
    """A file for each node and hour, a column for each metric, zstd: nobody would write one a metric."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    kept = []
    began = time.process_time()
    for curves in nodes:
        for hour in range(0, curves[READ].shape[1], HOUR):
            found = {
                metric: np.rint(values[:, hour : hour + HOUR].ravel() / BY_NAME[metric].grain)
                for metric, values in curves.items()
            }
            table = arrow.table(
                {metric: arrow.array(values, from_pandas=True).cast("int64") for metric, values in found.items()}
            )
            file = io.BytesIO()
            parquet.write_table(table, file, compression="zstd")
            kept.append(file.getvalue())
    written = time.process_time() - began
    began = time.process_time()
    for data in kept:
        parquet.read_table(io.BytesIO(data), columns=[READ]).column(0).to_numpy()
    _tell(f"Parquet {arrow.__version__}", sum(map(len, kept)), written, time.process_time() - began, nodes)


def _tell(name: str, size: int, written: float, read: float, nodes: list[Curves]) -> None:
    samples = sum(int((~np.isnan(values)).sum()) for curves in nodes for values in curves.values())
    print(f"| {name} | {size / samples:.2f} | {1e9 * written / samples:.0f} | {1e3 * read:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.series_codecs", description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    given = parser.parse_args()
    nodes = [node_curves(GPUS, given.hours * HOUR, 10.0, seed) for seed in range(8)]
    print("| way | bytes a sample | ns to write a sample | ms to read a metric of 64 GPUs for the day |")
    print("|---|---|---|---|")
    for name, codec in CODECS.items():
        _compare(name, codec, nodes)
    if find_spec("pyarrow") is not None:
        _compare_parquet(nodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
