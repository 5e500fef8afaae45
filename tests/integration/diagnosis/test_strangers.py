"""What is said of small programs that are like those of others: what runs, what is blocked, who waits for whom."""

from __future__ import annotations

import pytest

from support.installed import pythons
from support.programs.harness import DISPATCH, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

OLDEST, NEWEST = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]


def verdict_of(target):
    return target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]


@pytest.mark.parametrize("python", ["venv", OLDEST, NEWEST])
def test_python_that_runs_is_busy_with_its_line(inferior, python):
    target = inferior("strangers", "runs-python", python=python)
    verdict = verdict_of(target)
    assert verdict["kind"] == "busy", verdict["summary"]
    line = target.truth["line"]
    assert any(f"strangers.py:{line + more} (count)" in verdict["summary"] for more in (1, 2, 3)), verdict["summary"]
    assert "dispatcher" not in verdict["summary"], "there is no torch"
    assert target.tid("counter") in verdict["threads"]


def test_native_code_that_runs_is_busy_with_its_function(inferior):
    target = inferior("strangers", "runs-native")
    verdict = verdict_of(target)
    assert (verdict["kind"], verdict["threads"]) == ("busy", [target.tid("main")]), verdict["summary"]
    assert "(runs_native), in " in verdict["summary"]
    assert "dispatcher" not in verdict["summary"]


@pytest.mark.parametrize("python", pythons.SUPPORTED)
def test_a_lock_taken_twice(inferior, python):
    target = inferior("strangers", "lock-twice", python=python)
    document = target.dispatch("dispatch-diagnose", debugger="none").document
    verdict, waits = document["verdict"], {each["tid"]: each["wait"] for each in document["threads"]}
    managed = target.tid("managed")
    assert (waits[managed]["owner"] or {}).get("tid") == managed, "a suspended generator has it"
    assert (verdict["kind"], verdict["threads"]) == ("self-deadlock", [target.tid("main")]), verdict["summary"]
    assert "seems to hold itself" in verdict["summary"], "no lock of this kind records its owner"


@pytest.mark.parametrize("kind", ["lock-handed", "lock-tried"])
@pytest.mark.parametrize("python", [OLDEST, "venv", NEWEST])
def test_a_lock_that_another_may_have(inferior, kind, python):
    verdict = verdict_of(inferior("strangers", kind, python=python))
    assert "self-deadlock" not in verdict["kind"], verdict["summary"]
    assert "itself" not in verdict["summary"]


def test_a_backward_hook_that_waits_for_ever(plain_look, inferior):
    target = inferior("strangers", "backward-hook")
    verdict = plain_look(target, "dispatch-diagnose")["verdict"]
    assert (verdict["kind"], verdict["threads"]) == ("blocked", [target.tid("main")]), verdict["summary"]
    node, line = target.truth["node"], target.truth["line"]
    assert f"in the backward of {node}, made at " in verdict["summary"]
    assert f"strangers.py:{line} (backward_hook)" in verdict["summary"]


def test_servers_of_multiprocessing_are_idle(inferior):
    target = inferior("strangers", "fork-server")
    for name, pool in (("server", "forkserver"), ("tracker", "resource tracker")):
        outcome = run([DISPATCH, "--json", "-p", str(target.truth[name])])
        found = outcome.document
        assert [(each["state"], each["wait"]["name"]) for each in found["threads"]] == [("idle", pool)], str(outcome)
        assert found["verdict"]["kind"] == "idle", found["verdict"]["summary"]


def test_threads_of_an_rpc_agent_are_idle(inferior):
    target = inferior("strangers", "rpc-idle")
    found = target.dispatch("all-threads", debugger="none").document
    others = [each for each in found["threads"] if each["tid"] != target.tid("main")]
    names = {each["wait"]["name"] for each in others if each["state"] == "idle"}
    assert {"tensorpipe", "RPC", "c10 thread pool"} <= names, names
    assert all(each["state"] == "idle" for each in others), [each for each in others if each["state"] != "idle"]


