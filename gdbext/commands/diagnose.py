"""``dispatch-diagnose``: the verdict on one screen, its evidence, and what to try next."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.report import Report

if TYPE_CHECKING:
    from gdbext.session import Session

NAME = "dispatch-diagnose"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


def run(session: Session, args: argparse.Namespace) -> Report:
    """Looks at all threads, judges, and adds advice."""
    from gdbext.analysis.advice import advice
    from gdbext.survey import survey

    found = survey(session)
    verdict = found.judgement.verdict
    told = advice(verdict, found.threads, session.target.pid, session.target.is_core)
    return Report(
        command=NAME,
        target=session.target_facts(),
        view="diagnose",
        threads=found.threads,
        verdict=replace(verdict, advice=told),
        findings=found.judgement.findings,
        errors=(*session.torch_errors(), *session.errors()),
        why=args.why,
    )
