"""The table of job fields: every field of a job has a row, every row is read, and what a row promises is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import bireme
from bireme.commands.scontrol import job_keys
from bireme.core.model.jobs import JobSpec, ResourceRequest
from bireme.engines.slurm import asked, submission
from bireme.slurm import understood
from bireme.slurm.formats import sacct_fields, squeue_fields
from bireme.slurm.formats.show import job as show_job
from bireme.slurm.job_fields.row import RESOURCES_PREFIX, Form, Place
from bireme.slurm.job_fields.table import FIELDS, with_own
from bireme.slurm.json_shapes import accounting as json_of_accounting
from bireme.slurm.json_shapes import jobs as json_of_jobs
from bireme.slurm.options.given import GIVEN
from bireme.slurm.records import jobs as records

SOURCE = Path(bireme.__file__).parent
UNUSED = {
    "admin_comment": "only to be shown",
    "export": "says at the submission which variables are kept",
}
"""Fields that nobody but Slurm's words know, and why that is right."""


_INSIDE = {
    "seen as what the job was given, or when it was": """
        nodes_min nodes_max nodes_given cpus_min nodelist gres_per_node time_limit_given""",
    "decides when or whether the job starts; inside, it has started": """
        begin_at deadline_at hold nice priority site_factor kill_on_invalid_dependency""",
    "says what becomes of the job at its end": """
        requeue requeue_asked expedite_requeue kill_on_node_fail heal checkpoint_path warning mail_type mail_user
        time_min_s""",
    "of the submission, or between the daemon and others": """
        kind het_component command submit_line script environment export get_user_env held_open ignored workload
        node_rules kept admin_comment switches_wait_s""",
    "Slurm sets no variable for it": """
        min_cpus_per_node tmp_disk_mib sockets_per_node cores_per_socket licenses core_spec thread_spec gres_flags
        exclude prefer contiguous spread use_min_nodes segment wckey open_append container_mounts container_workdir
        container_name container_save container_env container_mount_home container_remap_root container_entrypoint
        container_writable""",
}
UNSEEN_INSIDE = {name: why for why, names in _INSIDE.items() for name in names.split()}
"""Fields that no variable of a job tells it of, and why that is right."""


def test_every_field_of_a_job_has_one_row() -> None:
    of_job = [field.name for field in fields(JobSpec) if field.name != "resources"]
    of_resources = [RESOURCES_PREFIX + field.name for field in fields(ResourceRequest)]
    assert Counter(field.path for field in FIELDS) == Counter([*of_job, *of_resources])


def test_a_field_without_a_record_says_why() -> None:
    assert not [field.path for field in FIELDS if bool(field.record) is bool(field.hidden)]
    assert not [field.path for field in FIELDS if bool(field.record) is not bool(field.says)]


def test_no_two_rows_have_the_same_name_in_one_place() -> None:
    names = {
        "option": [field.option.name for field in FIELDS if field.option],
        "record": [field.record for field in FIELDS if field.record],
        "squeue": [field.squeue.name for field in FIELDS if field.squeue],
        "squeue -o": [field.squeue.letter for field in FIELDS if field.squeue and field.squeue.letter],
        "sacct": [field.sacct.name for field in FIELDS if field.sacct],
        "show": [field.show for field in FIELDS if field.show],
        "json": [field.json for field in FIELDS if field.json],
        "accounting": [field.accounting for field in FIELDS if field.accounting],
        "change": [field.change for field in FIELDS if field.update],
    }
    twice = {place: [name for name, count in Counter(each).items() if count > 1] for place, each in names.items()}
    assert not {place: each for place, each in twice.items() if each}


