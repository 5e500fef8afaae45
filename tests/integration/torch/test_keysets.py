"""Keysets recovered from stacks: at least 98 % proven and none wrong, on 40 operators stopped in their kernels."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE, ROOT, start, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

PROBE = ROOT / "tests" / "support" / "keyset_probe.py"


def operator_symbols(method: str) -> list[tuple[str, str]]:
    """(mangled name, "aten::mm.out") of every ``at::_ops::NAME::method``, joined by torchgen's own rule."""
    import re

    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    listing = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    by_struct: dict[str, list[str]] = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        if qualified.startswith("aten::"):
            by_struct.setdefault(qualified[6:].rstrip(".").replace(".", "_"), []).append(qualified.rstrip("."))
    found = []
    for name in re.findall(rf" T (_ZN2at4_ops\d+\w+?{len(method)}{method}E\w+)$", listing, re.M):
        digits = re.match(r"_ZN2at4_ops(\d+)", name)
        assert digits is not None
        struct = name[digits.end() : digits.end() + int(digits[1])]
        if len(by_struct.get(struct, ())) == 1:
            found.append((name, by_struct[struct][0]))
    return found


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("keysets")
    wanted = set()
    inferior = start("ops40")
    try:
        for each in inferior.truth["operators"]:
            wanted.add(each["name"])
        assert len(wanted) >= 40
        symbols = [pair for pair in operator_symbols("redispatch") if len(pair[1]) < 40]
        calls = [pair for pair in operator_symbols("call") if len(pair[1]) < 40]
        environment = {
            **os.environ,
            "GDBEXT_ROOT": str(ROOT),
            "GDBEXT_PROBE_OUT": str(folder / "out"),
            "GDBEXT_PROBE_READY": str(folder / "ready"),
            "GDBEXT_PROBE_STRUCTS": json.dumps(_relevant(symbols, wanted)),
            "GDBEXT_PROBE_CALLS": json.dumps([name for name, _ in _relevant(calls, wanted)]),
        }
        command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off"]
        command += ["-p", str(inferior.pid), "-x", str(PROBE)]
        with (folder / "log").open("w") as log:
            gdb = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        said = lambda: (folder / "log").read_text()[-2000:]  # noqa: E731
        ready = folder / "ready"
        settled = lambda: ready.exists() or gdb.poll() is not None  # noqa: E731
        wait_until(settled, f"the probe is ready: {said()}")
        for name in sorted(wanted):
            inferior.send(f"{name} grad")
            inferior.send(f"{name} nograd")
        assert inferior.process.stdin is not None
        inferior.process.stdin.close()
        gdb.wait(PATIENCE)
        assert (folder / "out").exists(), said()
        found: dict[str, Any] = json.loads((folder / "out").read_text())
        return found
    finally:
        inferior.close()


def _relevant(symbols: list[tuple[str, str]], wanted: set[str]) -> list[tuple[str, str]]:
    """Redispatches of the operators that ops40 runs and of what these call; a breakpoint on all would take minutes."""
    called = """empty copy_ fill_ zero_ view expand _softmax native_layer_norm t as_strided clone convolution
        _convolution mkldnn_convolution transpose unsqueeze select index max_pool2d_with_indices _unsafe_view
        reshape detach alias squeeze gt _to_copy"""
    bases = {*wanted, *called.split()}
    return [pair for pair in symbols if pair[1][6:].partition(".")[0] in bases]


def test_no_keyset_and_no_operator_is_wrong(result: dict[str, Any]) -> None:
    assert result["counts"]["wrong"] == 0, result
    assert result["counts"]["missed"] == 0, result


def test_at_least_98_percent_are_proven(result: dict[str, Any]) -> None:
    counts = result["counts"]
    assert counts["stops"] >= 80, result
    assert counts["steps"] >= 120, result
    assert counts["proven"] >= 0.98 * counts["steps"], result
    print(counts)


def test_no_argument_is_wrong_and_95_percent_of_the_tensors_are_found(result: dict[str, Any]) -> None:
    counts = result["arguments"]
    assert counts["wrong"] == 0, result
    assert counts["tensors"] >= 150, result
    assert counts["lists"] >= 2, result
    assert counts["found"] >= 0.95 * counts["tensors"], result
    print(counts)
