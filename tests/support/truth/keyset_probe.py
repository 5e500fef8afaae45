"""Runs inside gdb, attached to ops40: at each kernel that the dispatcher enters, compares dispatch-bt's steps with the
keysets and the tensors that were seen in registers when they were passed.

The truth does not come from gdbext's recovery, but from breakpoints on ``OperatorEntry::lookup`` (OperatorEntry and
keyset in rdi and rsi) and on each ``at::_ops::NAME::redispatch``. What is still active is told by breakpoints where
these return to. The tensors of a call are all words in argument registers and on the stack that point to a Tensor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import gdb

sys.path.insert(0, os.environ["GDBEXT_ROOT"])
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.errors import GdbextError
from gdbext.hosts.gdb.gdb_target import GdbTarget

LOOKUP = "_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE"

active: list[tuple[int, int, int]] = []  # (stack pointer, OperatorDef, keyset), outermost first
passed: dict[int, list[int]] = {}  # stack pointer → the tensors that were passed
pending: list[list[int]] = []
arguments = {"tensors": 0, "found": 0, "wrong": 0, "lists": 0}
counts = {"stops": 0, "steps": 0, "proven": 0, "wrong": 0, "unknown": 0, "missed": 0}
problems: list[str] = []
stops: dict[tuple[str, int], gdb.Breakpoint] = {}
"""By what they are for and address."""
seen_kernels: set[tuple[int, int]] = set()


def register(name: str) -> int:
    return int(gdb.selected_frame().read_register(name)) & (1 << 64) - 1


def forget_returned(sp: int) -> None:
    while active and active[-1][0] <= sp:
        passed.pop(active.pop()[0], None)


def stop_at(what: str, address: int | None, reached: Callable[[], bool | None]) -> None:
    """For good where the function says so."""
    if address is not None and (what, address) not in stops:
        stop = type("Stop", (gdb.Breakpoint,), {"stop": lambda _: bool(reached())})
        stops[what, address] = stop(f"*{address:#x}", internal=True)


def entered(definition: int, keyset: int, returns_to: int) -> None:
    """A pass begins at this stack pointer; its kernel gets a breakpoint unless it was looked at already."""
    sp = register("rsp")
    stop_at("return", returns_to, lambda: forget_returned(register("rsp") - 1))
    if not active or active[-1][1:] != (definition, keyset):  # some redispatches call lookup, too: one pass
        active.append((sp, definition, keyset))
        if pending:
            passed[sp] = pending[-1]
    pending.clear()
    _, kernel = dispatcher.by_def(definition).kernel_for(keyset)
    entry = kernel.unboxed or kernel.sym_unboxed or kernel.boxed
    stop_at("kernel", entry, lambda: bool(active) and active[-1][1:] not in seen_kernels)


def tensors_at_entry() -> list[int]:
    """The TensorImpls behind the words in which arguments can be, in their order."""
    words = [register(name) for name in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")]
    memory, sp = first.memory, register("rsp")
    memory.forget()
    words += [memory.try_u64(sp + 8 * number) or 0 for number in range(1, 12)]
    found = []
    for word in words:
        implementation = (memory.try_u64(word) if word and not word & 7 else None) or 0
        if implementation & 255 == 1:  # torch before 2.2: an optional's flag is in front
            implementation = memory.try_u64(word + 8) or 0
        with suppress(GdbextError):
            if implementation and not implementation & 7:
                first.tensors.key_set(implementation)
                found.append(implementation)
    return found


def check_arguments(step, tensors: list[int]) -> None:
    """The tensors of a step are those that were passed, in order; lists stand elsewhere in memory."""
    left = iter(tensors)
    for argument in step.arguments:
        if argument.type.startswith("Tensor["):
            arguments["lists"] += 1
        if not argument.type.startswith("Tensor"):
            continue
        arguments["tensors"] += 1
        arguments["found"] += bool(argument.text)
        is_single = argument.type.rstrip("?") == "Tensor" and argument.tensors
        if is_single and argument.tensors[0].address not in left:  # also moves on behind it
            arguments["wrong"] += 1
            problems.append(f"wrong argument: {step.qualified} {argument}, truly {[hex(each) for each in tensors]}")
        if not argument.text:
            problems.append(f"no argument: {step.qualified} {step.event} {argument.name}, {argument.certainty}")


def called() -> None:
    """The first instruction of ``at::_ops::NAME::call``, whose lookup follows."""
    pending[:] = [tensors_at_entry()]


def looked_up() -> None:
    """Every Dispatcher::call (the only user of the out-of-line lookup in at::_ops)."""
    entered(register("rdi"), register("rsi"), gdb.selected_frame().older().older().pc())


def redispatched(definition: int) -> None:
    """``at::_ops::NAME::redispatch``: the keyset is the first argument behind a hidden result pointer."""
    is_hidden = abs(register("rdi") - register("rsp")) < 1 << 23
    pending[:] = [tensors_at_entry()]
    entered(definition, register("rsi" if is_hidden else "rdi"), gdb.selected_frame().older().pc())


def compare() -> None:
    """The steps of dispatch-bt against what is active: same operators, same keysets, nothing made up."""
    truth = [(definition, keyset) for _, definition, keyset in reversed(active)]
    seen_kernels.add(truth[0])
    counts["stops"] += 1
    session = Session(GdbTarget(gdb.selected_inferior()), first.layout)
    snapshot = session.threads.snapshot(session.target.memory.selected_thread())
    steps = snapshot.dispatch
    for step, (sp, definition, _) in zip(ArgumentReporter(session).frames(snapshot.stack), reversed(active)):
        if sp in passed and step.qualified == dispatcher.by_def(definition).qualified:
            check_arguments(step, passed[sp])
    found = [(step.qualified, step.keyset.bits if step.keyset else None, step.confidence) for step in steps]
    wanted = [(dispatcher.by_def(definition).qualified, keyset) for definition, keyset in truth]
    if len(found) < len(wanted):
        counts["missed"] += len(wanted) - len(found)
        problems.append(f"missed: {wanted} against {found}")
    for (name, keyset, confidence), (operator, truly) in zip(found, wanted):
        counts["steps"] += 1
        if name != operator or (keyset is not None and keyset != truly):
            counts["wrong"] += 1
            problems.append(f"wrong: {name} {keyset and hex(keyset)} {confidence.value}, truly {operator} {truly:#x}")
        elif keyset is None:
            counts["unknown"] += 1
            problems.append(f"unknown: {name} ({confidence.value}), truly {truly:#x}; {steps[0].evidence}")
        else:
            counts["proven"] += confidence.is_proven


gdb.execute("set pagination off")
first = Session(GdbTarget(gdb.selected_inferior()))
dispatcher = first.dispatcher


address_of = partial(first.symbolizer.address_of, module="libtorch_cpu.so")
stop_at("lookup", address_of(LOOKUP), looked_up)
for mangled, operator_name in json.loads(os.environ["GDBEXT_PROBE_STRUCTS"]):
    if operator_name in dispatcher.names:
        stop_at("redispatch", address_of(mangled), partial(redispatched, dispatcher.names[operator_name]))
for mangled in json.loads(os.environ["GDBEXT_PROBE_CALLS"]):
    stop_at("call", address_of(mangled), called)

Path(os.environ["GDBEXT_PROBE_READY"]).touch()
while gdb.selected_inferior().pid:
    gdb.execute("continue")
    if gdb.selected_inferior().pid:
        compare()
result = {"counts": counts, "arguments": arguments, "problems": problems[:50]}
Path(os.environ["GDBEXT_PROBE_OUT"]).write_text(json.dumps(result))
