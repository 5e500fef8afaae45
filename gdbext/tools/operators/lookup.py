"""``dispatch-lookup``: which kernel an operator finds for a keyset, and the redispatches expected from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_arguments import TENSOR, find_thread, number
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.vocabulary import Section, json_member
from gdbext.errors import BadData, UsageError
from gdbext.render import Style, escape, short_name
from gdbext.torch.registry import Operator
from gdbext.torch.registry.kernel import RegisteredKernel
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.stack.key_choice import ChosenKernel, ExpectedLookup, RedispatchPredictor, key_set
from gdbext.torch.values.key_names import KeyNames

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.engine.vocabulary import Sparse


class LookupTool(Tool):
    """The command ``dispatch-lookup`` as a tool."""

    name = "dispatch-lookup"
    summary = "Show which kernel an operator finds for a keyset, and the redispatches from it."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this tool."""
        parser.add_argument("op", metavar="OP[.OVERLOAD]", help="one operator: aten::mm, aten::add.Tensor")
        parser.add_argument(
            "keyset", nargs="*", metavar="KEYSET", help="key names (Meta,AutogradMeta) or bits (0x1000018000)"
        )
        parser.add_argument("--thread", metavar="TID|N", help="apply this thread's included and excluded keys")
        parser.add_argument(
            "--args",
            metavar="KEYS;KEYS",
            help="the keys of each tensor argument, or tensor:0x7f... for one in memory; needs no KEYSET",
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Look up. Raises UsageError for an unknown or ambiguous operator or a malformed keyset."""
        if bool(args.keyset) == bool(args.args):
            raise UsageError("give either a keyset or --args", help="dispatch-lookup aten::mm Meta,AutogradMeta")
        if args.keyset and args.thread:
            raise UsageError("--thread goes with --args: a keyset is taken as it is")
        session, section = session.settled(lambda each: _read(each, args))
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _read(session: Session, args: Namespace) -> LookupSection:

    operator = session.dispatcher.find_one(args.op)
    if args.args:
        keyset, call = _call(session, operator, args)
    else:
        keyset, call = session.dispatcher.keys.parse(" ".join(args.keyset)), None
    _check(session, keyset)
    return lookup_section(session.chains, operator, keyset, call)


def _check(session: Session, keyset: int) -> None:
    """Raises UsageError for a keyset that no lookup can be made with."""
    try:
        session.dispatcher.keys.table_index(keyset)
    except BadData as error:
        raise UsageError(error.what, help="check it with: dispatch-keyset") from None


def _call(session: Session, operator: Operator, args: Namespace) -> tuple[int, CallKeys]:
    """Lines on the keyset that a call with these tensors computes."""
    arguments = [_argument(session, position, word) for position, word in enumerate(args.args.split(";"))]
    if args.thread is None:
        constant = session.layout.constant
        initial = constant("keyset.default_included_set"), constant("keyset.default_excluded_set")
        return call_keys(operator, arguments, None, *initial)
    thread = find_thread(session.target, args.thread)
    local = session.dispatch_states.keysets(session.memory.architecture.thread_pointer(thread.registers()))
    return call_keys(operator, arguments, thread.tid, *local)


def _argument(session: Session, position: int, word: str) -> ArgumentKeys:
    """The argument in words: ``CPU,AutogradCPU``, ``tensor:0x7f…``, or nothing."""

    keys, word = session.dispatcher.keys, word.strip()
    tensor = TENSOR.fullmatch(word)
    if tensor:
        facts = session.tensors.read(number(tensor.group(1)))
        return argument_keys(keys, position, facts.key_set, facts.short)
    return argument_keys(keys, position, keys.parse(word)) if word else argument_keys(keys, position, 0, "no tensor")


def render(report: Report, style: Style) -> Iterator[str]:
    """The keyset and where it comes from, the kernel found, and the chain from there."""
    lookup = report.section(LookupSection)
    name = f"{lookup.op}.{lookup.overload}" if lookup.overload else lookup.op
    if lookup.call:
        yield from _call_text(lookup.call)
    yield f"{style(escape(name), 'bold')} with {_keys(lookup.keyset)} {lookup.keyset.bits:#x}"
    yield f"  key {lookup.key}, table index {lookup.table_index}"
    if not lookup.consistent:
        yield style("  the table entry is not what the registrations lead to: see dispatch-op", "red")
    for depth, link in enumerate(lookup.chain):
        yield from _link(depth, link, style, report.why)


def _call_text(call: CallKeys) -> Iterator[str]:
    for argument in call.arguments:
        tensor = f"  {escape(argument.tensor)}" if argument.tensor else ""
        yield f"  tensor argument {argument.argument}  contributes {_keys(argument.keyset)}{tensor}"
    whose = f"thread {call.thread}" if call.thread else "a thread in its initial state"
    yield f"  {whose} includes {_keys(call.included)}"
    yield f"  {whose} excludes {_keys(call.excluded)}"
    if call.fallthrough.bits:
        yield f"  skipped, since they fall through: {_keys(call.fallthrough)}"


def _keys(keyset: DispatchKeySet) -> str:
    return f"({', '.join(keyset.keys)})" if keyset.keys else f"(none, bits {keyset.bits:#x})"


def _link(number: int, link: ExpectedLookup, style: Style, why: bool) -> Iterator[str]:
    arrow = "  found" if number == 0 else "  then "
    kernel = link.kernel
    what = f"{_function(kernel.kernel)}  [{_abilities(kernel.kernel)}] ({kernel.path} {kernel.reason})"
    yield f"{arrow} {style(link.key, 'bold')}: {what}"
    if kernel.registered_at:
        yield style(f"        {escape(kernel.registered_at)}", "dim")
    yield f"        {escape(link.why)}"
    if why and link.next_keyset:
        yield f"        redispatches with {_keys(link.next_keyset)} {link.next_keyset.bits:#x}"


def _function(kernel: RegisteredKernel) -> str:
    name, python = escape(short_name(kernel.function or "no kernel")), kernel.python
    return f"{name} ({escape(python.file)}:{python.line})" if python and python.file else name


def _abilities(kernel: RegisteredKernel) -> str:
    ways = {
        "boxed": kernel.boxed,
        "unboxed": kernel.unboxed,
        "sym_unboxed": kernel.sym_unboxed,
        "fallthrough": kernel.fallthrough,
    }
    return " ".join(way for way, exists in ways.items() if exists) or "missing"


@dataclass(frozen=True)
class ArgumentKeys:
    """The contribution of one tensor argument of a call. ``tensor`` describes it, None where only keys were given."""

    argument: int
    tensor: str | None
    keyset: DispatchKeySet


@dataclass(frozen=True)
class CallKeys:
    """The parts of a call's keyset: ((arguments | included) - excluded) & ~fallthrough."""

    arguments: tuple[ArgumentKeys, ...]
    thread: int | None
    """The tid of the thread whose local keys were taken, None for those of a thread in its initial state."""
    included: DispatchKeySet
    excluded: DispatchKeySet
    fallthrough: DispatchKeySet
    """Keys that were skipped, since this operator's kernels for them fall through."""


@dataclass(frozen=True)
class LookupSection(Section):
    """The result of ``OperatorEntry::lookup`` for a keyset, and what is expected to follow."""

    name: ClassVar[str] = "lookup"
    op: str
    overload: str
    keyset: DispatchKeySet
    key: str
    table_index: int
    consistent: bool
    """The table in memory holds what the registrations lead to."""
    chain: tuple[ExpectedLookup, ...]
    """The lookup itself, then each expected redispatch."""
    call: Sparse[CallKeys | None] = None
    """The origin of the keyset, when it was computed from arguments."""

    @json_member(after="table_index")
    def kernel(self) -> ChosenKernel:
        """The kernel that the lookup finds."""
        return self.chain[0].kernel


def lookup_section(
    predictor: RedispatchPredictor, operator: Operator, keyset: int, call: CallKeys | None = None
) -> LookupSection:
    """The result of ``OperatorEntry::lookup`` for a keyset. Raises BadData (bits without meaning), MemoryFault."""
    keys = operator.dispatcher.keys
    index = keys.table_index(keyset)
    links = predictor.chain(operator, keyset)
    return LookupSection(
        op=operator.name,
        overload=operator.overload,
        keyset=key_set(keys, keyset),
        key=keys.highest_key(keyset),
        table_index=index,
        consistent=links[0].kernel.consistent,
        chain=links,
        call=call,
    )


def call_keys(
    operator: Operator, arguments: Sequence[ArgumentKeys], thread: int | None, included: int, excluded: int
) -> tuple[int, CallKeys]:
    """The keyset that a call computes, and from what: ``computeDispatchKeySet`` (ATen/core/dispatch/
    DispatchKeyExtractor.h), ((arguments | included) - excluded) & the operator's mask."""
    keys = operator.dispatcher.keys
    united = 0
    for argument in arguments:
        united |= argument.keyset.bits
    local = keys.minus(united | included, excluded)
    mask = operator.extractor.mask(keys, local)
    skipped = keys.minus(local, mask) & ~keys.backend_mask
    return local & mask, CallKeys(
        tuple(arguments), thread, key_set(keys, included), key_set(keys, excluded), key_set(keys, skipped)
    )


def argument_keys(keys: KeyNames, position: int, bits: int, tensor: str = "") -> ArgumentKeys:
    """The contribution of the tensor argument at a position."""
    return ArgumentKeys(position, tensor or None, key_set(keys, bits))
