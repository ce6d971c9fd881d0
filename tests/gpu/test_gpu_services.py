"""The example in examples/serving, for real: a language model on the card, reached through the router; a training job
on the same card makes way for it and goes on afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from tests.gpu.asking import Report
from tests.gpu.test_gpu_torchrun import EXAMPLE as TRAINING
from tests.gpu.test_gpu_torchrun import TRAINING_S, steps_done, wait_for_step
from tests.support.cluster import ROOT, Cluster

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

EXAMPLE = ROOT / "examples" / "serving"
STEPS, HELD_AT = 30, 15
LOADING_S = 180.0


@pytest.fixture(scope="module")
def serving_python(torch_python: str) -> str:
    """A Python that can run `transformers serve`."""
    asked = "from transformers.utils.import_utils import is_serve_available; raise SystemExit(not is_serve_available())"
    if subprocess.run([torch_python, "-c", asked], capture_output=True, check=False, timeout=150).returncode:
        pytest.skip(f"{torch_python} has no transformers[serving]: pip install 'transformers[serving]'")
    return torch_python


def chunks_of(url: str, model: str, question: str) -> Iterator[dict[str, object]]:
    """What a streaming chat completion answers, piece by piece."""
    asked = {"model": model, "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": question}]}
    request = Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=LOADING_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer:
            data = line.decode().removeprefix("data:").strip()
            if data and data != "[DONE]":
                yield json.loads(data)


def test_training_makes_way_for_a_model_and_goes_on(
    machine: Cluster, torch_python: str, serving_python: str, report: Report
) -> None:
    model = machine.work / "model"
    subprocess.run([serving_python, EXAMPLE / "tiny_model.py", model], check=True, timeout=TRAINING_S)
    for file in (EXAMPLE / "chat.sh", TRAINING / "train.sh", TRAINING / "train.py"):
        shutil.copy(file, machine.work)
    variables = {"BIREME_TEST_PYTHON": serving_python, "MODEL": str(model)}

    training = machine.sbatch("train.sh", f"--steps={STEPS}", f"--hold-at={HELD_AT}", env=variables)
    wait_for_step(machine, training, HELD_AT)
    machine.run(machine.python, "-m", "bireme", "serve", "chat.sh", "--model", str(model), env=variables)
    shown = json.loads(machine.bireme("service", "show", "chat", "--json").stdout)
    address = shown["url"].removesuffix("/chat/") + "/v1/chat/completions"
    pieces = list(chunks_of(address, str(model), "Which oar pulls first?"))
    report("chat completion", f"{len(pieces)} pieces, the last {pieces[-1]}")
    assert len(pieces) > 2, "it came in pieces"
    record = machine.records(training)[0]
    assert record["restarts"] == 1, "the training made way: there is one card"

    machine.until(lambda: machine.records(training)[0]["state"] == "RUNNING", LOADING_S)
    ended = machine.wait(training, TRAINING_S)
    rows = steps_done(machine)
    report("training", f"{ended['state']}, starts {[row['start'] for row in rows]}")
    report("service", machine.bireme("service", "show", "chat").stdout)
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1), machine.output(training)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "no step is lost, none is made twice"
    machine.bireme("service", "stop", "chat")
