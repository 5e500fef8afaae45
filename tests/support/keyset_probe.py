"""Runs inside gdb, attached to ops40: at each kernel that the dispatcher enters, compares dispatch-bt's steps with the
keysets that were seen in registers when they were passed.

The truth does not come from gdbext's recovery: a breakpoint on ``OperatorEntry::lookup`` sees every call's
OperatorEntry and keyset in rdi and rsi; one on each ``at::_ops::NAME::redispatch`` sees the keyset argument. What is
still active at a later stop is told by breakpoints where those functions return to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import gdb

sys.path.insert(0, os.environ["GDBEXT_ROOT"])
from gdbext.debuggers.gdb.target import GdbTarget
from gdbext.inspection.session import Session

LOOKUP = "_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE"
structs = json.loads(os.environ["GDBEXT_PROBE_STRUCTS"])
limit = int(os.environ.get("GDBEXT_PROBE_SECONDS", "100"))

active: list[tuple[int, int, int]] = []  # (stack pointer, OperatorDef, keyset), outermost first
counts = {"stops": 0, "steps": 0, "proven": 0, "wrong": 0, "unknown": 0, "missed": 0}
problems: list[str] = []
kernel_stops: dict[int, gdb.Breakpoint] = {}
return_stops: dict[int, gdb.Breakpoint] = {}
seen_kernels: set[tuple[int, int]] = set()


def register(name: str) -> int:
    return int(gdb.selected_frame().read_register(name)) & (1 << 64) - 1


def forget_returned(sp: int) -> None:
    while active and active[-1][0] <= sp:
        active.pop()


def entered(definition: int, keyset: int, returns_to: int) -> None:
    """A pass begins at this stack pointer; its kernel gets a breakpoint unless it was looked at already."""
    sp = register("rsp")
    if returns_to not in return_stops:
        return_stops[returns_to] = ReturnStop(returns_to)
    if not active or active[-1][1:] != (definition, keyset):  # some redispatches call lookup, too: one pass
        active.append((sp, definition, keyset))
    operator = dispatcher.by_def(definition)
    assert operator is not None, hex(definition)
    _, kernel = operator.kernel_for(keyset)
    entry = kernel.unboxed or kernel.sym_unboxed or kernel.boxed
    if entry not in kernel_stops:
        kernel_stops[entry] = KernelStop(entry)


class LookupStop(gdb.Breakpoint):
    """Every Dispatcher::call (the only user of the out-of-line lookup in at::_ops)."""

    def __init__(self, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)

    def stop(self) -> bool:
        operator_call = gdb.selected_frame().older()
        entered(register("rdi"), register("rsi"), operator_call.older().pc())
        return False


class RedispatchStop(gdb.Breakpoint):
    """``at::_ops::NAME::redispatch``: the keyset is the first argument behind a hidden result pointer."""

    def __init__(self, address: int, definition: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.definition = definition

    def stop(self) -> bool:
        first, second = register("rdi"), register("rsi")
        hidden = abs(first - register("rsp")) < 1 << 23
        entered(self.definition, second if hidden else first, gdb.selected_frame().older().pc())
        return False


class ReturnStop(gdb.Breakpoint):
    """Where ``at::_ops::NAME::call`` or ``redispatch`` returns to: what was entered below is over."""

    def __init__(self, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)

    def stop(self) -> bool:
        forget_returned(register("rsp") - 1)
        return False


class KernelStop(gdb.Breakpoint):
    """The first instruction of a kernel: stops for good where this pass has not been looked at yet."""

    def __init__(self, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)

    def stop(self) -> bool:
        return bool(active) and active[-1][1:] not in seen_kernels


def compare() -> None:
    """The steps of dispatch-bt against what is active: same operators, same keysets, nothing made up."""
    truth = [(definition, keyset) for _, definition, keyset in reversed(active)]
    seen_kernels.add(truth[0])
    counts["stops"] += 1
    session = Session(GdbTarget(gdb.selected_inferior()), layout)
    thread = session.target.selected_thread()
    assert thread is not None
    snapshot = session.threads.of(thread)
    steps, stack = snapshot.dispatch, snapshot.stack
    found = [(step.qualified, step.keyset.bits if step.keyset else None, step.confidence) for step in steps]
    wanted = [(dispatcher.by_def(definition).qualified, keyset) for definition, keyset in truth]
    if len(found) < len(wanted):
        counts["missed"] += len(wanted) - len(found)
        names = [function.demangled[0][:60] if (function := stack.function(level)) else "??" for level in range(8)]
        problems.append(f"missed: {wanted} against {found} in {names}")
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
layout = first.layout
dispatcher = first.dispatcher
lookup = first.symbolizer.address_of(LOOKUP, "libtorch_cpu.so")
LookupStop(lookup)
for mangled, definition_name in structs:
    address = first.symbolizer.address_of(mangled, "libtorch_cpu.so")
    if address is not None and definition_name in dispatcher.names:
        RedispatchStop(address, dispatcher.names[definition_name])

Path(os.environ["GDBEXT_PROBE_READY"]).touch()
started = time.monotonic()
while gdb.selected_inferior().pid and time.monotonic() - started < limit:
    gdb.execute("continue")
    if gdb.selected_inferior().pid:
        compare()
Path(os.environ["GDBEXT_PROBE_OUT"]).write_text(json.dumps({"counts": counts, "problems": problems[:50]}))
