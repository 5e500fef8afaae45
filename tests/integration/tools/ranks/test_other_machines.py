"""The archive that travels: run by a shell as another machine would, and by ClusterShell's exec worker."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gdbext.tools.ranks import RanksProgram
from gdbext.tools.ranks.other_machines import answer, archive, remote_script
from support.installed import slurm, sshd
from support.installed.machine import need_module
from support.programs import harness
from support.programs.harness import Inferior
from support.source import contract_schema

NOBODY = "no-such-job"


def test_it_runs_without_installation_and_leaves_nothing(tmp_path: Path) -> None:
    options = argparse.Namespace(timeout=60.0, job=NOBODY, python=sys.executable)
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", remote_script(options)], input=archive(), capture_output=True, env=environment, check=False
    )
    found = answer("here", done.stdout, done.returncode)
    assert [each.reason for each in found.unreached] == [f"there is no rank on this machine of job {NOBODY}"], done
    assert list(tmp_path.iterdir()) == []


def test_clustershell_asks_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("ClusterShell")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = ["--hosts", "node[1-3]", "--worker", "exec", "--job", NOBODY, "--python", sys.executable, "--json"]
    document = json.loads(RanksProgram().main(words, lambda _: 0, color=False).output)
    contract_schema.check(document)
    assert [each["where"] for each in document["unreached"]] == ["node1", "node2", "node3"]
    assert all(NOBODY in each["reason"] for each in document["unreached"])
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_hangs_costs_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("ClusterShell")
    monkeypatch.setattr("gdbext.tools.ranks.other_machines._MORE_SECONDS", 0.3)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 5\n")
    hanging.chmod(0o755)
    words = ["--hosts", "node1", "--worker", "exec", "--timeout", "0.2", "--python", str(hanging), "--json"]
    document = json.loads(RanksProgram().main(words, lambda _: 0, color=False).output)
    assert document["unreached"] == [{"where": "node1", "reason": "no answer within 0.5 s", "help": "", "ended": False}]


@pytest.mark.sshd
@pytest.mark.torch
def test_ranks_of_machines_that_ssh_reaches(job: Inferior, tmp_path: Path) -> None:
    """Three addresses of this machine: one answers, one takes the call and says nothing, of one nobody listens."""
    need_module("ClusterShell")
    pids = job.truth["pids"]["late_sleep"]
    with sshd.running(tmp_path, ["127.0.0.1"]) as ssh_options, socket.socket() as silent:
        silent.bind(("127.0.0.2", int(ssh_options.partition("-p ")[2].split()[0])))
        silent.listen()
        words = ["--hosts", "127.0.0.[1-3]", "--ssh-options", f"{ssh_options} -oConnectTimeout=2"]
        words += ["--job", job_name(pids[0]), "--python", sys.executable, "--json"]
        document = json.loads(RanksProgram().main(words, lambda _: 0, color=False).output)
    contract_schema.check(document)
    assert document["ranks"] == "0-3"
    assert [each["pid"] for each in document["reports"]] == pids
    assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == ("late-rank", "1")
    reasons = {each["where"]: each["reason"] for each in document["unreached"]}
    assert sorted(reasons) == ["127.0.0.2", "127.0.0.3"], reasons
    assert "timed out" in reasons["127.0.0.2"]
    assert "Connection refused" in reasons["127.0.0.3"]


@pytest.mark.slurm
@pytest.mark.torch
def test_ranks_of_a_job_of_slurm_s(tmp_path: Path) -> None:
    """The task that srun started is a launcher of ranks, as ``srun torchrun`` is: it has rank 0's number from Slurm.
    Then the recipe of docs/schedulers.md."""
    with slurm.cluster(tmp_path) as environment:
        room = {**environment, "GDBEXT_ROOM": "-" * 100}
        with harness.started("job", "late_sleep", command=["srun", "-n1"], env=room) as job:
            document = slurm_ranks("1", environment)
            assert document["job"] == "slurm 1.0"
            assert [each["pid"] for each in document["reports"]] == job.truth["pids"]["late_sleep"]
            assert (document["verdict"]["kind"], document["verdict"]["ranks"]) == ("late-rank", "1")
            assert document["unreached"] == []
            other_step = slurm_ranks("1.7", environment, status=1)["unreached"]
            assert [each["reason"] for each in other_step] == ["there is no rank on this machine of job slurm 1.7"]
            no_job = slurm_ranks("77", environment, status=1)["unreached"]
            assert [each["where"] for each in no_job] == ["srun"]
            assert "Invalid job id" in no_job[0]["reason"]
        the_batch_script_explains_and_gives_the_jobs_status(tmp_path, environment)


TRAINS = """
import os, pathlib, sys, time
print("there", flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
sys.exit(7)
"""
PAGE = (harness.ROOT / "docs" / "schedulers.md").read_text()


def the_batch_script_explains_and_gives_the_jobs_status(place: Path, environment: Mapping[str, str]) -> None:
    """That of docs/schedulers.md, with Slurm's signal. The ranks have not loaded torch: their numbers are Slurm's."""
    script = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert script is not None
    programs, output, told = place / "programs", place / "said", place / "hangs" / "2.txt"
    programs.mkdir()
    (place / "batch").write_text(script.group(1).replace("--time=12:00:00", "--time=5"))
    (place / "train.py").write_text(TRAINS)
    for name, program in {"python": sys.executable, "dispatch": harness.DISPATCH}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (programs / name).chmod(0o755)
    room = {**environment, "PATH": f"{programs}:{environment['PATH']}"}
    assert harness.run(["sbatch", "-n2", "-o", output, "batch"], env=room, cwd=place).status == 0
    harness.wait_until(lambda: output.exists() and output.read_text().count("there") == 2, "both ranks are there")
    assert harness.run(["scancel", "--signal=USR1", "--batch", "2"], env=room).status == 0
    harness.wait_until(lambda: told.exists() and "processes" in told.read_text(), "the job is explained")
    assert "2 processes, ranks 0-1 of 2" in told.read_text()
    (place / "end").touch()
    ended = harness.wait_until(
        lambda: "JobState=FAILED" in (told := harness.run(["scontrol", "show", "job", "2"], env=room).stdout) and told,
        "the job has ended",
    )
    assert "ExitCode=7:0" in ended


def slurm_ranks(job: str, environment: Mapping[str, str], status: int = 0) -> dict[str, Any]:
    words = ["ranks", "--slurm", job, "--python", sys.executable, "--json"]
    outcome = harness.run([harness.DISPATCH, *words], env=environment)
    assert outcome.status == status, outcome
    document: dict[str, Any] = outcome.document
    contract_schema.check(document)
    return document


def job_name(pid: int) -> str:
    """MASTER_ADDR:MASTER_PORT of its initial environment."""
    environ = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in each)
    return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
