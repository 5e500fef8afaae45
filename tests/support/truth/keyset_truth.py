"""Runs ops40 under keyset_probe.py: keysets and arguments recovered from stacks against those that were passed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from support.programs.harness import PATIENCE, ROOT, UNDEMANGLED, Inferior, started, wait_until

PROBE = Path(__file__).with_name("keyset_probe.py")
CALLED = """empty copy_ fill_ zero_ view expand _softmax native_layer_norm t as_strided clone convolution
    _convolution mkldnn_convolution transpose unsqueeze select index max_pool2d_with_indices _unsafe_view
    reshape detach alias squeeze gt _to_copy"""
"""What the 40 operators call; breakpoints on all operators would take minutes."""


def compare(python: str = "venv") -> dict[str, Any]:
    """What the probe counted: ``counts`` of keysets, ``arguments``, ``problems`` in words."""
    with tempfile.TemporaryDirectory(prefix="gdbext-keysets-") as name, started("ops40", python=python) as inferior:
        folder = Path(name)
        names = sorted({each["name"] for each in inferior.truth["operators"]})
        assert len(names) >= 40
        with (folder / "log").open("w") as log:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            settings = ["-nx", "-batch", "-iex", "set auto-load off", *UNDEMANGLED, "-x", str(PROBE)]
            command = ["gdb", *settings, "-p", str(inferior.pid)]
            gdb = subprocess.Popen(command, env=_environment(inferior, names, folder), **options)
        wait_until(lambda: (folder / "ready").exists() or gdb.poll() is not None, "the probe is ready")
        for operator in names:
            inferior.send(f"{operator} grad")
            inferior.send(f"{operator} nograd")
        assert inferior.process.stdin is not None
        inferior.process.stdin.close()
        gdb.wait(5 * PATIENCE)
        assert (folder / "out").exists(), (folder / "log").read_text()[-2000:]
        found: dict[str, Any] = json.loads((folder / "out").read_text())
        return found


def _environment(inferior: Inferior, wanted: list[str], folder: Path) -> dict[str, str]:
    operators, library = inferior.truth["registered"], Path(inferior.truth["package"]) / "lib" / "libtorch_cpu.so"
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    bases = {*wanted, *CALLED.split()}
    return {
        **os.environ,
        "GDBEXT_ROOT": str(ROOT),
        "GDBEXT_PROBE_OUT": str(folder / "out"),
        "GDBEXT_PROBE_READY": str(folder / "ready"),
        "GDBEXT_PROBE_STRUCTS": json.dumps(_functions(listing, operators, "redispatch", bases)),
        "GDBEXT_PROBE_CALLS": json.dumps([name for name, _ in _functions(listing, operators, "call", bases)]),
    }


def _functions(listing: str, operators: list[str], method: str, bases: set[str]) -> list[tuple[str, str]]:
    """(mangled name, "aten::mm.out") of the ``at::_ops::NAME::method`` that matter, joined by torchgen's own rule."""
    by_struct: dict[str, list[str]] = {}
    for qualified in operators:
        if qualified.startswith("aten::"):
            by_struct.setdefault(qualified[6:].rstrip(".").replace(".", "_"), []).append(qualified.rstrip("."))
    found = []
    for name in re.findall(rf" T (_ZN2at4_ops\d+\w+?{len(method)}{method}E\w+)$", listing, re.M):
        size, rest = re.findall(r"_ZN2at4_ops(\d+)(.*)", name)[0]
        (operator, *others) = by_struct.get(rest[: int(size)], [""])
        if not others and len(operator) < 40 and operator[6:].partition(".")[0] in bases:
            found.append((name, operator))
    return found
