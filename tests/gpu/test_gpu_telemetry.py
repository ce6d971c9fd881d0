"""What is measured of a real card: energy, real use, memory by process and Xid errors, held against what is known.

The bounds: energy by the card's counter and by nvidia-smi's power over the same seconds differ by less than 10% (the
driver's power is a mean that lags); a process's memory by less than 64 MiB from another's that differs by a known
tensor; shares of time by a few percent.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
from tests.gpu.asking import Report, answer

from bireme.agent.devices.gpus import GpuInfo
from bireme.gather.gpus.attribution import Unowned, attribute
from bireme.gather.gpus.kernel_log import KernelLog
from bireme.gather.gpus.nvidia import NvidiaSource
from bireme.gather.gpus.source import Values
from bireme.gather.gpus.watching import GpuRound, Gpus, Pace
from bireme.gather.messages import Happening

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

BURNER = Path(__file__).parent / "burner.py"
WINDOW_S = 4.0
SMI_EVERY_MS = 50
STORE = """
__global__ void store(int* place) { place[1ull << 40] = 1; }
int main() {
  int* place;
  cudaMalloc(&place, 4);
  store<<<1, 1>>>(place);
  return cudaDeviceSynchronize() != 0;
}
"""


@pytest.fixture(scope="module")
def source(cards: tuple[GpuInfo, ...]) -> Iterator[NvidiaSource]:
    found = NvidiaSource(pynvml, clock=lambda: time.monotonic() * 60)  # what is asked seldom is asked every time
    found.open()
    found.devices()
    yield found
    found.close()


@contextmanager
def burning(python: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does this work on the first GPU, from now on."""
    argv = [python, str(BURNER), *words]
    work = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert work.stdout is not None
        assert work.stdout.readline() == "up\n", work.stderr and work.stderr.read()
        yield work
    finally:
        work.kill()
        work.communicate()


def of_a_while(source: NvidiaSource, uuid: str, seconds: float = WINDOW_S) -> tuple[Values, Values, float]:
    """Two samples, and the seconds between them; real use in the second is that of these seconds."""
    time.sleep(1.5)  # what the driver calls utilisation is a mean of the second before
    first, began = source.sample(uuid), time.monotonic()
    time.sleep(seconds)
    second, ended = source.sample(uuid), time.monotonic()
    return first, second, ended - began


@contextmanager
def power_by_nvidia_smi() -> Iterator[list[float]]:
    """The watts that nvidia-smi prints while the block runs, in equal steps."""
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi to compare with")
    query = ["--id=0", "--query-gpu=power.draw.instant", "--format=csv,noheader,nounits", f"--loop-ms={SMI_EVERY_MS}"]
    watts: list[float] = []
    printing = subprocess.Popen([program, *query], stdout=subprocess.PIPE, text=True)
    try:
        assert printing.stdout is not None
        printing.stdout.readline()  # it prints from now on
        yield watts
    finally:
        printing.terminate()
        watts += [float(line) for line in printing.communicate()[0].splitlines() if line.strip()]


def test_energy_agrees_with_nvidia_smi(
    source: NvidiaSource, cards: tuple[GpuInfo, ...], torch_python: str, report: Report
) -> None:
    uuid = cards[0].uuid
    with burning(torch_python, "matmul"):
        time.sleep(1.5)
        with power_by_nvidia_smi() as watts:
            first, began = source.sample(uuid), time.monotonic()
            time.sleep(WINDOW_S)
            second, ended = source.sample(uuid), time.monotonic()
    joules = (second["gpu_energy"] - first["gpu_energy"]) / 1000
    by_power = sum(watts) / len(watts) * (ended - began)
    told = f"{joules:.0f} J counted, {by_power:.0f} J by {len(watts)} of nvidia-smi's watts in {ended - began:.2f} s"
    report("energy of a matrix product", f"{told}; gpu_power {second['gpu_power']:.0f} W")
    assert joules == pytest.approx(by_power, rel=0.10)
    assert joules / (ended - began) == pytest.approx(second["gpu_power"], rel=0.15)


@pytest.mark.parametrize("kind", ["matmul", "copy", "spin"])
def test_busy_is_not_used(
    source: NvidiaSource, cards: tuple[GpuInfo, ...], torch_python: str, report: Report, kind: str
) -> None:
    """All three are 100% busy by `gpu_util`; what they use is told apart."""
    with burning(torch_python, kind):
        _, seen, _ = of_a_while(source, cards[0].uuid)
    if "gpu_tensor_active" not in seen:
        pytest.skip(f"{cards[0].model} has no GPM")
    names = (
        "gpu_util",
        "gpu_engine_active",
        "gpu_sm_active",
        "gpu_sm_occupancy",
        "gpu_tensor_active",
        "gpu_dram_active",
    )
    report(kind, ", ".join(f"{name} {seen[name]:.1f}" for name in names))
    assert seen["gpu_util"] >= 95
    assert seen["gpu_engine_active"] >= 90
    tensor, dram, multiprocessors = seen["gpu_tensor_active"], seen["gpu_dram_active"], seen["gpu_sm_active"]
    if kind == "matmul":
        assert tensor > 50
        assert multiprocessors > 80
    elif kind == "copy":
        assert tensor < 1
        assert dram > 50
    else:
        assert max(tensor, dram) < 1
        assert multiprocessors < 5


