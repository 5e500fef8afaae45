"""``dispatch-tensor``: one tensor: its metadata, its statistics, and its values where they are few."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.errors import GdbextError, UsageError
from gdbext.model.sections.tensor_section import TensorSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.model.report import Report

NAME = "dispatch-tensor"
_EPILOG = """\
  dispatch-tensor 0x55d0c1a2b340        a TensorImpl, an at::Tensor or a Python object at that address
  dispatch-tensor '*$REGISTER'          what a register of the selected thread points at
  dispatch-tensor 'inputs[0]'           inside gdb or LLDB: a C++ variable of the selected frame, where there is debug
                                        information: a TensorImpl*, an at::Tensor, a PyObject*, or what has one
  dispatch-tensor --py self.weight      a Python variable of the selected thread; also batch[0], state["step"],
                                        net.layers.0.weight.grad

Nothing is called in the process: all of it is read from memory, of a core as well. NaNs are counted and take no part in
min, max, mean and std; infinities do. In JSON they are the strings "NaN", "Infinity" and "-Infinity".

--save writes the elements in row-major order as a safetensors file (safetensors.torch.load_file reads it), first under
another name, so that FILE is whole or not there. Quantised tensors are saved as the integers that they store, sparse
ones as their parts; complex128 and complex32, which the format lacks, with both parts as last dimension; float4, bits
and integers of 1 to 7 bits as bytes.

--html writes a page that needs nothing else: the histogram, and the first two-dimensional slice (or that of --slice) as
a heat map of at most 256 x 256 cells, of a larger one every n-th row and column.

Cost: 1 GiB of float32 takes 1 to 3 s where scripts/dispatch runs without a debugger and its Python has numpy
(GDBEXT_PYTHON=python scripts/dispatch --debugger none …), and some minutes without numpy, with progress on standard
error. Memory is read in pieces of 4 MiB; there is never a second copy of the tensor.
"""
_QUIET_SECONDS = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("address", nargs="*", metavar="ADDRESS|EXPR", help="an address, $REGISTER, *$REGISTER+8; C++")
    parser.add_argument("--py", metavar="NAME", help="a Python variable, with attributes and indices")
    parser.add_argument("--thread", metavar="TID|N", help="whose variables (default: the selected thread)")
    parser.add_argument("--save", metavar="FILE", help="write the elements to FILE (safetensors)")
    parser.add_argument("--html", metavar="FILE", help="write a page: a slice as a heat map, the histogram")
    parser.add_argument(
        "--slice", metavar="I,J…", type=indices, default=(), help="which slice: of all dimensions but the last two"
    )


def run(session: Session, args: argparse.Namespace) -> Report:
    """Describes the tensor. Raises UsageError, BadData (no tensor), TargetError (the file cannot be written)."""
    from gdbext.inspection.tensors.tensor_description import describe
    from gdbext.inspection.tensors.tensor_report import TensorReporter

    if bool(args.address) == bool(args.py):
        raise UsageError("give one address or expression, or --py NAME", help="dispatch-tensor --py x")
    reporter = TensorReporter(session, _Progress("read"))
    address = _chosen(session, reporter, args)
    section: TensorSection = describe(session, reporter, address, args.py or " ".join(args.address))
    if args.save:
        from gdbext.inspection.tensors.tensor_saving import save

        section = replace(section, saved=save(TensorReporter(session, _Progress("saved")), section, args.save))
    if args.html:
        section = _with_page(reporter, section, args.html, args.slice)
    return make_report(session, args, NAME, "tensor", sections=(section,))


def indices(words: str) -> tuple[int, ...]:
    """``3,0``. Raises ArgumentTypeError."""
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is not a list of indices such as 3,0") from None


def _with_page(reporter: TensorReporter, section: TensorSection, path: str, index: tuple[int, ...]) -> TensorSection:
    """Raises UsageError (there is no such slice), TargetError (the file cannot be written)."""
    from gdbext.formats import whole_file
    from gdbext.render.html import tensor_page
    from gdbext.torch.tensors.slices import read_slice

    part, reason = None, ""
    try:
        part = read_slice(reporter.contents(reporter.facts(section.address)), index)
    except UsageError:
        raise
    except GdbextError as error:
        reason = error.what
    whole_file.write(path, tensor_page.render(section, part, reason).encode())
    return replace(section, page=path)


def _chosen(session: Session, reporter: TensorReporter, args: argparse.Namespace) -> int:
    from gdbext.inspection.tensors.tensor_choice import evaluate, tensor_at, tensor_named
    from gdbext.inspection.threads.thread_choice import find_thread

    if not args.py:
        return tensor_at(session, reporter, evaluate(session, " ".join(args.address)))
    thread = find_thread(session.target, args.thread) if args.thread else session.target.selected_thread()
    return tensor_named(session, reporter, args.py, thread)


class _Progress:
    """Says on standard error how far it is, where it takes longer than a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + _QUIET_SECONDS

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _QUIET_SECONDS
            print(f"{NAME}: {self._what} {done:.0%}", file=sys.stderr, flush=True)
