"""The language of known bugs: how patterns, versions, variables and relations are compared, and what that costs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gdbext import known as catalogue
from gdbext.engine.entry_points import EntryPoint
from gdbext.errors import AddOnError
from gdbext.known import Affected, KnownBug, ThreadPattern, signatures
from gdbext.known.signatures import KnownBugReport, ProcessFacts, ThreadFacts, matches

BUG = KnownBug(
    "a#1", "it waits", "https://a/1", (Affected("torch", "2.1", "2.3"),), "update", (ThreadPattern(waits_for=("gil",)),)
)


def thread(*native: str, **facts: Any) -> ThreadFacts:
    """A thread that waits for the GIL; ``native`` frames are "library!function"."""
    parts = [each.rpartition("!") for each in native]
    frames: Any = [(partial(tuple, [name]), library) for library, _, name in parts]
    return ThreadFacts(**{"label": "a thread", "waits_for": "gil", "read_native": lambda: frames, **facts})


def judged(bug: KnownBug, *threads: ThreadFacts, **facts: Any) -> KnownBugReport | None:
    return next(matches([bug], ProcessFacts(threads or [thread()], **facts)), None)


def told(bug: KnownBug, *threads: ThreadFacts, **facts: Any) -> KnownBugReport:
    match = judged(bug, *threads, **facts)
    assert match is not None
    return match


BRANCHES = (Affected("torch", "3.11", "3.13.9"), Affected("torch", "3.14", "3.14.2"))
"""As where a correction came to several branches."""
UNTIL = Affected("torch", "2.1", until="2.3.1")


@pytest.mark.parametrize(
    ("affected", "yes", "no"),
    [
        (BUG.affected, "2.1.0+cpu 2.2.2 2.3.0a0", "2.0.1 2.1.0rc1 2.3 2.10.0rc1 2.10.0"),
        (BRANCHES, "3.13.8 3.14.1", "3.10.1 3.13.9 3.14.2"),
        ((UNTIL,), "2.1 2.3.1", "2.0 2.3.2"),
        ((Affected("torch", "2.10.0rc1", "2.10.1"),), "2.10 2.10.0+cpu", "2.9 2.10.1"),
        ((Affected("torch"),), "1 3", ""),
    ],
)
def test_a_version_outside_of_its_ranges_has_not_got_it(affected: tuple[Affected, ...], yes: str, no: str) -> None:
    bug = BUG._replace(affected=affected)
    has_it = [version for version in f"{yes} {no}".split() if judged(bug, version={"torch": version}.get)]
    assert has_it == yes.split()


@pytest.mark.parametrize(
    ("affected", "environment", "condition", "ranges", "fixed"),
    [
        (BUG.affected, (), "2.1 or newer and is older than 2.3", "torch >= 2.1, < 2.3", ("torch 2.3",)),
        (BUG.affected, ("A",), "2.1 or newer and is older than 2.3 and A is set", "torch >= 2.1", ("torch 2.3",)),
        ((UNTIL,), (), "2.1 or newer and is 2.3.1 or older", "torch >= 2.1, up to 2.3.1 at least", ()),
    ],
)
def test_where_the_version_is_unknown_the_line_says_so(
    affected: tuple[Affected, ...], environment: tuple[str, ...], condition: str, ranges: str, fixed: tuple[str, ...]
) -> None:
    bug = BUG._replace(affected=affected, environment=environment)
    unknown, known = told(bug), told(bug, version=lambda _: "2.2", variable=lambda _: (True, "1"))
    assert unknown.condition == f"if your torch is {condition}"
    assert f"({unknown.condition})" in unknown.line
    assert known.line.startswith("a#1: it waits (")
    assert f"({ranges}" in known.line
    assert (known.condition, known.fixed_in) == ("", fixed)
    assert "(every known libx)" in told(BUG._replace(affected=(Affected("libx"),))).line


def test_each_pattern_needs_a_thread_of_its_own() -> None:
    two = BUG._replace(threads=(ThreadPattern(waits_for=("gil", "io")), ThreadPattern(waits_for=("gil",))))
    gil, other, io = thread(), thread(), thread(waits_for="io")
    found = [judged(two, *threads) is not None for threads in ([gil], [gil, io], [gil, gil], [io, io], [gil, other])]
    assert found == [False, True, False, False, True]


GIL, MUTEX = ThreadPattern(waits_for=("gil",)), ThreadPattern(waits_for=("mutex",))
HELD = {"threads": (GIL._replace(held_by=1), MUTEX)}
GROUP = {"threads": (ThreadPattern(same_group=1), ThreadPattern(role="other"))}
HOLDER, OTHER = thread(waits_for="mutex", tid=7), thread(waits_for="mutex", tid=8)
RANK = thread(group="default_pg", roles=["other"])


@pytest.mark.parametrize(
    ("change", "yes", "no"),
    [
        # The pair fits in either order of the threads, and only where the edge is there.
        (HELD, [OTHER, HOLDER, thread(owner=7)], [OTHER, thread(owner=7)]),
        (HELD, [HOLDER, thread(owner=7)], [HOLDER, thread()]),
        (GROUP, [thread(group="default_pg"), RANK], [thread(group="mine"), RANK]),
        # What is not known does not fit.
        (GROUP, [thread(group="default_pg"), RANK], [thread(), thread(roles=["other"])]),
        ({"absent": (ThreadPattern(waits_for=("io",)),)}, [thread()], [thread(), thread(waits_for="io")]),
    ],
)
def test_relations_of_threads(change: dict[str, Any], yes: list[ThreadFacts], no: list[ThreadFacts]) -> None:
    bug = BUG._replace(**change)
    assert judged(bug, *yes) is not None
    assert judged(bug, *no) is None


RUN, RERUN = ("/a/b/c.py", "Loop.run"), ("/a/b/c.py", "Loop.rerun")


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
        (ThreadPattern(python=(("b/c.py", "run"),)), {"python": [RUN]}, {"python": [("/a/c.py", "Loop.run"), RERUN]}),
        (ThreadPattern(python=(("b/c.py", ""),)), {"python": [RUN]}, {"python": [("/a/c.py", "run")]}),
        (ThreadPattern(python=(("c.py", "Loop.run"),)), {"python": [RUN]}, {"python": [("/c.py", "Other.run")]}),
        (ThreadPattern(task=(("c.py", "run"),)), {"tasks": [[], [RUN]]}, {"tasks": [[("/c.py", "f")]]}),
        (ThreadPattern(without_python=True), {}, {"python": [("/c.py", "f")]}),
    ],
)
def test_each_member_of_a_pattern(pattern: ThreadPattern, yes: dict[str, Any], no: dict[str, Any]) -> None:
    bug = BUG._replace(threads=(pattern,))
    assert judged(bug, thread(**yes)) is not None
    assert judged(bug, thread(**no)) is None


def test_frames_come_in_their_order() -> None:
    stack = thread("libx.so!inner", "liby.so!between", "libx.so!outer", "libx.so!a::B::c()")
    fitting = [("inner", "outer"), ("between",), ("libx!inner", "libx!outer"), ("libx!",), ("a::B::",)]
    others = [("outer", "inner"), ("inner", "inner"), ("liby!inner",), ("libz!",)]
    assert [names for names in (*fitting, *others) if stack.fits(ThreadPattern(native=names))] == fitting


def test_relations_to_child_processes() -> None:
    tracker = "python -c from multiprocessing.resource_tracker import main;main(5)"
    words = ("children", "no-children", "no-workers", "no-child:worker")
    families = [[], [tracker], [tracker, "python worker.py"]]
    assert [[signatures.child_relation(word, family) for word in words] for family in families] == [
        [False, True, True, True],
        [True, False, True, True],
        [True, False, False, False],
    ]


def test_a_native_function_is_known_by_its_name_alone_and_the_innermost_library_by_not_being_the_c_library() -> None:
    for name in ("f", "f(int)", "f<3>(int)", "f.cold", "f@@GLIBC_2.2.5", "f(int) [clone .part.0]"):
        named = [thread(f"libx.so!{each}") for each in (name, name.replace("f", "f2", 1))]
        assert [each.fits(ThreadPattern(native=("f",))) for each in named] == [True, False]
    stack = thread("libc.so.6!wait", "!", "libgomp-98.so.1!", "libtorch_cpu.so!run")
    assert stack.fits(ThreadPattern(library="libgomp"))
    assert not stack.fits(ThreadPattern(library="libtorch"))


def test_environment_variables() -> None:
    for condition, expected in {
        "A": ["", "", None, "if A is set"],
        "!A": [None, None, "", "if A is not set"],
        "A=1": ["", None, None, "if A is 1"],
        "!A=1": [None, "", "", "if A is not 1"],
    }.items():
        bug = BUG._replace(environment=(condition,), affected=(Affected("x"),))
        found = [judged(bug, variable=lambda _, at=at: at) for at in ((True, "1"), (True, "2"), (False, ""), None)]
        assert [match and match.condition for match in found] == expected


def test_architecture_relations_and_evidence_that_names_threads_and_frames() -> None:
    bug = BUG._replace(architecture="aarch64", process=("forked",))
    assert judged(bug, architecture="aarch64", relation={"forked": True}.get) is not None
    assert judged(bug, architecture="x86_64", relation={"forked": True}.get) is None
    assert judged(bug, architecture="aarch64") is None
    pattern = ThreadPattern(python=(("a.py", "f"),), native=("libx!g",), waits_for=("gil",), holds=("mutex",))
    holder = thread("libx.so!g", python=[("/a.py", "f")], holds=["mutex"], label="t (tid 3)")
    evidence = told(BUG._replace(threads=(pattern,)), holder).matched
    assert evidence == ("t (tid 3): in a.py f, in libx g, waits for gil, holds mutex",)


def test_a_thousand_entries_look_at_no_stack_without_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: most are sorted out by what is known of the whole process, and each frame is named once."""
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
    threads = [ThreadFacts(f"t{n}", frames, "io", read_native=native) for n in range(200)]
    process = ProcessFacts(threads, asked.append, libraries=["libc.so.6", "libtorch_cpu.so"])
    assert list(matches(many, process)) == []
    assert compared == ["none"] * 200
    assert sorted(asked) == ["name"] * 200 + ["stack"] * 200, "each stack once, and no version"


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
    pattern = ThreadPattern((("a.py", "f"),), ("libx!g",), waits_for=("gil",), held_by=0)
    facts = ((Affected("torch", before="2.3"),), "update", (pattern,), ("!A",), "aarch64", ("forked",))
    assert catalogue.parse_entry(WRITTEN, "a.json") == KnownBug("a#2", "it waits", "https://a/2", *facts)
    with pytest.raises(catalogue.BadData, match=r"a\.json is no object: \[3\]"):
        catalogue.parse_entry([3], "a.json")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *(({name: empty}, f"a#2 lacks {name}") for name, empty in (("affected", []), ("cure", ""))),
        ({"author": "me"}, "has author; there are id, title"),
        ({"title": 3}, "title is no text"),
        ({"threads": [{}]}, "any thread"),
        ({"threads": [{"python": [["a.py"]]}]}, "a list of two texts"),
        ({"threads": [{"waits_for": "gil"}]}, "waits_for is no list"),
        *(({"threads": [{"name": "a", name: 1}]}, "count threads from 0") for name in ("held_by", "same_group")),
        ({"threads": [{"name": "a", "held_by": True}]}, "held_by is no number"),
        ({"threads": [{"name": "a", "owner_gone": 1}]}, "neither true nor false"),
        ({"threads": [{"role": "first"}]}, "first is none of main, other, crashed"),
        ({"threads": 3}, "threads is no list"),
        ({"process": ["old"]}, "old is none of forked"),
        ({"affected": [{"before": "3"}]}, "lacks package"),
        ({"environment": [3]}, "no list of texts"),
    ],
)
def test_a_faulty_entry_says_what_is_wrong(change: dict[str, object], fault: str) -> None:
    with pytest.raises(catalogue.BadData, match=fault):
        catalogue.parse_entry({**WRITTEN, **change}, "a.json")


def test_other_packages_add_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same id takes the place of ours: whoever installs it knows more. What is no entry is told."""
    known = catalogue.own_entries()
    ours = known[0]._replace(cure="ask us")
    places: dict[str, object] = {"one": BUG, "several": (ours, 5), "none": None}
    points = [EntryPoint(catalogue.GROUP, name, "", "a 1", "/") for name in places]
    monkeypatch.setattr(catalogue, "entry_points", lambda _: points)
    monkeypatch.setattr(catalogue, "site_folders", tuple)
    monkeypatch.setattr(EntryPoint, "load", lambda point: places[point.name])
    errors: list[AddOnError] = []
    found = {bug.id: bug for bug in catalogue.all_entries(errors.append)}
    assert found == {**{bug.id: bug for bug in known}, BUG.id: BUG, ours.id: ours}
    wrong = {"several": 5, "none": None}.items()
    assert [error.what for error in errors] == [
        f"gdbext.known {name!r} of a 1 is no gdbext.KnownBug: {value}" for name, value in wrong
    ]
