"""Damaged documents: the layouts of PyTorch and CPython, and the reports of a job's ranks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from gdbext.cpython.abi import python_layout
from gdbext.diagnosis.session import Session
from gdbext.engine.layouts import store
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import GdbextError
from gdbext.tools import table
from gdbext.tools.ranks import RanksProgram
from gdbext.tools.table import Outcome
from support.recorded import jobs

from . import folders, json_damage, subjects
from .byte_damage import damage_bytes, with_bytes
from .look import Change, Kind, Look

TORCH_LAYOUT = "torch-2.13.0+cpu-cxx11.json"
"""That of most recordings."""
_WITH_TORCH = ("agent-polls-3.10", "idle", "gil-mutex", "meta-mm-spin", "pools")
_WITHOUT = ("python-lock-abba", "families-join", "task-cycle-3.8", "python-lock-abba-3.13", "recv-silent-unix-3.12")


def _layouts(chance: Random, block: Random) -> Look:
    found = subjects.recorded(block.choice(_WITH_TORCH + _WITHOUT))
    has_torch = any("libtorch_cpu" in mapping.path for mapping in found.recording.maps)
    document = _layout(TORCH_LAYOUT if has_torch else _cpython_name(found))
    command = subjects.some_command(chance)
    changes = json_damage.damage_json(document, chance, 200)
    look = found.look(command, changes, lambda _: ReplayTarget(found.recording))
    return replace(look, run=partial(_with_layout, look.run, document))


def _cpython_name(found: subjects.Recorded) -> str:
    runtime = Session(ReplayTarget(found.recording)).python
    assert runtime is not None
    return Path(python_layout.table_path(runtime.layout.abi)).name


@cache
def _layout(name: str) -> dict[str, Any]:
    document = store.read_layout(Path(store.DATA) / name, whole=True)
    plain: dict[str, Any] = json.loads(json.dumps(document, default=dict))
    return plain


def _with_layout(run: Callable[[Sequence[Change]], Outcome], document: Any, changes: Sequence[Change]) -> Outcome:
    """With the document in the place of the file, behind whatever checks there are, and no layout read before."""
    damaged, name, read = json_damage.with_changes(document, changes), f"{document['id']}.json", store.read_document
    with patch.object(store, "read_document", lambda path: damaged if Path(path).name == name else read(path)):
        _forget()
        try:
            return run(changes)
        finally:
            _forget()


def _forget() -> None:
    store._loaded.cache_clear()
    python_layout.layout_for.cache_clear()


def _jobs(chance: Random, block: Random) -> Look:
    """The reports of a job's ranks: each is a document that another machine wrote."""
    name = block.choice(jobs.NAMES)
    documents = _documents(name)
    whole = "\0".join(map(json.dumps, documents)).encode()
    output = chance.choice(("--json", "--json", "--dot", "--html", ""))
    is_bytes = chance.random() < 0.2
    damage = (
        damage_bytes(chance, 0, len(whole), len(whole)) if is_bytes else json_damage.damage_json(documents, chance, 60)
    )

    def run(kept: Sequence[Change]) -> Outcome:
        if is_bytes:
            return _ranks(with_bytes(whole, kept).split(b"\0"), output)
        values = json_damage.with_changes(documents, kept)
        return _ranks([json.dumps(value).encode("utf-8", "surrogatepass") for value in values], output)

    return Look(f"job {name}", ("ranks", output), damage, run)


@cache
def _documents(name: str) -> list[dict[str, Any]]:
    return jobs.documents(name)


def _ranks(texts: Sequence[bytes], output: str) -> Outcome:
    with tempfile.TemporaryDirectory(dir=folders.scratch()) as folder:
        for number, text in enumerate(texts[:200]):
            (Path(folder) / f"{number}.json").write_bytes(text)
        words = ["--reports", folder, *([output] if output else [])]
        if output in ("--dot", "--html"):
            words.append(f"{folder}/picture")
        try:
            return RanksProgram().main(words, lambda _: 0, color=False)
        except GdbextError as error:
            return table.failure("ranks", words, error)


KINDS = (Kind("layouts", 8, _layouts), Kind("jobs", 16, _jobs))
