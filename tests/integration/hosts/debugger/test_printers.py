"""The debuggers' own print, bt and frame variable on C++ types of PyTorch, in an extension with debug information."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.installed import lldbs
from support.programs.harness import Start, run
from support.programs.user_debuggers import IMPORT, SOURCE, gdb

pytestmark = [pytest.mark.compiler, pytest.mark.torch, pytest.mark.program("printed-types")]

PLAIN = {"key": "AutogradCPU", "whole": "-42", "device": "cuda:1"}
PLAIN |= {"no_storage": "no storage", "undefined": "undefined", "null": "nullptr"}
BY_GDB = {
    **PLAIN,
    "no_kernel": "no kernel",
    "empty": "0 elements",
    "list": "2 elements = {Tensor f32[2, 2] cpu, Tensor i64[2, 3] cpu}",
    "dict": '2 elements = {[String "one"] = Int 1, [String "two"] = Int 2}',
    "real": "2.5",
    "truth": "True",
    "complex": "(1-2j)",
    "sizes": "2 elements = {2, 3}",
    "small_elements": "3 elements = {torch.float32, torch.bool, torch.float16}",
    "small": "3 elements = {4, 5, 6}",
    "elements": (
        '$1 = {None, Int 5, Double 0.5, Bool True, String "text", Tensor f32[2, 2] cpu, Device cuda:1, '
        "ComplexDouble (3+4j), GenericList of 2 elements = {Tensor f32[2, 2] cpu, Tensor i64[2, 3] cpu}, "
        'GenericDict of 2 elements = {[String "one"] = Int 1, [String "two"] = Int 2}, '
        'Tuple of 2 elements = {Int 1, String "two"}, Tuple of 4 elements = {Int 1, Int 2, Int 3, Int 4}}'
    ),
}
BY_LLDB = (
    "sizes = 2 elements {\n  [0] = 2\n  [1] = 3\n}",
    "small = 3 elements {\n  [0] = 4\n  [1] = 5\n  [2] = 6\n}",
    "list = 2 elements {\n  [0] = Tensor f32[2, 2] cpu\n  [1] = Tensor i64[2, 3] cpu\n}",
    'dict = 2 elements {\n  [String "one"] = Int 1\n  [String "two"] = Int 2\n}',
    'nested = Tuple of 2 elements {\n  [0] = Int 1\n  [1] = String "two"\n}',
)
IN_GDB = """
import gdb, json
EXPRESSIONS = ["kept", "a", "&kept", "implementation", "&implementation", "integers.impl_.target_",
               "both._M_impl._M_start[1]", "tensors.Data[0]", "$again", "kept.dim()", "kept.impl_.target_=0",
               "nothing"]
gdb.execute("set $again = 0")
def select():
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        frame = gdb.newest_frame()
        while frame is not None:
            if (frame.name() or "").endswith("::types"):
                return frame.select()
            frame = frame.older()
select()
shown = dict(line.split(" = ", 1) for line in gdb.execute("info locals", False, True).splitlines() if " = " in line)
def show(name, command):
    try:
        shown[name] = gdb.execute(command, False, True).strip()
    except gdb.error as error:
        shown[name] = f"error: {error}"
show("elements", "print ivalues._M_impl._M_start[0]@12")
show("raw", "print/r sizes")
show("frame", "bt 2")
for number, expression in enumerate(EXPRESSIONS):
    show(f"tensor {number}", f"dispatch-tensor {expression}")
show("again", "print kept")
for name in ("keyset", "device", "sizes", "symint", "dtype", "key", "whole"):
    gdb.execute(f"set $copy = {name}")
    show(f"copy {name}", "print $copy")
