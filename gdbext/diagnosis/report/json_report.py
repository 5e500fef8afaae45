"""A report as the JSON document of the contract ("gdbext/1").

Arguments of operators as JSON.

``tls`` of a thread as JSON.

A recursion in a JSON document: one block of it, with how often it stands there.

A stack that overflowed has a hundred thousand frames, and as many objects would make tens of megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gdbext.diagnosis.report import SCHEMA, Ending, Report, TargetReport
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.thread_report import AsyncTask, Frame, ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, Resource, VanishedThread, Wait, WaitEdge
from gdbext.diagnosis.report.wait_kind import LostThread
from gdbext.diagnosis.verdict.recursion import MOST_WHOLE, fold_long, step_key
from gdbext.engine.targets.base_target import RecordedRun
from gdbext.engine.terminal import shown_json
from gdbext.render.plain_json import members, number, plain
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchFrame, Kernel

if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Owner
    from gdbext.diagnosis.waits.pool_table import MissingWorkers
    from gdbext.torch.state.dispatch_state_reader import AutogradFlags, DispatchState
    from gdbext.torch.values.value_text import Statistics


def arguments(found: Sequence[Argument]) -> list[dict[str, Any]]:
    """The arguments in the order of the schema; ``value`` is null where it is unknown."""
    return [
        {
            "name": each.name,
            "type": each.type,
            "value": each.text or None,
            "confidence": each.certainty.value,
            "tensors": [_tensor(tensor) for tensor in each.tensors],
            **({"variable": each.variable} if each.variable else {}),
        }
        for each in found
    ]


def _tensor(tensor: ArgumentTensor) -> dict[str, Any]:
    found = {"address": f"{tensor.address:#x}", "short": tensor.short}
    return found if tensor.statistics is None else {**found, **statistics(tensor.statistics)}


_FLAGS = ("grad_mode", "inference_mode", "forward_ad", "multithreading", "view_replay")


def dispatch_state(state: DispatchState) -> dict[str, Any]:
    """The state; null for what could not be read."""
    included, excluded, autocast = state.included, state.excluded, state.autocast
    return {
        "included": None if included is None else list(included.keys),
        "excluded": None if excluded is None else list(excluded.keys),
        "included_bits": None if included is None else f"{included.bits:#x}",
        "excluded_bits": None if excluded is None else f"{excluded.bits:#x}",
        **_flags(state.autograd),
        "autocast": None
        if autocast is None
        else {one.device: {"enabled": one.enabled, "dtype": one.dtype} for one in autocast},
        "autocast_cache": state.autocast_cache,
        "autocast_nesting": state.autocast_nesting,
        "functorch": plain(state.functorch),
        "python_dispatcher": state.python_dispatcher,
        "python_modes": plain(state.python_modes),
        "torch_function": state.torch_function,
        "torch_function_modes": plain(state.torch_function_modes),
        "sequence_number": state.sequence_number,
    }


def _flags(autograd: AutogradFlags | None) -> dict[str, Any]:
    return dict.fromkeys(_FLAGS) if autograd is None else plain(autograd)


def render(report: Report, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The document as plain JSON values."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "target": _target(report.target),
        "threads": [_thread(thread, report.why) for thread in report.threads],
        "verdict": _verdict(report.verdict),
        "findings": [
            {"kind": f.kind.value, "summary": f.summary, "threads": list(f.threads), "evidence": list(f.evidence)}
            for f in report.findings
        ],
        "errors": [{"what": e.what, "where": e.where, "help": e.help, "why": e.why} for e in report.errors],
        **members(report.sections, report.why),
    }


def _target(target: TargetReport | None) -> dict[str, Any] | None:
    if target is None:
        return None
    torch = None
    if target.torch_version is not None:
        layout = {"id": target.layout_id, "match": target.layout_match}
        torch = {"version": target.torch_version, "layout": layout}
    python = {"version": target.python_version} if target.python_version else None
    return {
        "kind": target.kind,
        "pid": target.pid,
        "debugger": target.debugger,
        "architecture": target.architecture,
        "torch": torch,
        "python": python,
        "paused_ms": target.paused_ms,
        **({"moved": list(target.moved)} if target.moved else {}),
        **({"stops": target.stops} if target.stops is not None else {}),
        **({"cut_short": [{"tid": tid, "call": call} for tid, call in target.cut_short]} if target.cut_short else {}),
        **({"withheld_sources": target.withheld_sources} if target.withheld_sources else {}),
        **_recording(target.recording),
    }


def _recording(recording: RecordedRun | None) -> dict[str, Any]:
    """The recording, where one is replayed."""
    if recording is None:
        return {}
    facts = {"taken": recording.taken, "gdbext": recording.version, "command": recording.command}
    return {"recording": facts}


def _thread(thread: ThreadReport, why: bool) -> dict[str, Any]:
    value: dict[str, Any] = {
        "tid": thread.tid,
        "number": thread.number,
        "name": thread.name,
        "python_name": thread.python_name,
        "signal": thread.signal,
        "state": thread.state.value,
        "wait": _wait(thread.wait),
        "holds": [resource(held) for held in thread.holds],
        "dispatch": folded(thread.dispatch, step_key, lambda step: _step(step, why)),
        "dispatch_doubt": thread.unseen_dispatch.reason if thread.unseen_dispatch is not None else None,
        "python_frames": folded(thread.python, _frame_key, _frame),
        "frame_count": thread.frame_count,
        "notes": list(thread.notes),
    }
    if thread.tls is not None:
        value["tls"] = dispatch_state(thread.tls)
    if thread.loop is not None:
        value["tasks"] = [_task(task) for task in thread.loop.tasks]
    if thread.nodes:
        value["backward"] = [plain(node) for node in thread.nodes]
    if thread.frames:
        value["frames"] = folded(thread.frames, _frame_key, _frame)
    return value


def _task(task: AsyncTask) -> dict[str, Any]:
    return {
        "name": task.name,
        "address": f"{task.address:#x}",
        "state": task.state.value,
        "awaits": task.awaits,
        "needs": [f"{address:#x}" for address in task.needs],
        "timed": task.timed,
        "frames": [_frame(frame) for frame in task.frames],
    }


def resource(held: Resource) -> dict[str, Any]:
    """A RESOURCE of the contract."""
    return {"kind": held.kind.value, "address": f"{held.address:#x}", "name": held.name}


def _wait(wait: Wait | None) -> dict[str, Any] | None:
    if wait is None:
        return None
    owner = _owner(wait.owner) if wait.owner is not None else None
    return {
        **resource(wait.resource),
        "owner": owner,
        "certainty": wait.certainty.value,
        "timed": wait.timed,
        "evidence": list(wait.evidence),
        **({"collective": plain(wait.collective)} if wait.collective is not None else {}),
        **({"device": plain(wait.device)} if wait.device is not None else {}),
        **_peer(wait),
        **_missing(wait.missing_workers),
        **_lost(wait.lost),
        **({"taken_at": wait.taken_at} if wait.taken_at else {}),
        **({"looks_for": wait.looks_for} if wait.looks_for else {}),
        **({"repeated_at": wait.repeated_at} if wait.repeated_at else {}),
        **({"lost_signal": True} if wait.lost_signal else {}),
        **({"handling": wait.handling} if wait.handling else {}),
    }


def _missing(missing: MissingWorkers | None) -> dict[str, Any]:
    """Only where workers are missing."""
    if missing is None:
        return {}
    return {"missing_workers": {"pool": missing.pool.name, "present": missing.present, "forked": missing.forked}}


def _lost(lost: LostThread | None) -> dict[str, Any]:
    """Only where a thread that should act is not there."""
    if lost is None:
        return {}
    facts = {"threads": list(lost.names), "loss": lost.loss.word, "recorded": lost.is_recorded, "error": lost.error}
    return {"lost": {**facts, "summary": lost.sentence}}


def _owner(owner: Owner) -> dict[str, Any]:
    if isinstance(owner, OwnerThread):
        return {"tid": owner.tid, "state": "alive"}
    known = owner if isinstance(owner, VanishedThread) else VanishedThread(None)
    ident = {"ident": f"{known.ident:#x}"} if known.ident is not None else {}
    return {"tid": known.tid or 0, **ident, "state": "gone"}


def _peer(wait: Wait) -> dict[str, Any]:
    """Only where something is known of the other end."""
    peer = wait.peer
    if peer is None:
        return {}
    known = {"address": peer.address, "state": peer.state, "name": peer.name}
    texts = {key: text for key, text in known.items() if text}
    return {"peer": {"kind": peer.kind.value, **texts, "pids": [each.pid for each in peer.processes], "own": peer.own}}


def _step(step: DispatchFrame, why: bool) -> dict[str, Any]:
    keyset = None
    if step.keyset is not None:
        keyset = {"bits": f"{step.keyset.bits:#x}", "keys": list(step.keyset.keys)}
    value: dict[str, Any] = {
        "level": step.level,
        "event": step.event.value if step.event is not None else None,
        "op": step.op,
        "overload": step.overload,
        "keyset": keyset,
        "key": step.key,
        "table_index": step.table_index,
        "kernel": _kernel(step.kernel),
        "stage": step.stage.value,
        "confidence": step.confidence.value,
    }
    if step.never_entered:
        value["never_entered"] = step.never_entered
    if step.arguments:
        value["arguments"] = arguments(step.arguments)
    if why:
        value["evidence"] = list(step.evidence)
    return value


def _frame_key(frame: Frame) -> Hashable:
    return (frame.kind, frame.pc, frame.function, frame.module, frame.file, frame.line, frame.role)


def _kernel(kernel: Kernel | None) -> dict[str, Any] | None:
    if kernel is None:
        return None
    return {
        "function": kernel.function,
        "valid": kernel.valid,
        "boxed": kernel.boxed,
        "unboxed": kernel.unboxed,
        "fallthrough": kernel.fallthrough,
        "registered_at": kernel.registered_at,
        "path": kernel.path,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {
        "level": frame.level,
        "kind": frame.kind.value,
        "pc": f"{frame.pc:#x}" if frame.pc is not None else None,
        "function": frame.function,
        "module": frame.module,
        "file": frame.file,
        "line": frame.line,
        "role": frame.role,
        **({"variables": [plain(each) for each in frame.variables]} if frame.variables else {}),
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "kind": verdict.kind.value,
        "summary": verdict.summary,
        "threads": list(verdict.threads),
        "op": verdict.op,
        "key": verdict.key,
        "stage": verdict.stage.value if verdict.stage is not None else None,
        "cycle": [_edge(edge) for edge in verdict.cycle],
        "advice": list(verdict.advice),
    }


def _edge(edge: WaitEdge) -> dict[str, Any]:
    return {"tid": edge.tid, "waits_for": resource(edge.wait.resource), "held_by": edge.owner}


_STATISTICS = ("min", "max", "mean", "std", "nan", "inf", "zeros", "subnormals", "first_nan", "first_inf", "sampled")


def statistics(found: Statistics | None) -> dict[str, Any]:
    """Members for the tensor's own object; null where there are none."""
    if found is None:
        return dict.fromkeys(_STATISTICS)
    return {
        "min": number(found.minimum),
        "max": number(found.maximum),
        "mean": number(found.mean),
        "std": number(found.std),
        "nan": found.nan,
        "inf": found.inf,
        "zeros": found.zeros,
        "subnormals": found.subnormals,
        "first_nan": plain(found.first_nan),
        "first_inf": plain(found.first_inf),
        "sampled": found.sampled,
    }


def ending(value: Ending) -> dict[str, Any]:
    """The reason why the process does not run any longer; its error is among the report's."""
    return {"kind": value.kind.value, "text": value.text, "status": value.status}


Item = TypeVar("Item")


def folded(
    items: Sequence[Item], key: Callable[[Item], Hashable], value: Callable[[Item], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The objects of ``items``. Where a block of equal ones (by ``key``) stands many times in a row, it is there once,
    and its first object has the member "repeats"."""
    if len(items) <= MOST_WHOLE:
        return [value(item) for item in items]
    return list(_blocks(items, key, value))


def _blocks(
    items: Sequence[Item], key: Callable[[Item], Hashable], value: Callable[[Item], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for found in fold_long([key(item) for item in items]):
        block = [value(item) for item in items[found.start : found.start + found.period]]
        if found.times > 1:
            block[0]["repeats"] = {"period": found.period, "times": found.times}
        yield from block
