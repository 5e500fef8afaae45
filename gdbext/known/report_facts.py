"""The facts of a JSON report that was made before (schema "gdbext/1"), for matching: reports can be judged again by
entries that were written later.

Whoever made the document, nothing in it is trusted: what is not as the schema has it is a BadData.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gdbext.errors import BadData
from gdbext.known.signatures import NativeName, ProcessFacts, ThreadFacts, child_relation

SCHEMA = "gdbext/1"


def report_facts(document: object, where: str) -> ProcessFacts:
    """The facts of the report. Raises BadData for what is none, or has no threads."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise BadData(f"{where} is not a report on a process (schema {SCHEMA})")
    try:
        return _facts(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(f"{where} is not as the schema {SCHEMA} has it: {type(error).__name__}: {error}") from error


def has_native_frames(document: Mapping[str, Any]) -> bool:
    """Its threads have native frames: it was made with ``all-threads --stacks``."""
    return any("frames" in thread for thread in document["threads"])


def _facts(document: Mapping[str, Any]) -> ProcessFacts:
    target = document["target"]
    if target is None:
        raise ValueError("it has no process")
    crashed = {tid for finding in document["findings"] if finding["kind"] == "crash" for tid in finding["threads"]}
    versions = {"torch": _version(target.get("torch")), "python": _version(target.get("python"))}
    threads = [_thread(each, int(target["pid"]), crashed) for each in document["threads"]]
    return ProcessFacts(
        threads,
        versions.get,
        relation=partial(_relation, document),
        architecture=_text(target.get("architecture") or ""),
    )


def _version(part: Mapping[str, Any] | None) -> str | None:
    text = part["version"] if part is not None else None
    return None if text in (None, "unknown") else _text(text)


def _relation(document: Mapping[str, Any], word: str) -> bool | None:
    if word == "one-thread":
        return len(document["threads"]) == 1
    if word == "forked":
        missing = [(each["wait"] or {}).get("missing_workers") or {} for each in document["threads"]]
        return True if any(each.get("forked") is True for each in missing) else None
    if document["target"]["kind"] != "live" or document["command"] != "dispatch-diagnose":
        return None
    children = (document.get("children") or {}).get("children") or ()
    return child_relation(word, [_text(child["command"]) for child in children])


def _thread(value: Mapping[str, Any], pid: int, crashed: set[int]) -> ThreadFacts:
    wait = value["wait"] or {}
    missing, owner = wait.get("missing_workers") or {}, wait.get("owner") or {}
    names = [_text(name) for name in (value["python_name"], value["name"]) if name]
    tid = int(value["tid"])
    frames = [_native(frame) for frame in _objects(value.get("frames") or ()) if frame["kind"] == "native"]
    return ThreadFacts(
        f"{names[0]} (tid {tid})" if names else f"thread {tid}",
        _lines(value["python_frames"]),
        _text(wait.get("kind") or ""),
        _text(missing["pool"]) if missing.get("forked") is True else "",
        lambda: frames,
        tid=tid,
        roles=["main" if tid == pid else "other", *(["crashed"] if tid in crashed else [])],
        names=names,
        state=_text(value["state"]),
        holds=[_text(each["kind"]) for each in value["holds"]],
        owner=int(owner["tid"]) if owner.get("state") == "alive" else None,
        owner_gone=owner.get("state") == "gone",
        group=_text((wait.get("collective") or {}).get("group") or ""),
        lost_signal=wait.get("lost_signal") is True,
        tasks=[_lines(task["frames"]) for task in value.get("tasks") or ()],
    )


def _lines(frames: Sequence[Any]) -> list[tuple[str, str]]:
    return [(_text(frame["file"]), _text(frame["function"])) for frame in _objects(frames)]


def _objects(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The frames of a list. A block of frames that repeats is there once."""
    return [each for each in values if isinstance(each, Mapping)]


def _native(frame: Mapping[str, Any]) -> tuple[NativeName, str]:
    name = _text(frame["function"])
    return (lambda: (name,)), _text(frame.get("module") or "")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value
