"""sacctmgr and sshare over a real socket: what they print, what they ask, and that a book survives its own dump."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.conftest import Running

from bireme.cli import sacctmgr
from bireme.client.transport import ApiError
from bireme.commands import scontrol, sshare

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="the book is changed by operators")


@pytest.fixture
def run(api: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, standard output, standard error) of one command."""
    monkeypatch.setenv("BIREME_HOME", api.home)

    def run_it(*argv: str, main: Callable[[list[str]], int] = sacctmgr.main) -> tuple[int, str, str]:
        code = main(list(argv))
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return run_it


def build(run: Run) -> None:
    for words in (
        ["add", "account", "science", "Description=all of it", "fairshare=40"],
        ["add", "account", "phys,chem", "parent=science"],
        ["add", "user", "ann", "account=phys"],
        ["add", "user", "bob", "account=chem", "partition=main", "fairshare=5"],
        ["add", "qos", "high", "priority=100", "flags=DenyOnLimit"],
        ["modify", "user", "ann", "set", "qos+=high", "maxjobs=5", "maxtres=cpu=4,mem=10G"],
        ["modify", "account", "phys", "set", "fairshare=parent", "grptresmins=gres/gpu=43200", "maxwall=30:30"],
    ):
        assert run("-i", *words)[0] == 0, words


def test_adding_is_told_as_slurm_tells_it(run: Run) -> None:
    assert run("-i", "add", "account", "science", "Organization=uni", "fairshare=40") == (
        0,
        " Adding Account(s)\n  science\n Settings\n  Description     = Account Name\n  Organization    = uni\n"
        " Associations\n  A = science    C = tiny      \n Settings\n  Fairshare     = 40\n  Parent        = root\n",
        "",
    )
    assert run("-i", "add", "user", "ann", "account=science", "maxjobs=4") == (
        0,
        " Adding User(s)\n  ann\n Associations =\n  U = ann       A = science    C = tiny      \n"
        " Non Default Settings\n  MaxJobs       = 4\n",
        "",
    )
    assert run("-i", "add", "account", "science") == (1, "", " Nothing new added.\n")


def test_the_tree_of_associations(run: Run) -> None:
    build(run)
    code, out, _ = run("show", "assoc", "tree", "format=account,user,partition,share,qos,maxjobs,maxtres,maxwall")
    assert code == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        "Account                    User  Partition     Share                  QOS MaxJobs       MaxTRES     MaxWall",
        "-------------------- ---------- ---------- --------- -------------------- ------- ------------- -----------",
        "root                                               1               normal",
        " root                      root                    1               normal",
        " science                                          40               normal",
        "  chem                                             1               normal",
        "   chem                     bob       main         5               normal",
        "  phys                                        parent               normal                          00:31:00",
        "   phys                     ann                    1          high,normal       5 cpu=4,mem=10G    00:31:00",
    ]


def test_parsable_listings(run: Run) -> None:
    build(run)
    assert (
        run("-nP", "show", "user", "ann", "withassoc", "format=user,account,maxjobs,defaultqos")[1] == "ann|phys|5|\n"
    )
    assert run("-p", "show", "qos", "high", "format=name,priority,flags")[1] == (
        "Name|Priority|Flags|\nhigh|100|DenyOnLimit|\n"
    )
    assert run("-nP", "show", "account", "format=account,descr,org")[1].splitlines() == [
        "chem|chem|science",
        "phys|phys|science",
        "root|default root account|root",
        "science|all of it|science",
    ]


def test_a_user_s_associations_stand_newest_first_below_each_account(run: Run) -> None:
    build(run)
    run("-i", "add", "user", "ann", "account=science")
    run("-i", "add", "user", "ann", "account=chem")
    said = run("-nP", "show", "user", "ann", "withassoc", "format=account")[1]
    assert said.split() == ["science", "chem", "phys"]


