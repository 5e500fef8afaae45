"""Stages of the innermost pass, and the key that was never entered: stops made by gdb at known places."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.programs.harness import PATIENCE, ROOT, UNDEMANGLED, started, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

Stages = dict[str, dict[str, Any]]
PLACES = {
    "first instruction": "*(char*)&_ZN2at4_ops3sin4callERKNS_6TensorE",
    "lookup": "_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE",
    "callbacks": "_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE",
    "autograd kernel": "_ZN5torch8autograd12VariableType12_GLOBAL__N_13sinEN3c1014DispatchKeySetERKN2at6TensorE",
    "backend kernel": "_ZN2at12_GLOBAL__N_115wrapper_CPU_sinERKNS_6TensorE",
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
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """The innermost dispatch where each place is first reached while sin is called with a gradient: by one gdb."""
    folder = tmp_path_factory.mktemp("stages")
    script, said, ready = folder / "script.py", folder / "said", folder / "ready"
    script.write_text(f"PLACES = {PLACES!r}\n{SCRIPT}".replace("READY", str(ready)).replace("SAID", str(said)))
    with started("ops40") as inferior:
        command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", *UNDEMANGLED, "-p", str(inferior.pid)]
        gdb = subprocess.Popen(
            [*command, "-ex", f"source {ROOT}/gdbext/init.py", "-x", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        wait_until(lambda: ready.exists() or gdb.poll() is not None, "gdb has set its breakpoints")
        inferior.send("sin grad")
        output, _ = gdb.communicate(timeout=PATIENCE)
        assert said.exists(), output.decode()
    documents = json.loads(said.read_text()).items()
    return {name: document["threads"][0]["dispatch"][0] for name, document in documents}


def test_kernels_name_the_key_that_they_did_not_reach(stages: Stages) -> None:
    """The autograd kernel before its redispatch does; after it, and in the backend's kernel, no claim is made."""
    keys = {"autograd kernel": "AutogradCPU", "backend kernel": "CPU", "behind the redispatch": "AutogradCPU"}
    for name, key in keys.items():
        step = stages[name]
        assert (step["op"], step["key"], step["stage"]) == ("aten::sin", key, "in-kernel"), name
    claims = {name: stages[name].get("never_entered") for name in keys}
    assert claims == {"autograd kernel": "CPU", "backend kernel": None, "behind the redispatch": None}


def test_before_a_kernel_is_entered(stages: Stages) -> None:
    """The first instruction of a call comes before any keyset; the lookup's is exact; callbacks are no kernel."""
    step = stages["first instruction"]
    assert (step["op"], step["event"], step["stage"]) == ("aten::sin", "call", "lookup")
    assert (step["keyset"], step["confidence"]) == (None, "unknown")
    step = stages["lookup"]
    assert (step["stage"], step["confidence"]) == ("lookup", "exact")
    assert step["never_entered"] == step["key"]
    step = stages["callbacks"]
    assert step["event"] == "call"
    assert step["stage"] in ("lookup", "invoking")
