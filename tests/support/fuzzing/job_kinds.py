"""Damaged reports of a job's ranks: each is a document that another machine wrote."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from gdbext.errors import GdbextError
from gdbext.tools import table
from gdbext.tools.outcome import Outcome, failure
from support.recorded import jobs

from . import folders, json_damage
from .byte_damage import damage_bytes, with_bytes
from .look import Change, Kind, Look


def _jobs(chance: Random, block: Random) -> Look:
    name = block.choice(jobs.NAMES)
    documents = _documents(name)
    whole = "\0".join(map(json.dumps, documents)).encode()
    output = chance.choice(("--json", "--json", "--dot", "--html", ""))
    is_bytes = chance.random() < 0.2
    by_bytes = damage_bytes(chance, 0, len(whole), len(whole))
    by_member = json_damage.damage_json(documents, chance, 60)

    def run(kept: Sequence[Change]) -> Outcome:
        if is_bytes:
            return _ranks(with_bytes(whole, kept).split(b"\0"), output)
        values = json_damage.with_changes(documents, kept)
        return _ranks([json.dumps(value).encode("utf-8", "surrogatepass") for value in values], output)

    return Look(f"job {name}", ("ranks", output), by_bytes if is_bytes else by_member, run)


_documents = cache(jobs.documents)


def _ranks(texts: Sequence[bytes], output: str) -> Outcome:
    with tempfile.TemporaryDirectory(dir=folders.scratch()) as folder:
        for number, text in enumerate(texts[:200]):
            (Path(folder) / f"{number}.json").write_bytes(text)
        words = ["--reports", folder, *([output] if output else [])]
        if output in ("--dot", "--html"):
            words.append(f"{folder}/picture")
        try:
            row = table.program("ranks")
            assert row is not None
            outcome: Outcome = table.tool_of(row).main(words, lambda _: 0, color=False)
            return outcome
        except GdbextError as error:
            return failure("ranks", words, error)


KINDS = (Kind("jobs", 16, _jobs),)
