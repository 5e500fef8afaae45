"""``dispatch-compile``: what torch.compile did, what broke or was compiled again, and what compiles now."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-compile"
_EPILOG = """\
Read from the objects of torch._dynamo in memory, of a core as well: its counters (torch._dynamo.utils.counters), the
last 64 compilations with the guard that made each necessary and with what failed, the code objects that have compiled
code, the guards that failed, and the options of torch._dynamo.config and torch._inductor.config that differ from their
defaults, of the main thread and of threads that have others. An error that suppress_errors hid is a failure here: that
code runs eagerly.

A thread is shown where it is in compiled code or in the compiler. "compiled" is bytecode that TorchDynamo made, the
function of a graph, or a module that Inductor wrote, each with its graph and with the function and the line of the
program that it was made of; "compiling" is the compiler at work: TorchDynamo, AOTAutograd, Inductor or Triton. Of a
live process, child processes that compile (C++ compilers, ptxas, Inductor's workers) are listed, too, and who holds
the lock files of the cache. To see what a worker compiles, it is stopped for some milliseconds, eight at most.

Compared with what programs print themselves for the releases that docs/compile-compared.md lists; of another release
it says "unknown", and guesses nothing. Before torch 2.7 the reasons of recompilations are the guards that failed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads what is recorded; everything here is allowed to be unknown. Raises NotTorch."""
    from gdbext.inspection.compilation import read_compilation

    return make_report(session, args, NAME, "compile", sections=(read_compilation(session),))
