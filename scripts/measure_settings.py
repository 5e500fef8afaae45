#!/usr/bin/env python3
"""Compare dispatch-info --settings and --memory with what programs say of themselves.

Writes docs/measurements/settings-compared.md.

Run it from the development environment (scripts/test makes it): .venv/bin/python scripts/measure_settings.py 2.6.0
2.15.0. Each release is installed into a folder of its own, compared, and removed; one takes 3 GB and some minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

import each_release  # noqa: E402 - the tests' folder is on the path from here on

from support.programs import harness  # noqa: E402
from support.truth import settings_truth  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "settings-compared.md"
_HEAD = f"""# dispatch-info --settings and --memory, compared with what the programs print

`scripts/measure_settings.py` writes this page. It starts {len(settings_truth.PROGRAMS)} programs
(tests/inferiors/settings.py) that configure PyTorch in different ways and print what PyTorch's own functions return.
It then compares each printed fact with gdbext's report on the process and on its core. gdbext omits a fact that it
cannot read; the last column lists these.

The programs set determinism, precision, seeds, thread counts, autocast, grad mode, Python modes, the default device,
hooks, a profiler, options of torch._dynamo and Inductor, allocators and environment variables. Older releases have
fewer of these.

To test `--reproduce`, each generated program runs in a new process and must print the same settings (column "set
again").

The CUDA facts are the allocator's counts, compared with torch.cuda.memory_stats(), and the seed and offset of the
device's generator. No GPU was used. A mock CUDA library reports one device
(tests/inferiors/native/one_cuda_device.cpp).

"""
_COLUMNS = ("torch", "layout", "programs equal", "cores equal", "set again", "CUDA facts equal", "unknown")
_AGAIN = ("everything", "old-precision", "new-precision")
"""Programs that set nothing but what Python can set again."""


def _compare(version: str, python: str) -> tuple[list[str], list[str]]:
    """One release. Raises HarnessError."""
    equal = cores = again = 0
    problems: list[str] = []
    unknown: set[str] = set()
    for program in settings_truth.PROGRAMS:
        with settings_truth.started(program, python) as process:
            layout = process.dispatch("dispatch-info", debugger="none").document["target"]["torch"]["layout"]["match"]
            live, core = (settings_truth.compare(process, core=core) for core in (False, True))
            not_known = settings_truth.unknown(live) | settings_truth.unknown(core)
            repeated = _set_again(process, python) if program in _AGAIN else {}
        unknown |= not_known
        live, core, repeated = (
            {name: pair for name, pair in each.items() if name not in not_known} for each in (live, core, repeated)
        )
        equal, cores = equal + (not live), cores + (not core)
        again += program in _AGAIN and not repeated
        problems += [
            f"{program}: {name}: {ours} instead of {theirs}"
            for name, (ours, theirs) in [*live.items(), *core.items(), *repeated.items()]
        ]
    cuda, wrong, not_known = _cuda(python)
    unknown |= not_known
    number = len(settings_truth.PROGRAMS)
    row = [
        version,
        layout,
        f"{equal} of {number}",
        f"{cores} of {number}",
        f"{again} of {len(_AGAIN)}",
        cuda,
        ", ".join(sorted(unknown)) or "nothing",
    ]
    return row, [*problems, *wrong]


def _set_again(process: harness.Inferior, python: str) -> dict[str, tuple[object, object]]:
    """What a new process says that runs the program of --reproduce, where it says something else."""
    with tempfile.TemporaryDirectory(prefix="gdbext-settings-") as folder:
        program = str(Path(folder) / "again.py")
        process.dispatch("dispatch-info", "--settings", "--reproduce", program, debugger="none")
        interpreter = python if "/" in python else sys.executable
        command = [interpreter, str(harness.INFERIORS / "settings.py"), "script", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        return {"the program": ((done.stderr.splitlines() or ["no message"])[-1], "an end without an error")}
    said, meant = json.loads(done.stdout), process.truth["settings"]
    said["generators"][0]["drawn"] = meant["generators"][0]["drawn"]  # the new process drew none itself
    return {name: (said.get(name), value) for name, value in meant.items() if said.get(name) != value}


def _cuda(python: str) -> tuple[str, list[str], set[str]]:
    """How many facts of CUDA are equal, in words, which are not, and what is unknown."""
    if not settings_truth.is_for_cuda(python):
        return "no build for CUDA", [], set()
    wrong, number, unknown = [], 0, 0
    for core in (False, True):
        found, count = settings_truth.compare_cuda(python, core)
        not_known = settings_truth.unknown(found)
        number, unknown = number + count, unknown + len(not_known)
        wrong += [f"CUDA: {name}: {found[name][0]} instead of {found[name][1]}" for name in found.keys() - not_known]
    known = number - unknown
    return f"{known - len(wrong)} of {known}", wrong, {"statistics of CUDA"} if unknown else set()


if __name__ == "__main__":
    sys.exit(each_release.run(__doc__, PAGE, _HEAD, _COLUMNS, _compare))
