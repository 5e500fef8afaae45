#!/usr/bin/env python3
"""Check what is assumed of torch by name (gdbext/torch/assumed_symbols.py and, for settings,
gdbext/torch/state/setting_sources.py) against the released wheels: docs/releases.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib")]

import symbol_names  # noqa: E402
import torch_wheels  # noqa: E402
from setting_symbols import setting_symbols  # noqa: E402
from symbol_names import SymbolNames  # noqa: E402

from gdbext.engine.layouts import store  # noqa: E402
from gdbext.torch.assumed_symbols import TORCH_SYMBOLS  # noqa: E402
from gdbext.torch.torch_symbol import NameKind, TorchSymbol  # noqa: E402

PAGE = ROOT / "docs" / "releases.md"
_OF_SETTINGS = setting_symbols()
SYMBOLS = {**TORCH_SYMBOLS, **_OF_SETTINGS}
"""Every name that is assumed of torch."""
FEATURES = {
    "operators": ("SINGLETON", "SINGLETON_GUARD", "SINGLETON_REFERENCE", "INTERNED_STRINGS"),
    "tables": (
        "FALLTHROUGH",
        "AMBIGUOUS_AUTOGRAD_OTHER",
        "PYTHON_KERNEL",
        "UNBOXED_WRAPPER",
        "BOXED_FROM_UNBOXED",
        "BOXED_FUNCTION",
        "BOXED_FUNCTOR",
    ),
    "keysets": (
        "OPERATOR_STRUCT",
        "STATIC_HANDLE",
        "BOXED_WRAPPER",
        "KERNEL_FUNCTION",
        "UNBOXED_CALL",
        "DISPATCHER_CALL_BOXED",
        "DISPATCHER_REDISPATCH",
        "SLOW_PATH",
        "HANDLE_CALL_BOXED",
        "HANDLE_REDISPATCH_BOXED",
        "KERNEL_FOR_KEY",
        "FIND_SCHEMA",
        "REAL_SINGLETON",
    ),
    "thread-local state": (
        "KEYSETS",
        "AUTOGRAD_STATE",
        "PYTHON_DISPATCHER",
        "DISPATCH_MODES",
        "AUTOCAST_DTYPE",
        "AUTOCAST_CACHE",
        "AUTOCAST_NESTING",
        "SEQUENCE_NUMBER",
        "FUNCTORCH",
        "FUNCTORCH_VTABLE",
        "TORCH_FUNCTION",
    ),
    "waits": (
        "AUTOGRAD_POP",
        "AUTOGRAD_THREAD",
        "AUTOGRAD_MAIN",
        "AUTOGRAD_EXECUTE",
        "AUTOGRAD_EVALUATE",
        "FUTURE_WAIT",
        "POOL_LOOP",
        "POOL_WAIT",
        "GLOO_LOOP",
        "GLOO_QUEUE",
        "STORE_WAIT",
        "STORE_DAEMON",
        "NCCL_WATCHDOG",
        "RPC_POOL",
        "COLLECTIVE",
        "ALLOCATOR_EVENTS",
        "ALLOCATOR_RELEASE",
        "ALLOCATOR_BLOCK",
        "GRAPH_REPLAY",
        "GRAPH_CAPTURE",
    ),
    "autograd": (
        "EVALUATING_NODE",
        "EVALUATING_NODE_ACCESS",
        "GRAPH_TASK",
        "GRAPH_TASK_ACCESS",
        "RECORD_FUNCTION_THREAD",
        "PYTHON_ENGINE",
    ),
    "flight recorder": ("FLIGHT_RECORDER", "FLIGHT_RECORDER_OF_NCCL", "FLIGHT_RECORDERS_OF_HOOKS"),
    "hooks": (
        "LOOKUP",
        "STEP_CALLBACKS",
        "REGISTER_SCHEMA",
        "REGISTER_KERNEL",
        "DEREGISTER_KERNEL",
        "UPDATE_FALLBACK",
        "COMPUTE_ENTRY",
        "STRUCTURED_META",
        "STRUCTURED_IMPL",
        "CALL_CHECKS",
    ),
    "settings": (*_OF_SETTINGS, "INTRAOP_THREADS"),
}
"""What a user asks for, and the rows that it rests on."""
ALTERNATIVES = (
    {"SINGLETON", "SINGLETON_REFERENCE"},
    {"EVALUATING_NODE", "EVALUATING_NODE_ACCESS"},
    {"GRAPH_TASK", "GRAPH_TASK_ACCESS"},
    {"FLIGHT_RECORDER_OF_NCCL", "FLIGHT_RECORDERS_OF_HOOKS"},
)
"""Rows of which one is enough."""
_HEAD = """# Supported releases of PyTorch

