"""Keys of the store, as torch 2.0 to 2.13 and gloo make them: who has to set them."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.job.callers import library_call
from gdbext.diagnosis.job.store_keys import KEY_FORMS, Setter
from gdbext.diagnosis.report.thread_report import Frame, FrameKind

TORCH = "/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("function", "key", "expected"),
    [
        ("gloo::", "/default_pg/0//cpu//0/1", {"group": "0", "member": "1"}),
        ("gloo::", "/default_pg/0//12//cpu//0/37", {"group": "12", "member": "37"}),
        ("gloo::", "/worker/attempt_0/default_pg/0//5f2a9c//cuda//1/3", {"group": "5f2a9c", "member": "3"}),
        ("gloo::", "/0//cpu//pg_wrapper:0/0/1", {"group": "0", "member": "1"}),
        ("gloo::", "/0//0/rank_2", {"group": "0", "member": "2"}),
        ("gloo::", "0/1", {"group": None, "member": "1"}),
        ("gloo::", "/0//cpu//0/rank-1", None),
        ("c10d::ProcessGroupNCCL::", "/default_pg/0//3//cuda//0", {"group": "3"}),
        ("c10d::ProcessGroupNCCL::", "/default_pg/0//cuda//2:5", {"group": "0", "member": "2"}),
        ("torch::distributed::rpc::", "/rpc_prefix_0/names/3", {"member": "3"}),
        ("torch::distributed::rpc::", "/rpc_prefix_0/addrs/worker/1", {"name": "worker/1"}),
        ("torch::distributed::rpc::", "/rpc_prefix_0/shutdown/READY_ID_2", {}),
    ],
)
def test_keys_of_native_code(function: str, key: str, expected: dict[str, str | None] | None) -> None:
    forms = [form for form in KEY_FORMS if form.function == function]
    found = next(filter(None, (form.pattern.search(key) for form in forms)), None)
    assert (found.groupdict() if found else None) == expected


@pytest.mark.parametrize(
    ("function", "key", "setter", "expected"),
    [
        ("_store_based_barrier", "/0//store_based_barrier_key:a:b:last_worker", Setter.LAST_MEMBER, {"group": "a:b"}),
        ("barrier", "/torch.rendezvous.job7.0/torchelastic/agent/terminal_state/last_member", Setter.LAST_MEMBER,
         {}),
        ("barrier", "/default_pg/0//save/last_member", Setter.LAST_MEMBER, {"name": "save"}),
        ("_assign_worker_ranks", "/torch.rendezvous.job7.0/torchelastic/role_info/1", Setter.AGENT, {"name": "1"}),
        ("_assign_worker_ranks", "/torch.rendezvous.job7.0/torchelastic/assigned_ranks/1", Setter.AGENT, {}),
        ("build", "/torch.rendezvous.job7.0/MASTER_ADDR", Setter.AGENT, {}),
        ("_group_membership_management", "/rpc_prefix_0/Token_for_ps_1_join", Setter.WORKER, {"name": "ps_1"}),
    ],
)  # fmt: skip
def test_keys_of_python_code(function: str, key: str, setter: Setter, expected: dict[str, str]) -> None:
    forms = [form for form in KEY_FORMS if form.function[1] == function]
    form, found = next((form, found) for form in forms if (found := form.pattern.search(key)))
    assert (form.setter, found.groupdict()) == (setter, expected)


def frames(*calls: tuple[str, str]) -> list[Frame]:
    """Innermost first, of (function, file)."""
    return [Frame(3, FrameKind.PYTHON, None, function, "", file, 15) for function, file in calls]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([("all_reduce", f"{TORCH}/distributed/distributed_c10d.py"),
          ("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py")], ""),
        ([("all_gather", f"{TORCH}/distributed/distributed_c10d.py"),
          ("DTensor.full_tensor", f"{TORCH}/distributed/tensor/_api.py")], "full_tensor"),
        ([("DistributedDataParallel._sync_buffers", f"{TORCH}/nn/parallel/distributed.py"),
          ("DistributedDataParallel.forward", f"{TORCH}/nn/parallel/distributed.py"),
          ("Module._call_impl", f"{TORCH}/nn/modules/module.py")],
         "DistributedDataParallel.forward (DDP's buffers)"),
        ([("FSDPParamGroup.unshard", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py"),
          ("FSDPState._pre_forward", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_state.py"),
          ("Module._call_impl", f"{TORCH}/nn/modules/module.py")], "FSDP's unshard"),
        ([("_DistWrapper.reduce_scatter", f"{TORCH}/distributed/checkpoint/utils.py"),
          ("save", f"{TORCH}/distributed/checkpoint/state_dict_saver.py")], "save (torch.distributed.checkpoint)"),
        ([], ""),
    ],
)  # fmt: skip
def test_what_the_program_called(calls: list[tuple[str, str]], text: str) -> None:
    call = library_call(frames(*calls, ("validate", "/srv/train.py"), ("main", "/srv/train.py")))
    assert (call.own, call.text("all_reduce")) == (len(calls), text)
