"""The archive that travels: run by a shell as another machine would, and by ClusterShell's exec worker."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import contract_schema
import pytest
from machine import need_module

from gdbext.cli.ranks import launcher
from gdbext.cli.ranks.archive import archive
from gdbext.cli.ranks.other_machines import answer, remote_script

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
    document = json.loads(launcher.run(words, color=False).output)
    contract_schema.check(document)
    assert [each["where"] for each in document["unreached"]] == ["node1", "node2", "node3"]
    assert all(NOBODY in each["reason"] for each in document["unreached"])
    assert list(tmp_path.iterdir()) == []
