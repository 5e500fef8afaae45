"""Reads a report of one process (schema "gdbext/1") as the row that it is in the report on its job.

Whoever made the document, nothing in it is trusted: what is not as the schema has it is a BadData that says where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import RunState, is_users_file
from gdbext.diagnosis.report.wait import CollectiveWait, DeviceWait, DeviceWork
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.engine.numbers import integer
from gdbext.engine.rank_sets import expand, fold
from gdbext.errors import BadData
from gdbext.tools.ranks.job_report import MAX_PATH, MAX_RANK_GROUPS, GroupState, Issued, RankReport, Unreached
from gdbext.tools.ranks.report_shapes import (
    FAILURE,
    MAX_COMMUNICATORS,
    MAX_TRANSFERS,
    REPORT,
    Members,
)
from gdbext.torch.distributed.nccl_communicators import TransferWait
from gdbext.torch.torch_symbol import RPC_CALLS, RPC_SERVER

_ISSUED = 512
_OWN_FAULTS = frozenset(kind.value for kind in FindingKind if kind.traits.is_defect)
"""Kinds of verdicts after which it does not matter what a rank's other threads wait for."""
_TEXT = 2000


def read(document: Any, where: str) -> RankReport | Unreached:
    """The row of one document; Unreached for the document of a failure. Raises BadData."""
    if not isinstance(document, Mapping) or document.get("schema") != "gdbext/1":
        raise BadData(f"{where} is not a report of dispatch-diagnose (schema gdbext/1)")
    try:
        verdict = document.get("verdict")
        if verdict is None or document.get("target") is None:
            FAILURE(document, where)
            return _failure(document, where)
        REPORT(document, where)
        return _report(document, verdict)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(f"{where} is not as the schema gdbext/1 has it: {type(error).__name__}: {error}") from error


def _failure(document: Mapping[str, Any], where: str) -> Unreached:
    if not document["errors"]:
        raise BadData(f"{where} has no verdict: make it with dispatch-diagnose --json")
    error = document["errors"][0]
    return Unreached(where, _text(error["what"]), _text(error.get("help") or ""))


def _report(document: Mapping[str, Any], verdict: Mapping[str, Any]) -> RankReport:
    collectives = document.get("collectives") or {}
    identity = collectives.get("identity") or {}
    target = document["target"]
    main = _main(document["threads"], int(target["pid"]), verdict)
    thread = _for_ranks(document["threads"], main, verdict) or main
    wait = (thread or {}).get("wait")
    groups = tuple(_group(each) for each in (collectives.get("groups") or ())[:MAX_RANK_GROUPS])
    path = tuple(_path(thread))[:MAX_PATH] if thread is not None else ()
    waited = _collective_wait((wait or {}).get("collective")) or _through_worker(wait, document["threads"], groups)
    waited = waited or _unnamed(wait or {})
    working = _working(document["threads"])
    return RankReport(
        rank=_number(identity.get("rank")),
        host=_optional(identity.get("host")),
        pid=int(target["pid"]),
        job=_optional(identity.get("job")),
        size=_number(identity.get("size")),
        torch=_optional((target.get("torch") or {}).get("version")),
        kind=_text(verdict["kind"]),
        summary=_text(verdict["summary"]),
        path=path,
        wait=waited,
        running=thread is not None and _runs(thread, document),
        groups=groups,
        problem="" if path else _problem(document["errors"]),
        restart=_number(identity.get("restart")),
        paused_ms=_milliseconds(target.get("paused_ms")),
        entered_nccl=_entered_nccl(wait or {}),
        answers=_answers(document["threads"], working),
        serving=_serving(working),
        handling=_text((wait or {}).get("handling") or ""),
        slowed=next((_text(each["summary"]) for each in document.get("explanations") or ()), ""),
        nccl=tuple(_nccl(collectives.get("groups") or ()))[:MAX_COMMUNICATORS],
        nccl_peers=_proxies_wait_for(collectives.get("groups") or ()),
        device=_device((wait or {}).get("device")),
        known=tuple(_known(each) for each in document.get("known") or ()),
        thread=None if thread is main or thread is None else int(thread["tid"]),
    )


