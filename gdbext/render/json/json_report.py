"""A report as the JSON document of the contract ("gdbext/1")."""

from __future__ import annotations

import json
from typing import Any

from gdbext.model.certainty import Certainty
from gdbext.model.dispatch.dispatch_frame import DispatchFrame, Kernel
from gdbext.model.judgement.verdict import Verdict
from gdbext.model.recorded_run import RecordedRun
from gdbext.model.report import SCHEMA, Report
from gdbext.model.target_report import TargetReport
from gdbext.model.threads.event_loop import AsyncTask
from gdbext.model.threads.frame import Frame
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_edge import WaitEdge
from gdbext.render.json.sections import members
from gdbext.render.json.values import plain

_WAIT_CERTAINTY = {
    Certainty.EXACT: "recorded",
    Certainty.VERIFIED: "recorded",
    Certainty.INFERRED: "inferred",
    Certainty.UNKNOWN: "unknown",
}
"""The contract's words for who owns what is waited for."""


def render(report: Report, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True) + "\n"


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
        "torch": torch,
        "python": python,
        "paused_ms": target.paused_ms,
        **({"moved": list(target.moved)} if target.moved else {}),
        **_recording(target.recording),
    }


def _recording(recording: RecordedRun | None) -> dict[str, Any]:
    """Only in a replay."""
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
        "dispatch": [_step(step, why) for step in thread.dispatch],
        "dispatch_doubt": thread.unseen_dispatch.reason if thread.unseen_dispatch is not None else None,
        "python_frames": [_frame(frame) for frame in thread.python],
        "frame_count": thread.frame_count,
        "notes": list(thread.notes),
    }
    if thread.tls is not None:
        from gdbext.render.json.documents import dispatch_state_document

        value["tls"] = dispatch_state_document.document(thread.tls)
    if thread.loop is not None:
        value["tasks"] = [_task(task) for task in thread.loop.tasks]
    if thread.nodes:
        value["backward"] = [plain(node) for node in thread.nodes]
    if thread.frames:
        value["frames"] = [_frame(frame) for frame in thread.frames]
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
    owner = {"tid": wait.owner.tid, "state": "gone" if wait.owner.gone else "alive"} if wait.owner else None
    return {
        **resource(wait.resource),
        "owner": owner,
        "certainty": _WAIT_CERTAINTY[wait.certainty],
        "timed": wait.timed,
        "evidence": list(wait.evidence),
        **({"collective": plain(wait.collective)} if wait.collective is not None else {}),
        **_peer(wait),
        **({"looks_for": wait.looks_for} if wait.looks_for else {}),
    }


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
        "event": step.event.value,
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
        from gdbext.render.json.documents.argument_document import arguments

        value["arguments"] = arguments(step.arguments)
    if why:
        value["evidence"] = list(step.evidence)
    return value


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
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    finding, step = verdict.finding, verdict.finding.step
    return {
        "kind": finding.kind.value,
        "summary": finding.summary,
        "threads": list(finding.threads),
        "op": step.op if step else None,
        "key": step.key if step else None,
        "stage": step.stage.value if step else None,
        "cycle": [_edge(edge) for edge in finding.cycle],
        "advice": list(verdict.advice),
    }


def _edge(edge: WaitEdge) -> dict[str, Any]:
    return {"tid": edge.tid, "waits_for": resource(edge.wait.resource), "held_by": edge.owner}