show("registered", "info pretty-printer .*debug_dispatch.*")
gdb.execute("disable pretty-printer .*debug_dispatch.* gdbext;c10::Device")
show("disabled", "print device")
print("SHOWN", json.dumps(shown))
"""


@pytest.mark.gdb
def test_values_in_gdb(inferior: Start, tmp_path: Path) -> None:
    process = inferior("printed-types")
    (tmp_path / "select.py").write_text(IN_GDB)
    commands = [SOURCE, "sharedlibrary libdebug_dispatch", f"source {tmp_path / 'select.py'}"]
    outcome = gdb(*commands, options=("-iex", "set auto-solib-add off"), pid=process.pid)
    (line,) = (line for line in outcome.stdout.splitlines() if line.startswith("SHOWN "))
    shown = json.loads(line[len("SHOWN ") :])
    schema, keys = process.truth["schema"], process.truth["keyset"]
    values = "[[0.5, -1], [2, 3.25]]"
    tensor = f"f32[2, 2] cpu requires_grad = {{keys = {keys}, strides = [2, 1], values = {values}}}"
    assert {name: shown[name] for name in BY_GDB} == BY_GDB
    assert shown["keyset"] == keys
    assert shown["schema"] == schema
    assert shown["handle"] == shown["typed"] == f"aten::add.Tensor = {{schema = {schema}}}"
    assert shown["kept"] == shown["implementation"] == shown["pointer"] == tensor
    assert shown["kernel"].startswith("(anonymous namespace)::mm_boxed = {functor = 0x")
    assert shown["storage"].startswith("48 bytes on cpu at 0x")
    assert shown["storage_pointer"].partition(", ")[2].startswith("4 references, 0 weak = {* = 48 bytes on cpu at 0x")
    assert shown["tensors"].startswith(f"2 elements = {{{tensor}, i64[2, 3] cpu = {{")
    assert "Length = 2" in shown["raw"]
    assert "types (a=f32[2, 2] cpu requires_grad = {...}) at " in shown["frame"]
    for name in ("keyset", "device", "sizes", "symint", "dtype", "key"):  # values that are not in memory
        assert shown[f"copy {name}"].partition(" = ")[2] == shown[name]
    assert "not in memory" in shown["copy whole"]
    assert "gdbext" in shown["registered"]
    first, second = "f32[2, 2] cpu", "i64[2, 3] cpu"
    for number, headline in enumerate((first, first, first, first, first, second, second, first)):
        assert shown[f"tensor {number}"].partition("\n")[0].endswith(headline), shown[f"tensor {number}"]
    assert all(shown[f"tensor {number}"].startswith("error: ") for number in range(8, 12)), shown
    assert "nothing is called" in shown["tensor 9"]
    assert shown["again"].endswith(tensor)
    assert "type_ =" in shown["disabled"]


IN_LLDB = """
import lldb
def select():
    process = lldb.debugger.GetSelectedTarget().process
    for thread in process:
        for frame in thread:
            if "::types(" in (frame.GetFunctionName() or ""):
                process.SetSelectedThread(thread)
                thread.SetSelectedFrame(frame.GetFrameID())
                return
"""


@pytest.mark.parametrize("name", lldbs.parameters())
def test_values_in_lldb(inferior: Start, name: str, tmp_path: Path) -> None:
    process = inferior("printed-types")
    (tmp_path / "selecting.py").write_text(IN_LLDB)
    commands = ["settings set plugin.jit-loader.gdb.enable off", f"process attach --pid {process.pid}", IMPORT]
    commands += [f"command script import {tmp_path}/selecting.py", "script selecting.select()", "frame variable"]
    commands += ["type category disable gdbext", "frame variable device", "detach"]
    outcome = run(lldbs.batch(name, *commands))
    shown, disabled = outcome.stdout.partition("type category disable")[::2]
    schema, keys = process.truth["schema"], process.truth["keyset"]
    for text in (*BY_LLDB, *(f"{name} = {value}" for name, value in PLAIN.items())):
        assert f"{text}\n" in shown, (text, outcome)
    values = 'values = "[[0.5, -1], [2, 3.25]]"'
    tensor = f'f32[2, 2] cpu requires_grad {{\n  keys = "{keys}"\n  strides = "[2, 1]"\n  {values}\n}}\n'
    assert all(f") {each} = {tensor}" in shown for each in ("kept", "pointer"))
    assert f'typed = aten::add.Tensor {{\n  schema = "{schema}"\n}}' in shown
    assert f" schema = {schema}\n" in shown
    assert "Traceback" not in outcome.stdout + outcome.stderr
    assert "cuda:1" not in disabled
