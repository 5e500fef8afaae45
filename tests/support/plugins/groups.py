"""A pytest plugin: tests that share a process run in a row, and by the same worker where several share the work.

A hung program is started once for all tests of a module, and for those of other modules that name it by a parameter
``scenario`` or as ``@pytest.mark.program("idle")``. Tests that want to be alone come first: all others wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SHARED = ("module", "package", "class")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before pytest-xdist looks at the groups."""
    rank: dict[tuple[str, str], int] = {}

    def position(item: pytest.Item) -> tuple[bool, int, int]:
        module, scenario = item.nodeid.split("::")[0], _scenario(item)
        first = rank.setdefault((module, ""), len(rank))
        within = rank.setdefault((module, scenario), len(rank)) if scenario else 0
        return item.get_closest_marker("alone") is None, first, within

    items.sort(key=position)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            group = group_of(item)
            if group and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(group))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes may differ from worker to worker, and pytest-xdist runs nothing unless all name the tests alike."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


def group_of(item: pytest.Item) -> str:
    """The name of the group, "" for a test that any worker may run at any time. A file of unit tests is a group:
    handing them out one by one takes longer than running them."""
    if item.nodeid.startswith("tests/unit/") and not _scenario(item):
        return item.nodeid.split("::")[0].partition("tests/unit/")[2]
    looks = "inferior" in getattr(item, "fixturenames", ())
    if looks and _program(item):
        return f"program-{_program(item)}"
    shared = _shared_fixtures(item)
    if not shared and not looks:
        return ""
    parts = [_scenario(item)] if _scenario(item) else [_text(_parameters(item)[name]) for name in shared]
    return "-".join([Path(item.nodeid.split("::")[0]).stem.removeprefix("test_"), *filter(None, parts)])


def _shared_fixtures(item: pytest.Item) -> list[str]:
    """Names of the fixtures of a shared scope that this test is parametrized by; [""] for others of such a scope."""
    definitions: dict[str, Any] = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    names, parameters = [name for name, found in definitions.items() if found[-1].scope in SHARED], _parameters(item)
    return sorted(name for name in names if name in parameters) or [""][: len(names)]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {"": "", **(callspec.params if callspec else {})}


def _scenario(item: pytest.Item) -> str:
    return _text(_parameters(item).get("scenario", ""))


def _program(item: pytest.Item) -> str:
    """What the test looks at; "" where it names nothing and only its own module shares it."""
    mark = item.get_closest_marker("program")
    return str(mark.args[0]) if mark else _scenario(item)


def _text(value: Any) -> str:
    return str(getattr(value, "name", value))
