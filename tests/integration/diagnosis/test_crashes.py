"""Why a process crashed: the fault below signal handlers, and the messages that memory keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs.harness import Inferior, Start, run

pytestmark = [pytest.mark.torch, pytest.mark.compiler]
REPEATED = "raised it again"


@pytest.fixture(autouse=True)
def _kernel_writes_cores() -> None:
    rule = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if not rule.startswith("core") or "/" in rule:
        pytest.skip(f"the core must be of the last signal, not of the first (core_pattern is {rule})")


def summary(target: Inferior, debugger: str = "none") -> str:
    verdict = target.dispatch("dispatch-diagnose", core=True, debugger=debugger).document["verdict"]
    assert verdict["kind"] == "crash"
    assert verdict["threads"] == [target.tid("main")]
    return str(verdict["summary"])


@pytest.mark.parametrize(
    ("handlers", "whose"),
    [
        ("torch", "a handler of libtorch_python.so raised it again"),
        ("faulthandler", "a signal handler raised it again"),
        ("torch+faulthandler", "a handler of libtorch_python.so raised it again"),
        ("0", "a handler of libcrashes.so raised it again"),
        ("1", "a handler of libcrashes.so raised it again"),  # on an alternate stack
        ("3", "a handler of libcrashes.so raised it again"),  # two handlers there, one without SA_SIGINFO
        ("4", "a handler of libcrashes.so then ended the process by SIGABRT"),
    ],
)
def test_the_fault_below_a_handler(inferior: Start, handlers: str, whose: str) -> None:
    text = summary(inferior("crashes", handlers, "null"))
    assert " crashed in decode_frame (libcrashes.so), called at " in text
    assert "(Pictures.__getitem__): SIGSEGV at 0x8: a null pointer plus 8; " in text
    assert text.endswith(f"{whose}.")


@pytest.mark.parametrize(
    "debugger", [pytest.param("gdb", marks=pytest.mark.gdb), pytest.param("lldb", marks=pytest.mark.lldb)]
)
def test_every_debugger_says_the_same(inferior: Start, debugger: str) -> None:
    target = inferior("crashes", "torch", "null")
    assert summary(target, debugger) == summary(target)


def test_a_recording_says_the_same(inferior: Start, tmp_path: Path) -> None:
    target = inferior("crashes", "torch", "null")
    recording = tmp_path / "crash.rec"
    target.dispatch("--record", str(recording), "dispatch-diagnose", core=True, debugger="none")
    outcome = run(
        [Path(__file__).parents[3] / "scripts" / "dispatch", "--json", "-r", str(recording), "dispatch-diagnose"]
    )
    assert outcome.document["verdict"]["summary"] == summary(target)


@pytest.mark.parametrize("handlers", ["none", "torch", "3"])
def test_a_signal_that_was_sent_is_no_fault(inferior: Start, handlers: str) -> None:
    assert summary(inferior("crashes", handlers, "sent")).endswith(
        "crashed: SIGSEGV: sent by a process (kill), not by a fault."
    )


@pytest.mark.parametrize(
    ("what", "words", "advice"),
    [
        ("divide", ("divide_by (libcrashes.so)", "SIGFPE", "integer division by zero"), ""),
        ("assertion", ("check_width (libcrashes.so)", "Assertion `width > 0' failed"), ""),
        (
            "free_twice",
            ("free_twice (libcrashes.so)", "the heap is damaged (double free or corruption"),
            "MALLOC_CHECK_",
        ),
        ("overrun_heap", ("the heap is damaged (",), "MALLOC_CHECK_"),
        ("overrun_stack", ("overrun_stack (libcrashes.so)", "*** stack smashing detected ***"), "-fsanitize=address"),
        ("fatal", ("Python found a fatal error", "the counts of the example do not match"), ""),
        ("trap", ("run_trap (libcrashes.so)", "a trap in the program (ud2)"), ""),
        ("avx512", ("an AVX-512 instruction",), "/proc/cpuinfo"),
        ("refused", ("SIGSYS", "seccomp refused mbind (system call 237)"), "seccomp profile"),
    ],
)
@pytest.mark.parametrize("handlers", ["none", "faulthandler"])
def test_the_reason(inferior: Start, handlers: str, what: str, words: tuple[str, ...], advice: str) -> None:
    target = inferior("crashes", handlers, what)
    text = summary(target)
    assert all(word in text for word in words), text
    has_handler = handlers == "faulthandler" and what in ("divide", "trap", "avx512")
    assert (REPEATED in text) == has_handler, text
    assert advice in target.dispatch("dispatch-diagnose", core=True, json=False, debugger="none").stdout


@pytest.mark.pythons
@pytest.mark.parametrize("python", ["3.8", "3.10", "3.11"])
def test_none_released_too_often(inferior: Start, python: str) -> None:
    target = inferior("crashes", "none", "none_released", python=python)
    outcome = target.dispatch("dispatch-diagnose", core=True, json=False, debugger="none").stdout
    assert "deallocating None" in outcome.splitlines()[0]
    assert "A C extension has released None too often" in outcome


def test_a_frame_that_is_larger_than_the_stack(inferior: Start) -> None:
    target = inferior("crashes", "none", "small_stack")
    shown = target.dispatch("dispatch-diagnose", core=True, json=False, debugger="none").stdout
    assert "crashed in fill_large_frame (libcrashes.so)" in shown
    assert "stack overflow: one frame takes 384 kB, and the thread's stack has 64 kB" in shown
    assert "threading.stack_size(BYTES)" in shown
    assert "recursion" not in shown
    shown = (
        inferior("crashes", "none", "recursion")
        .dispatch("dispatch-diagnose", core=True, json=False, debugger="none")
        .stdout
    )
    assert "Unbounded recursion: see what repeats" in shown


def test_an_uncaught_error_of_the_dispatcher(inferior: Start) -> None:
    target = inferior("kernel-crash", "missing")
    shown = target.dispatch("dispatch-diagnose", core=True, json=False, debugger="none").stdout
    assert "uncaught exception c10::NotImplementedError: Could not run 'gdbext_test::cpu_only'" in shown
    assert "kernels exist for CPU" in shown
    assert "dispatch-lookup gdbext_test::cpu_only SparseCPU" in shown
    outcome = target.dispatch(
        "dispatch-lookup", "gdbext_test::cpu_only", "SparseCPU", core=True, json=False, debugger="none"
    )
    assert "kernels exist for CPU (" in outcome.stdout


def test_python_called_without_the_gil(inferior: Start) -> None:
    target = inferior("crashes", "none", "without_gil")
    verdict = target.dispatch("dispatch-diagnose", core=True, debugger="none").document["verdict"]
    assert "fill (libcrashes.so) called PyList_New without the GIL: no thread holds it" in verdict["summary"]
    assert verdict["threads"] != [target.tid("main")]
