"""The catalogue of known bugs: each entry with the stack that its link shows, and what must not match it."""

from __future__ import annotations

from time import perf_counter

import pytest

from gdbext.engine.entry_points import EntryPoint
from gdbext.errors import AddOnError
from gdbext.known import catalogue
from gdbext.known.catalogue import BUGS, Affected, KnownBug, ThreadFacts, ThreadPattern, matches, version_key

SITE = "/env/lib/python3.13/site-packages"
ITERATES = (f"{SITE}/threadpoolctl.py", "ThreadpoolController._find_libraries_with_dl_iterate_phdr")
OPENMP = (("", "libc.so.6"), ("", "libgomp-98.so.1"), ("at::parallel_for", "libtorch_cpu.so"))


def scanning(**changes: object) -> ThreadFacts:
    """The thread of threadpoolctl#239 that calls dl_iterate_phdr, whose callback needs the GIL."""
    python = [ITERATES, (f"{SITE}/threadpoolctl.py", "ThreadpoolController.__init__"), ("/home/a/run.py", "<module>")]
    return ThreadFacts(**{"label": "scans", "python": python, "waits_for": "gil", **changes})


def holding(**changes: object) -> ThreadFacts:
    """Its other thread: NumPy asks for a backtrace and holds the GIL."""
    python = [("/home/a/run.py", "work")]
    return ThreadFacts(**{"label": "holds", "python": python, "waits_for": "loader-lock", **changes})


def team(library: str = "libgomp-98.so.1", missing: str = "OpenMP") -> ThreadFacts:
    frames = [OPENMP[0], ("", library), OPENMP[2]]
    return ThreadFacts("MainThread", waits_for="worker-pool", missing_workers=missing, native=lambda: frames)


CASES: list[tuple[str, list[ThreadFacts]]] = [
    ("joblib/threadpoolctl#239", [holding(), scanning()]),
    ("gcc#52303", [team()]),
]
OTHERS = [
    [scanning()],
    [holding()],
    [holding(), scanning(waits_for="io")],
    [holding(), scanning(python=[("/home/a/threadpoolctl.py", "other")])],
    [holding(waits_for="mutex"), scanning()],
    [team(library="libiomp5.so")],
    [team(missing="")],
    [],
]


@pytest.mark.parametrize(("bug", "threads"), CASES)
def test_the_stack_of_its_report_is_recognised(bug: str, threads: list[ThreadFacts]) -> None:
    assert [match.bug.id for match in matches(BUGS, threads, {})] == [bug]


def test_each_entry_has_such_a_test() -> None:
    assert sorted(bug for bug, _ in CASES) == sorted(bug.id for bug in BUGS)


@pytest.mark.parametrize("threads", OTHERS)
def test_what_is_only_alike_is_not(threads: list[ThreadFacts]) -> None:
    assert list(matches(BUGS, threads, {})) == []


def test_each_entry_says_where_it_is_from() -> None:
    for bug in BUGS:
        assert bug.url.startswith("https://"), bug.id
        assert bug.affected
        assert bug.threads
        assert any(pattern != ThreadPattern() for pattern in bug.threads)
        assert bug.title[0].islower()
        assert bug.cure[0].islower()


BUG = KnownBug("a#1", "it waits", "https://a/1", (Affected("torch", "2.1", "2.3"),), "update", (ThreadPattern(),))


@pytest.mark.parametrize(("version", "known"), [
    ("2.0.1", False), ("2.1.0+cpu", True), ("2.1.0rc1", False), ("2.2.2", True), ("2.3.0a0", True), ("2.3", False),
    ("2.10.0", False),
])  # fmt: skip
def test_a_version_outside_of_its_range_has_not_got_it(version: str, known: bool) -> None:
    assert bool(list(matches([BUG], [holding()], {"torch": version}))) == known


def test_where_the_version_is_unknown_the_line_says_so() -> None:
    (unknown,) = matches([BUG], [holding()], {})
    (known,) = matches([BUG], [holding()], {"torch": "2.2.0"})
    assert "(if your torch is 2.1 or newer and is older than 2.3)" in unknown.line
    assert "(torch from 2.1 on before 2.3)" in known.line
    assert known.line.startswith("Known: a#1, it waits (")


def test_each_pattern_needs_a_thread_of_its_own() -> None:
    two = BUG._replace(threads=(ThreadPattern(waits_for=("gil", "io")), ThreadPattern(waits_for=("gil",))))
    gil, io = scanning(), scanning(waits_for="io")
    assert [bool(list(matches([two], threads, {}))) for threads in ([gil], [gil, io], [gil, gil], [io, io])] == [
        False, True, False, False]  # fmt: skip
    assert list(matches([two], [gil, scanning()], {}))


def test_frames_come_in_their_order() -> None:
    def fits(*names: str) -> bool:
        frames = [(name, "libx.so") for name in ("inner", "between", "outer")]
        return ThreadFacts("a", native=lambda: frames).fits(ThreadPattern(native=names))

    assert [fits("inner", "outer"), fits("outer", "inner"), fits("inner", "inner"), fits("between")] == [
        True, False, False, True]  # fmt: skip


def test_versions_are_in_their_order() -> None:
    order = ["2.9", "2.10.0rc1", "2.10", "2.10.1"]
    assert sorted(["2.10.1", "2.10", "2.10.0rc1", "2.9"], key=version_key) == order
    assert version_key("2.10.0+cpu") == version_key("2.10")


def test_a_thousand_entries_cost_little_and_look_at_no_native_stack() -> None:
    def unread() -> list[tuple[str, str]]:
        raise AssertionError("no entry asks for this stack")

    many = [BUG._replace(id=str(n), threads=(ThreadPattern(python=(("a.py", f"f{n}"),)),)) for n in range(1000)]
    threads = [ThreadFacts(f"t{n}", [("/x/b.py", "g")] * 20, "io", native=unread) for n in range(200)]
    started = perf_counter()
    assert list(matches(many, threads, {})) == []
    assert perf_counter() - started < 0.25  # 5 ms on a quiet machine


def test_other_packages_add_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same id takes the place of ours: whoever installs it knows more. What is no entry is told."""
    ours = BUGS[0]._replace(cure="ask us")
    places = {"one": BUG, "several": (ours, 5), "none": None}
    points = [EntryPoint(catalogue.GROUP, name, "", "a 1", "/") for name in places]
    monkeypatch.setattr(catalogue, "entry_points", lambda _: points)
    monkeypatch.setattr(EntryPoint, "load", lambda point: places[point.name])
    told: list[AddOnError] = []
    found = {bug.id: bug for bug in catalogue.catalogue(told.append)}
    assert found == {**{bug.id: bug for bug in BUGS}, BUG.id: BUG, ours.id: ours}
    assert [error.what for error in told] == [
        "gdbext.known 'several' of a 1 is no gdbext.KnownBug: 5",
        "gdbext.known 'none' of a 1 is no gdbext.KnownBug: None",
    ]
