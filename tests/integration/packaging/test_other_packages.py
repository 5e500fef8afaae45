"""A package that adds a pool, a recognizer, a known bug and a command, really installed: tests/example_package."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from support.programs.harness import DISPATCH, ROOT, Outcome, run
from support.programs.user_debuggers import SOURCE, gdb

PACKAGE = ROOT / "tests" / "example_package"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"]).status == 0
    shutil.copytree(PACKAGE, folder / "source")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    words = ["install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    target = folder / "venv" / "lib" / version / "site-packages"
    outcome = run([sys.executable, "-m", "pip", *words, "--target", target, folder / "source"])
    assert outcome.status == 0, outcome
    return folder / "venv" / "bin" / "python"


def site(python: Path) -> str:
    return str(next((python.parents[1] / "lib").glob("python*/site-packages")))


def dispatch(python: Path, *words: str) -> Outcome:
    """scripts/dispatch, which starts Python without its site folders."""
    return run([DISPATCH, *words], env={"GDBEXT_PYTHON": str(python)})


@pytest.fixture
def ring(inferior):
    return inferior("ring", python="debian")


def test_waits_pools_and_bugs_of_the_package_are_in_the_diagnosis(python, ring) -> None:
    document = dispatch(python, "--debugger", "none", "-p", str(ring.pid), "--json").document
    assert [each["where"] for each in document["errors"]] == ["torch"]
    waits = {each["tid"]: each["wait"] for each in document["threads"]}
    asking = waits[ring.tid("asking")]
    assert (asking["kind"], asking["name"], asking["owner"]["tid"]) == ("queue", "the ring", ring.tid("stuck"))
    assert waits[ring.tid("idle")]["name"] == "ring servers"
    assert [each["tid"] for each in document["threads"] if each["state"] == "idle"] == [ring.tid("idle")]
    (known,) = document["known"]
    assert (known["id"], known["condition"]) == ("ring#7", "if your ring is older than 2.0")
    assert f"tid {ring.tid('stuck')}" in known["matched"][0]
    text = dispatch(python, "--debugger", "none", "-p", str(ring.pid)).stdout.splitlines()
    assert text[1].startswith("Known bug ring#7: a server that handles a request puts into the full ring")


def test_without_the_package_nothing_of_it_is_said(ring) -> None:
    document = dispatch(Path(sys.executable), "--debugger", "none", "-p", str(ring.pid), "--json").document
    assert "known" not in document
    assert all((each["wait"] or {}).get("name") not in ("the ring", "ring servers") for each in document["threads"])


def test_its_command_is_one_of_ours(python, ring) -> None:
    outcome = dispatch(python, "-p", str(ring.pid), "--debugger", "none", "dispatch-ring")
    assert outcome.stdout.splitlines()[1].split(": ")[0] == "serving"
    assert str(ring.tid("idle")) in outcome.stdout
    outcome = dispatch(python, "-p", str(ring.pid), "--debugger", "none", "dispatch-ring", "--json")
    document = json.loads(outcome.stdout)  # our schema does not know the section
    assert sorted(document["ring"]["putting"]) == sorted([ring.tid("asking"), ring.tid("stuck")])
    assert "commands of other packages:\n  dispatch-ring" in dispatch(python, "--help").stdout
    assert "--servers" in dispatch(python, "dispatch-ring", "--help").stdout


@pytest.mark.gdb
def test_its_command_is_in_gdb_where_its_python_sees_the_package(python, ring) -> None:
    commands = ("help dispatch-ring", "complete dispatch-ring --ser", "dispatch-ring")
    outcome = gdb(SOURCE, *commands, pid=ring.pid, env={"PYTHONPATH": site(python)})
    for said in ("Show who puts into the ring", "dispatch-ring --servers", rf"serving: .*\b{ring.tid('idle')}\b"):
        assert re.search(said, outcome.stdout), outcome


@pytest.mark.parametrize("fault", ["raise OSError('no licence')", "ring_wait = SERVERS = BUGS = 5"])
def test_a_faulty_package_costs_only_what_it_adds(python, ring, fault, tmp_path) -> None:
    """Its faults are in the report, named with the package."""
    broken = tmp_path / "site"
    shutil.copytree(site(python), broken)
    (broken / "gdbext_example" / "ring_knowledge.py").write_text(fault)
    words = [sys.executable, "-m", "gdbext", "--debugger", "none", "-p", str(ring.pid), "--json"]
    outcome = run(words, env={"PYTHONPATH": f"{broken}{os.pathsep}{ROOT}"})
    assert outcome.status == 0
    found = [each["what"] for each in outcome.document["errors"] if each["where"] != "torch"]
    assert {what.split()[0] for what in found} == {"gdbext.pools", "gdbext.waits", "gdbext.known"}, found
    assert all("gdbext-example 1.2" in what for what in found)
    tids = {ring.tid(role) for role in ("asking", "stuck", "idle")}
    assert {each["tid"] for each in outcome.document["threads"]} == tids
