"""``dispatch-keyset``: a DispatchKeySet and its parts; ``dispatch-tls``: a thread's dispatch state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.reporting import make_report, make_report_alone
from gdbext.diagnosis.threads.thread_reporting import report_dispatch_state
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.diagnosis.tool_arguments import NUMBER, TENSOR, add_thread_choice, chosen_threads, number, register_value
from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import ErrorReport, Section, or_unknown
from gdbext.errors import GdbextError, UsageError
from gdbext.render import Style, escape
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.state.dispatch_state_reader import DispatchState
from gdbext.torch.values.key_names import KeyNames

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Hexadecimal


@dataclass(frozen=True)
class KeySetSection(Section):
    """A ``c10::DispatchKeySet`` with its parts."""

    name: ClassVar[str] = "keyset"
    bits: Hexadecimal
    keys: tuple[str, ...]
    text: str
    """The keyset as ``str(torch._C.DispatchKeySet)`` prints it."""
    functionalities: tuple[str, ...]
    backends: tuple[str, ...]
    key: str | None
    """The highest priority key; None, like ``table_index``, if there are stray bits."""
    table_index: int | None
    stray_bits: Hexadecimal | None
    """Bits without meaning in this build of torch; None for a real keyset."""
    torch: str | None = None
    """The release whose keys these are, without a process."""


class KeySetTool(Tool):
    """The command ``dispatch-keyset`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        value_help = (
            "bits (0x1000018000), key names (Meta,AutogradMeta), a DispatchKeySet(...) as PyTorch prints it, "
            "a register of the selected thread ($NAME, *$NAME+8), memory (*0x7f...), "
            "a tensor's key set (tensor:0x7f...)"
        )
        parser.add_argument("value", nargs="+", metavar="VALUE|EXPR", help=value_help)
        torch_help = "without a process: use this release's keys (2.13; default: the newest known)"
        parser.add_argument("--torch", metavar="VERSION", help=torch_help)

    def run_alone(self, args: Namespace) -> Report:
        """Decode bits or names by a release's keys. Raises UsageError."""
        releases = {name: store.release(version) for name, version in store.index()["torch"].items()}
        wanted = store.release(args.torch) if args.torch else max(releases.values())
        layouts = [name for name, release in releases.items() if wanted and release[: len(wanted)] == wanted]
        if not layouts:
            known = sorted({release[:2] for release in releases.values()})
            names = ", ".join(".".join(map(str, release)) for release in known)
            raise UsageError(f"the keys of PyTorch {args.torch} are not known", help=f"--torch one of {names}")
        layout = store.shipped(f"{store.DATA}/{max(layouts, key=lambda name: releases[name])}")
        word = " ".join(args.value).strip()
        if word.startswith(("$", "*", "tensor:")):
            raise UsageError(f"{word} needs a process", help=f"scripts/dispatch -p PID dispatch-keyset '{word}'")
        keys = KeyNames(layout)
        section = replace(_decode(keys, keys.parse(word)), torch=layout.version)
        return make_report_alone(self, args, (section,))

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Decode the value. Raises UsageError for what is not a keyset, NotTorch, LayoutError."""
        if args.torch:
            raise UsageError("--torch is for keysets without a process", why="the process has its own PyTorch")
        word = " ".join(args.value).strip()

        def read(session: Session) -> KeySetSection:
            """Decode the value, by what it looks like: tensor, memory, register, names or bits."""
            keys = session.dispatch_keys
            if match := TENSOR.fullmatch(word):
                bits = session.tensors.key_set(number(match.group(1)))
            elif match := re.fullmatch(rf"\*\s*{NUMBER}", word):
                bits = session.memory.u64(number(match.group(1)))
            else:
                register = register_value(session, word, "the value")
                bits = keys.parse(word) if register is None else register
            return _decode(keys, bits)

        session, section = session.read_at_one_moment(read)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The set, its parts, and what a lookup with it takes."""
        keyset = report.section(KeySetSection)
        yield f"{style(keyset.text, 'bold')}  {keyset.bits:#x}"
        yield f"functionalities   {', '.join(keyset.functionalities) or 'none'}"
        yield f"backends          {', '.join(keyset.backends) or 'none'}"
        if keyset.stray_bits is not None:
            yield style(f"not a DispatchKeySet: bits {keyset.stray_bits:#x} have no meaning in this build", "red")
        else:
            yield f"highest priority  {keyset.key}, table index {keyset.table_index}"
        if keyset.torch:
            yield f"as in PyTorch     {keyset.torch}"


def _decode(keys: KeyNames, bits: int) -> KeySetSection:
    """The parts of a keyset, by the key names of one build of torch."""
    stray = keys.stray(bits)
    functionalities, backends = keys.building_blocks(bits)
    return KeySetSection(
        bits=bits,
        keys=keys.decode(bits),
        text=keys.text(bits),
        functionalities=functionalities,
        backends=backends,
        key=None if stray else keys.highest_key(bits),
        table_index=None if stray else keys.table_index(bits),
        stray_bits=stray or None,
    )


class ThreadStateTool(Tool):
    """The command ``dispatch-tls`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        add_thread_choice(parser)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Report the state of the chosen threads; one that cannot be read is an error. Raises NotTorch, LayoutError."""

        def read(session: Session) -> tuple[list[ThreadReport], list[ErrorReport]]:
            """(the states of the chosen threads, errors of those that cannot be read)."""
            reader = session.dispatch_states
            threads: list[ThreadReport] = []
            errors: list[ErrorReport] = []
            for thread in chosen_threads(session.target, args, self.name):
                try:
                    state = reader.read(session.memory.architecture.thread_pointer(thread.registers()))
                except GdbextError as error:
                    errors.append(ErrorReport.of(error, f"thread {thread.tid}"))
                    continue
                errors.extend(ErrorReport(problem, f"thread {thread.tid}") for problem in state.problems)
                threads.append(report_dispatch_state(session, thread, state))
            return threads, errors

        session, (threads, errors) = session.read_at_one_moment(read)
        return make_report(self, session, args, threads=threads, errors=errors)

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """All threads of the report, a blank line between them."""
        for position, thread in enumerate(report.threads):
            if position:
                yield ""
            number = f" {thread.number}" if thread.number is not None else ""
            name = thread.python_name or thread.name
            named = f' "{escape(name)}"' if name else ""
            yield style(f"Thread{number}{named} (tid {thread.tid})", "bold")
            if thread.tls:
                yield from _state_lines(thread.tls)
        if not report.threads:
            yield "No thread to show."


def _state_lines(tls: DispatchState) -> Iterator[str]:
    """Lines on a thread's dispatch state; None in it is "unknown"."""

    def on_or_off(value: bool | None) -> str:
        return {None: "unknown", True: "on", False: "off"}[value]

    def listed(items: Iterable[object] | None) -> str:
        return "unknown" if items is None else escape(", ".join(map(str, items))) or "none"

    yield f"  included  {_keys(tls.included_set)}"
    yield f"  excluded  {_keys(tls.excluded_set)}"
    flags = {
        "grad mode": tls.autograd.grad_mode,
        "inference mode": tls.autograd.inference_mode,
        "forward ad": tls.autograd.forward_ad,
        "multithreading": tls.autograd.multithreading,
        "view replay": tls.autograd.view_replay,
        "python dispatcher": tls.python_dispatcher,
    }
    yield "  " + ", ".join(f"{name} {on_or_off(value)}" for name, value in flags.items())
    autocast = "unknown"
    if tls.autocast is not None:
        enabled = {device: state.dtype for device, state in tls.autocast.items() if state.enabled}
        autocast = ", ".join(f"{device} ({dtype or 'dtype unknown'})" for device, dtype in enabled.items())
        if enabled:
            autocast += f", nesting {tls.autocast_nesting}, cache {on_or_off(tls.autocast_cache)}"
    yield f"  autocast  {autocast or 'off'}"
    levels = tls.functorch
    yield f"  functorch  {listed(levels and [f'{level.transform} (level {level.level})' for level in levels])}"
    modes = tls.python_modes
    names = modes and [f"{mode.name} [{mode.infra}]" if mode.infra else mode.name for mode in modes]
    yield f"  Python modes  {listed(names)}"
    yield f"  __torch_function__  {tls.torch_function or 'unknown'}; modes {listed(tls.torch_function_modes)}"
    yield f"  autograd sequence number  {or_unknown(tls.sequence_number, 'unknown')}"


def _keys(keyset: DispatchKeySet | None) -> str:
    return f"({', '.join(keyset.keys)}) {keyset.bits:#x}" if keyset else "unknown"
