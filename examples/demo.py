"""`make demo`: a cluster of eight virtual nodes with eight GPUs each on this machine, and real jobs on it.

Everything is done with the commands a user types (`bireme up`, `sbatch`, `squeue`, `sacct`), in a folder that is
removed at the end; nothing is left running. The scripts are in examples/jobs: read them, they are ordinary Slurm
scripts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

EXAMPLES = Path(__file__).resolve().parent
JOBS = EXAMPLES / "jobs"
BIREME = [sys.executable, "-m", "bireme"]
DONE = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}
COLOURS = {"RUNNING": "green", "COMPLETED": "cyan", "PENDING": "yellow", "CONFIGURING": "green", "COMPLETING": "green"}
OWN_COMMANDS = {"up", "down", "serve", "service", "services"}
PATIENCE_S = 120

console = Console(highlight=False)


class Cluster:
    """The demo's own cluster: its commands run with its BIREME_HOME, in its work folder."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.environment = {**os.environ, "BIREME_HOME": str(folder / "home"), "BIREME_PYTHON": sys.executable}
        self.environment["BIREME_ROUTER_ADDRESS"] = "127.0.0.1:0"  # whichever port is free
        self.environment.pop("SLURM_CONF", None)

    def run(self, *words: str, shown: bool = True) -> str:
        """Runs `bireme WORDS` and returns what it printed; shows the command as a user would type it."""
        if shown:
            console.print(f"[bold]$ {self._typed(words)}[/bold]", soft_wrap=True)
        result = subprocess.run(
            [*BIREME, *words], env=self.environment, cwd=self.work, capture_output=True, text=True, check=False
        )
        if result.returncode:
            console.print(result.stdout + result.stderr, style="red", markup=False)
            raise SystemExit(f"demo: `bireme {' '.join(words)}` failed with exit code {result.returncode}")
        if shown and (result.stdout or result.stderr).strip():
            console.print((result.stderr + result.stdout).rstrip(), markup=False, soft_wrap=True)
        return result.stdout.strip()

    def _typed(self, words: tuple[str, ...]) -> str:
        """The command as a user in the repository would type it, the Slurm commands by their own names."""
        line = " ".join(words).replace(f"{EXAMPLES.parent}/", "")
        return f"bireme {line}" if words[0] in OWN_COMMANDS else line


def submit_all(cluster: Cluster) -> list[str]:
    gang = cluster.run("sbatch", "--parsable", str(JOBS / "gang.sh"))
    sweep = cluster.run("sbatch", "--parsable", str(JOBS / "sweep.sh"))
    prepare = cluster.run("sbatch", "--parsable", str(JOBS / "prepare.sh"))
    train = cluster.run("sbatch", "--parsable", f"--dependency=afterok:{prepare}", str(JOBS / "train.sh"))
    evaluate = cluster.run("sbatch", "--parsable", f"--dependency=afterok:{train}", str(JOBS / "evaluate.sh"))
    resume = cluster.run("sbatch", "--parsable", str(JOBS / "resume.sh"))
    return [gang, sweep, prepare, train, evaluate, resume]


def queue(cluster: Cluster) -> list[list[str]]:
    fields = "%i|%j|%T|%M|%D|%R"
    lines = cluster.run("squeue", "--all", "--noheader", "--states=all", "--array", f"--format={fields}", shown=False)
    return [line.split("|", 5) for line in lines.splitlines()]


def screen(rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, title="squeue", title_justify="left", title_style="bold")
    for heading in ("JOBID", "NAME", "STATE", "TIME", "NODES", "NODELIST(REASON)"):
        table.add_column(heading)
    for row in sorted(rows, key=lambda row: [int(part) for part in row[0].split("_") if part.isdigit()]):
        state = Text(row[2], style=COLOURS.get(row[2], "red"))
        table.add_row(row[0], row[1], state, *row[3:])
    return table


def watch(cluster: Cluster) -> None:
    """Shows the queue until every job has ended. Without a terminal, one line a change."""
    deadline = time.monotonic() + PATIENCE_S
    live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
    if live:
        live.start()
    try:
        while time.monotonic() < deadline:
            rows = queue(cluster)
            if live:
                live.update(screen(rows))
            if rows and all(row[2] in DONE for row in rows):
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"demo: the jobs did not end within {PATIENCE_S} s")
    finally:
        if live:
            live.stop()
    if not live:
        console.print(screen(rows))


def show_outputs(cluster: Cluster) -> None:
    for path in sorted(cluster.work.glob("*.out"), key=lambda path: path.stat().st_mtime):
        console.print(f"[bold]{path.name}[/bold]")
        console.print("  " + path.read_text().rstrip().replace("\n", "\n  "), markup=False, soft_wrap=True)


def serve(cluster: Cluster) -> None:
    """Training holds every GPU; people ask a service something; training makes way, and comes back when they leave."""
    training = cluster.run("sbatch", "--parsable", str(JOBS / "fleet.sh"))
    until(lambda: state_of(cluster, training) == "RUNNING")
    cluster.run("serve", str(EXAMPLES / "serving" / "hello.sh"))
    address = str(json.loads(cluster.run("service", "show", "hello", "--json", shown=False))["url"])
    for _ in range(3):
        console.print(f"[bold]$ curl {address}[/bold]", soft_wrap=True)
        with urlopen(address, timeout=PATIENCE_S) as answer:
            console.print(answer.read().decode().rstrip(), markup=False, soft_wrap=True)
    cluster.run("squeue", "--format=%.6i %.9j %.10T %.6D %R")
    until(lambda: state_of(cluster, training) == "RUNNING")
    cluster.run("services")
    until(lambda: state_of(cluster, training) in DONE)
    cluster.run("service", "stop", "hello")


def state_of(cluster: Cluster, job: str) -> str:
    return next((row[2] for row in queue(cluster) if row[0] == job), "")


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"demo: the service and the training did not come to an end within {PATIENCE_S} s")
        time.sleep(0.2)


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bireme-demo-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.run("up", "--conf", str(EXAMPLES / "cluster" / "slurm.conf"))
            cluster.run("sinfo")
            submit_all(cluster)
            watch(cluster)
            serve(cluster)
            show_outputs(cluster)
            cluster.run("sacct", "--allocations", "--format=JobID,JobName,State,ExitCode,Elapsed,AllocGRES,NodeList%10")
            failed = [row[0] for row in queue(cluster) if row[2] != "COMPLETED" and row[1] != "hello"]
        finally:
            cluster.run("down", "--end-jobs")
    if failed:
        console.print(f"demo: these jobs did not complete: {', '.join(failed)}", style="red")
        return 1
    console.print(f"Everything ran and nothing is left running ({time.monotonic() - began:.0f} s).")
    console.print(f"Your turn: {your_turn()}", soft_wrap=True)
    return 0


def your_turn() -> str:
    """What starts a cluster of one's own from here: `bireme` alone only where the shell finds it."""
    beside = Path(sys.executable).with_name("bireme")
    found = shutil.which("bireme")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "bireme up"
    shown = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    return f'{shown} up, then eval "$({shown} env)" for sbatch, squeue and the others'


if __name__ == "__main__":
    sys.exit(main())
