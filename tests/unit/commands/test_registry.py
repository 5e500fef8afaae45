"""The table of commands: it lists what there is, and nothing else; and every failure becomes a message."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

import pytest

from gdbext.commands import registry
from gdbext.errors import UsageError

FOLDER = Path(registry.__file__).parent
SHARED = {"__init__", "completion", "options", "recorded", "registry", "reporting"}


@pytest.mark.parametrize("entry", registry.TABLE, ids=lambda entry: entry.name)
def test_each_row_is_a_command(entry: registry.Entry) -> None:
    module = registry.module_of(entry)
    assert entry.name == module.NAME
    assert callable(module.run)
    assert entry.name in registry.help_text(entry)


def test_each_command_has_a_row() -> None:
    files = (file for file in FOLDER.rglob("*.py") if file.stem not in SHARED)
    names = {".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in files}
    assert names == {entry.module for entry in registry.TABLE}


def test_every_command_makes_its_report_as_the_others_do() -> None:
    """Else the report lacks what make_report adds: unread things, what a recording lacks, --why."""
    own = re.compile(r"(?<![\w.])Report\(")
    files = (file for file in FOLDER.rglob("*.py") if file.stem not in SHARED)
    assert [file.name for file in files if own.search(file.read_text())] == []


def test_a_misspelled_command_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("dispatch-keyst")
    assert "dispatch-keyset" in caught.value.why


def no_session() -> NoReturn:
    raise AssertionError("the arguments are checked before the target is opened")


def test_wrong_arguments_open_no_target() -> None:
    outcome = registry.execute("dispatch-bt", ["--nonsense", "--json"], no_session)
    assert outcome.status == 2
    document = json.loads(outcome.output)
    assert (document["schema"], document["command"], document["target"]) == ("gdbext/1", "dispatch-bt", None)
    assert "--nonsense" in document["errors"][0]["what"]


def test_a_fault_of_ours_is_a_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GDBEXT_DEBUG", raising=False)
    outcome = registry.execute("dispatch-bt", [], no_session)
    assert outcome.status == 1
    assert outcome.output == ""
    assert "internal error: AssertionError" in outcome.error
    assert "GDBEXT_DEBUG=1" in outcome.error
