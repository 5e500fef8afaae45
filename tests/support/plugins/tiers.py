"""A pytest plugin: two tiers of tests. ``scripts/test`` runs the first, ``scripts/test --all`` the second.

The second tier has the tests marked ``extended``, those that need what only ``scripts/test --all`` installs, and the
files and folders of EXTENDED. Plain ``pytest`` runs both.
"""

from __future__ import annotations

from typing import Any

import pytest

_ALSO_EXTENDED = ("chromium", "pythons", "slurm", "sshd", "slow")
"""Markers of tests that need programs which the first tier does without, or more than ten seconds."""
EXTENDED = (
    "cpython/test_python_layouts.py",
    "diagnosis/test_dead_workers.py",
    "diagnosis/test_forked_pools.py",
    "diagnosis/test_full_pools.py",
    "diagnosis/test_garbage.py",
    "diagnosis/test_named_waits.py",
    "diagnosis/test_samples.py",
    "diagnosis/test_server_trees.py",
    "diagnosis/test_strangers.py",
    "diagnosis/test_surroundings.py",
    "diagnosis/test_waking_loops.py",
    "engine/arch/",
    "engine/formats/",
    "engine/layouts/",
    "engine/targets/test_core_sources.py",
    "engine/targets/test_harmless_looks.py",
    "engine/unwind/",
    "hosts/cli/test_bad_input.py",
    "hosts/debugger/",
    "hosts/gdb/test_gdb_resuming.py",
    "hosts/lldb/test_live_in_lldb.py",
    "hosts/test_debug_server.py",
    "hosts/test_py_spy.py",
    "hosts/test_pytest_plugin.py",
    "hosts/test_schedulers.py",
    "known/test_real_programs.py",
    "live/",
    "packaging/",
    "support/",
    "tools/autograd/",
    "tools/breaks/",
    "tools/compile/",
    "tools/core_handler/",
    "tools/info/",
    "tools/probes/",
    "tools/ranks/",
    "tools/shell/",
    "tools/timeout/",
    "tools/trace/",
    "tools/values/",
    "tools/watch/",
    "torch/test_assumed_symbols.py",
    "torch/test_matrix.py",
    "torch/test_stripped_torch.py",
)
"""Files and folders of tests/integration that go through debuggers for what the contract suite covers, compile, or
compare with another tool."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("first", "second"), help="run one tier of the tests (see scripts/test --help)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier is not None:
        left_out = [item for item in items if is_extended(item) == (tier == "first")]
        items[:] = [item for item in items if is_extended(item) == (tier == "second")]
        config.hook.pytest_deselected(items=left_out)


def is_extended(item: pytest.Item) -> bool:
    _, _, place = item.nodeid.partition("tests/integration/")
    marked = any(item.get_closest_marker(name) is not None for name in ("extended", *_ALSO_EXTENDED))
    return marked or place.startswith(EXTENDED)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was not run, and how to run it."""
    if config.getoption("--tier") == "first":
        terminalreporter.write_line(
            "not run: more Pythons, torch releases, debuggers, compilers, browsers and daemons: scripts/test --all"
        )
