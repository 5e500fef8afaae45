"""Pages: one mechanism, nothing from elsewhere, nothing of the target's gets out of its place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection
from html.parser import HTMLParser

import pytest

from gdbext.diagnosis.commands import diagnose_page
from gdbext.render.page import Origin, Page, as_json, text
from gdbext.tools.probes import top_view
from gdbext.tools.probes.summary import TopSection
from gdbext.tools.tensor import tensor_files
from gdbext.tools.trace.trace_output import bars
from support.fakes import made_pages
from support.fakes.made_pages import EVIL, MM, dispatch

VOID = {"meta", "input", "br", "th", "td", "wbr"}
"""Tags that need no end, or leave it out."""


class Tags(HTMLParser):
    """All tags, those that are open, what the page loads, its scripts and its data."""

    def __init__(self, page: str, void: Collection[str] = VOID) -> None:
        super().__init__()
        self.void = void
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.policy = ""
        self.scripts: list[str] = []
        self.data: dict[str, object] = {}
        self._script: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.loaded += [f"{tag} {name}" for name in named if name in ("src", "href", "srcset") or name[:2] == "on"]
        self.policy = named.get("content") or "" if "http-equiv" in named else self.policy
        if tag == "script":
            self._script = named.get("id") or ""
        self.seen.add(tag)
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._script:
            self.data[self._script] = json.loads(data)
        elif self._script is not None:
            self.scripts.append(data)
        self._script = None


@pytest.mark.parametrize("make", made_pages.PAGES.values(), ids=made_pages.PAGES)
def test_a_page_is_whole_and_needs_nothing_else(make: Callable[[], str]) -> None:
    page = make()
    tags = Tags(page)
    assert (tags.open, tags.loaded) == ([], [])
    assert page.endswith("</body></html>\n")
    for outside in ("http:", "https:", "\x1b", "<b>"):
        assert outside not in page.lower()
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in tags.scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    for fact in ("program", "machine", "made", "with", "command"):
        assert f"<dt>{fact}</dt><dd>" in page
    assert tags.policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def test_text_and_data_stay_what_they_are() -> None:
    assert text(f'"{EVIL}"') == "&quot;&lt;/script&gt;&lt;b&gt;&amp;\\x1b[31m&quot;"
    assert json.loads(as_json([EVIL, "<!--"])) == [EVIL, "<!--"]
    assert "<" not in as_json([EVIL, "<!--"])
    assert Tags(Page(EVIL).whole(())).open == []
    with pytest.raises(ValueError, match="JSON"):
        as_json(float("nan"))
    # scripts show data as text, where marks of direction would turn it round
    names = ["a\u202eb\U000e0041\x1b\ufeff", "\\u202e", 'é中🙂\n"<b>']
    assert json.loads(as_json(names)) == ["a\\u202eb\\U000e0041\x1b\\ufeff", "\\u202e", 'é中🙂\n"<b>']


def test_the_timeline_has_every_dispatch_once() -> None:
    tags = Tags(made_pages.timeline())
    zero, *numbers = tags.data["dispatches"]  # type: ignore[misc]
    rows = [tuple(numbers[at : at + 8]) for at in range(0, len(numbers), 8)]
    assert zero == 0
    assert rows == [
        (0, 7, 0, 10, 1, -1, -1, 0),
        (1, 7, 2, 7, 2, -1, -1, 0),
        (0, 7, 100, 6, 1, -1, -1, 0),
        (1, 7, 101, 4, 2, -1, -1, 0),
        (2, 8, 50, 150, 1, -1, -1, 150),
    ]
    assert tags.data["kinds"] == [
        ["call", "aten::mm", "AutogradCPU", "AutogradCPU", "", ""],
        ["redispatch", "aten::mm", "CPU", "CPU", "wrapper_CPU_mm", ""],
        ["callBoxed", "evil::</script><b>&\\x1b[31m", "CPU", "CPU", "", ""],
    ]


def test_the_table_of_a_trace_has_what_most_itself_took_first() -> None:
    page = re.sub("<wbr>", "", made_pages.timeline())
    rows = [re.findall("<td[^>]*>([^<]*)</td>", row) for row in re.findall("<tr>(<td.*?)</tr>", page)]
    assert [row[:8] for row in rows[:2]] == [
        ["2", "", "11.0", "11.0", "5.5", "7.0", "redispatch", "aten::mm"],
        ["2", "", "5.0", "16.0", "8.0", "10.0", "call", "aten::mm"],
    ]
    assert rows[2][:7] == ["1", "1", "", "", "", "", "callBoxed"]


def test_own_time_is_without_the_calls_directly_inside() -> None:
    dispatches = [dispatch(MM, 0, 100, 1), dispatch(MM, 10, 60, 2), dispatch(MM, 20, 30, 3), dispatch(MM, 70, None, 2)]
    own = {bar.dispatch.started: bar.own / 1e3 for bar in bars(dispatches, 90.0)}
    assert own == {0: 30, 10: 40, 20: 10, 70: 20}


def test_a_kernel_that_was_seen() -> None:
    seen = dispatch(MM, 1.0, 9.0, 1)
    seen.kernel_started, seen.kernel_ended = 3.0, 8.0
    assert Tags(made_pages.timeline((seen,))).data["dispatches"] == [0, 0, 7, 1.0, 8.0, 1, 3.0, 5.0, 0.0]


def test_a_page_without_anything_to_show_says_so() -> None:
    tags = Tags(made_pages.timeline(()))
    assert (tags.open, tags.data) == ([], {"dispatches": [0], "kinds": []})
    assert "may be hung" in top_view.render_page(TopSection(2.0, "probes", 0, 0, 3, ()), None)
    page = tensor_files.render(made_pages.made_tensors.ODD, None, "it is on the moon")
    assert "There is no heat map: it is on the moon" in page
    assert "<canvas" not in page
    assert list(diagnose_page.drawing(made_pages.deadlocked().threads[2:])) == []


def test_numbers_that_json_lacks_are_words() -> None:
    found = Tags(made_pages.tensor()).data["slice"]
    assert found == {
        "index": [1],
        "rowStep": 1,
        "columnStep": 2,
        "hasRows": True,
        "values": [[1.0, "NaN"], [-2.0, "Infinity"], [0.5, "-Infinity"]],
    }


def test_a_diagnosis_draws_who_waits_for_whom() -> None:
    page = made_pages.diagnosis()
    boxes = re.findall(r'<text x="10"[^>]*>([^<]*)</text>', page)
    assert boxes == ["&lt;/script&gt;&lt;b&gt;&amp;\\x1b[31m (tid 1)".replace("\\\\", "\\"), "b (tid 2)"]
    assert len(re.findall('class="arrow"', page)) == 2
    assert "<details open>" in page
    assert page.count("<details") == 2 + 1, "the three that idle are one"


def test_values_are_left_out_of_a_page_on_request() -> None:
    report = made_pages.deadlocked("correct horse")
    assert "correct horse" in diagnose_page.render_page(report, Origin())
    bare = diagnose_page.render_page(report, Origin(), values=False)
    assert "correct horse" not in bare
    assert "train.py" in bare
