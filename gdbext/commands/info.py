"""``dispatch-info``: what was found of torch, Python, libc and layouts, and what could not be read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import dispatcher_errors, make_report
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-info"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--settings",
        action="store_true",
        help="instead: how PyTorch is set: determinism, precision, generators, threads, allocators, torch.compile, and "
        "what each thread has set for itself",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="instead: what the tensors hold that Python knows: storages and bytes by dtype, the largest with the name "
        "of a module's parameter; what CUDA's caching allocator counts",
    )
    parser.add_argument("--reproduce", metavar="FILE", help="with --settings: write Python that sets them again")


def run(session: Session, args: argparse.Namespace) -> Report:
    """Collects the facts; everything here is allowed to be unknown. Raises NotTorch for settings without torch."""
    if args.settings:
        return _settings(session, args)
    if args.reproduce:
        raise UsageError("--reproduce goes with --settings", help="dispatch-info --settings --reproduce FILE")
    if args.memory:
        from gdbext.inspection.tensors.held_memory import read_memory

        return make_report(session, args, NAME, "memory", sections=(read_memory(session),))
    from gdbext.inspection.info_collection import read_target_info

    info = read_target_info(session)
    return make_report(session, args, NAME, "info", errors=dispatcher_errors(session), sections=(info,))


def _settings(session: Session, args: argparse.Namespace) -> Report:
    from gdbext.inspection.settings_report import read_settings

    section = read_settings(session, args.reproduce)
    if args.reproduce:
        from gdbext.render import settings_script

        settings_script.write(args.reproduce, section)
    return make_report(session, args, NAME, "settings", sections=(section,))