@pytest.mark.parametrize("python", [OLDEST, "venv", NEWEST])
def test_a_loop_that_only_sleeps_is_asleep(inferior, python):
    verdict = verdict_of(inferior("strangers", "asleep-in-loop", python=python))
    assert verdict["kind"] == "idle", verdict["summary"]
    assert "sleeps" in verdict["summary"]


def test_the_cause_in_a_child_that_is_waited_for(inferior):
    target = inferior("strangers", "stuck-child")
    document = target.dispatch("dispatch-diagnose", debugger="none").document
    child = target.truth["child"]
    assert document["verdict"]["kind"] == "waiting-external"
    assert f"In process {child}: " in document["verdict"]["summary"]
    assert [(each["pid"], each["verdict"]) for each in document["children"]["children"]] == [(child, "self-deadlock")]
    unstopped = target.dispatch("--no-stop", "dispatch-diagnose", debugger="none")
    assert "In process" not in unstopped.stdout, "who is not to be stopped brings no children along"


def test_a_timed_wait_for_an_orphaned_lock_says_so(plain_look, inferior):
    verdict = plain_look(inferior("strangers", "timed-orphan"), "dispatch-diagnose")["verdict"]
    assert verdict["kind"] == "orphaned-lock", verdict["summary"]
    assert "timed and gives up by itself" in verdict["summary"]


def test_a_rank_that_only_os_environ_knows(plain_look, inferior):
    found = plain_look(inferior("strangers", "rank-by-itself"), "dispatch-diagnose")["collectives"]
    said = {name: found["identity"][name] for name in ("rank", "size", "local_rank", "job")}
    assert said == {"rank": 3, "size": 4, "local_rank": 1, "job": "127.0.0.1:1"}


def test_workers_that_are_all_used_up_come_before_the_loop_that_waits_for_clients(inferior):
    target = inferior("strangers", "exhausted-server")
    outcome = target.dispatch("dispatch-diagnose", debugger="none")
    verdict = outcome.document["verdict"]
    line = target.truth["line"]
    assert verdict["summary"].startswith("6 threads stand at "), verdict["summary"]
    assert f"strangers.py:{line} (exhausted_server.<locals>.handle)" in verdict["summary"]
    assert len(verdict["threads"]) == 7
    notes = [each["summary"] for each in outcome.document["findings"] if each["kind"] == "note"]
    assert len(notes) == 1, notes
    assert "as 5 more threads do" in notes[0]


@pytest.mark.parametrize("python", [OLDEST, "3.11", "3.12", "3.13", NEWEST])
def test_the_line_where_the_holder_in_a_cycle_took_the_lock(inferior, python):
    """Known where it stands in the very block of the with; before 3.11 also in a try inside of it, and by a call."""
    target = inferior("strangers", "crossed-withs", python=python)
    document = target.dispatch("dispatch-diagnose", debugger="none").document
    assert document["verdict"]["kind"] == "deadlock", document["verdict"]["summary"]
    taken = {each["tid"]: each["wait"].get("taken_at", "") for each in document["threads"] if each["wait"]}
    lines = {
        role: text.rpartition("strangers.py:")[2].partition(" ")[0]
        for role, text in ((role, taken[target.tid(role)]) for role in ("one", "two", "four"))
    }
    known = {"one": str(target.truth["in_try"]) if python == OLDEST else "", "two": str(target.truth["line"])}
    known["four"] = str(target.truth["called"])
    assert lines == known


def test_greenlets_that_hold_what_the_other_wants(inferior):
    """A lock of gevent keeps its owner, a semaphore is on the stack of who is inside of it. Those of eventlet would be
    a cycle, too, if one of them did not give up."""
    target = inferior("greenlets")
    document = target.dispatch("all-threads", "--tasks", debugger="none").document
    tasks = [task for thread in document["threads"] for task in thread.get("tasks", ())]
    told = {task["frames"][-1]["function"].rpartition(".")[2]: task for task in tasks}
    texts = {name: task["awaits"] for name, task in told.items()}
    needs = {"credit": "debit", "debit": "credit", "patient": "leaves", "leaves": "patient"}
    assert [name for name, other in needs.items() if f".{other} (" not in texts[name]] == []
    assert texts["credit"].endswith(" seems to hold")
    assert texts["debit"].endswith(") holds")
    assert {name for name, task in told.items() if task["timed"]} >= {"leaves"}
    assert not any(told[name]["timed"] for name in ("credit", "debit", "patient"))
    verdict = verdict_of(target)
    assert (verdict["kind"], verdict["threads"]) == ("deadlock", [target.tid("main")]), verdict["summary"]


