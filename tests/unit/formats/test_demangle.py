"""Demangling: what c++filt prints, and nothing worse than the name itself for garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdbext.formats.symbols import demangle as module
from gdbext.formats.symbols.demangle import demangle


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_ZN2at4_ops2mm4callERKNS_6TensorES4_", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"),
        (
            "_ZZN2at4_ops2mm4callERKNS_6TensorES4_E2op",
            "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)::op",
        ),
        ("_ZGVZ1fvE1x", "guard variable for f()::x"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()"),
        ("_Z1fv.isra.0", "f() [clone .isra.0]"),
        ("_Z1fv.constprop.0.cold", "f() [clone .constprop.0] [clone .cold]"),
        ("main", "main"),
        ("i", "i"),
        ("", ""),
        ("_Z", "_Z"),
        ("_ZN", "_ZN"),
        ("_Z1fv\0_Z1gv", "_Z1fv\0_Z1gv"),
        ("_Z\udcff", "_Z\udcff"),
    ],
)
def test_known_names(name: str, text: str) -> None:
    assert demangle(name) == text


def test_a_name_that_is_no_text_stays() -> None:
    assert demangle("_Z" + chr(0xD800)) == "_Z" + chr(0xD800)


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="_ZNKSt0123456789EIPRvijcLbXTdpsrFAD.GV", max_size=60))
def test_garbage_gives_some_text(tail: str) -> None:
    assert isinstance(demangle("_Z" + tail), str)


def test_very_long_names_are_left_alone() -> None:
    for name in ("_Z" + "N1a" * 30000, "_Z1f" + "P" * 65000, "_Z1f" + "P" * 70000, "_Z70000" + "a" * 70000):
        assert demangle(name) == name


def test_without_any_library_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIBRARIES", ("libno-such-library.so.9",))
    remembering = (demangle, module._load)
    for each in remembering:
        each.cache_clear()
    try:
        assert demangle("_Z1fv") == "_Z1fv"
    finally:
        for each in remembering:
            each.cache_clear()


def test_ctypes_is_imported_only_when_needed() -> None:
    code = (
        "import sys; from gdbext.formats.symbols.demangle import demangle; demangle('main');"
        "a = 'ctypes' in sys.modules;"
        "print(a, demangle('_Z1fv'))"
    )
    root = Path(__file__).resolve().parents[3]
    output = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "f()"]
