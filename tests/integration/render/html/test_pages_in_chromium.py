"""The pages in a browser: they load without an error, are drawn, and can be searched, zoomed and sorted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.fakes import made_pages
from support.installed import chromium

pytestmark = pytest.mark.chromium

USE = """<script>
const canvas = document.getElementById("timeline"), box = canvas.getBoundingClientRect();
const pointer = (kind, x, y) => canvas.dispatchEvent(
  new PointerEvent(kind, { clientX: x, clientY: y, pointerId: 1, bubbles: true }));
canvas.setPointerCapture = () => {};
for (let step = 0; step < 5; step++)
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, clientX: box.left + 1, clientY: box.top + 40 }));
pointer("pointermove", box.left + 5, box.top + 40);
const tip = document.getElementById("tip").textContent;
pointer("pointerdown", box.left + 5, box.top + 40); pointer("pointerup", box.left + 5, box.top + 40);
const colors = new Set(canvas.getContext("2d").getImageData(0, 30, canvas.width, 60).data).size;
document.querySelector("th:nth-child(3)").click(); document.querySelector("th:nth-child(3)").click();
const sorted = [...document.querySelectorAll("tbody tr")].map(row => row.cells[2].textContent).join(" ");
document.body.insertAdjacentHTML("beforeend", "<pre id=seen></pre>");
document.getElementById("seen").textContent = [tip, colors, sorted].join("|");
</script>"""


def saved(folder: Path, name: str, more: str = "") -> Path:
    page = made_pages.PAGES[name]()
    if more:  # a page lets no other script run than its own
        page = re.sub("<meta http-equiv=[^>]*>", "", page).replace("</body>", f"{more}</body>")
    path = folder / f"{name}.html"
    path.write_text(page)
    return path


@pytest.mark.parametrize("name", ["diagnosis", "top", "tensor", "ranks"])
def test_a_page_says_nothing_on_the_console(name: str, tmp_path: Path) -> None:
    loaded = chromium.load(saved(tmp_path, name))
    assert loaded.console == []
    if name == "tensor":
        counts = "1 NaN (magenta); 1 Infinity (orange); 1 -Infinity (green)"
        assert loaded.text("legend") == f"white to colour: 0 to ±2; {counts}"
        assert re.search(r'<canvas class="heat" id="heat" width="\d+" height="\d+"', loaded.dom)


WIDE = """<script>

document.body.insertAdjacentHTML("beforeend", "<pre id=seen></pre>");
const wide = [...document.body.querySelectorAll("*")].filter(each => each.getBoundingClientRect().right > 400.5);
document.getElementById("seen").textContent = wide.map(each => each.tagName).join(" ") || "fits";
</script>"""


def test_a_diagnosis_is_read_on_400_pixels(tmp_path: Path) -> None:
    page = saved(tmp_path, "diagnosis", WIDE)
    page.write_text(page.read_text().replace("<body>", '<body style="width: 380px; margin: 10px">'))
    loaded = chromium.load(page)
    assert loaded.console == []
    assert loaded.text("seen") == "fits"


def test_an_address_says_what_to_search_and_show(tmp_path: Path) -> None:
    loaded = chromium.load(saved(tmp_path, "timeline"), "#from=0&to=20&search=wrapper_cpu")
    assert loaded.console == []
    assert loaded.text("found") == "2 of 5 dispatches"


def test_a_timeline_is_used(tmp_path: Path) -> None:
    loaded = chromium.load(saved(tmp_path, "timeline", USE))
    assert loaded.console == []
    tip, colors, order = loaded.text("seen").split("|")
    assert "[call] aten::mm" in tip
    assert "AutogradCPU" in tip
    assert int(colors) > 5, "nothing is drawn"
    assert order.split() == ["5.0", "11.0"], "the end of the third was not seen"
    assert ">[call] aten::mm</dd>" in loaded.dom


def test_a_script_that_is_not_ours_does_not_run(tmp_path: Path) -> None:
    page = saved(tmp_path, "top")
    page.write_text(page.read_text().replace("</body>", "<script>document.title = 'taken'</script></body>"))
    loaded = chromium.load(page)
    assert "<title>taken" not in loaded.dom
    assert any("Content Security Policy" in message for message in loaded.console)
