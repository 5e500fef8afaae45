"""scripts/lib/tests_for.py: which test files cover a file or folder of gdbext."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.source.script_module import load

STACK = "tests/unit/torch/stack"
RECORDED = "tests/unit/diagnosis/test_recorded_scenarios.py"


@pytest.fixture(scope="module")
def covering() -> ModuleType:
    return load("lib/tests_for")


def test_a_file_has_the_tests_of_its_name_of_its_package_and_of_its_importers(covering: ModuleType) -> None:
    found = covering.tests_for(Path("gdbext/torch/stack/event_proof.py"))
    assert found[0] == f"{STACK}/test_event_proof.py"
    assert f"{STACK}/test_recovery.py" in found
    assert found[-1] == RECORDED
    assert not any(test.startswith("tests/integration/torch/test_") for test in found)


def test_a_folder_has_the_tests_of_its_subfolders_and_of_all_importers(covering: ModuleType) -> None:
    stack = covering.tests_for(Path("gdbext/torch/stack"))
    assert {test.name for test in (covering.ROOT / STACK).glob("test_*.py")} <= {Path(test).name for test in stack}
    assert set(stack) < set(covering.tests_for(Path("gdbext/torch")))
    assert stack == sorted(set(stack), key=lambda test: ("unit" not in test.split("/"), stack.index(test)))


def test_the_order_is_from_cheap_to_expensive(covering: ModuleType) -> None:
    suites = [test.split("/")[1] for test in covering.tests_for(Path("gdbext/engine/targets"))]
    assert list(dict.fromkeys(suites)) == list(covering.SUITES)


def test_only_a_diagnosis_replays_recordings(covering: ModuleType) -> None:
    assert RECORDED in covering.tests_for(Path("gdbext/engine/glibc/pthread.py"))
    assert RECORDED not in covering.tests_for(Path("gdbext/hosts/cli"))


@pytest.mark.parametrize("path", ["gdbext/no_such.py", "tests/unit", "/usr"])
def test_other_paths_are_refused(covering: ModuleType, path: str) -> None:
    with pytest.raises(ValueError, match=r"no file or folder of gdbext|not in the subpath"):
        covering.tests_for(Path(path))


def test_what_is_imported(covering: ModuleType, tmp_path: Path) -> None:
    for folder in ("a/b", "c"):
        (tmp_path / "gdbext" / folder).mkdir(parents=True)
    for name in ("a/__init__.py", "a/x.py", "a/xy.py", "a/b/z.py", "c/w.py"):
        (tmp_path / "gdbext" / name).touch()
    sources = {
        "unit/a/b/new/test_one.py": "",
        "unit/c/test_two.py": "from gdbext.a import (\n    b,\n    x as other,\n)\n",
        "unit/c/test_three.py": "def f():\n    import gdbext.a.xy\n",
        "unit/support/test_four.py": "NAME = 'gdbext.a.b.z'\n",
        "integration/c/test_x.py": "",
    }
    for name, source in sources.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(source)

    def names(path: str) -> list[str]:
        return [Path(test).stem[5:] for test in covering.tests_for(Path("gdbext", path), tmp_path)]

    assert names("a/x.py") == ["two", "x"]
    assert names("a/xy.py") == ["three"]
    assert names("a/b/z.py") == ["one", "four"]
    assert names("a") == ["one", "three", "two", "four"]
    assert names("c/w.py") == ["three", "two", "x"]