def test_two_processes_on_one_gpu_are_told_apart(
    source: NvidiaSource, cards: tuple[GpuInfo, ...], torch_python: str, report: Report
) -> None:
    uuid = cards[0].uuid
    with burning(torch_python, "hold", "1024") as small, burning(torch_python, "hold", "3072") as large:
        with burning(torch_python, "matmul") as busy:
            source.processes(uuid)
            time.sleep(WINDOW_S)
            listed = source.processes(uuid)
        assert listed is not None
        owners = {small.pid: "1.0.0.0", large.pid: "2.0.0.0", busy.pid: "3.0.0.0"}
        found = attribute({uuid: listed}, owners.get, Unowned())
    uses = {task: use for (task, _), use in found.uses.items()}
    report("three tasks on one GPU", uses)
    memory = {task: mib or 0.0 for task, (mib, _) in uses.items()}
    assert memory.keys() == {"1.0.0.0", "2.0.0.0", "3.0.0.0"}
    assert memory["2.0.0.0"] - memory["1.0.0.0"] == pytest.approx(2048, abs=64)
    assert memory["1.0.0.0"] >= 1024
    utils = {task: util for task, (_, util) in uses.items()}
    assert utils["3.0.0.0"] is not None
    assert utils["3.0.0.0"] > 50
    assert (utils["1.0.0.0"], utils["2.0.0.0"]) == (0.0, 0.0)


@pytest.fixture
def gpus(source: NvidiaSource) -> Iterator[Gpus]:
    source.close()
    watched = Gpus(source, lambda device: "node1", pace=Pace(patience_s=10.0), kernel_log=KernelLog())
    watched.start()
    until(watched, lambda seen: seen.values)
    yield watched
    watched.stop()
    source.open()
    source.devices()


def until(gpus: Gpus, good: object) -> list[GpuRound]:
    """Rounds, the last of which is so."""
    rounds, end = [], time.monotonic() + 60
    while time.monotonic() < end:
        rounds.append(gpus.round())
        if good(rounds[-1]):  # type: ignore[operator]
            return rounds
        time.sleep(0.2)
    raise AssertionError(f"never: {rounds[-1]}")


def xids_of(gpus: Gpus, code: int) -> list[Happening]:
    """Happenings until one with this number came, and a few rounds longer: a second telling would come then."""
    rounds = until(gpus, lambda seen: any(each.code == code for each in seen.happenings))
    for _ in range(4):
        time.sleep(1.0)
        rounds.append(gpus.round())
    return [each for one in rounds for each in one.happenings if each.kind == "xid"]


def test_an_assertion_on_the_device_is_xid_43_of_its_process(
    gpus: Gpus, cards: tuple[GpuInfo, ...], torch_python: str, report: Report
) -> None:
    with burning(torch_python, "assert") as failing:
        (event,) = xids_of(gpus, 43)
        pid = failing.pid
    report("device-side assert", event)
    assert event.uuid == cards[0].uuid
    if not KernelLog().problem:
        assert event.pid == pid
    assert gpus.round().values[cards[0].uuid]["gpu_xid"] == 43


def test_a_store_out_of_range_is_xid_31_of_its_process(
    gpus: Gpus, cards: tuple[GpuInfo, ...], tmp_path: Path, report: Report
) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc to make the program of")
    (tmp_path / "store.cu").write_text(STORE)
    subprocess.run([compiler, "-o", tmp_path / "store", tmp_path / "store.cu"], check=True, timeout=120)
    failing = subprocess.Popen([tmp_path / "store"])
    assert failing.wait(60) == 1
    (event,) = xids_of(gpus, 31)
    report("store out of range", event)
    assert event.uuid == cards[0].uuid
    if not KernelLog().problem:
        assert event.pid == failing.pid
        assert "MMU Fault" in event.text


def test_a_round_says_what_nvidia_smi_says(gpus: Gpus, cards: tuple[GpuInfo, ...], report: Report) -> None:
    row = until(gpus, lambda seen: "gpu_power_peak" in seen.values[cards[0].uuid])[-1].values[cards[0].uuid]
    fields = {
        "memory.total": row["gpu_memory_used"] + row["gpu_memory_free"] + row["gpu_memory_reserved"],
        "power.limit": row["gpu_power_limit"],
        "temperature.gpu": row["gpu_temperature"],
        "clocks.mem": row["gpu_memory_clock"],
        "pcie.link.width.current": row["gpu_pcie_width"],
        "ecc.errors.corrected.volatile.total": row["gpu_ecc_corrected"],
    }
    told = answer("nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    report("a round", ", ".join(f"{name} {value:g}" for name, value in row.items()))
    for (name, ours), theirs in zip(fields.items(), told.split(","), strict=True):
        assert ours == pytest.approx(float(theirs), abs=3), name
