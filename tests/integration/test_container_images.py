"""Images from a registry with a password, through the whole house: pulled once as the user, refused in a sentence."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pwd
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.test_srun import read_until
from tests.integration.test_virtual_nodes import user_namespaces_work
from tests.support import registry as registries
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.images import Made, Put, busybox_layer, tar_of
from tests.support.registry import PASSWORD, USER, BadProxy, Registry, bad_proxy, registry

pytestmark = [
    pytest.mark.skipif(bool(registries.missing()), reason=registries.missing()),
    pytest.mark.skipif(not user_namespaces_work(), reason="this kernel gives users no user namespaces"),
]
NAME = "team/tools"


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    proxy: BadProxy
    behind: Registry
    user: str | None
    home: Path

    @property
    def image(self) -> str:
        return f"{self.proxy.host}#{NAME}"

    def put(self, tag: str) -> Made:
        made = Made(
            [busybox_layer(), tar_of(Put("made-by", f"{tag} {os.urandom(8).hex()}\n".encode()))], Env=["KIND=made"]
        )
        made.push(self.behind.host, NAME, tag, self.behind.authorization)
        return made

    def run(self, *words: str) -> tuple[int, str, str]:
        done = self.cluster.run(*words, user=self.user, cwd=self.home, env={"HOME": str(self.home)}, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    user = "nobody" if os.geteuid() == 0 else None
    with (
        registry(tmp_path_factory.mktemp("registry"), password=True) as behind,
        bad_proxy(behind.host) as proxy,
    ):
        cluster = Cluster(virtual_nodes(2, 0, cpus=8), for_everyone=True)
        cluster.variables |= {"BIREME_IMAGES_INSECURE": proxy.host, "BIREME_IMAGES_FRESH_S": "0"}
        home = cluster.folder / "home"
        (home / ".config/enroot").mkdir(parents=True)
        line = f"machine {proxy.host} login {USER} password {PASSWORD}\n"
        (home / ".config/enroot/.credentials").write_text(line)
        (home / ".config/enroot/.credentials").chmod(0o600)
        if user is not None:
            for path in (home, *home.rglob("*")):
                os.chown(path, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        with cluster.running():
            yield Site(cluster, proxy, behind, user, home)


def test_tasks_of_two_nodes_pull_once_with_their_users_password(site: Site) -> None:
    made = site.put("1")
    words = ("srun", "-N2", "-n8", f"--container-image={site.image}:1", "sh", "-c", "cat /made-by; echo $KIND")
    code, out, err = site.run(*words)
    assert code == 0, err
    assert out.count("made\n") == 8
    assert "imported docker image" in err
    layers = [layer["digest"] for layer in json.loads(made.manifest)["layers"]]
    assert {site.proxy.asked[f"/v2/{NAME}/blobs/{each}"] for each in layers} == {1}
    there = json.loads(site.run("bireme", "images", "--json")[1])
    assert [each["names"] for each in there["images"]] == [[f"{site.proxy.host}/{NAME}:1"]]
    folder = Path(there["folder"])
    uid = pwd.getpwnam(site.user).pw_uid if site.user else os.getuid()
    assert (folder.name, folder.stat().st_uid, folder.stat().st_mode & 0o777) == (str(uid), uid, 0o700)


def test_a_job_keeps_its_image_though_its_tag_moves(site: Site) -> None:
    """On all its nodes, also where the image is to be pulled again; the next job has the new one."""
    first = site.put("moving")
    look = f"--container-image={site.image}:moving cat /made-by"
    script = f"srun -N1 {look} && touch seen; while [ ! -e on ]; do sleep 0.05; done; srun -N2 {look}"
    code, job, err = site.run("sbatch", "--parsable", "-N2", "-o", "kept", "--wrap", script)
    assert code == 0, err
    site.cluster.until(lambda: (site.home / "seen").exists())
    second = site.put("moving")
    assert site.run("bireme", "images", "pull", f"{site.image}:moving")[0] == 0
    assert site.run("bireme", "images", "rm", first.digest)[0] == 0
    (site.home / "on").touch()
    assert site.cluster.wait(job.strip())["state"] == "COMPLETED", (site.home / "kept").read_text()
    lines = [line for line in (site.home / "kept").read_text().splitlines() if line.startswith("moving ")]
    assert lines == lines[:1] * 3
    assert site.run("srun", "-N1", *look.split())[1] != f"{lines[0]}\n"
    assert first.digest != second.digest


def test_what_runs_is_not_evicted(site: Site) -> None:
    site.put("2")
    script = "#!/bin/sh\ntouch started; while [ ! -e go ]; do sleep 0.05; done; cat /made-by\n"
    (site.home / "job.sh").write_text(script)
    places = (f"--container-mounts={site.home}:{site.home}", f"--container-workdir={site.home}")
    words = ("--parsable", "-o", "out", f"--container-image={site.image}:2", *places)
    code, job, err = site.run("sbatch", *words, "job.sh")
    assert code == 0, err
    site.cluster.until(lambda: (site.home / "started").exists())
    told = site.run("bireme", "images", "rm", f"{site.image}:2")
    assert told[0] == 1
    assert "stays: something runs in it" in told[2]
    (site.home / "go").touch()
    assert site.cluster.wait(job.strip())["state"] == "COMPLETED"
    assert (site.home / "out").read_text().splitlines()[-1].startswith("2 ")
    site.cluster.until(lambda: site.run("bireme", "images", "rm", f"{site.image}:2")[0] == 0)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("{host}#team/none", "the image is not there; is name and tag spelled right"),
        ("bob@{host}#team/tools:other", "needs a password of bob: put `machine"),
        ("./nothing.sqsh", "nothing.sqsh is not there: an image that is a path is looked for on the node"),
        ("{host}#Team/tools", "names of images are lower case: team/tools"),
    ],
)
def test_what_cannot_be_had_fails_the_step_in_a_sentence(site: Site, image: str, sentence: str) -> None:
    code, out, err = site.run("srun", f"--container-image={image.format(host=site.proxy.host)}", "true")
    assert code == 1
    assert out == ""
    assert sentence in err
    assert PASSWORD not in err


def test_a_long_pull_is_told_by_quarters_and_a_registry_that_is_away_by_a_notice(site: Site) -> None:
    """What comes slowly comes in pieces, so that each quarter is seen."""
    slow = Put("ballast", os.urandom(8 << 20))
    made = Made([busybox_layer(), tar_of(slow)], "")
    made.push(site.behind.host, NAME, "slow", site.behind.authorization)

    def in_pieces(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        if "/blobs/" not in handler.path:
            return False
        handler.head(answer)
        while piece := answer.read(1 << 20):
            handler.wfile.write(piece)
            handler.wfile.flush()
            site.proxy.over.wait(0.25)
        return True

    site.proxy.spoil = in_pieces
    words = ("srun", f"--container-image={site.image}:slow", "true")
    code, _, err = site.run(*words)
    assert code == 0, err
    assert "importing docker image: 50% of " in err

    def away(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        handler.send_response_only(503)
        handler.end_headers()
        return True

    site.proxy.spoil = away
    try:
        code, _, err = site.run(*words)
    finally:
        site.proxy.spoil = lambda *_: False
    assert code == 0, err
    assert f"{site.proxy.host}/{NAME}:slow is run as it was on " in err


@contextmanager
def held_up(site: Site, tag: str) -> Iterator[threading.Event]:
    """An image whose largest layer stops half-way until the event is set."""
    made = Made([busybox_layer(), tar_of(Put("ballast", os.urandom(4 << 20)))], "")
    made.push(site.behind.host, NAME, tag, site.behind.authorization)
    goes_on = threading.Event()

    def half(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        if "/blobs/" not in handler.path or int(answer.headers["Content-Length"]) < 4 << 20:
            return False
        handler.head(answer)
        handler.wfile.write(answer.read(2 << 20))
        assert goes_on.wait(30)
        handler.wfile.write(answer.read())
        return True

    site.proxy.spoil = half
    try:
        yield goes_on
    finally:
        goes_on.set()
        site.proxy.spoil = lambda *_: False


def test_at_a_terminal_a_pull_is_a_bar_that_is_gone_when_the_task_runs(site: Site) -> None:
    words = [site.cluster.home / "bin/srun", f"--container-image={site.image}:drawn", "echo", "it runs"]
    terminal, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
    env = {**site.cluster.env, "HOME": str(site.home)}
    with (
        held_up(site, "drawn") as goes_on,
        subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=inside, stderr=inside) as srun,
    ):
        os.close(inside)
        shown = read_until(terminal, "MiB")
        why = site.cluster.run("bireme", "why", site.cluster.run("squeue", "-h", "-o", "%i").stdout.strip()).stdout
        goes_on.set()
        shown += read_until(terminal, None)
        assert srun.wait() == 0, shown
    os.close(terminal)
    assert re.search(rf"Waits for its image on n1: pulling {site.image}:drawn: [0-9]+% of ", " ".join(why.split())), why
    bars = re.findall(r"\r\x1b\[K([^\r]+)", shown)
    assert re.fullmatch(r"pulling \.\.\..*tools:drawn \[#*\.*\] [0-9.]+ [KM]?i?B of [0-9.]+ MiB", bars[0]), shown
    assert max(map(len, bars)) < 72
    assert "25%" not in shown
    assert shown.endswith("\r\x1b[Kpyxis: imported docker image: " + f"{site.image}:drawn\r\nit runs\r\n"), shown


def test_a_job_that_is_suspended_while_its_image_comes_begins_when_it_goes_on(site: Site) -> None:
    def looks(word: str) -> bool:
        return word in site.cluster.run("bireme", "why", job).stdout

    with held_up(site, "suspended") as goes_on:
        options = ("--parsable", "-o", "began", f"--container-image={site.image}:suspended")
        code, job, err = site.run("sbatch", *options, "--wrap", "cut -d' ' -f1 /proc/uptime")
        assert code == 0, err
        job = job.strip()
        site.cluster.until(lambda: looks("pulling"))
        site.cluster.run("scontrol", "suspend", job)
        goes_on.set()
        site.cluster.until(lambda: not looks("Waits for"))
    before = float(Path("/proc/uptime").read_text().split()[0])
    site.cluster.run("scontrol", "resume", job)
    assert site.cluster.wait(job)["state"] == "COMPLETED"
    assert float((site.home / "began").read_text().split()[-1]) >= before


def test_an_agent_that_outlives_its_daemon_has_the_settings_of_the_next(site: Site) -> None:
    """They were read when the agent was started, for as long as jobs kept it alive."""
    made = site.put("settings")
    code, job, err = site.run("sbatch", "--parsable", "-n1", "--wrap", "while [ ! -e over ]; do sleep 0.05; done")
    assert code == 0, err
    site.cluster.until_started(job.strip())
    agents = [site.cluster.agent_pid(node) for node in ("n1", "n2")]
    before = dict(site.cluster.variables)
    site.cluster.variables["BIREME_IMAGES_CACHE"] = str(site.cluster.folder / "elsewhere")
    site.cluster.kill_daemon()
    site.cluster.up_again()
    try:
        code, out, err = site.run("srun", f"--container-image={site.image}:settings", "cat", "/made-by")
        assert (code, out[:9]) == (0, "settings "), err
        there = json.loads(site.run("bireme", "images", "--json")[1])
        assert there["folder"].startswith(str(site.cluster.folder / "elsewhere"))
        assert [each["digest"] for each in there["images"]] == [made.digest]
        assert [site.cluster.agent_pid(node) for node in ("n1", "n2")] == agents
    finally:
        (site.home / "over").touch()
        site.cluster.variables.clear()
        site.cluster.variables.update(before)
    assert site.cluster.wait(job.strip())["state"] == "COMPLETED"
