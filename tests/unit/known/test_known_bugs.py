"""The language of known bugs: how patterns, versions, variables and relations are compared, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext import known as catalogue
from gdbext.engine.entry_points import EntryPoint
from gdbext.errors import AddOnError
from gdbext.known import Affected, KnownBug, ThreadPattern, signatures, version_key
from gdbext.known.signatures import KnownMatch, ProcessFacts, ThreadFacts, matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.known.signatures import NativeName

BUG = KnownBug(
    "a#1", "it waits", "https://a/1", (Affected("torch", "2.1", "2.3"),), "update", (ThreadPattern(waits_for=("gil",)),)
)


def thread(*native: str, **facts: Any) -> ThreadFacts:
    """A thread that waits for the GIL; ``native`` frames are "library!function"."""
    frames = [(_named(each.rpartition("!")[2]), each.rpartition("!")[0]) for each in native]
    return ThreadFacts(**{"label": "a thread", "waits_for": "gil", "native": lambda: frames, **facts})


def _named(name: str) -> NativeName:
    return lambda: (name,)


def judged(bug: KnownBug, *threads: ThreadFacts, **facts: Any) -> KnownMatch | None:
    return next(matches([bug], ProcessFacts(threads or [thread()], **facts)), None)


def with_versions(**versions: str) -> dict[str, Callable[[str], str | None]]:
    return {"version": versions.get}


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.0.1", False),
        ("2.1.0+cpu", True),
        ("2.1.0rc1", False),
        ("2.2.2", True),
        ("2.3.0a0", True),
        ("2.3", False),
        ("2.10.0", False),
    ],
)
def test_a_version_outside_of_its_range_has_not_got_it(version: str, known: bool) -> None:
    assert (judged(BUG, **with_versions(torch=version)) is not None) == known


def test_one_of_several_ranges_is_enough() -> None:
    """As where a correction came to several branches."""
    branches = (Affected("python", "3.11", "3.13.9"), Affected("python", "3.14", "3.14.2"))
    bug = BUG._replace(affected=branches)
    versions = {"3.10.1": False, "3.13.8": True, "3.13.9": False, "3.14.1": True, "3.14.2": False}
    assert {each: judged(bug, **with_versions(python=each)) is not None for each in versions} == versions


def test_where_the_version_is_unknown_the_line_says_so() -> None:
    unknown, known = judged(BUG), judged(BUG, **with_versions(torch="2.2.0"))
    assert unknown is not None
    assert known is not None
    assert "(if your torch is 2.1 or newer and is older than 2.3)" in unknown.line
    assert "(torch from 2.1 on before 2.3)" in known.line
    assert known.line.startswith("Known: a#1, it waits (")
    assert (unknown.report.condition, known.report.condition) == (unknown.condition, "")
    assert known.report.fixed_in == ("torch 2.3",)


def test_a_bug_of_all_versions_needs_no_condition() -> None:
    match = judged(BUG._replace(affected=(Affected("libx"),)))
    assert match is not None
    assert "(every known libx)" in match.line


def test_each_pattern_needs_a_thread_of_its_own() -> None:
    two = BUG._replace(threads=(ThreadPattern(waits_for=("gil", "io")), ThreadPattern(waits_for=("gil",))))
    gil, other, io = thread(), thread(), thread(waits_for="io")
    found = [judged(two, *threads) is not None for threads in ([gil], [gil, io], [gil, gil], [io, io], [gil, other])]
    assert found == [False, True, False, False, True]


def test_who_holds_what_is_waited_for() -> None:
    """The pair fits in either order of the threads, and only where the edge is there."""
    bug = BUG._replace(threads=(ThreadPattern(waits_for=("gil",), held_by=1), ThreadPattern(waits_for=("mutex",))))
    holder, other = thread(waits_for="mutex", tid=7), thread(waits_for="mutex", tid=8)
    assert judged(bug, other, holder, thread(owner=7)) is not None
    assert judged(bug, other, thread(owner=7)) is None
    assert judged(bug, holder, thread()) is None


def test_two_threads_in_one_process_group() -> None:
    """What is not known does not fit."""
    bug = BUG._replace(threads=(ThreadPattern(same_group=1), ThreadPattern(role="other")))
    default, other = thread(group="default_pg"), thread(group="default_pg", roles=["other"])
    assert judged(bug, default, other) is not None
    assert judged(bug, thread(group="mine"), other) is None
    assert judged(bug, thread(), thread(roles=["other"])) is None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (ThreadPattern(role="main"), {"roles": ["main"]}, {"roles": ["other"]}),
        (ThreadPattern(role="crashed"), {"roles": ["other", "crashed"]}, {"roles": ["other"]}),
        (ThreadPattern(name="pt_pin"), {"names": ["Thread-1", "pt_pinmem"]}, {"names": ["Thread-1"]}),
        (ThreadPattern(state="running"), {"state": "running"}, {}),
        (ThreadPattern(holds=("gil",)), {"holds": ["mutex", "gil"]}, {"holds": ["mutex"]}),
        (ThreadPattern(owner_gone=True), {"owner_gone": True}, {"owner": 3}),
        (ThreadPattern(lost_signal=True), {"lost_signal": True}, {}),
        (ThreadPattern(missing_workers="OpenMP"), {"missing_workers": "OpenMP"}, {"missing_workers": "OpenBLAS"}),
        (ThreadPattern(waits_for=("io",)), {"waits_for": "io"}, {}),
        (
            ThreadPattern(python=(("b/c.py", "run"),)),
            {"python": [("/a/b/c.py", "Loop.run")]},
            {"python": [("/a/c.py", "Loop.run"), ("/a/b/c.py", "Loop.rerun")]},
        ),
        (
            ThreadPattern(python=(("b/c.py", ""),)),
            {"python": [("/a/b/c.py", "Loop.run")]},
            {"python": [("/a/c.py", "run")]},
        ),
        (
            ThreadPattern(task=(("c.py", "wait"),)),
            {"tasks": [[], [("/c.py", "Server.wait")]]},
            {"tasks": [[("/c.py", "f")]]},
        ),
        (ThreadPattern(without_python=True), {}, {"python": [("/c.py", "f")]}),
        (
            ThreadPattern(python=(("c.py", "Loop.run"),)),
            {"python": [("/c.py", "Loop.run")]},
            {"python": [("/c.py", "Other.run")]},
        ),
    ],
)
def test_each_member_of_a_pattern(pattern: ThreadPattern, yes: dict[str, Any], no: dict[str, Any]) -> None:
    bug = BUG._replace(threads=(pattern,))
    assert judged(bug, thread(**yes)) is not None
    assert judged(bug, thread(**no)) is None


def test_frames_come_in_their_order() -> None:
    def fits(*names: str) -> bool:
        return thread("libx.so!inner", "liby.so!between", "libx.so!outer").fits(ThreadPattern(native=names))

    assert [fits("inner", "outer"), fits("outer", "inner"), fits("inner", "inner"), fits("between")] == [
        True,
        False,
        False,
        True,
    ]
    assert [fits("libx!inner", "libx!outer"), fits("liby!inner"), fits("libx!"), fits("libz!")] == [True, False] * 2
    assert thread("libx.so!a::B::c()").fits(ThreadPattern(native=("a::B::",)))


def test_no_thread_may_do_what_is_to_be_absent() -> None:
    bug = BUG._replace(absent=(ThreadPattern(waits_for=("io",)),))
    assert judged(bug, thread()) is not None
    assert judged(bug, thread(), thread(waits_for="io")) is None


def test_a_range_that_ends_with_the_last_version_known_to_have_it() -> None:
    bug = BUG._replace(affected=(Affected("torch", "2.1", until="2.3.1"),))
    assert [judged(bug, **with_versions(torch=each)) is not None for each in ("2.0", "2.3.1", "2.3.2")] == [
        False,
        True,
        False,
    ]
    unknown, known = judged(bug), judged(bug, **with_versions(torch="2.2"))
    assert unknown is not None
    assert known is not None
    assert unknown.condition == "if your torch is 2.1 or newer and is 2.3.1 or older"
    assert "(torch from 2.1 on up to 2.3.1 at least)" in known.line
    assert known.report.fixed_in == ()


def test_relations_to_child_processes() -> None:
    tracker = "python -c from multiprocessing.resource_tracker import main;main(5)"
    families = [[], [tracker], [tracker, "python worker.py"]]
    words = ("children", "no-children", "no-workers", "no-child:worker")
    assert [[signatures.child_relation(word, family) for word in words] for family in families] == [
        [False, True, True, True],
        [True, False, True, True],
        [True, False, False, False],
    ]


@pytest.mark.parametrize("name", ["f", "f(int)", "f<3>(int)", "f.cold", "f@@GLIBC_2.2.5", "f(int) [clone .part.0]"])
def test_a_native_function_is_known_by_its_name_alone(name: str) -> None:
    assert thread(f"libx.so!{name}").fits(ThreadPattern(native=("f",)))
    assert not thread(f"libx.so!{name.replace('f', 'f2', 1)}").fits(ThreadPattern(native=("f",)))


def test_the_innermost_library_that_is_not_the_c_library() -> None:
    stack = thread("libc.so.6!wait", "!", "libgomp-98.so.1!", "libtorch_cpu.so!run")
    assert stack.fits(ThreadPattern(library="libgomp"))
    assert not stack.fits(ThreadPattern(library="libtorch"))


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("A", "1", ""),
        ("A", None, None),
        ("!A", None, ""),
        ("!A", "1", None),
        ("A=1", "1", ""),
        ("A=1", "2", None),
        ("!A=1", "1", None),
        ("!A=1", "2", ""),
        ("!A=1", None, ""),
        ("A", ..., "if A is set"),
        ("!A", ..., "if A is not set"),
        ("!A=false", ..., "if A is not false"),
    ],
)
def test_environment_variables(condition: str, value: Any, expected: str | None) -> None:
    """``...``: unknown, as in a JSON report."""
    bug = BUG._replace(environment=(condition,), affected=(Affected("x"),))
    match = judged(bug, variable=lambda _: None if value is ... else (value is not None, value or ""))
    assert (match.condition if match is not None else None) == expected


def test_both_conditions_are_told() -> None:
    match = judged(BUG._replace(environment=("A",)))
    assert match is not None
    assert match.condition == "if your torch is 2.1 or newer and is older than 2.3 and A is set"


def test_architecture_and_relations() -> None:
    """What is not known does not fit."""
    bug = BUG._replace(architecture="aarch64", process=("forked",))
    known = {"forked": True}
    assert judged(bug, architecture="aarch64", relation=known.get) is not None
    assert judged(bug, architecture="x86_64", relation=known.get) is None
    assert judged(bug, architecture="aarch64") is None


def test_evidence_names_threads_and_frames() -> None:
    pattern = ThreadPattern(python=(("a.py", "f"),), native=("libx!g",), waits_for=("gil",), holds=("mutex",))
    match = judged(
        BUG._replace(threads=(pattern,)),
        thread("libx.so!g", python=[("/a.py", "f")], holds=["mutex"], label="t (tid 3)"),
    )
    assert match is not None
    assert match.evidence == ("t (tid 3): in a.py f, in libx g, waits for gil, holds mutex",)


def test_versions_are_in_their_order() -> None:
    order = ["2.9", "2.10.0rc1", "2.10", "2.10.1"]
    assert sorted(["2.10.1", "2.10", "2.10.0rc1", "2.9"], key=version_key) == order
    assert version_key("2.10.0+cpu") == version_key("2.10")


def test_a_thousand_entries_look_at_no_stack_without_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed. Entries of functions that no thread has, of libraries that are not loaded and of other waits
    are sorted out by what is known of the whole process; one is compared with each thread, once. For entries of native
    functions of a library that is loaded each frame in it is named once, not once for each entry."""
    compared: list[str] = []
    fits = ThreadFacts.fits

    def counted(facts: ThreadFacts, pattern: ThreadPattern) -> bool:
        compared.append(pattern.name)
        return fits(facts, pattern)

    monkeypatch.setattr(ThreadFacts, "fits", counted)
    asked: list[str] = []
    patterns = [ThreadPattern(python=(("a.py", f"f{n}"),)) for n in range(800)]
    patterns += [ThreadPattern(native=(f"lib{n}!f",)) for n in range(50)]
    patterns += [ThreadPattern(native=(f"libtorch_cpu!f{n}",), waits_for=("io",)) for n in range(50)]
    patterns += [ThreadPattern(waits_for=(f"kind {n}",)) for n in range(99)]
    patterns.append(ThreadPattern(name="none", waits_for=("io",)))
    many = [BUG._replace(id=str(n), threads=(pattern,)) for n, pattern in enumerate(patterns)]
    frames = [("/x/b.py", "g")] * 20
    named = lambda: asked.append("name") or ("at::g(int)",)  # noqa: E731
    native = lambda: asked.append("stack") or [(named, "libtorch_cpu.so"), (named, "libc10.so")]  # noqa: E731
    threads = [ThreadFacts(f"t{n}", frames, "io", native=native) for n in range(200)]
    process = ProcessFacts(threads, asked.append, libraries=["libc.so.6", "libtorch_cpu.so"])
    assert list(matches(many, process)) == []
    assert compared == ["none"] * 200
    assert sorted(asked) == ["name"] * 200 + ["stack"] * 200, "each stack once, and no version"


