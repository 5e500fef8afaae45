"""The JSON Schema of docs/ is one, and our validator of the tests decides as jsonschema does."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.installed.machine import need_module
from support.recorded import recordings
from support.source import contract_schema

SAMPLE = ("gil-mutex", "kernel-crash", "dataloader", "fork-openmp", "waits")
DAMAGES = 60
"""Damaged copies of each document."""
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "", "0x", "mutex", [], [{}], {}, {"kind": "deadlock"})


@pytest.fixture(scope="module")
def theirs() -> Any:
    return need_module("jsonschema").Draft202012Validator(contract_schema.schema())


def test_it_is_a_schema(theirs: Any) -> None:
    theirs.check_schema(contract_schema.schema())


@pytest.mark.parametrize("name", SAMPLE)
def test_a_document_that_we_take_is_taken(name: str, theirs: Any) -> None:
    document = kept(name)
    assert contract_schema.faults(document) == [error.message for error in theirs.iter_errors(document)] == []


@pytest.mark.parametrize("name", SAMPLE)
def test_both_refuse_the_same(name: str, theirs: Any) -> None:
    document, random_ = kept(name), random.Random(name)
    verdicts = set()
    for _ in range(DAMAGES):
        damaged = damage(document, random_)
        accepted = theirs.is_valid(damaged)
        assert (contract_schema.faults(damaged) == []) == accepted, damaged
        verdicts.add(accepted)
    assert verdicts == {True, False}


def kept(name: str) -> dict[str, Any]:
    """The recorded document; shortened lists have a sentence in their middle."""
    text = (recordings.FOLDER / f"{name}.json").read_text()
    found: dict[str, Any] = without_sentences(json.loads(text)["document"])
    return found


def without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_sentences(each) for name, each in value.items()}
    if isinstance(value, list):
        mixed = any(isinstance(each, dict) for each in value)
        return [without_sentences(each) for each in value if not (mixed and isinstance(each, str))]
    return value


def damage(document: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """A copy with one value replaced, taken away or added."""
    changed = copy.deepcopy(document)
    inside, step = random_.choice(list(places(changed)))
    choice = random_.random()
    if choice < 0.25 and isinstance(inside, dict):
        del inside[step]
    elif choice < 0.4 and isinstance(inside, dict):
        inside[f"{step}s"] = inside[step]
    else:
        inside[step] = random_.choice(WRONG)
    return changed


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    if isinstance(value, (dict, list)):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield value, step
            yield from places(value[step])
