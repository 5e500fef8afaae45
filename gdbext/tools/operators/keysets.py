"""``dispatch-keyset``: a DispatchKeySet, decoded, or key names turned into bits; and ``dispatch-tls``: those of a
thread, with the rest of the thread-local state that takes part in dispatch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.reporting import make_report, make_report_alone
from gdbext.diagnosis.threads.thread_reporting import report_dispatch_state
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_arguments import NUMBER, TENSOR, add_thread_choice, chosen_threads, number, register_value
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.layouts import store
from gdbext.engine.vocabulary import ErrorReport, Section, or_unknown
from gdbext.errors import GdbextError, UsageError
from gdbext.render import Style, escape
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.state.dispatch_state_reader import DispatchState, FunctorchLayer, PythonMode
from gdbext.torch.values.key_names import KeyNames

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
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
    """The highest priority key; None, as ``table_index``, where there are stray bits."""
    table_index: int | None
    stray_bits: Hexadecimal | None
    """Bits that mean nothing in this build of torch; None for a real keyset."""
    torch: str | None = None
    """The release whose keys these are, where there is no process."""


def render(report: Report, style: Style) -> Iterator[str]:
    """The set, its parts, and what a lookup with it takes."""
    keyset = report.section(KeySetSection)
    yield f"{style(keyset.text, 'bold')}  {keyset.bits:#x}"
    yield f"functionalities   {', '.join(keyset.functionalities) or 'none'}"
    yield f"backends          {', '.join(keyset.backends) or 'none'}"
    if keyset.stray_bits is not None:
        yield style(f"no DispatchKeySet: bits {keyset.stray_bits:#x} mean nothing in this build", "red")
    else:
        yield f"highest priority  {keyset.key}, table index {keyset.table_index}"
    if keyset.torch:
        yield f"as in PyTorch     {keyset.torch}"


_POINTED = re.compile(rf"\*\s*{NUMBER}")


class KeySetTool(Tool):
    """The command ``dispatch-keyset`` as a tool."""

    name = "dispatch-keyset"
    summary = "Decode a DispatchKeySet, or turn key names into bits."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this tool."""
        parser.add_argument(
            "value",
            nargs="+",
            metavar="VALUE|EXPR",
            help="bits (0x1000018000), key names (Meta,AutogradMeta), a DispatchKeySet(...) as PyTorch prints it, "
            "a register of the selected thread ($NAME, *$NAME+8), memory (*0x7f...), "
            "a tensor's key set (tensor:0x7f...)",
        )

        parser.add_argument(
            "--torch",
            metavar="VERSION",
            help="without a process: use this release's keys (2.13; default: the newest known)",
        )

    def run_alone(self, args: Namespace) -> Report:
        """Decode bits or names by a release's keys. Raises UsageError."""
        releases = {name: store.release(version) for name, version in store.index()["torch"].items()}
        wanted = store.release(args.torch) if args.torch else max(releases.values())
        found = [name for name, release in releases.items() if wanted and release[: len(wanted)] == wanted]
        if not found:
            known = sorted({release[:2] for release in releases.values()})
            names = ", ".join(".".join(map(str, release)) for release in known)
            raise UsageError(f"the keys of PyTorch {args.torch} are not known", help=f"--torch one of {names}")
        layout = store.shipped(f"{store.DATA}/{max(found, key=lambda name: releases[name])}")
        word = " ".join(args.value).strip()
        if word.startswith(("$", "*", "tensor:")):
            raise UsageError(f"{word} is in a process", help=f"scripts/dispatch -p PID dispatch-keyset '{word}'")
        keys = KeyNames(layout)
        section = replace(_section(keys, keys.parse(word)), torch=layout.version)
        return make_report_alone(self, args, (section,))

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Decode the value. Raises UsageError for what is not a keyset, NotTorch, LayoutError."""
        if args.torch:
            raise UsageError("--torch is for keysets without a process", why="the process has its own PyTorch")
        session, section = session.settled(lambda each: _read(each, " ".join(args.value)))
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _read(session: Session, text: str) -> KeySetSection:
    keys = session.dispatch_keys
    return _section(keys, _bits(session, keys, text))


def _bits(session: Session, keys: KeyNames, text: str) -> int:
    word = text.strip()
    tensor = TENSOR.fullmatch(word)
    if tensor:
        return session.tensors.key_set(number(tensor.group(1)))
    pointed = _POINTED.fullmatch(word)
    if pointed:
        return session.memory.u64(number(pointed.group(1)))
    register = register_value(session, word, "the value")
    return keys.parse(word) if register is None else register


def _section(keys: KeyNames, bits: int) -> KeySetSection:
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

    name = "dispatch-tls"
    summary = "Show a thread's dispatch state: included and excluded keys, grad mode, autocast, …"
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        add_thread_choice(parser)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """The state of the chosen threads. A thread that cannot be read costs that thread. Raises NotTorch,
        LayoutError."""
        session, (threads, errors) = session.settled(lambda each: self._read(each, args))
        return make_report(self, session, args, threads=threads, errors=errors)

    def _read(self, session: Session, args: Namespace) -> tuple[list[ThreadReport], list[ErrorReport]]:
        reader = session.dispatch_states
        threads = []
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

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return _states(report, style)


_Item = TypeVar("_Item")


def _states(report: Report, style: Style) -> Iterator[str]:
    """All threads of the report, a blank line between them."""
    for position, thread in enumerate(report.threads):
        if position:
            yield ""
        yield style(_headline(thread), "bold")
        if thread.tls:
            yield from _state(thread.tls)
    if not report.threads:
        yield "No thread to show."


def _headline(thread: ThreadReport) -> str:
    number = f" {thread.number}" if thread.number is not None else ""
    name = thread.python_name or thread.name
    named = f' "{escape(name)}"' if name else ""
    return f"Thread{number}{named} (tid {thread.tid})"


def _state(tls: DispatchState) -> Iterator[str]:
    yield f"  included  {_keys(tls.included_set)}"
    yield f"  excluded  {_keys(tls.excluded_set)}"
    yield "  " + ", ".join(f"{name} {_on_or_off(value)}" for name, value in _flags(tls).items())
    yield f"  autocast  {_autocast(tls)}"
    yield f"  functorch  {_list(tls.functorch, _layer)}"
    yield f"  Python modes  {_list(tls.python_modes, _mode)}"
    yield f"  __torch_function__  {tls.torch_function or 'unknown'}; modes {_list(tls.torch_function_modes, str)}"
    yield f"  autograd sequence number  {or_unknown(tls.sequence_number, 'unknown')}"


def _keys(keyset: DispatchKeySet | None) -> str:
    return f"({', '.join(keyset.keys)}) {keyset.bits:#x}" if keyset else "unknown"


def _flags(tls: DispatchState) -> dict[str, bool | None]:
    return {
        "grad mode": tls.autograd.grad_mode,
        "inference mode": tls.autograd.inference_mode,
        "forward ad": tls.autograd.forward_ad,
        "multithreading": tls.autograd.multithreading,
        "view replay": tls.autograd.view_replay,
        "python dispatcher": tls.python_dispatcher,
    }


def _on_or_off(value: bool | None) -> str:
    return "unknown" if value is None else "on" if value else "off"


def _list(items: Sequence[_Item] | None, name: Callable[[_Item], str]) -> str:
    """``items`` None: they could not be read."""
    return "unknown" if items is None else escape(", ".join(map(name, items))) or "none"


def _layer(layer: FunctorchLayer) -> str:
    return f"{layer.transform} (level {layer.level})"


def _mode(mode: PythonMode) -> str:
    return f"{mode.name} [{mode.infra}]" if mode.infra else mode.name


def _autocast(tls: DispatchState) -> str:
    if tls.autocast is None:
        return "unknown"
    on = [f"{device} ({one.dtype or 'dtype unknown'})" for device, one in tls.autocast.items() if one.enabled]
    extra = f", nesting {tls.autocast_nesting}, cache {_on_or_off(tls.autocast_cache)}"
    return (", ".join(on) + extra) if on else "off"
