"""What dispatch-info --settings reports of a program of tests/inferiors/settings.py against what it says itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from support.programs import harness, native_build

PROGRAMS = ("unchanged", "old-precision", "new-precision", "contexts", "everything", "environment")
_CONF = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "max_split_size_mb:64")
ENVIRONMENT = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "1", **_CONF}
CHOSEN = ("num_threads", "num_interop_threads", "mkl_threads")
"""As long as nobody sets them, the libraries choose: "default"."""


@contextlib.contextmanager
def started(program: str, python: str = "venv") -> Iterator[harness.Inferior]:
    words, environment = ("unchanged", ENVIRONMENT) if program == "environment" else (program, {})
    with harness.started("settings", words, python=python, env=environment) as process:
        yield process


def compare(process: harness.Inferior, core: bool) -> dict[str, tuple[Any, Any]]:
    report = process.dispatch("dispatch-info", "--settings", debugger="none", core=core).document["settings"]
    return differences(report, process.truth["settings"], process.tid("main"))


def differences(report: Mapping[str, Any], said: Mapping[str, Any], main: int) -> dict[str, tuple[Any, Any]]:
    """What is reported otherwise than the program says: (ours, theirs) by name."""
    ours = _as_said(report, main)
    found = {name: (ours.get(name), value) for name, value in said.items() if ours.get(name) != value}
    chosen = {name for name in CHOSEN if ours.get(name) == "default"}
    not_read = {name: (value, "a value") for name, value in report.items() if value is None}
    return {name: both for name, both in found.items() if name not in chosen} | not_read


def unknown(found: Mapping[str, tuple[Any, Any]]) -> set[str]:
    return {name for name, (ours, _) in found.items() if ours is None}


def _as_said(report: Mapping[str, Any], main: int) -> dict[str, Any]:
    ours = dict(report)
    allocators = [each for each in map(ours.get, ("allocator", "cuda_allocator")) if isinstance(each, dict)]
    told = [each["last_allocator_settings"] for each in allocators if "last_allocator_settings" in each]
    ours["allocator_settings"] = told[0] if told else ""
    ours["global_callbacks"] = len(ours["record_function_callbacks"])
    ours["threads"] = [_thread(each) for each in ours["threads"] if each["tid"] == main] or [{}]
    return ours


def _thread(thread: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the program does not know: its callbacks; the files of functions."""
    found = {name: value for name, value in thread.items() if name not in ("tid", "name", "record_function_callbacks")}
    pairs = found.get("saved_tensor_hooks")
    if pairs:
        found["saved_tensor_hooks"] = [[function.partition(" (")[0] for function in pair] for pair in pairs]
    return found


def is_for_cuda(python: str) -> bool:
    executable, environment = harness.interpreter(python)
    ask = "import torch; print(torch.version.cuda is not None)"
    return harness.run([executable, "-W", "ignore", "-c", ask], env=environment).stdout.strip() == "True"


def compare_cuda(python: str, core: bool) -> tuple[dict[str, tuple[Any, Any]], int]:
    """What is reported otherwise than a program on a stand-in for a device says, and how many facts that says."""
    device = {"LD_PRELOAD": str(native_build.build("one_cuda_device"))}
    with harness.started("cuda-memory", python=python, env=device) as process:
        said = process.truth["cuda"]
        memory = process.dispatch("dispatch-info", "--memory", debugger="none", core=core).document["memory"]
        settings = process.dispatch("dispatch-info", "--settings", debugger="none", core=core).document["settings"]
    ours = memory["cuda"][0]["statistics"] if memory["cuda"] else {}
    found = {name: (ours.get(name), value) for name, value in said["statistics"].items() if ours.get(name) != value}
    if settings["generators"] is None or said["generator"] not in settings["generators"]:
        found["generator"] = settings["generators"], said["generator"]
    return found, len(said["statistics"]) + 1
