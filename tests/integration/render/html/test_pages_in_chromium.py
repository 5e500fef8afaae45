"""The pages in a browser: they load without an error, are drawn, and can be searched, zoomed and sorted."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

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


AUDIT = """<script>
const rgb = text => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
const light = color => color.slice(0, 3).map(each => each / 255)
  .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
  .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
const back = each => {
  for (; each; each = each.parentElement) {
    const color = rgb(getComputedStyle(each).backgroundColor);
    if (color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const scrolls = each => { for (; each; each = each.parentElement)
  if (getComputedStyle(each).overflowX !== "visible" && each !== document.body) return true; return false; };
const told = { pale: [], wide: [], sizes: [] };
for (const each of document.body.querySelectorAll("*")) {
  if (/^(script|noscript|style|title)$/i.test(each.tagName) || each.closest("[hidden]")) continue;
  const style = getComputedStyle(each), box = each.getBoundingClientRect();
  if (box.right > 400.5 && !each.closest("svg") && !scrolls(each.parentElement)) told.wide.push(each.tagName);
  if (![...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
  const svg = each.closest("svg");
  const ink = light(rgb(svg ? style.fill : style.color)), paper = light(back(each));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (ratio < 4.5) told.pale.push(`${each.tagName}.${each.className} ${ratio.toFixed(2)}`);
  if (!svg && parseFloat(style.fontSize) < 11) told.sizes.push(each.tagName);
}
told.mode = getComputedStyle(document.body).backgroundColor;
parent.postMessage(JSON.stringify(told), "*");
</script>"""
"""Tells the page around it what is too pale to read (WCAG 2.2, 1.4.3), wider than the window or too small."""
DARK = "@media (prefers-color-scheme: dark)"
GATHER = """<pre id="seen"></pre><script>
const told = {};
onmessage = event => {
  for (const frame of document.querySelectorAll("iframe"))
    if (frame.contentWindow === event.source) told[frame.name] = JSON.parse(event.data);
  document.getElementById("seen").textContent = JSON.stringify(told);
};
</script>"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    """All pages, light and dark, each in a window of 400 pixels: the console, and what each tells of itself."""
    folder = tmp_path_factory.mktemp("pages")
    frames = []
    for name in made_pages.PAGES:
        path = saved(folder, name, AUDIT)
        page = path.read_text()
        assert DARK in page
        for mode, media in (("light", "@media not all"), ("dark", "@media all")):
            (folder / f"{name}-{mode}.html").write_text(page.replace(DARK, media))
            frames.append(f'<iframe name="{name}-{mode}" src="{name}-{mode}.html" width="400" height="800"></iframe>')
    outer = folder / "outer.html"
    outer.write_text(f"<!DOCTYPE html><body>{GATHER}{''.join(frames)}</body>")
    loaded = chromium.load(outer)
    return loaded.console, json.loads(html.unescape(loaded.text("seen")))


def test_pages_say_nothing_on_the_console(read: tuple[list[str], dict[str, Any]]) -> None:
    console, told = read
    assert console == []
    assert set(told) == {f"{name}-{mode}" for name in made_pages.PAGES for mode in ("light", "dark")}


def test_pages_are_read_in_light_and_dark(read: tuple[list[str], dict[str, Any]]) -> None:
    assert {name: each["pale"] for name, each in read[1].items() if each["pale"]} == {}
    assert {each["mode"] for name, each in read[1].items() if name.endswith("light")} == {"rgb(255, 255, 255)"}
    assert "rgb(255, 255, 255)" not in {each["mode"] for name, each in read[1].items() if name.endswith("dark")}


def test_pages_are_read_on_400_pixels(read: tuple[list[str], dict[str, Any]]) -> None:
    assert {name: each["wide"] for name, each in read[1].items() if each["wide"]} == {}
    assert {name: each["sizes"] for name, each in read[1].items() if each["sizes"]} == {}


def test_a_tensor_is_drawn(tmp_path: Path) -> None:
    loaded = chromium.load(saved(tmp_path, "tensor"))
    assert loaded.console == []
    counts = "1 NaN (magenta); 1 Infinity (orange); 1 -Infinity (green)"
    assert loaded.text("legend") == f"white to colour: 0 to ±2; {counts}"
    assert re.search(r'<canvas class="heat" id="heat" width="\d+" height="\d+"', loaded.dom)


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
