"""Numbers of any length in text that somebody else wrote: never an error that nobody expects, and never slow."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import pytest

from gdbext.diagnosis.tool_arguments import positive
from gdbext.engine.layouts import store
from gdbext.engine.numbers import integer, number
from gdbext.engine.rank_sets import expand
from gdbext.engine.targets.core_sources import DyingProcess
from gdbext.errors import BadCore, BadData, GdbextError, UsageError
from gdbext.hosts.cli import options
from gdbext.known import version_key
from gdbext.tools.autograd.node_reporter import _LINE, _forward_line
from gdbext.tools.compile.compiled_frames import _innermost
from gdbext.tools.tensor import python_variable
from gdbext.torch.measure.generate import _standard
from gdbext.torch.stack.roles import operator_method

LONG = "9" * 5000


def test_as_int_does_up_to_a_word_of_memory() -> None:
    for text in ("0", "-7", str((1 << 64) - 1)):
        assert integer(text) == int(text)
    assert integer(b"12") == integer("0xc", 0) == number("c", 16) == 12
    for text in (LONG, "1" * 21, "", "x", "0x" + "f" * 5000):
        with pytest.raises(ValueError, match=r"number|invalid"):
            integer(text, 0)
        assert number(text) is None
    assert number("-7") is None


READERS: dict[str, Callable[[], object]] = {
    "version of torch": lambda: store.release(f"2.{LONG}.0"),
    "first part of it": lambda: store.release(LONG),
    "version with a known bug": lambda: version_key(f"2.{LONG}"),
    "version of headers": lambda: _standard(f"{LONG}.1"),
    "name of a function": lambda: operator_method(f"_ZN2at4_ops{LONG}mm4callE"),
    "line of a traceback": lambda: _innermost(f'  File "a.py", line {LONG}, in f'),
    "line of anomaly mode": lambda: _forward_line(_LINE.match(f'  File "a.py", line {LONG}, in f\n    x\n')),
}


@pytest.mark.parametrize("name", READERS)
def test_a_target_writes_a_long_number(name: str) -> None:
    READERS[name]()


REFUSED: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "ranks": (lambda: expand(LONG), BadData),
    "ranks with an end": (lambda: expand(f"0-{LONG}"), BadData),
    "pipe": (lambda: DyingProcess.named(f"pipe:{LONG}:3:4"), BadCore),
    "index": (lambda: python_variable.parse(f"x[{LONG}]"), UsageError),
    "count": (lambda: positive(LONG), argparse.ArgumentTypeError),
    "pid": (lambda: options.parse(["-p", LONG], options.Options()), UsageError),
    "first word": (lambda: options.parse([LONG], options.Options()), GdbextError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_long_number_is_an_error_that_says_so(name: str) -> None:
    read, error = REFUSED[name]
    with pytest.raises(error):
        read()


@pytest.mark.parametrize("pid", [os.getpid(), 1 << 30], ids=["ours", "no process"])
def test_a_pipe_that_nobody_gave_us(pid: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(BadCore, match=f"pipe:{pid}:{reading}:{writing} cannot be read"):
        DyingProcess.named(f"pipe:{pid}:{reading}:{writing}")


def test_versions_keep_their_order() -> None:
    assert version_key("2.9") < version_key("2.10.0rc1") < version_key("2.10") < version_key(f"2.{LONG}")
    assert store.release("2.13.0+cpu") == (2, 13, 0)
