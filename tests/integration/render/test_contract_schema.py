"""The JSON Schema of docs/ is one, and documents fulfil it, by a validator that is not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.installed.machine import need_module
from support.recorded import recordings
from support.source import contract_schema


@pytest.mark.parametrize("name", ["gil-mutex", "kernel-crash"])
def test_a_document_that_we_take_is_taken(name: str) -> None:
    theirs = need_module("jsonschema").Draft202012Validator(contract_schema.schema())
    theirs.check_schema(contract_schema.schema())
    document = without_sentences(json.loads((recordings.FOLDER / f"{name}.json").read_text())["document"])
    assert contract_schema.faults(document) == [error.message for error in theirs.iter_errors(document)] == []
    for changes in ({"verdict": {"kind": 1}}, {"threads": {}}, {"target": "none"}):
        damaged = {**document, **changes}
        assert contract_schema.faults(damaged)
        assert not theirs.is_valid(damaged)


def without_sentences(value: Any) -> Any:
    """Shortened lists have a sentence in their middle."""
    if isinstance(value, dict):
        return {name: without_sentences(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    mixed = any(isinstance(each, dict) for each in value)
    return [without_sentences(each) for each in value if not (mixed and isinstance(each, str))]
