"""sprio as a user meets it: columns, filters, messages and exit codes. The lines are those of Slurm 22.05."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fake_api import FakeApi

from bireme.commands import reports, sprio

WEIGHTS: dict[str, Any] = {
    "site": 1,
    "age": 10000,
    "assoc": 777,
    "fair_share": 30000,
    "job_size": 5003,
    "partition_factor": 4001,
    "qos": 2003,
    "tres": {"cpu": 1000.0, "mem": 300.0, "node": 70.0, "gres/gpu": 3000.0},
    "tres_text": "CPU=1000,Mem=300,GRES/gpu=3000,Node=70",
}


def row(job_id: int, partition: str, priority: int, **more: Any) -> dict[str, Any]:
    plain = {
        "job_id": job_id, "array_job_id": None, "array_task_id": None, "partition": partition, "user_id": 0,
        "user_name": "root", "account": "chem", "qos_name": "normal", "priority": priority, "set_by_operator": False,
        "site": 0, "age": 0.0, "assoc": 0.0, "fair_share": 0.0, "job_size": 0.0, "partition_factor": 0.0, "qos": 0.0,
        "tres": {}, "nice": 0,
    }  # fmt: skip
    return plain | more


ROWS = [
    row(2, "gpu", 5000, set_by_operator=True),
    row(
        3, "gpu", 9102, age=10000 * 121 / 3600, fair_share=6000.0, job_size=5003 * 13 / 120,
        partition_factor=4001 * 3 / 7, nice=-50,
        tres={"cpu": 62.5, "mem": 4.8, "node": 17.5, "gres/gpu": 375.0},
    ),
    row(
        4, "gpu", 17638, age=10000 * 38 / 3600, fair_share=6000.0, job_size=5003 * 11 / 15,
        partition_factor=4001 * 3 / 7,
        qos=2003.0, tres={"cpu": 1000.0, "mem": 76.8, "node": 70.0, "gres/gpu": 3000.0},
    ),
]  # fmt: skip
HEADER = (
    "          JOBID PARTITION   PRIORITY       SITE        AGE      ASSOC  FAIRSHARE    JOBSIZE  PARTITION        QOS"
    "                 TRES\n"
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    monkeypatch.delenv("SPRIO_FORMAT", raising=False)
    answer = {"type": "priority/multifactor", "weights": WEIGHTS, "priorities": ROWS, "now": 1000.0}
    fake = FakeApi({"/v1/priorities": answer})
    monkeypatch.setattr(reports, "transport", lambda: fake)
    return fake


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert sprio.main(list(argv)) == 0
    return capsys.readouterr().out


def test_weighed_factors_by_default(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys) == HEADER + (
        "              2 gpu             5000          0          0          0          0          0          0"
        "          0                     \n"
        "              3 gpu             9102          0        336          0       6000        542       1715"
        "          0 cpu=62,mem=5,node=18\n"
        "              4 gpu            17638          0        106          0       6000       3669       1715"
        "       2003 cpu=1000,mem=77,node\n"
    )


def test_long_has_every_column(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "-l").splitlines()
    assert lines[0] == (
        "          JOBID PARTITION     USER   PRIORITY       SITE        AGE      ASSOC  FAIRSHARE    JOBSIZE"
        "  PARTITION        QOS        NICE                 TRES"
    )
    assert lines[2] == (
        "              3 gpu           root       9102          0        336          0       6000        542"
        "       1715          0         -50 cpu=62,mem=5,node=18"
    )


def test_normalised_factors_are_over_their_weights_and_cut_not_rounded(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "-n").splitlines()
    assert lines[0] == (
        "          JOBID PARTITION PRIORITY   AGE        ASSOC      FAIRSHARE  JOBSIZE    PARTITION  QOS        TRES"
        "                "
    )
    assert lines[3] == (
        "              4 gpu       0.00000410 0.0105556  0.0000000  0.2000000  0.7333333  0.4285714  1.0000000"
        "  cpu=1.00,mem=0.26,no"
    )


def test_weights_instead_of_jobs(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "-w") == HEADER + (
        "        Weights                               1      10000        777      30000       5003       4001"
        "       2003 CPU=1000,Mem=300,GRE\n"
    )
    assert (
        printed(capsys, "-w", "-o", "%i %A %Q %N %u %y|")
        == "JOBID AGE QOS NICE USER PRIORITY|\nWeights 10000 2003   |\n"
    )
    assert "Weights                      10000" in printed(capsys, "-w", "-n")


def test_columns_of_factors_without_weight_are_left_out(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = dict.fromkeys(WEIGHTS, 0) | {"tres": {}, "tres_text": ""}
    api.answers["/v1/priorities"] = {"type": "priority/multifactor", "weights": bare, "priorities": ROWS[:1]}
    assert printed(capsys).splitlines()[0] == "          JOBID PARTITION   PRIORITY       SITE"
    assert printed(capsys, "-n").splitlines()[0] == "          JOBID PARTITION PRIORITY  "
    assert printed(capsys, "-u", "0").splitlines()[0] == "          JOBID PARTITION     USER   PRIORITY       SITE"
    monkeypatch.setenv("SPRIO_FORMAT", "%i %u")
    assert printed(capsys) == "JOBID USER\n2 root\n"


def test_every_letter_of_the_format(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    form = "%i|%y|%20y|%5y|%Y|%.20Y|%a|%A|%S|%N|%c|%u|%r|%t|%T"
    lines = printed(capsys, "-h", "-o", form).splitlines()
    assert lines[0] == (
        "2|5000.00000000000000|5000.00000000000000 |5000.|5000|                5000|0.0000000|0|0|0|(null)|root|gpu||"
    )
    assert lines[1] == (
        "3|0.00000211936819|0.00000211936819    |0.000|9102|                9102|0.0336111|336|0|-50|(null)|root|gpu|"
        "cpu=0.06,mem=0.02,node=0.25,gres/gpu=0.12|cpu=62,mem=5,node=18,gres/gpu=375"
    )


def test_order_is_by_id_or_as_asked(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "-h", "-o", "%i", "-S", "-Y") == "4\n3\n2\n"
    assert printed(capsys, "-h", "-o", "%i", "-S", "r,-i") == "4\n3\n2\n"
    assert sprio.main(["-S", "zz"]) == 1
    assert capsys.readouterr().err == "sprio: error: Invalid sort specification: z\n"


def test_filters_are_the_daemons(api: FakeApi) -> None:
    sprio.main(["-j2,3", "-p", "gpu", "-u", "0"])
    assert api.asked[-1] == ("/v1/priorities", {"job": "2,3", "partition": "gpu", "user": "0"})
    sprio.main(["-j", "2"])
    assert api.asked[-1][1] == {"job": "2"}


def test_what_is_not_there_is_said_as_slurm_says_it(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers["/v1/priorities"] = {"type": "priority/multifactor", "weights": WEIGHTS, "priorities": []}
    assert printed(capsys, "-j999") == "Unable to find jobs matching user/id(s) specified\n"
    assert printed(capsys, "-p", "nosuch") == HEADER
    assert sprio.main(["-u", "no-such-user"]) == 0
    told = capsys.readouterr()
    assert told.err == "sprio: error: Invalid user: no-such-user\n"
    assert api.asked[-1][1] == {"user": "-"}
    api.answers["/v1/ping"] = {"clusters": ["lab"]}
    assert sprio.main(["-M", "nosuch"]) == 1
    assert capsys.readouterr().err.startswith("sprio: error: No cluster 'nosuch' known by database.\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-j", "abc"], "sprio: error: Invalid job id: abc"),
        (["-j9_1"], "sprio: error: Invalid job id: 9_1"),
        (["foo"], "sprio: error: Unrecognized option: foo"),
        (["--nonsense"], "sprio: unrecognized option '--nonsense'"),
        (
            ["-l", "-o", "%i"],
            "sprio: fatal: Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and retry.",
        ),
    ],
)
def test_mistakes_are_told_in_slurms_words(
    api: FakeApi, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert sprio.main(argv) == 1
    assert capsys.readouterr().err.splitlines()[0] == message


def test_an_unknown_letter_is_told_and_left_out(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sprio.main(["-h", "-o", "%i|%s"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("2|\n3|\n4|\n", "sprio: error: Invalid job format specification: s\n")


def test_basic_priorities_have_no_factors(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers["/v1/priorities"] = {"type": "priority/basic", "weights": WEIGHTS, "priorities": []}
    assert sprio.main([]) == 1
    assert capsys.readouterr().err == (
        "You are not running a supported priority plugin\n(priority/basic).\n"
        "Only 'priority/multifactor' is supported.\n"
    )


def test_json_is_what_the_daemon_says(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "--json"))["priorities"][1]["tres"]["gres/gpu"] == 375.0


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert sprio.main(["-V"]) == 0
    assert capsys.readouterr().out.startswith("slurm")
    assert sprio.main(["--help"]) == 0
    assert "--weights" in capsys.readouterr().out
