"""`make demo-heal`: a gang trains, one of its nodes is killed, and it runs again from its checkpoint, elsewhere.

Nobody does anything about it: the commands below only watch. Then a job with a mistake of its own fails, and is left as
it failed. A folder that is removed at the end holds all of it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from demo import DONE, EXAMPLES, JOBS, Cluster, console, queue, until

BUG = "echo 'step 1'; python3 -c 'import a_module_that_is_not_there'"


def says(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/bold cyan]", soft_wrap=True)


def row_of(cluster: Cluster, job: str) -> list[str]:
    return next(row for row in queue(cluster) if row[0] == job)


def output(cluster: Cluster, job: str) -> str:
    path = cluster.work / f"resilient-{job}.out"
    return path.read_text() if path.exists() else ""


def kill_a_node(cluster: Cluster, job: str) -> None:
    """With it dies all that ran there: what is left of a machine without power."""
    node = row_of(cluster, job)[5].removeprefix("oar[").split("-")[0].split(",")[0].rstrip("]")
    name = node if node.startswith("oar") else f"oar{node}"
    says(f"{name} dies, and with it all that runs there.")
    cluster.run("chaos", "node", name)


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bireme-demo-") as folder:
        cluster = Cluster(Path(folder))
        cluster.environment |= {"BIREME_CHECKPOINTS_INTERVAL_S": "1", "BIREME_HEALING_MODE": "act"}
        try:
            cluster.run("up", "--conf", str(EXAMPLES / "cluster" / "slurm.conf"))
            job = cluster.run("sbatch", "--parsable", str(JOBS / "resilient.sh"))
            until(lambda: "step 8\n" in output(cluster, job))
            cluster.run("squeue", "-O", "jobid:6,name:11,state:9,nodelist:11,checkpointstep:16,checkpointage")
            struck = time.monotonic()
            kill_a_node(cluster, job)
            until(lambda: "\nstart 1 " in f"\n{output(cluster, job)}")
            says(f"It runs again, {time.monotonic() - struck:.1f} s later, and nobody was asked.")
            cluster.run("healings")
            until(lambda: row_of(cluster, job)[2] in DONE)
            console.print(output(cluster, job).rstrip(), markup=False, soft_wrap=True)
            cluster.run("sacct", "-D", "-X", "-j", job, "--format=JobID,State,Restarts,Elapsed,NodeList%12")

            says("A mistake of its own is not tried again.")
            wrong = cluster.run("sbatch", "--parsable", "--requeue", "--output=wrong.out", f"--wrap={BUG}")
            until(lambda: row_of(cluster, wrong)[2] in DONE)
            cluster.run("healings", "show", "2")
            states = row_of(cluster, job)[2], row_of(cluster, wrong)[2]
        finally:
            cluster.run("down", "--end-jobs")
    if states != ("COMPLETED", "FAILED"):
        console.print(f"demo: expected COMPLETED and FAILED, and they are {' and '.join(states)}", style="red")
        return 1
    console.print(f"\nNothing is left running ({time.monotonic() - began:.0f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
