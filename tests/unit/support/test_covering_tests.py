"""scripts/lib/tests_for.py: which test files cover a file or folder of gdbext."""

from __future__ import annotations

from pathlib import Path

from support.source.script_module import load

RECORDED = "tests/unit/diagnosis/test_recorded_scenarios.py"


def test_a_file_has_the_tests_of_its_name_of_its_package_and_of_its_importers() -> None:
    covering = load("lib/tests_for")
    found = covering.tests_for(Path("gdbext/torch/stack/event_proof.py"))
    assert found[0] == "tests/unit/torch/stack/test_event_proof.py"
    assert "tests/unit/torch/stack/test_recovery.py" in found
    assert found[-1] == RECORDED
    assert not any(test.startswith("tests/integration/torch/test_") for test in found)
    assert set(covering.tests_for(Path("gdbext/torch/stack"))) < set(covering.tests_for(Path("gdbext/torch")))
    assert RECORDED not in covering.tests_for(Path("gdbext/hosts/cli"))
