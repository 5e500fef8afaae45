"""The JSON Schema of docs/ is one, and documents fulfil it, by a validator that is not ours."""

from __future__ import annotations

import pytest

from support.installed.machine import need_module
from support.recorded.recordings import Replay
from support.source import contract_schema


@pytest.mark.parametrize("name", ["gil-mutex", "kernel-crash"])
def test_a_document_that_we_take_is_taken(name: str) -> None:
    theirs = need_module("jsonschema").Draft202012Validator(contract_schema.schema())
    theirs.check_schema(contract_schema.schema())
    document = Replay(name).diagnosis
    assert contract_schema.faults(document) == [error.message for error in theirs.iter_errors(document)] == []
    for changes in ({"verdict": {"kind": 1}}, {"threads": {}}, {"target": "none"}):
        damaged = {**document, **changes}
        assert contract_schema.faults(damaged)
        assert not theirs.is_valid(damaged)
