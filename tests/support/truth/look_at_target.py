"""Asks a Target everything and gives the answers as plain JSON values: the same code inside a debugger and without it.

Inside one: ``look_at_target.inside('gdb' or 'lldb', request_file, answer_file)``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gdbext.engine.targets.base_target import Target, TargetThread
from gdbext.errors import GdbextError


def answers(target: Target, reads: dict[str, tuple[int, int]], paths: list[str]) -> dict[str, Any]:
    """What the target says. ``reads`` names (address, size) pairs, ``paths`` are given to local_path."""
    selected = target.memory.selected_thread()
    return {
        "debugger": target.debugger,
        "pid": target.pid,
        "kind": target.origin.kind,
        "is_core": target.origin.is_core,
        "architecture": target.architecture.name,
        "selected": selected.tid if selected else None,
        "threads": list(map(_thread, target.memory.threads())),
        "maps": [mapping._asdict() for mapping in target.memory.maps()],
        "auxv": {str(key): value for key, value in target.memory.auxv().items()},
        "environ": dict(target.origin.environ()),
        "reads": {name: _read(target, address, size) for name, (address, size) in reads.items()},
        "paths": {path: target.origin.local_path(path) for path in paths},
    }


def _thread(thread: TargetThread) -> dict[str, Any]:
    signal = thread.signal
    said = {name: getattr(thread, name) for name in ("tid", "number", "name", "kernel_state")}
    return {**said, "signal": signal._asdict() if signal else None, "registers": dict(thread.registers())}


def _read(target: Target, address: int, size: int) -> dict[str, Any]:
    try:
        return {"bytes": target.memory.read(address, size).hex()}
    except GdbextError as error:
        return {"error": type(error).__name__}


def inside(debugger: str, request_file: str, answer_file: str) -> None:
    from gdbext.hosts.debugger import base_debugger

    request = json.loads(Path(request_file).read_text())
    answer = answers(base_debugger.debugger(debugger).target(), request["reads"], request["paths"])
    Path(answer_file).write_text(json.dumps(answer))