def test_sleeps_that_differ_in_their_time_are_one_line(inferior):
    target = inferior("strangers", "many-sleepers")
    text = target.dispatch("dispatch-diagnose", debugger="none", json=False).stdout
    assert "  5 × sleeps" in text, text


def test_threads_in_the_programs_own_files_come_first(inferior):
    target = inferior("strangers", "one-handler")
    lines = target.dispatch("dispatch-diagnose", debugger="none", json=False).stdout.splitlines()
    shown = [line for line in lines if line.startswith(("  handler (tid", "  13 × waits for the queue"))]
    assert len(shown) == 2, lines
    assert f"strangers.py:{target.truth['line']} (one_handler" in shown[0], shown


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_futures_that_a_loop_asks_are_followed(inferior, python):
    target = inferior("strangers", "polled-futures", python=python)
    outcome = target.dispatch("dispatch-diagnose", debugger="none")
    summary = outcome.document["verdict"]["summary"]
    assert "looks again and again at futures (future 0x" in summary, summary
    assert outcome.document["verdict"]["kind"] == "idle", "no hang is proven"
    assert {target.tid("main"), target.tid("job-0")} <= {*outcome.document["verdict"]["threads"]}


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_loop_that_looks_at_what_nobody_knows_polls(inferior, python):
    target = inferior("strangers", "polled-states", python=python)
    text = target.dispatch("dispatch-diagnose", debugger="none", json=False).stdout
    first = text.splitlines()[0]
    assert first.startswith("polls: "), first
    assert "sleeps again and again in the loop at " in first
    assert f"strangers.py:{target.truth['line']} (polls)" in first
    assert "3 threads stand at " in first
    assert f"strangers.py:{target.truth['job_line']} (" in first


def test_a_child_is_followed_where_the_loop_may_look_at_it(inferior):
    target = inferior("strangers", "polled-child")
    verdict = verdict_of(target)
    assert f" In process {target.truth['child']}: " in verdict["summary"], verdict["summary"]


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_timed_wait_that_a_loop_repeats(inferior, python):
    target = inferior("strangers", "joined-again", python=python)
    document = target.dispatch("dispatch-diagnose", debugger="none").document
    main = next(each for each in document["threads"] if each["tid"] == target.tid("main"))
    assert main["wait"]["repeated_at"].endswith(f"strangers.py:{target.truth['line']} (joined_again)")
    assert document["verdict"]["threads"] == [target.tid("main"), target.tid("worker")]


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_method_that_was_handed_on_is_called_by_others(inferior, python):
    target = inferior("strangers", "handed-on", python=python)
    verdict = verdict_of(target)
    assert "no thread is in" not in verdict["summary"]
    assert verdict["threads"][:2] in ([target.tid("main"), target.tid(f"job-{each}")] for each in (0, 1))


@pytest.mark.parametrize("python", [OLDEST, "3.11", NEWEST])
def test_a_loop_that_asks_its_own_server_waits_for_itself(inferior, python):
    target = inferior("strangers", "asks-itself", python=python)
    verdict = verdict_of(target)
    assert (verdict["kind"], verdict["threads"]) == ("self-deadlock", [target.tid("main")]), verdict["summary"]
    assert "which this process itself has not accepted yet" in verdict["summary"]


def test_a_server_that_a_thread_looks_after_may_answer(inferior):
    verdict = verdict_of(inferior("strangers", "asks-a-thread", python="3.11"))
    assert verdict["kind"] == "waiting-external", verdict["summary"]
    assert "itself could" not in verdict["summary"]
