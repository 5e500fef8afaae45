"""Tests that share a process stay together, and everything else goes to whoever is free."""

from __future__ import annotations

import pytest

from support.plugins.groups import group_of, pytest_collection_modifyitems

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def inferior(): pass

@pytest.fixture(scope="module")
def program(): pass

@pytest.fixture(scope="module", params=["3.8", "3.9"])
def python(request): pass

def test_alone(tmp_path): pass
def test_shared(inferior): pass
def test_built_once(program): pass
def test_by_version(python, program): pass
@pytest.mark.parametrize("scenario", ["gil"])
def test_scenario(scenario, inferior): pass
@pytest.mark.program("gil")
def test_marked(inferior): pass
@pytest.mark.parametrize("scenario", ["gil"])
def test_replayed(scenario): pass
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number): pass
"""

GROUPS = {
    "test_alone": "",
    "test_shared": "of_groups",
    "test_built_once": "of_groups",
    "test_by_version[3.8]": "of_groups-3.8",
    "test_by_version[3.9]": "of_groups-3.9",
    "test_scenario[gil]": "program-gil",
    "test_marked": "program-gil",
    "test_replayed[gil]": "",
    "test_numbers[1]": "",
    "test_numbers[2]": "",
}


def test_groups(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_of_groups=TESTS)
    items, _ = pytester.inline_genitems()
    assert {item.name: group_of(item) for item in items} == GROUPS


def test_whoever_wants_to_be_alone_comes_first(pytester: pytest.Pytester) -> None:
    marked = TESTS.replace("def test_built_once", "@pytest.mark.alone\ndef test_built_once")
    pytester.makepyfile(test_a=TESTS, test_b=marked)
    items, _ = pytester.inline_genitems()
    before = list(items)
    pytest_collection_modifyitems(items[0].config, items)
    assert [item.path.stem for item in items] == ["test_b", *["test_a"] * 10, *["test_b"] * 9]
    assert items[0].name == "test_built_once"
    assert set(items) == set(before)


@pytest.mark.xdist_group("together")
def test_the_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes a test's group behind its id; where it fails to, every program is started once more."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@together")
