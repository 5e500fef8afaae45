"""The file that PyTorch's flight recorder writes, and its analyser (``torchfrtrace``) reads: a pickled dictionary.

Source: FlightRecorder.hpp (keys, ``version_val``), FlightRecorderDetail.hpp (``getCollectiveTrace``, ``getPgConfig``,
``getPgStatus``) of 2.13.0.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdbext.errors import TargetError

if TYPE_CHECKING:
    from gdbext.inspection.job.flight_recorder_contents import RecorderContents, TracedEntry

VERSION = "2.10"
PROTOCOL = 2
"""That of torch/csrc/jit/serialization/pickler.cpp, which the recorder uses."""


def write(contents: RecorderContents, path: str) -> None:
    """Raises TargetError where the file cannot be written."""
    try:
        Path(path).write_bytes(pickle.dumps(document(contents), PROTOCOL))
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}") from error


def document(contents: RecorderContents) -> dict[str, Any]:
    """The dictionary under the recorder's own keys."""
    return {
        "version": VERSION,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": group.description,
                "ranks": f"[{', '.join(map(str, group.ranks))}]",
            }
            for group in contents.groups
        },
        "comm_lib_version": contents.comm_lib_version,
        "pg_status": {
            str(number): {
                "last_enqueued_collective": status.enqueued,
                "last_started_collective": status.started,
                "last_completed_collective": status.completed,
            }
            for number, status in contents.statuses.items()
        },
        "entries": [_entry(traced) for traced in contents.entries],
    }


def _entry(traced: TracedEntry) -> dict[str, Any]:
    entry = traced.entry
    frames = [{"name": function, "filename": file, "line": line} for function, file, line in traced.frames]
    return {
        "frames": frames,
        "record_id": entry.id,
        "pg_id": entry.pg_id,
        "process_group": (entry.group, entry.description),
        "thread_name": entry.thread_name,
        "thread_id": str(entry.thread_id),
        "collective_seq_id": entry.collective_seq,
        "p2p_seq_id": entry.p2p_seq,
        "op_id": entry.op_id,
        "profiling_name": entry.profiling_name,
        "time_created_ns": entry.created,
        **({} if entry.duration_ms is None else {"duration_ms": entry.duration_ms}),
        "input_sizes": [list(sizes) for sizes in entry.input_sizes],
        "input_dtypes": list(entry.input_dtypes),
        "output_sizes": [list(sizes) for sizes in entry.output_sizes],
        "output_dtypes": list(entry.output_dtypes),
        "state": entry.state,
        "time_discovered_started_ns": entry.started,
        "time_discovered_completed_ns": entry.completed,
        "retired": entry.retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": entry.is_p2p,
    }
