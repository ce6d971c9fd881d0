"""A busy rehearsal cluster for pages to show: jobs that run and wait, a service with a canary, limits, a reservation, a
fence by hand, and names that try to be markup.

Not tests. Everything is asked for by the commands that people type. Invariant: nothing of it ends by itself before the
module's tests do.
"""

from __future__ import annotations

import os
import pwd

from tests.support.cluster import Cluster, virtual_nodes

NASTY = "<img src=x onerror=alert(1)>"
SLURM_CONF = virtual_nodes(
    6,
    settings="""\
AccountingStorageEnforce=limits
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
""",
)
SERVER = """#!/bin/bash
#SBATCH --gpus=1
#BIREME --replicas=2 --health=/ --surge=1 {flags}
exec python3 -c '
import http.server, os, sys
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{{\\"said\\": \\"<b>hello</b>\\"}}")
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Echo).serve_forever()
'
"""


def make_busy(cluster: Cluster) -> None:
    for words in (
        ("add", "account", "physics"), ("add", "account", "biology"), ("add", "account", "lab", "parent=physics"),
        ("modify", "account", "physics", "set", "GrpTRES=gres/gpu=48", "GrpTRESMins=gres/gpu=60000"),
        ("modify", "account", "biology", "set", "GrpJobs=20"),
        ("add", "user", user_of(cluster), "account=physics,biology,lab"),
    ):  # fmt: skip
        cluster.run("sacctmgr", "-i", *words)
    for number in range(4):
        cluster.sbatch(
            "-A", "physics", "--gpus-per-node=8", "-t", "2:00:00", f"--job-name=train-{number}", "--wrap=sleep 900"
        )
    cluster.sbatch(
        "-A",
        "biology",
        "-N1",
        "--gpus=2",
        "-t",
        "1:00:00",
        f"--job-name={NASTY}",
        f"--comment={NASTY}",
        "--wrap=sleep 900",
    )
    for number in range(5):
        cluster.sbatch(
            "-A",
            "lab",
            "-N2",
            "--gpus-per-node=8",
            "-t",
            f"{number + 1}:00:00",
            f"--job-name=wide-{number}",
            "--wrap=sleep 900",
        )
    ended = cluster.sbatch("-A", "biology", "--gpus=1", "--job-name=short", "--wrap=true")
    cluster.wait(ended)
    cluster.run(
        "scontrol", "create", "reservation=course", "StartTime=now+3days", "Duration=240", "Nodes=n[5-6]",
        f"Users={user_of(cluster)}",
    )  # fmt: skip
    serve(cluster, "")
    cluster.bireme("healings", "fence", "n6:gpu3", "--reason", f"fan 3 rattles {NASTY}")
    cluster.bireme("healings", "fence", "n5", "--reason", "it smells")


def user_of(cluster: Cluster) -> str:
    return cluster.owner or pwd.getpwuid(os.getuid()).pw_name


def serve(cluster: Cluster, flags: str) -> None:
    script = cluster.script(SERVER.format(flags=flags), "chat.sh")
    cluster.bireme("serve", "-A", "biology", str(script), "--wait")