def _known(value: Mapping[str, Any]) -> str:
    """A known bug in one line: what it is, which versions have it, what to do."""
    affected = value["condition"] or ", ".join(value["affected"])
    return _text(f"{value['id']}, {value['title']} ({affected}); {value['cure']}. {value['url']}")


def _nccl(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """``waits for data of rank 2 on channels 0-1 (all_reduce, group default_pg)``, by what NCCL keeps of transfers."""
    for group in groups[:MAX_RANK_GROUPS]:
        name = _text(group["description"] or group["name"])
        for each in group.get("communicators") or ():
            if each["error"]:
                yield f"has the error {_text(each['error'])!r} (group {name})"
            yield from _transfers(each["transfers"], group["ranks"], name)


def _transfers(transfers: Sequence[Mapping[str, Any]], members: Members | Sequence[int], group: str) -> Iterator[str]:
    """The other ends that transfers wait for, each with its channels."""
    channels: dict[tuple[int, bool, str], set[int]] = {}
    for each in transfers:
        if each["waits_for"] == TransferWait.PEER.value and each["peer"] is not None:
            channels.setdefault((each["peer"], each["is_send"], _text(each["operation"])), set()).add(each["channel"])
    for (peer, is_send, operation), found in channels.items():
        what = f"until {_end(peer, members)} takes what was sent" if is_send else f"for data of {_end(peer, members)}"
        where = ", ".join(filter(None, (operation, f"group {group}")))
        yield f"waits {what} on channel{'s' if len(found) > 1 else ''} {fold(found)} ({where})"


def _proxies_wait_for(groups: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The ranks of the job that transfers of NCCL wait for, each once, in order."""
    found: set[int] = set()
    for group in groups[:MAX_RANK_GROUPS]:
        peers = {
            each["peer"]
            for communicator in group.get("communicators") or ()
            for each in communicator["transfers"]
            if each["waits_for"] == TransferWait.PEER.value and each["peer"] is not None
        }
        ranks = _members_in_order(group["ranks"]) if peers else ()
        found.update(ranks[peer] for peer in peers if peer < len(ranks))
    return tuple(sorted(found))[:MAX_TRANSFERS]


def _members_in_order(members: Members | Sequence[int]) -> Sequence[int]:
    """The ranks of the job by their ranks in a group: new_group of torch 2.4 sorts its members."""
    return expand(members) if isinstance(members, Members) else sorted(members)


def _device(value: Mapping[str, Any] | None) -> str:
    """``cudaStreamSynchronize of stream 35 of cuda:0``; "" without such a wait."""
    if value is None:
        return ""
    stream, event = (integer(value[name], 16) if value.get(name) else None for name in ("stream", "event"))
    wait = DeviceWait(
        _text(value.get("call") or "a call of the driver"),
        DeviceWork.UNKNOWN,
        device=_number(value.get("device")),
        stream=stream,
        event=event,
        stream_id=_number(value.get("stream_id")),
    )
    return f"{wait.call} of {wait.object}" if wait.object else wait.call


def _end(peer: int, members: Members | Sequence[int]) -> str:
    """A rank of a communicator as a rank of the job."""
    ranks = _members_in_order(members)
    return f"rank {ranks[peer]}" if peer < len(ranks) else f"rank {peer} of the group"


def _entered_nccl(wait: Mapping[str, Any]) -> str:
    """The function of NCCL that the thread is inside of: around a call of the driver, or without one."""
    inside = (wait.get("device") or {}).get("nccl_call") or ""
    name = _text(wait.get("name") or "").partition(",")[0]
    return _text(inside) or (name if wait.get("kind") == "collective" and name.startswith("nccl") else "")


def _runs(thread: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """It is in no wait. A core does not say so: where the stack cannot be followed, the wait may be out of sight."""
    is_sure = document["target"]["kind"] == "live" or not thread.get("dispatch_doubt")
    return is_sure and bool(thread["state"] == "running")


def _problem(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first error of a file that the process has loaded, else the first."""
    error = next((each for each in errors if ".so" in (each.get("where") or "")), next(iter(errors), None))
    if error is None:
        return ""
    return "; ".join(filter(None, (_text(error["what"]), _text(error.get("help") or ""))))


def _main(threads: Sequence[Any], pid: int, verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The thread that the verdict is about where it crashed, else the one that runs the program."""
    by_tid = {thread["tid"]: thread for thread in threads}
    blamed = next((by_tid[tid] for tid in verdict["threads"] if tid in by_tid), None)
    if blamed is not None and blamed.get("signal"):
        return dict(blamed)
    named = next((thread for thread in threads if thread.get("python_name") == "MainThread"), None)
    return by_tid.get(pid) or named or blamed or next(iter(threads), None)


def _for_ranks(
    threads: Sequence[Any], main: Mapping[str, Any] | None, verdict: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Another thread that waits for other ranks while the main one waits for something, or has nothing to do: that of
    an asynchronous checkpoint, or the training of an actor. None where the main thread says more."""
    if main is None or main["state"] == "running" or verdict["kind"] in _OWN_FAULTS:
        return None
    if (main.get("wait") or {}).get("collective") is not None:
        return None
    found = [each for each in threads if (each.get("wait") or {}).get("collective") is not None]
    return next((dict(each) for each in found if not each["wait"]["collective"]["is_store"]), None)


def _path(thread: Mapping[str, Any]) -> Iterator[str]:
    """The path from the outermost frame on: Python lines and operators by their native levels, then the wait."""
    found = [(int(frame["level"]), 1, _frame(frame)) for frame in thread["python_frames"]]
    found += [(int(step["level"]), 0, _step(step)) for step in thread["dispatch"]]
    # Python frames of one native level come innermost first, and the sort keeps their order.
    found.sort(key=lambda each: each[0])
    for _, _, text in reversed(found):
        yield text
    wait = thread.get("wait")
    if wait is not None:
        yield _wait_text(wait)


def _frame(frame: Mapping[str, Any]) -> str:
    file = _text(frame["file"] or "?")
    return f"{_text(frame['function'])} ({'/'.join(file.split('/')[-2:])}:{frame['line']})"


def _step(step: Mapping[str, Any]) -> str:
    key = f" [{step['key']}]" if step.get("key") else ""
    return f"{step['op'] or '?'}{key}"


def _wait_text(wait: Mapping[str, Any]) -> str:
    """The wait in words, without the addresses and numbers that are different in every process."""
    collective = _collective_wait(wait.get("collective"))
    if collective is not None:
        return collective._replace(enqueued=None, completed=None, key="").phrase
    return f"waits: {wait['kind']}"


def _collective_wait(value: Any) -> CollectiveWait | None:
    if value is None:
        return None
    return CollectiveWait(
        _text(value["op"]),
        _number(value["seq"]),
        _text(value["group"]),
        _number(value["enqueued"]),
        _number(value["completed"]),
        _number(value["peer"]),
        bool(value["is_store"]),
        _text(value.get("key", "")),
        _text(value.get("server", "")),
        _number(value.get("tag")),
        bool(value.get("on_device", False)),
        _text(value.get("also_in", "")),
        bool(value.get("from_any", False)),
    )


def _working(threads: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The threads that work on calls of other ranks."""
    return [each for each in threads if each["name"] == RPC_SERVER and each["state"] != RunState.IDLE.value]


def _answers(threads: Sequence[Any], working: Sequence[Mapping[str, Any]]) -> bool:
    """There are threads that answer calls of other ranks; all are free, or one works on a call and waits for no other
    rank."""
    by_tid = {each["tid"]: each for each in threads}
    if not any(each["name"] == RPC_SERVER for each in threads):
        return False
    return not working or not all(_ends_at_call(each, by_tid) for each in working)


def _ends_at_call(thread: Mapping[str, Any], by_tid: Mapping[int, Mapping[str, Any]]) -> bool:
    """It waits for an answer of another rank, or for a thread that does."""
    for _ in range(len(by_tid)):
        wait = thread["wait"] or {}
        if (wait.get("collective") or {}).get("op") in RPC_CALLS:
            return True
        following = by_tid.get((wait.get("owner") or {}).get("tid", 0))
        if following is None or following is thread:
            return False
        thread = following
    return False


def _serving(working: Sequence[Mapping[str, Any]]) -> str:
    """``a call of another rank runs work (train.py:7) in thread 77, waits: condvar``; "" where none does."""
    for each in working:
        frame = next((frame for frame in each["python_frames"] if is_users_file(frame["file"] or "")), None)
        if frame is not None:
            wait = f", {_wait_text(each['wait'])}" if each["wait"] is not None else ""
            return f"a call of another rank runs {_frame(frame)} in thread {each['tid']}{wait}"
    return ""


def _unnamed(wait: Mapping[str, Any]) -> CollectiveWait | None:
    """The wait for other ranks of which only the function is known: between two operations, or without a recorder."""
    is_one = wait.get("kind") == WaitKind.COLLECTIVE.value and not _entered_nccl(wait)
    return CollectiveWait(_text(wait["name"]).partition(",")[0]) if is_one and wait.get("name") else None


def _through_worker(wait: Any, threads: Sequence[Any], groups: Sequence[GroupState]) -> CollectiveWait | None:
    """The pending operation of the backend's thread whose end is waited for, as destroy_process_group does."""
    owner = wait["owner"] if wait is not None and wait["kind"] == "join" else None
    worker = next((each for each in threads if owner is not None and each["tid"] == owner["tid"]), None)
    if worker is None or (worker["wait"] or {}).get("kind") != "collective":
        return None
    pending = [(group, issued) for group in groups for issued in group.issued if issued.is_pending]
    if not pending:
        return None
    group, first = pending[0]
    return CollectiveWait(first.op, first.seq, group.label, group.enqueued, group.completed)


def _group(value: Mapping[str, Any]) -> GroupState:
    issued = {}
    for each in value["recent"][-_ISSUED:]:
        if each["seq"] is not None and not each["is_p2p"]:
            issued[int(each["seq"])] = _issued(each, each["state"] != "completed")
    for each in value["pending"][:_ISSUED]:
        if each["seq"] is not None and not each["is_p2p"]:
            issued[int(each["seq"])] = _issued(each, True)
    return GroupState(
        _text(value["name"]),
        _text(value["description"]),
        _number(value["size"]),
        _members(value["ranks"]),
        _number(value["last_enqueued"]),
        _number(value["last_completed"]),
        tuple(issued[seq] for seq in sorted(issued)),
    )


def _members(ranks: Members | Sequence[int]) -> str:
    """The set of members as text."""
    return str(ranks) if isinstance(ranks, Members) else _folded(tuple(ranks))


@lru_cache(maxsize=64)
def _folded(ranks: tuple[int, ...]) -> str:
    """All ranks of a job list the same members."""
    return fold(map(int, ranks))


def _issued(value: Mapping[str, Any], is_pending: bool) -> Issued:
    return Issued(
        int(value["seq"]),
        _text(value["op"]),
        _sizes(value["sizes"]),
        tuple(map(_text, value["dtypes"])),
        _sizes(value["output_sizes"]),
        tuple(map(_text, value["output_dtypes"])),
        is_pending,
    )


def _sizes(value: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, sizes)) for sizes in value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _milliseconds(value: Any) -> float | None:
    return None if value is None else float(value)


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value[:_TEXT]
