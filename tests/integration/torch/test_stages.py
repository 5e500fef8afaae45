"""Stages of the innermost pass, and the key that was never entered: stops made by gdb at known places."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.programs.harness import PATIENCE, ROOT, UNDEMANGLED, started, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

VARIABLE_TYPE_SIN = "_ZN5torch8autograd12VariableType12_GLOBAL__N_13sinEN3c1014DispatchKeySetERKN2at6TensorE"
LOOKUP = "_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE"
SIN_CALL = "_ZN2at4_ops3sin4callERKNS_6TensorE"
CPU_SIN = "_ZN2at12_GLOBAL__N_115wrapper_CPU_sinERKNS_6TensorE"
CALLBACKS = "_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE"


PLACES = {
    "first instruction": f"*(char*)&{SIN_CALL}",
    "lookup": LOOKUP,
    "callbacks": CALLBACKS,
    "autograd kernel": VARIABLE_TYPE_SIN,
    "backend kernel": CPU_SIN,
}
SCRIPT = """
import gdb, json
found, reached = {}, []
gdb.events.stop.connect(lambda event: reached.extend(each.number for each in getattr(event, "breakpoints", ())))
places = {gdb.Breakpoint(place).number: name for name, place in PLACES.items()}
def ask(name):
    found[name] = json.loads(gdb.execute("dispatch-bt --json --why", to_string=True))
open("READY", "w")
while len(found) < len(PLACES):
    gdb.execute("continue", to_string=True)
    for number in {number for number in reached if number in places}:
        ask(places[number])
        next(each for each in gdb.breakpoints() if each.number == number).delete()
        del places[number]
gdb.execute("up 2")
gdb.execute("finish")
ask("behind the redispatch")
open("SAID", "w").write(json.dumps(found))
gdb.execute("kill")
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The innermost dispatch where each place is first reached while sin is called with a gradient: by one gdb."""
    folder = tmp_path_factory.mktemp("stages")
    script, said, ready = folder / "script.py", folder / "said", folder / "ready"
    script.write_text(f"PLACES = {PLACES!r}\n{SCRIPT}".replace("READY", str(ready)).replace("SAID", str(said)))
    with started("ops40") as inferior:
        gdb = subprocess.Popen(
            [
                "gdb",
                "-nx",
                "-batch",
                "-iex",
                "set auto-load off",
                *UNDEMANGLED,
                "-p",
                str(inferior.pid),
                "-ex",
                f"source {ROOT}/gdbext/init.py",
                "-x",
                script,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        wait_until(lambda: ready.exists() or gdb.poll() is not None, "gdb has set its breakpoints")
        inferior.send("sin grad")
        output, _ = gdb.communicate(timeout=PATIENCE)
        assert said.exists(), output.decode()
    return {name: innermost(document) for name, document in json.loads(said.read_text()).items()}


def innermost(document: dict[str, Any]) -> dict[str, Any]:
    (thread,) = document["threads"]
    return dict(thread["dispatch"][0]) if thread["dispatch"] else {}


Stages = dict[str, dict[str, Any]]


def test_an_autograd_kernel_before_its_redispatch_names_the_key_it_did_not_reach(stages: Stages) -> None:
    step = stages["autograd kernel"]
    assert (step["op"], step["key"], step["stage"]) == ("aten::sin", "AutogradCPU", "in-kernel")
    assert step["never_entered"] == "CPU"


def test_a_backend_kernel_has_nothing_left_to_enter(stages: Stages) -> None:
    step = stages["backend kernel"]
    assert (step["op"], step["key"], step["stage"]) == ("aten::sin", "CPU", "in-kernel")
    assert "never_entered" not in step


def test_an_autograd_kernel_after_its_redispatch_makes_no_claim(stages: Stages) -> None:
    step = stages["behind the redispatch"]
    assert (step["op"], step["key"]) == ("aten::sin", "AutogradCPU")
    assert "never_entered" not in step


def test_lookup_is_a_stage_and_its_keyset_is_exact(stages: Stages) -> None:
    step = stages["lookup"]
    assert step["stage"] == "lookup"
    assert step["confidence"] == "exact"
    assert step["never_entered"] == step["key"]


def test_the_first_instruction_of_a_call_is_before_any_keyset(stages: Stages) -> None:
    step = stages["first instruction"]
    assert (step["op"], step["event"], step["stage"]) == ("aten::sin", "call", "lookup")
    assert (step["keyset"], step["confidence"]) == (None, "unknown")


def test_what_comes_after_the_lookup_is_no_kernel(stages: Stages) -> None:
    step = stages["callbacks"]
    assert step["event"] == "call"
    assert step["stage"] in ("lookup", "invoking")
    assert step["confidence"] in ("unknown", "verified", "exact")