`scripts/check_releases.py` writes this page. It looks up the symbols that gdbext uses in each wheel on the package
index (Linux on x86-64, CPython 3.11).

| cell | meaning |
|---|---|
| `works` | the wheel has every symbol that the feature uses |
| `all but 1` | one symbol is missing; the second table says what does not work without it |
| `cxx11`, `precxx11` | gdbext includes a struct layout for this ABI of the standard library |
| `probed` | gdbext uses the nearest layout if live structures match it |

"""
_DISTRIBUTIONS = """
## Builds of distributions

These builds lack the names of functions that are not exported, so kernels in libtorch are shown by address and by the
place of their registration. They were tested with a call of `torch.nn.functional.linear` whose `aten::mm` is a Python
kernel.

| torch | build | layout | operators | keysets | arguments |
|---|---|---|---|---|---|
| 1.13.0 | Debian 12, python3-torch 1.13.1+dfsg-4 | measured on its headers | works | 4 of 4 exact | works |
| 2.6.0 | Debian 13, python3-torch 2.6.0+dfsg, CPython 3.13.5, in a chroot | probed | works | 4 of 4 exact | works |

conda-forge's packages were not tested.
"""


def main() -> int:
    """Exit status 0: the page was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases (default: all that are on the index)")
    parser.add_argument(
        "--names",
        type=Path,
        default=Path.home() / ".cache" / "gdbext-releases",
        metavar="DIR",
        help="where the names of each release are kept (default: %(default)s); the first time takes a "
        "download of half a gigabyte a release",
    )
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    versions = options.versions or torch_wheels.released()
    found = {version: missing(symbol_names.of_release(version, options.names)) for version in versions}
    options.output.write_text(page(found))
    return 0


def missing(libraries: Mapping[str, SymbolNames]) -> dict[str, str]:
    """Row → where it was looked for, of the rows that a release lacks; a wheel for the CPU lacks no name of CUDA's."""
    return {
        name: row.library or "any library"
        for name, row in SYMBOLS.items()
        if not row.unoptimized and (not row.library or row.library in libraries) and not _has(row, libraries)
    }


def _has(row: TorchSymbol, libraries: Mapping[str, SymbolNames]) -> bool:
    where = [libraries[row.library]] if row.library else list(libraries.values())
    if row.kind is NameKind.SYMBOL:
        return any(each.has(name) for each in where for name in row.names)
    return any(each.has_beginning(name) for each in where for name in row.beginnings)


def page(found: Mapping[str, Mapping[str, str]]) -> str:
    """The whole page."""
    return _HEAD + "\n".join([*_table(found), "", *_losses(found)]) + "\n" + _DISTRIBUTIONS


def _table(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "| torch | layout | " + " | ".join(FEATURES) + " |"
    yield "|---" * (len(FEATURES) + 2) + "|"
    for version, lacks in found.items():
        cells = [_cell(rows, lacks) for rows in FEATURES.values()]
        yield f"| {version} | {_layouts(version)} | {' | '.join(cells)} |"


def _layouts(version: str) -> str:
    """The ABIs of the standard library for which a layout is shipped."""
    wanted = store.release(version)
    abis = sorted(
        {
            name.rpartition("-")[2].partition(".")[0]
            for name, each in store.index()["torch"].items()
            if store.release(each) == wanted
        }
    )
    return ", ".join(abis) or "probed"


def _cell(rows: Sequence[str], lacks: Mapping[str, str]) -> str:
    gone = lost(rows, lacks)
    if not gone:
        return "works"
    return "none" if len(gone) == len(rows) else f"all but {len(gone)}"


def lost(rows: Sequence[str], lacks: Mapping[str, str]) -> list[str]:
    """The rows that are really missed: not those whose alternative is there."""
    gone = {row for row in rows if row in lacks}
    for group in ALTERNATIVES:
        if not group <= gone:
            gone -= group
    return [row for row in rows if row in gone]


def _losses(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "## Missing symbols"
    yield ""
    yield "| feature | releases | missing | not available without it |"
    yield "|---|---|---|---|"
    for feature, rows in FEATURES.items():
        for name in rows:
            versions = [version for version, lacks in found.items() if name in lost(rows, lacks)]
            if versions:
                row = SYMBOLS[name]
                yield f"| {feature} | {_range(versions, list(found))} | {row.purpose} | {row.lost} |"


def _range(versions: Sequence[str], every: Sequence[str]) -> str:
    """Neighbours as one range."""
    runs: list[list[str]] = []
    for version in versions:
        if runs and every.index(version) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


if __name__ == "__main__":
    sys.exit(main())