def test_an_own_function_is_for_a_place_that_the_field_has() -> None:
    """`own` names a place that nothing else of the row names: it would be read by nobody."""
    for field in FIELDS:
        has = {
            Place.RECORD: field.record,
            Place.SQUEUE: field.squeue,
            Place.SACCT: field.sacct,
            Place.SHOW: field.show,
            Place.JSON: field.json,
            Place.ACCOUNTING: field.accounting,
            Place.UPDATE: field.update,
            Place.ORDERED: field.update,
            Place.PASSED: field.option,
        }
        assert not [place for place in field.own if place in has and not has[place]], field.path
        if field.form is Form.OTHER:
            needed = {place for place, there in has.items() if there and place in (Place.RECORD, Place.UPDATE)}
            assert needed <= field.own, f"{field.path}: nobody knows how to read or write it"


def test_every_field_is_used() -> None:
    """A field that is kept and shown, but read by nothing: what it asks for would not be applied, and nobody told."""
    not_uses = [SOURCE / "slurm", SOURCE / "core/model", SOURCE / "engines/slurm"]
    users = [path for path in SOURCE.rglob("*.py") if not any(map(path.is_relative_to, not_uses))]
    text = "\n".join(path.read_text() for path in [*users, *(SOURCE / "slurm/variables").rglob("*.py")])
    applied = [field for field in FIELDS if field.option is None or field.option.honoured]
    unused = [field.path for field in applied if not re.search(rf"\.{field.name}\b", text)]
    assert set(unused) == UNUSED.keys()


def test_a_job_sees_every_field_in_its_environment_or_it_is_said_why_not() -> None:
    text = "\n".join(path.read_text() for path in (SOURCE / "slurm/variables").rglob("*.py"))
    unseen = {field.name for field in FIELDS if not re.search(rf"\.{field.name}\b", text)}
    assert unseen == UNSEEN_INSIDE.keys()


def test_explain_tells_of_every_field_or_says_why_not() -> None:
    text = (SOURCE / "slurm/understood.py").read_text()
    names = {field.name for field in FIELDS} | {"resources"}
    assert not understood.TOLD & understood.UNTOLD.keys()
    assert understood.TOLD | understood.UNTOLD.keys() <= names
    assert not [name for name in understood.TOLD if not re.search(rf"\.{name}\b", text)]
    for field in FIELDS:
        if field.name not in understood.TOLD | understood.UNTOLD.keys():
            assert field.option is not None, f"{field.path}: nothing is told of it, and there is no reason why"
            assert field.form is not Form.OTHER, f"{field.path}: nobody knows how to tell of it"


def test_own_functions_are_where_the_rows_say_so() -> None:
    assert GIVEN.keys() == {field.path for field in with_own(Place.GIVEN)}
    own_records = records.OWN_AS_ASKED.keys() | records.OWN_AS_LIVED.keys()
    assert own_records == {field.record for field in with_own(Place.RECORD)}
    assert squeue_fields.OWN.keys() == {field.squeue.name for field in with_own(Place.SQUEUE) if field.squeue}
    assert sacct_fields.OWN.keys() == {field.sacct.name for field in with_own(Place.SACCT) if field.sacct}
    assert show_job.OWN.keys() == {field.show for field in with_own(Place.SHOW)}
    assert json_of_jobs.OWN.keys() == {field.json for field in with_own(Place.JSON)}
    assert json_of_accounting.OWN.keys() == {field.accounting for field in with_own(Place.ACCOUNTING)}
    assert job_keys.OWN.keys() == {key.lower() for field in with_own(Place.UPDATE) for key in field.update}
    assert {*asked.OWN, "owner"} == {field.path for field in with_own(Place.SEEN)}
    assert submission.PASSED.keys() == {field.path for field in with_own(Place.PASSED)}
    assert submission.ORDERED.keys() == {field.update[0] for field in with_own(Place.ORDERED)}


def test_every_form_can_be_read_and_written() -> None:
    forms = set(Form) - {Form.OTHER}
    for functions in (understood.IN_WORDS, job_keys.READERS, submission.AS_OPTION, submission.AS_KEY, asked.READERS):
        assert functions.keys() == forms


def test_a_new_field_takes_a_declaration_and_a_row() -> None:
    """Options, journal, records, squeue, sacct, scontrol, --json, updates and the Slurm engine know it then."""
    program = Path(__file__).parent / "two_new_fields.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
