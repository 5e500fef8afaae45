"""Each kind of verdict is in one file: nobody else has its word."""

from __future__ import annotations

import ast
import pickle
import sys
from copy import deepcopy
from pathlib import Path

import pytest

import gdbext
from gdbext.diagnosis.kinds import KINDS, kind_of, rank_of
from gdbext.diagnosis.report.finding import NOTE, FindingKind
from support.source.parsed import nodes, sources

pytestmark = pytest.mark.xdist_group("laws")

OF_OTHERS = {"stopped", "idle"}
"""Words that other enumerations have, too: the states of processes, threads and tools."""


def test_a_word_is_in_the_file_of_its_kind() -> None:
    package = Path(gdbext.__file__).parent
    files = {kind.value: Path(str(sys.modules[type(kind).__module__].__file__)) for kind in KINDS}
    places = [
        (file, node.value)
        for file, source in sources().items()
        for node in nodes(source)
        if isinstance(node, ast.Constant) and node.value in files and node.value not in OF_OTHERS
    ]
    assert [(file, word) for file, word in places if package / file != files[word]] == []
    assert {word for _, word in places} == files.keys() - OF_OTHERS


def test_the_order_is_the_strength() -> None:
    assert [kind_of(kind.value) for kind in KINDS] == list(KINDS)
    assert [rank_of(kind.value) for kind in KINDS] == list(range(len(KINDS)))


@pytest.mark.parametrize("kind", [*KINDS, NOTE], ids=repr)
def test_there_is_one_object_of_a_kind(kind: FindingKind) -> None:
    assert deepcopy(kind) is pickle.loads(pickle.dumps(kind)) is kind


def test_a_word_of_a_later_version_is_the_weakest_kind() -> None:
    later = kind_of("of-a-later-version")
    assert (later.words, later.is_hang, later.is_defect) == ("of-a-later-version", False, False)
    assert rank_of(later.value) == len(KINDS)
