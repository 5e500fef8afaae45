"""``dispatch-tls``: the thread-local state that takes part in dispatch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gdbext.commands.options import add_thread_choice, chosen_threads
from gdbext.errors import GdbextError
from gdbext.model.report import ErrorFact, Report
from gdbext.model.thread import ThreadReport

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread
    from gdbext.torch.state.dispatch_state import DispatchState
    from gdbext.torch.values.key_names import KeyNames

NAME = "dispatch-tls"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_thread_choice(parser)


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads the state of the chosen threads. A thread that cannot be read costs that thread."""
    from gdbext.render.json import json_report

    keys = session.dispatch_keys
    facts: list[ThreadReport] = []
    states: list[dict[str, Any]] = []
    errors: list[ErrorFact] = []
    for thread in chosen_threads(session, args, NAME):
        try:
            state = session.dispatch_states.read(session.memory.architecture.thread_pointer(thread.registers()))
        except GdbextError as error:
            errors.append(ErrorFact.of(error, f"thread {thread.tid}"))
            continue
        errors.extend(ErrorFact(problem, f"thread {thread.tid}") for problem in state.problems)
        facts.append(_facts(session, thread))
        states.append(_document(keys, state))
    report = Report(NAME, session.target_facts(), "tls", threads=tuple(facts), why=args.why)
    threads = [{**one, "tls": state} for one, state in zip(json_report.document(report)["threads"], states)]
    return Report(
        command=NAME,
        target=report.target,
        view="tls",
        threads=report.threads,
        errors=(*errors, *session.errors()),
        extra={"threads": threads},
        why=args.why,
    )


def _facts(session: Session, thread: Thread) -> ThreadReport:
    return ThreadReport(
        tid=thread.tid,
        name=thread.name,
        python_name=session.python_names.get(thread.tid),
        number=thread.number,
        signal=thread.signal.name if thread.signal else None,
    )


def _document(keys: KeyNames, state: DispatchState) -> dict[str, Any]:
    autograd = state.autograd
    return {
        "included": None if state.included is None else list(keys.decode(state.included)),
        "excluded": None if state.excluded is None else list(keys.decode(state.excluded)),
        "included_bits": None if state.included is None else f"{state.included:#x}",
        "excluded_bits": None if state.excluded is None else f"{state.excluded:#x}",
        "grad_mode": autograd.grad_mode if autograd else None,
        "inference_mode": autograd.inference_mode if autograd else None,
        "forward_ad": autograd.forward_ad if autograd else None,
        "multithreading": autograd.multithreading if autograd else None,
        "view_replay": autograd.view_replay if autograd else None,
        "autocast": None
        if state.autocast is None
        else {one.device: {"enabled": one.enabled, "dtype": one.dtype} for one in state.autocast},
        "autocast_cache": state.autocast_cache,
        "autocast_nesting": state.autocast_nesting,
        "functorch": None
        if state.functorch is None
        else [{"transform": layer.transform, "level": layer.level} for layer in state.functorch],
        "python_dispatcher": state.python_dispatcher,
        "python_modes": None
        if state.python_modes is None
        else [{"name": mode.name, "infra": mode.infra} for mode in state.python_modes],
        "torch_function": state.torch_function,
        "torch_function_modes": None if state.torch_function_modes is None else list(state.torch_function_modes),
        "sequence_number": state.sequence_number,
    }
