"""``dispatch-lookup``: which kernel an operator finds for a keyset, and the redispatches expected from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.diagnosis.tool_arguments import TENSOR, find_thread, number
from gdbext.engine.vocabulary import Section, counted, json_member
from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.render import Style, escape, short_name
from gdbext.torch.registry import Operator
from gdbext.torch.registry.dispatch_table import registration_text
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.stack.key_choice import ChosenKernel, ExpectedLookup
from gdbext.torch.values.key_names import shown_key

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Sparse


class LookupTool(Tool):
    """The command ``dispatch-lookup`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("op", metavar="OP[.OVERLOAD]", help="one operator: aten::mm, aten::add.Tensor")
        keyset_help = "key names (Meta,AutogradMeta) or bits (0x1000018000)"
        parser.add_argument("keyset", nargs="*", metavar="KEYSET", help=keyset_help)
        parser.add_argument("--thread", metavar="TID|N", help="apply this thread's included and excluded keys")
        args_help = "the keys of each tensor argument, or tensor:0x7f... for one in memory; needs no KEYSET"
        parser.add_argument("--args", metavar="KEYS;KEYS", help=args_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Look up. Raises UsageError for an unknown or ambiguous operator or a malformed keyset."""
        if bool(args.keyset) == bool(args.args):
            raise UsageError("give either a keyset or --args", help="dispatch-lookup aten::mm Meta,AutogradMeta")
        if args.keyset and args.thread:
            raise UsageError("--thread needs --args: a given keyset is used as it is")
        session, section = session.read_at_one_moment(lambda session: _lookup(session, args))
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The keyset and its origin, the kernel, and the expected redispatches."""
        lookup = report.section(LookupSection)
        name = f"{lookup.op}.{lookup.overload}" if lookup.overload else lookup.op
        call = lookup.call
        if call:
            for argument in call.arguments:
                tensor = f"  {escape(argument.tensor)}" if argument.tensor else ""
                yield f"  tensor argument {argument.argument}  contributes {_keys(argument.keyset)}{tensor}"
            whose = f"thread {call.thread}" if call.thread else "a thread in its initial state"
            yield f"  {whose} includes {_keys(call.included)}"
            yield f"  {whose} excludes {_keys(call.excluded)}"
            if call.fallthrough.bits:
                yield f"  skipped because their kernels fall through: {_keys(call.fallthrough)}"
        yield f"{style(escape(name), 'bold')} with {_keys(lookup.keyset)} {lookup.keyset.bits:#x}"
        yield f"  key {lookup.key}, table index {lookup.table_index}"
        if not lookup.consistent:
            yield style("  the table entry contradicts the registrations: see dispatch-op", "red")
        for depth, link in enumerate(lookup.chain):
            kernel, chosen = link.kernel.kernel, link.kernel
            function, python = escape(short_name(kernel.function or "no kernel")), kernel.python
            if python and python.file:
                function += f" ({escape(python.file)}:{python.line})"
            kinds = ("boxed", "unboxed", "sym_unboxed", "fallthrough")
            abilities = " ".join(kind for kind in kinds if getattr(kernel, kind)) or "missing"
            arrow = "  then " if depth else "  found"
            yield f"{arrow} {style(link.key, 'bold')}: {function}  [{abilities}] ({chosen.path} {chosen.reason})"
            if chosen.registered_at:
                yield style(f"        {escape(registration_text(chosen.registered_at))}", "dim")
            yield f"        {escape(link.why)}"
            if report.why and link.next_keyset:
                yield f"        redispatches with {_keys(link.next_keyset)} {link.next_keyset.bits:#x}"


def _keys(keyset: DispatchKeySet) -> str:
    return f"({', '.join(keyset.keys)})" if keyset.keys else f"(none, bits {keyset.bits:#x})"


@dataclass(frozen=True)
class ArgumentKeys:
    """The keys of one tensor argument of a call. ``tensor`` describes it, None if only keys were given."""

    argument: int
    """Its position in --args, from 0."""
    tensor: str | None
    keyset: DispatchKeySet


@dataclass(frozen=True)
class CallKeys:
    """The parts of a call's keyset: ((arguments | included) - excluded) & ~fallthrough."""

    arguments: tuple[ArgumentKeys, ...]
    thread: int | None
    """The tid of the thread whose local keys were used; None for those of a thread in its initial state."""
    included: DispatchKeySet
    excluded: DispatchKeySet
    fallthrough: DispatchKeySet
    """Keys that were skipped because the operator's kernels for them fall through."""


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
    """The table in memory agrees with the registrations."""
    chain: tuple[ExpectedLookup, ...]
    """The lookup itself, then each expected redispatch."""
    call: Sparse[CallKeys | None] = None
    """The origin of the keyset, if it was computed from --args."""

    @json_member(after="table_index")
    def kernel(self) -> ChosenKernel:
        """The kernel that the lookup finds."""
        return self.chain[0].kernel


def _lookup(session: Session, args: Namespace) -> LookupSection:
    """Look up the operator for the keyset. Raises UsageError, BadData (bits without meaning), MemoryFault."""
    operator, call = session.dispatcher.find_one(args.op), None
    keys = operator.dispatcher.keys
    if args.args:
        keyset, call = _call_keyset(session, operator, args)
    else:
        keyset = keys.parse(" ".join(args.keyset))
    try:
        index = keys.table_index(keyset)
    except BadData as error:
        raise UsageError(error.what, help="check it with: dispatch-keyset") from None
    links = session.chains.chain(operator, keyset)
    if links[-1].kernel.name.kind == "missing":
        links = (
            *links[:-1],
            links[-1]._replace(why=f"{links[-1].why}; {_existing_kernels(session, operator, links[-1].key)}"),
        )
    return LookupSection(
        op=operator.name,
        overload=operator.overload,
        keyset=DispatchKeySet.of_bits(keyset, keys),
        key=keys.highest_key(keyset),
        table_index=index,
        consistent=links[0].kernel.consistent,
        chain=links,
        call=call,
    )


_AT = "registered at "
_MOST_KEYS = 6
"""Keys that are listed of those for which an operator has kernels, at most."""
_OWN_BACKENDS = ("CPU", "CUDA", "Meta")
"""Backends that have kernels for most of PyTorch's operators."""
_CONVERSIONS = {"Quantized": "quantize the input", "Sparse": "convert the input to a sparse layout"}
"""Beginnings of keys → how an input gets such a key."""


def _existing_kernels(session: Session, operator: Operator, key: str) -> str:
    """For which keys the operator has kernels, and where they were registered; what else the backend ``key``, which has
    none for it, registers."""
    registrations = session.tables.registrations(operator)
    active = [entry for entry in registrations if entry.active and session.chains.computes(entry.key)]
    if not active:
        return "no kernel is registered for any backend"
    listed = [f"{entry.key} ({registration_text(entry.debug).removeprefix(_AT)})" for entry in active[:_MOST_KEYS]]
    more = f" and {len(active) - _MOST_KEYS} more keys" if len(active) > _MOST_KEYS else ""
    text = f"kernels exist for {', '.join(listed)}{more}"
    for beginning, cure in _CONVERSIONS.items():
        if all(entry.key.startswith(beginning) for entry in active):
            text += f" only: {cure}"
    if key in _OWN_BACKENDS:
        return text
    name = shown_key(key, session.dispatcher.keys.backend)
    files: list[str] = []  # of each operator that has a kernel for the key
    for other in session.dispatcher.operators():
        with suppress(GdbextError):
            entries = session.tables.registrations(other)
            files += [_source(entry.debug).rpartition(":")[0] for entry in entries if entry.key == key and entry.active]
    if not files:
        return f"{text}; no operator has a kernel for {name}"
    usual, count = Counter(files).most_common(1)[0]
    origin = f"from {usual}" if count == len(files) else f"{count} of them from {usual}"
    return f"{text}; {counted(len(files), 'operator')} have a kernel for {name} ({origin}), not {operator.qualified}"


def _source(debug: str) -> str:
    """``/src/npu.cpp:12`` of ``registered at /src/npu.cpp:12``."""
    return debug.removeprefix(_AT)


def _call_keyset(session: Session, operator: Operator, args: Namespace) -> tuple[int, CallKeys]:
    """(the bits of the keyset that a call with the tensors in --args computes, the parts that it consists of).

    ``computeDispatchKeySet`` (ATen/core/dispatch/DispatchKeyExtractor.h): ((arguments | included) - excluded) & the
    operator's mask.
    """
    keys = operator.dispatcher.keys
    arguments = []
    for position, word in enumerate(map(str.strip, args.args.split(";"))):  # keys, ``tensor:0x7f…``, or nothing
        match = TENSOR.fullmatch(word)
        if match:
            facts = session.tensors.read(number(match.group(1)))
            arguments.append(ArgumentKeys(position, facts.short, DispatchKeySet.of_bits(facts.key_set, keys)))
        else:
            bits = keys.parse(word) if word else 0
            arguments.append(ArgumentKeys(position, None if word else "no tensor", DispatchKeySet.of_bits(bits, keys)))
    tid = None
    if args.thread is None:
        constant = session.layout.constant
        included, excluded = constant("keyset.default_included_set"), constant("keyset.default_excluded_set")
    else:
        thread = find_thread(session.target, args.thread)
        pointer = session.memory.architecture.thread_pointer(thread.registers())
        tid, (included, excluded) = thread.tid, session.dispatch_states.keysets(pointer)
    united = reduce(or_, (argument.keyset.bits for argument in arguments), included)
    local = keys.minus(united, excluded)
    mask = operator.extractor.mask(keys, local)
    skipped = keys.minus(local, mask) & ~keys.backend_mask
    parts = (DispatchKeySet.of_bits(bits, keys) for bits in (included, excluded, skipped))
    return local & mask, CallKeys(tuple(arguments), tid, *parts)