def test_json(run: Run) -> None:
    build(run)
    shape = json.loads(run("--json", "show", "assoc", "where", "user=ann")[1])
    (association,) = shape["associations"]
    assert association["max"]["jobs"]["active"] == {"set": True, "infinite": False, "number": 5}
    assert association["qos"] == ["high", "normal"]
    run("-i", "modify", "user", "ann", "set", "maxtres=gres/gpu=2,license/matlab=1")
    run("-i", "modify", "user", "bob", "set", "maxtres=license/matlab=3")
    shown = json.loads(run("--json", "show", "assoc")[1])["associations"]
    limits = [each["max"]["tres"]["per"]["job"] for each in shown if each["user"] in ("ann", "bob")]
    assert {(one["id"], one["type"], one["name"]) for limit in limits for one in limit} == {
        (1, "cpu", ""), (2, "mem", ""), (1001, "gres", "gpu"), (1002, "license", "matlab"),
    }  # fmt: skip
    assert [user["name"] for user in json.loads(run("--json", "show", "user")[1])["users"]] == ["ann", "bob", "root"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "nosuch"], "No valid entity in list command"),
        (["nosuch"], "invalid keyword: nosuch"),
        (["add"], "No valid entity in add command"),
        (["show", "qos", "format=nosuch"], "Unknown field 'nosuch'"),
        (["-i", "modify", "user", "ann"], " You didn't give me anything to set"),
        (["-i", "modify", "user", "ann", "set", "wrong=1"], " Unknown option: wrong=1\n Use keyword 'where'"),
        (["-i", "modify", "user", "ann", "set", "maxjobs=x"], "sacctmgr: error: Invalid value for MaxJobs (x)"),
        (["-i", "modify", "user", "ann", "set", "grptres=nosuch=3"], "no TRES known by type nosuch"),
        (["-i", "modify", "user", "ann", "set", "fairshare=-7"], " Bad Fairshare value: -7"),
        (["-i", "modify", "qos", "high", "set", "preempt=high"], "QOS Preemption loop detected"),
        (["-i", "modify", "qos", "high", "set", "flags=nosuch"], " Unknown QOS flag used in:\n  'nosuch'"),
        (["-i", "delete", "user"], " No conditions given to remove, not executing."),
        (["-i", "delete", "account", "phys"], " Error with request: You can not remove the default account of a user"),
        (["-i", "-r", "delete", "qos", "high"], "Can't run this command in readonly mode."),
        (["load", "/nowhere.cfg"], ' Unable to read "/nowhere.cfg": No such file or directory'),
        (["--bogus"], "sacctmgr: unrecognized option '--bogus'"),
    ],
)
def test_what_is_refused(run: Run, words: list[str], complaint: str) -> None:
    build(run)
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert complaint in err


@pytest.mark.parametrize(("answer", "jobs"), [("y\n", "7"), ("n\n", "5"), ("", "5")])
def test_people_are_asked_first(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, jobs: str
) -> None:
    build(run)
    (tmp_path / "answer").write_text(answer)
    with (tmp_path / "answer").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, _ = run("modify", "user", "ann", "set", "maxjobs=7")
    assert code == 0
    assert out.startswith(" Modified user associations...\n  C = tiny       A = phys                 U = ann")
    assert "Would you like to commit changes?" in out
    assert ("Changes Discarded" in out) == (jobs == "5")
    assert run("-nP", "show", "assoc", "user=ann", "format=maxjobs")[1] == f"{jobs}\n"


def test_a_conversation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("show tres format=type\nnonsense\nquit\n"))
    code, out, err = run("-nP")
    assert code == 1
    assert "cpu\n" in out
    assert "invalid keyword: nonsense" in err


def test_a_dump_loads_into_the_same_book(run: Run, tmp_path: Path, api: Running) -> None:
    build(run)
    path = str(tmp_path / "tiny.cfg")
    code, out, _ = run("dump", "tiny", f"file={path}")
    assert code == 0
    assert "sacctmgr: Account - 'phys':Description='phys':Organization='science':Fairshare=2147483647" in out
    before = api.transport.get("/v1/accounting/book")
    assert run("-i", "load", path, "clean")[0] == 0
    after = api.transport.get("/v1/accounting/book")
    assert _without_ids(after) == _without_ids(before)


def _without_ids(book: dict[str, Any]) -> dict[str, Any]:
    rows = [{key: row[key] for key in row if key not in ("id", "parent_id")} for row in book["associations"]]
    return {**book, "associations": rows}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("Account - 'a'", "line 1: the first line must be Cluster - 'name'"),
        ("Cluster - 'tiny'\nParent - 'b'\nAccount - 'a'", "line 2: Parent 'b' has no Account line before this one"),
        ("Cluster - 'tiny'\nAccount - 'a'\nParent - 'a'\nAccount - 'a'", "line 4: account 'a' stands under 'root'"),
        ("Cluster - 'tiny'\nAccount - 'a'\nParent - 'a'\nAccount - 'root'", "line 4: account 'root' stands under"),
        (
            "Cluster - 'tiny'\nParent - 'phys'\nAccount - 'science'",
            "line 3: account 'science' cannot stand under 'phys'",
        ),
        ("Cluster - 'tiny'\nAccount - 'a':MaxJobs=x", "line 2: sacctmgr: error: Invalid value for MaxJobs (x)"),
        ("Cluster - 'tiny'\nNonsense", "line 2: 'Nonsense' is not Cluster, Parent, Account or User"),
        ("", "the file has no Cluster line"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_line(run: Run, tmp_path: Path, lines: str, complaint: str) -> None:
    build(run)
    path = tmp_path / "bad.cfg"
    path.write_text(lines)
    code, _, err = run("-i", "load", str(path))
    assert code == 1
    assert complaint in err


def test_shares(run: Run) -> None:
    build(run)
    code, out, _ = run("-a", main=sshare.main)
    assert code == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        "Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare",
        "-------------------- ---------- ---------- ----------- ----------- ------------- ----------",
        "root                                          0.000000           0      1.000000",
        " root                      root          1    0.024390           0      0.000000   1.000000",
        " science                                40    0.975610           0      0.000000",
        "  chem                                   1    0.500000           0      0.000000",
        "   chem                     bob          5    1.000000           0      0.000000   1.000000",
        "  phys                              parent    0.975610           0      0.000000",
        "   phys                     ann          1    0.500000           0      0.000000   1.000000",
    ]
    assert run("-nP", "-U", "-u", "ann", main=sshare.main)[1] == "phys|ann|1|0.500000|0|0.000000|1.000000\n"
    assert run("-nP", "-A", "chem", "-m", "-u", "bob", main=sshare.main)[1].splitlines() == [
        "chem|||1|0.500000|0|0.000000|",
        " chem|bob|main|5|1.000000|0|0.000000|1.000000",
    ]
    assert run("-o", "nosuch", main=sshare.main)[0] == 1
    code, _, said = run("-M", "nosuch", main=sshare.main)
    assert (code, said.splitlines()[0]) == (1, "sshare: error: No cluster 'nosuch' known by database.")


