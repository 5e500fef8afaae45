"""Damaged documents: the layouts of PyTorch and CPython, and the reports of a job's ranks."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
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
_WITHOUT = ("python-lock-abba", "families-join", "task-cycle-3.8", "python-lock-abba-3.13", "others-end-sockets-3.11")


def _layouts(chance: Random, block: Random) -> Look:
    found = subjects.subject(block.choice(_WITH_TORCH + _WITHOUT))
    command = subjects.some_command(chance)
    if chance.random() < 0.25:
        name = chance.choice(sorted(path.name for path in Path(store.DATA).glob("*.json")))
        data = (Path(store.DATA) / name).read_bytes()
        changes = damage_bytes(chance, 0, min(len(data), chance.choice((400, 4000, len(data)))), len(data))
        run = partial(_with_layout_bytes, command, found, name, data)
        return Look(f"{found.name} with {name}", command, changes, run)
    has_torch = any("libtorch_cpu" in mapping.path for mapping in found.recording.maps)
    document = _layout(TORCH_LAYOUT if has_torch else _cpython_name(found))
    changes = json_damage.damage_json(document, chance, 200)
    run = partial(_with_layout, command, found, document)
    return Look(f"{found.name} with {document['id']}", command, changes, run)


def _cpython_name(found: subjects.Subject) -> str:
    runtime = Session(ReplayTarget(found.recording)).python
    assert runtime is not None
    return Path(python_layout.table_path(runtime.layout.abi)).name


@cache
def _layout(name: str) -> dict[str, Any]:
    document = store.read_layout(Path(store.DATA) / name, whole=True)
    plain: dict[str, Any] = json.loads(json.dumps(document, default=dict))
    return plain


def _with_layout(command: Sequence[str], found: subjects.Subject, document: Any, changes: Sequence[Change]) -> Outcome:
    """The document in the place of the file, behind whatever checks there are."""
    damaged, name, read = json_damage.with_changes(document, changes), f"{document['id']}.json", store.read_document
    with patch.object(store, "read_document", lambda path: damaged if Path(path).name == name else read(path)):
        return _fresh(command, found)


def _with_layout_bytes(
    command: Sequence[str], found: subjects.Subject, name: str, data: bytes, changes: Sequence[Change]
) -> Outcome:
    folder = folders.scratch() / "layouts"
    if not folder.exists():
        shutil.copytree(store.DATA, folder)
    defaults = tuple(folder if value == store.DATA else value for value in store.by_build_id.__defaults__ or ())
    try:
        (folder / name).write_bytes(with_bytes(data, changes))
        with patch.object(store, "DATA", folder), patch.object(store.by_build_id, "__defaults__", defaults):
            return _fresh(command, found)
    finally:
        (folder / name).write_bytes(data)


def _fresh(command: Sequence[str], found: subjects.Subject) -> Outcome:
    """The command without any layout that was read before."""
    _forget()
    try:
        return subjects.execute(command, found.recording)
    finally:
        _forget()


def _forget() -> None:
    store._loaded.cache_clear()
    python_layout.layout_for.cache_clear()


def _jobs(chance: Random, block: Random) -> Look:
    name = block.choice(jobs.NAMES)
    documents = _documents(name)
    output = chance.choice(("--json", "--json", "--dot", "--html", ""))
    if chance.random() < 0.2:
        whole = "\0".join(json.dumps(document) for document in documents).encode()
        changes = damage_bytes(chance, 0, len(whole), len(whole))
        return Look(f"job {name}", ("ranks", output), changes, partial(_bytes_judged, whole, output))
    changes = json_damage.damage_json(documents, chance, 60)
    return Look(f"job {name}", ("ranks", output), changes, partial(_judged, documents, output))


@cache
def _documents(name: str) -> list[dict[str, Any]]:
    return jobs.documents(name)


def _judged(documents: Any, output: str, changes: Sequence[Change]) -> Outcome:
    found = json_damage.with_changes(documents, changes)
    values = found.values() if isinstance(found, Mapping) else found
    return _ranks([json.dumps(value).encode("utf-8", "surrogatepass") for value in values], output)


def _bytes_judged(whole: bytes, output: str, changes: Sequence[Change]) -> Outcome:
    return _ranks(with_bytes(whole, changes).split(b"\0"), output)


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


KINDS = (
    Kind("layouts", 8, "Offsets, sizes, names and types in a layout document, and the bytes of its file.", _layouts),
    Kind("jobs", 16, "The reports of a job's ranks: each is a document that another machine wrote.", _jobs),
)