def test_a_search_for_threads_has_an_end() -> None:
    """Two hundred threads that do all the same, and a pair that is not there."""
    bug = BUG._replace(threads=(ThreadPattern(waits_for=("gil",), held_by=1), ThreadPattern(waits_for=("gil",))))
    chosen: list[int] = []
    threads = [thread(tid=n, owner=1000) for n in range(1, 201)]
    process = ProcessFacts(threads, lambda _: chosen.append(1))
    assert list(matches([bug], process)) == []
    assert signatures._MOST_CANDIDATES**2 < 2000


# --- files ---------------------------------------------------------------------------------------------------------


WRITTEN = {
    "id": "a#2",
    "title": "it waits",
    "url": "https://a/2",
    "affected": [{"package": "torch", "before": "2.3"}],
    "cure": "update",
    "environment": ["!A"],
    "threads": [{"python": [["a.py", "f"]], "native": ["libx!g"], "waits_for": ["gil"], "held_by": 0}],
    "architecture": "aarch64",
    "process": ["forked"],
}


def test_an_entry_is_a_file() -> None:
    bug = catalogue.parse_entry(WRITTEN, "a.json")
    pattern = ThreadPattern((("a.py", "f"),), ("libx!g",), waits_for=("gil",), held_by=0)
    assert bug == KnownBug(
        "a#2",
        "it waits",
        "https://a/2",
        (Affected("torch", before="2.3"),),
        "update",
        (pattern,),
        ("!A",),
        "aarch64",
        ("forked",),
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"affected": []}, "a#2 lacks affected"),
        ({"cure": ""}, "a#2 lacks cure"),
        ({"author": "me"}, "has author; there are id, title"),
        ({"title": 3}, "title is no text"),
        ({"threads": [{}]}, "any thread"),
        ({"threads": [{"python": [["a.py"]]}]}, "a list of two texts"),
        ({"threads": [{"waits_for": "gil"}]}, "waits_for is no list"),
        ({"threads": [{"name": "a", "held_by": 1}]}, "count threads from 0"),
        ({"threads": [{"name": "a", "same_group": 1}]}, "count threads from 0"),
        ({"threads": [{"name": "a", "held_by": True}]}, "held_by is no number"),
        ({"threads": [{"name": "a", "owner_gone": 1}]}, "neither true nor false"),
        ({"threads": [{"role": "first"}]}, "first is none of main, other, crashed"),
        ({"threads": 3}, "threads is no list"),
        ({"process": ["old"]}, "old is none of forked"),
        ({"affected": [{"before": "3"}]}, "lacks package"),
        ({"environment": [3]}, "no list of texts"),
    ],
)
def test_a_faulty_entry_says_what_is_wrong(change: dict[str, object], told: str) -> None:
    with pytest.raises(catalogue.BadData, match=told):
        catalogue.parse_entry({**WRITTEN, **change}, "a.json")


def test_an_entry_is_an_object() -> None:
    with pytest.raises(catalogue.BadData, match=r"a\.json is no object: \[3\]"):
        catalogue.parse_entry([3], "a.json")


def test_other_packages_add_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same id takes the place of ours: whoever installs it knows more. What is no entry is told."""
    known = catalogue.own_entries()
    ours = known[0]._replace(cure="ask us")
    places: dict[str, object] = {"one": BUG, "several": (ours, 5), "none": None}
    points = [EntryPoint(catalogue.GROUP, name, "", "a 1", "/") for name in places]
    monkeypatch.setattr(catalogue, "entry_points", lambda _: points)
    monkeypatch.setattr(catalogue, "site_folders", tuple)
    monkeypatch.setattr(EntryPoint, "load", lambda point: places[point.name])
    told: list[AddOnError] = []
    found = {bug.id: bug for bug in catalogue.catalogue(told.append)}
    assert found == {**{bug.id: bug for bug in known}, BUG.id: BUG, ours.id: ours}
    assert [error.what for error in told] == [
        "gdbext.known 'several' of a 1 is no gdbext.KnownBug: 5",
        "gdbext.known 'none' of a 1 is no gdbext.KnownBug: None",
    ]