def test_a_change_is_all_or_nothing(api: Running) -> None:
    orders = [{"_": "AddAccounts", "names": ["a"]}, {"_": "AddAccounts", "names": ["b"], "parent": "nosuch"}]
    with pytest.raises(ApiError) as caught:
        api.transport.post("/v1/accounting/changes", {"orders": orders})
    assert "Parent account 'nosuch'" in caught.value.hint
    names = [account["name"] for account in api.transport.get("/v1/accounting/book")["accounts"]]
    assert names == ["root"]


def test_an_order_that_is_none_is_refused(api: Running) -> None:
    for orders in ([{"_": "Nonsense"}], [{"_": "AddAccounts"}], [{"_": "AddAccounts", "names": "a"}]):
        with pytest.raises(ApiError) as caught:
            api.transport.post("/v1/accounting/changes", {"orders": orders})
        assert caught.value.status == 400


# -- scontrol show assoc_mgr -------------------------------------------------------------------------------------------

NO_TRES = "cpu=N(0),mem=N(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),vmem=N(0),pages=N(0)"


def show_manager(run: Run, *words: str) -> list[str]:
    code, out, _ = run("show", "assoc_mgr", *words, main=scontrol.main)
    assert code == 0
    return [line.rstrip() for line in out.splitlines()]


def test_the_association_manager_shows_limits_and_what_counts_against_them(run: Run) -> None:
    """The lines are those of Slurm 22.05 for the same orders."""
    for words in (
        ["add", "account", "lab"],
        ["add", "user", "nobody", "account=lab"],
        ["modify", "account", "lab", "set", "MaxTRESPerJob=cpu=6", "GrpTRES=cpu=10,node=3", "MaxWall=60"],
        ["add", "qos", "deny", "flags=DenyOnLimit", "MaxTRESPerJob=cpu=2", "MaxWall=30", "GrpTRES=cpu=3"],
    ):
        assert run("-i", *words)[0] == 0
    lines = show_manager(run, "accounts=lab", "flags=assoc")
    account = next(number for number, line in enumerate(lines) if " Account=lab UserName= " in line)
    block = [line.strip() for line in lines[account + 3 : account + 14]]
    tres = [line for line in block if line.startswith("Grp")]
    assert block[0].startswith("ParentAccount=root(1) Lft=")
    assert tres[0] == "GrpJobs=N(0) GrpJobsAccrue=N(0)"
    assert tres[1] == "GrpSubmitJobs=N(0) GrpWall=N(0.00)"
    assert tres[2].startswith("GrpTRES=cpu=10(0),mem=N(0),energy=N(0),node=3(0),billing=N(0)")
    assert tres[3].startswith(f"GrpTRESMins={NO_TRES}")
    assert block[6:9] == ["MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=60", "MaxTRESPJ=cpu=6", "MaxTRESPN="]
    assert any(line.startswith("ClusterName=") and " UserName=nobody(65534) " in line for line in lines)
    assert "QOS Records" not in lines
    shown = [line.strip() for line in show_manager(run, "qos=deny", "flags=qos")]
    number = shown.index("QOS=deny(2)")
    assert shown[number + 1] == "UsageRaw=0.000000"
    assert shown[number + 3].startswith("GrpTRES=cpu=3(0),mem=N(0)")
    assert {"MaxWallPJ=30", "MaxTRESPJ=cpu=2", "MinTRESPJ=", "PreemptMode=OFF", "Priority=0"} <= set(shown)


def test_jobs_count_in_the_association_manager(api: Running, run: Run) -> None:
    body = {"spec": {"name": "job"}, "script": "#!/bin/sh\n", "environment": {}}
    api.transport.post("/v1/jobs", body)
    shown = [line.strip() for line in show_manager(run, "qos=normal")]
    qos = shown[shown.index("QOS=normal(1)") :]
    assert "GrpSubmitJobs=N(1)" in qos[2]
    assert any(line.startswith("MaxJobsPU=") and line.endswith("MaxSubmitJobsPU=N(1)") for line in qos)
    assert "UserName=root(0)" in " ".join(shown)


def test_the_association_manager_knows_its_words(run: Run) -> None:
    code, _, err = run("show", "assoc_mgr", "nodes=n1", main=scontrol.main)
    assert (code, "users=, accounts=, qos=, flags=" in err) == (1, True)
