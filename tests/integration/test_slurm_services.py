"""Services on a real Slurm: replicas are Slurm's jobs, asked from outside whether they are well, and routed to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from tests.support.slurm_attached import Attached, attached

SCRIPT = f"""#!/bin/bash
#SBATCH --export=NONE
#BIREME --replicas=2 --health=/
cd "$SLURM_SUBMIT_DIR" && echo "$BIREME_SERVICE $BIREME_REVISION" > index.html
exec {sys.executable} -m http.server "$PORT"
"""


@pytest.fixture(scope="module")
def both() -> Iterator[Attached]:
    with attached() as bireme:
        yield bireme


def shown(both: Attached, name: str = "web") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(both.bireme("service", "show", name, "--json").stdout)
    return found


def ready(both: Attached, count: int) -> list[dict[str, Any]]:
    """Waits until so many are ready, and there are no others; the replicas."""
    both.until(lambda: [each["state"] for each in shown(both)["replicas"]] == ["ready"] * count, 120)
    return list(shown(both)["replicas"])


def test_a_service_lives_in_slurm_s_queue(both: Attached) -> None:
    (both.work / "web.sh").write_text(SCRIPT)
    both.bireme("serve", "web.sh")
    first, second = ready(both, 2)
    names = both.slurm.call("squeue", "-h", "-o", "%i %j").split("\n")
    assert sorted(names) == sorted(f"{each['job_id']} web" for each in (first, second))
    assert first["port"] != second["port"]
    with urlopen(shown(both)["url"], timeout=30) as answer:
        assert answer.read() == b"web 1\n", "PORT and its kin came through --export=NONE"

    both.slurm.call("scancel", str(first["job_id"]))
    both.until(lambda: first["number"] not in [each["number"] for each in shown(both)["replicas"]], 120)
    assert {each["number"] for each in ready(both, 2)} > {second["number"]}, "who ends is replaced"


def test_a_restarted_daemon_takes_no_replica_out_of_service(both: Attached) -> None:
    before = ready(both, 2)
    both.kill_daemon()
    both.up()
    again = shown(both)
    assert again["ready"] == 2
    assert [each["job_id"] for each in again["replicas"]] == [each["job_id"] for each in before]
    with urlopen(again["url"], timeout=30) as answer:
        assert answer.status == 200


def test_slurm_s_refusal_is_the_service_s_reason(both: Attached) -> None:
    (both.work / "lost.sh").write_text(SCRIPT.replace("--export=NONE", "--partition=nowhere"))
    both.bireme("serve", "lost.sh")
    both.until(lambda: "invalid partition" in both.bireme("why", "lost").stdout.lower(), 60)
    both.bireme("service", "stop", "lost")


def test_a_replica_is_asked_by_a_command_in_its_job(both: Attached) -> None:
    probe = "\"exec:'test -e well' period=1s timeout=20s\""
    script = f"#!/bin/bash\n#BIREME --replicas=1 --startup={probe} --readiness={probe}\nexec sleep 1000\n"
    (both.work / "asked.sh").write_text(script)
    both.bireme("serve", "asked.sh")
    both.until(lambda: "exit code 1" in json.dumps(shown(both, "asked")), 120)
    (both.work / "well").touch()
    both.until(lambda: shown(both, "asked")["ready"] == 1, 120)
    both.bireme("service", "stop", "asked")


def test_a_stopped_service_leaves_nothing_in_the_queue(both: Attached) -> None:
    both.bireme("service", "stop", "web")
    both.until(lambda: not both.slurm.call("squeue", "-h"), 120)
    both.until(lambda: json.loads(both.bireme("services", "--json").stdout) in ([], {"services": []}), 60)
