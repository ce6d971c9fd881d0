"""DCGM's figures where there is no GPM, and which library is chosen on which machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bireme.gather.gpus import choosing
from bireme.gather.gpus.dcgm import FRESH_S, DcgmFields
from bireme.gather.gpus.nvidia import NvidiaSource
from bireme.gather.gpus.source import DriverGone
from bireme.testing.scripted_nvml import Card, ScriptedNvml

BLANK = 140737488355328.0
TOLD = {0: {1002: 0.5, 1004: 0.25, 1009: 2048, 1005: BLANK, 155: 300.0}, 1: {1002: BLANK + 1}}


class Reader:
    """In the shape of DCGM's own `DcgmReader`."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def GetLatestGpuValuesAsFieldIdDict(self) -> Any:  # noqa: N802
        self.asked.set()
        return TOLD


def test_fields_of_dcgm_in_our_units_without_its_blanks() -> None:
    fields = DcgmFields(Reader)
    fields.take(TOLD)
    assert fields.latest(0) == {"gpu_sm_active": 50.0, "gpu_tensor_active": 25.0, "gpu_pcie_sent": 2.0}
    assert fields.latest(1) == {}
    fields.stop()


def test_old_figures_are_absent() -> None:
    now = [100.0]
    fields = DcgmFields(Reader, clock=lambda: now[0])
    fields.stop()
    fields.take(TOLD)
    now[0] += FRESH_S + 1
    assert fields.latest(0) == {}


def test_a_card_without_gpm_is_measured_by_dcgm() -> None:
    reader = Reader()
    dcgm = DcgmFields(lambda: reader)
    nvml = ScriptedNvml(
        [Card("GPU-0", values={"gpu_power": 70.0}, gpm=False), Card("GPU-1", values={"gpu_sm_active": 9.0})]
    )
    source = NvidiaSource(nvml, dcgm=dcgm)
    source.open()
    source.devices()
    source.sample("GPU-0")
    assert reader.asked.wait(60), "it begins to read when a card needs it"
    dcgm.take(TOLD)
    assert source.sample("GPU-0") == {
        "gpu_power": 70.0,
        "gpu_sm_active": 50.0,
        "gpu_tensor_active": 25.0,
        "gpu_pcie_sent": 2.0,
    }
    source.sample("GPU-1")
    assert source.sample("GPU-1") == {"gpu_sm_active": 9.0}, "GPM first"
    dcgm.stop()
    source.close()


def test_a_machine_without_any_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_can_load", lambda library: False)
    source = choosing.Whichever({})
    with pytest.raises(DriverGone, match="neither NVIDIA's library"):
        source.open()


def test_a_process_can_be_run_with_scripted_cards(tmp_path: Path) -> None:
    """The library is named by a variable, and the script may change while the process runs."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"cards": [{"uuid": "GPU-0", "values": {"gpu_power": 70.0}}]}))
    program = """
import os, sys
from bireme.gather.gpus.choosing import Whichever
source = Whichever(os.environ)
source.open()
print([device.uuid for device in source.devices()], source.sample("GPU-0"), flush=True)
sys.stdin.readline()
(event,) = source.wait_happenings(1.0)
print([device.uuid for device in source.devices()], source.sample("GPU-0"), event.code, flush=True)
"""
    variables = {"BIREME_NVML_MODULE": "bireme.testing.scripted_nvml", "BIREME_NVML_SCRIPT": str(script)}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "['GPU-0'] {'gpu_power': 70.0}\n"
    cards = [{"uuid": "GPU-0", "values": {"gpu_power": 90.0}, "xids": [31]}, {"uuid": "GPU-1"}]
    (tmp_path / "next.json").write_text(json.dumps({"cards": cards}))
    (tmp_path / "next.json").replace(script)
    told, _ = process.communicate("go\n", timeout=60)
    assert told == "['GPU-0', 'GPU-1'] {'gpu_power': 90.0} 31\n"
