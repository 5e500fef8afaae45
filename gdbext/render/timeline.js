"use strict";
// Draws the dispatches of a trace: one band for each thread, one lane for each level of nesting in it.
(() => {
  const LANE = 18, GAP = 26, RULER = 22, MOST_PIXELS = 16000, FIELDS = 8;
  const numbers = JSON.parse(document.getElementById("dispatches").textContent);
  const kinds = JSON.parse(document.getElementById("kinds").textContent);
  const canvas = document.getElementById("timeline"), pen = canvas.getContext("2d");
  const tip = document.getElementById("tip"), chosen = document.getElementById("chosen");
  const search = document.getElementById("search"), found = document.getElementById("found");

  // The first number is there only so that all others have a comma before them.
  const count = (numbers.length - 1) / FIELDS;
  const field = (which, each) => numbers[1 + each * FIELDS + which];
  const kindOf = each => kinds[field(0, each)], start = each => field(2, each), took = each => field(3, each);
  // Of one whose end was not seen: how long it may have lasted at most, drawn pale.
  const atMost = each => Math.max(took(each), field(7, each)), end = each => start(each) + atMost(each);

  const threads = new Map();
  let last = 0, first = Infinity;
  for (let each = 0; each < count; each++) {
    const tid = field(1, each), level = field(4, each);
    if (!threads.has(tid)) threads.set(tid, []);
    const lanes = threads.get(tid);
    while (lanes.length < level) lanes.push([]);
    lanes[level - 1].push(each);
    last = Math.max(last, end(each));
    first = Math.min(first, start(each));
  }
  if (!count) first = 0;
  const lanes = [];
  let height = RULER;
  for (const [tid, levels] of threads) {
    levels.forEach((events, level) => lanes.push({ tid, events, level, top: height + 14 + level * LANE }));
    height += GAP + levels.length * LANE;
  }
  height = Math.min(Math.max(height, 60), MOST_PIXELS);

  const view = { from: first, to: Math.max(last, first + 1) };
  let width = 0, matches = null, marked = -1, selected = -1, later = 0;

  const x = time => (time - view.from) / (view.to - view.from) * width;
  const time = pixel => view.from + pixel / width * (view.to - view.from);
  const hues = kinds.map(kind => [...kind[1]].reduce((sum, char) => (sum * 31 + char.codePointAt(0)) % 360, 7));

  function showTime(microseconds) {
    const size = Math.abs(microseconds);
    if (size >= 1e6) return `${(microseconds / 1e6).toFixed(3)} s`;
    return size >= 1e3 ? `${(microseconds / 1e3).toFixed(3)} ms` : `${microseconds.toFixed(1)} µs`;
  }

  // The first event of a lane that ends after a time; a lane's events do not overlap.
  function firstAfter(events, when, low = 0) {
    let high = events.length;
    while (low < high) {
      const middle = low + high >> 1;
      if (end(events[middle]) <= when) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    const scale = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
    pen.scale(scale, scale);
    pen.font = "12px ui-monospace, monospace";
    pen.textBaseline = "middle";
    drawRuler();
    for (const lane of lanes) drawLane(lane);
    clearTimeout(later);
    later = setTimeout(() => history.replaceState(null, "", link()), 300);
  }

  function drawRuler() {
    const span = view.to - view.from, rough = span / Math.max(1, width / 120);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => power * factor >= rough);
    for (let at = Math.ceil(view.from / step) * step; at < view.to; at += step) {
      pen.fillStyle = "#eee";
      pen.fillRect(x(at), 0, 1, height);
      pen.fillStyle = "#666";
      pen.fillText(showTime(at), x(at) + 4, RULER / 2);
    }
  }

  function drawLane({ tid, events, level, top }) {
    if (!level) {
      pen.fillStyle = "#222";
      pen.fillText(`thread ${tid}`, 4, top - 7);
    }
    drawEvents(events, top);
    // Once more, so that what was found is not hidden by a neighbour in the same pixel.
    if (matches) drawEvents(events.filter(each => matches.has(field(0, each))), top);
  }

  function drawEvents(events, top) {
    for (let at = firstAfter(events, view.from); at < events.length; ) {
      const each = events[at], left = Math.max(0, x(start(each)));
      if (left > width) break;
      const right = Math.max(left + 1, Math.min(width, x(end(each))));
      drawDispatch(each, left, right, top);
      // What is narrower than a pixel is drawn once for all that are in it.
      at = Math.max(at + 1, firstAfter(events, time(Math.floor(right)), at));
    }
  }

  function drawDispatch(each, left, right, top) {
    const faint = matches && !matches.has(field(0, each));
    const hue = hues[field(0, each)];
    pen.fillStyle = faint ? "#e8e8e8" : `hsl(${hue} 65% ${kindOf(each)[0].startsWith("re") ? 82 : 72}%)`;
    pen.fillRect(left, top, right - left, LANE - 2);
    if (field(7, each) > took(each)) {
      const known = Math.max(left, x(start(each) + took(each)));
      pen.fillStyle = "rgba(255, 255, 255, .7)";
      pen.fillRect(known, top, Math.max(0, right - known), LANE - 2);
    }
    if (field(5, each) >= 0) {
      pen.fillStyle = `hsl(${hue} 55% 45%)`;
      const from = Math.max(left, x(field(5, each))), to = Math.min(right, x(field(5, each) + field(6, each)));
      pen.fillRect(from, top + LANE - 5, Math.max(0, to - from), 3);
    }
    if (each === selected || each === marked) {
      pen.strokeStyle = "#c00";
      pen.strokeRect(left + .5, top + .5, right - left - 1, LANE - 3);
    }
    if (right - left < 24) return;
    const kind = kindOf(each), label = `${kind[1]} ${kind[2]}`, letters = Math.floor((right - left - 6) / 7.3);
    pen.fillStyle = faint ? "#aaa" : "#111";
    pen.fillText(label.slice(0, letters), left + 3, top + LANE / 2 - 1);
  }

  // --- moving about ---

  function show(from, to) {
    const least = 0.05, span = Math.max(least, Math.min(to - from, last - first || 1));
    view.from = Math.max(first, Math.min(from, last - span));
    view.to = view.from + span;
    draw();
  }

  function zoom(factor, pixel = width / 2) {
    const at = time(pixel), span = (view.to - view.from) * factor;
    show(at - pixel / width * span, at + (1 - pixel / width) * span);
  }

  function move(part) {
    const step = (view.to - view.from) * part;
    show(view.from + step, view.to + step);
  }

  function goTo(each) {
    const room = Math.max(took(each), 0.5);
    show(start(each) - room / 4, end(each) + room / 4);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect(), pixel = event.clientX - box.left, down = event.clientY - box.top;
    const lane = lanes.find(one => down >= one.top && down < one.top + LANE);
    if (!lane) return -1;
    const here = lane.events[firstAfter(lane.events, time(pixel - 1))];
    return here !== undefined && start(here) <= time(pixel + 1) ? here : -1;
  }

  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / width);
    else zoom(1.0015 ** event.deltaY, event.clientX - box.left);
  }, { passive: false });

  let drag = null;
  canvas.addEventListener("pointerdown", event => {
    drag = { pixel: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (!drag) return point(event);
    const way = (event.clientX - drag.pixel) / width * (drag.to - drag.from);
    drag.moved ||= Math.abs(event.clientX - drag.pixel) > 3;
    if (!drag.moved) return undefined;
    canvas.classList.add("drags");
    return show(drag.from - way, drag.to - way);
  });
  canvas.addEventListener("pointerup", event => {
    if (drag && !drag.moved) choose(at(event));
    drag = null;
    canvas.classList.remove("drags");
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", event => { const each = at(event); if (each >= 0) goTo(each); });
  document.getElementById("whole").addEventListener("click", () => show(first, last));
  document.addEventListener("keydown", event => {
    const keys = { "+": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
    if (event.target.tagName !== "INPUT" && keys[event.key]) keys[event.key]();
  });
  window.addEventListener("resize", draw);

  // --- what a dispatch is ---

  function facts(each) {
    const [event, operator, key, keys, kernel, registered] = kindOf(each);
    const inKernel = field(5, each) < 0 ? "" : showTime(field(6, each));
    return [
      ["dispatch", `[${event}] ${operator}`], ["key", key], ["keyset", `DispatchKeySet(${keys})`], ["kernel", kernel],
      ["registered", registered], ["thread", `${field(1, each)}, level ${field(4, each)}`],
      ["began", showTime(start(each))], ["took", `${showTime(took(each))}${field(7, each) ? ", end not seen" : ""}`], ["in its kernel", inKernel],
    ].filter(fact => fact[1]);
  }

  function point(event) {
    const each = at(event);
    tip.hidden = each < 0;
    if (each < 0) return;
    tip.textContent = facts(each).map(([title, words]) => `${title.padEnd(14)}${words}`).join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, Math.max(0, innerWidth - tip.offsetWidth - 8))}px`;
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - 10 - tip.offsetHeight}px`;
  }

  function choose(each) {
    selected = each;
    chosen.replaceChildren(...(each < 0 ? [] : facts(each)).flatMap(([title, words]) => {
      const one = document.createElement("dt"), other = document.createElement("dd");
      one.textContent = title;
      other.textContent = words;
      return [one, other];
    }));
    draw();
  }

  // --- search ---

  function look() {
    const wanted = search.value.trim().toLowerCase();
    marked = -1;
    matches = wanted && new Set([...kinds.keys()].filter(kind => kinds[kind].join("\n").toLowerCase().includes(wanted)));
    let hits = 0;
    if (matches) for (let each = 0; each < count; each++) hits += matches.has(field(0, each));
    found.textContent = matches ? `${hits} of ${count} dispatches` : `${count} dispatches`;
    draw();
  }

  function next() {
    if (!matches || !matches.size) return;
    for (let step = 1; step <= count; step++) {
      const each = (marked + step + count) % count;
      if (!matches.has(field(0, each))) continue;
      marked = each;
      choose(each);
      return goTo(each);
    }
  }

  search.addEventListener("input", look);
  search.addEventListener("keydown", event => { if (event.key === "Enter") next(); });

  // --- links ---

  function link() {
    const words = new URLSearchParams({ from: view.from.toFixed(1), to: view.to.toFixed(1) });
    if (search.value) words.set("search", search.value);
    return `#${words}`;
  }

  const wanted = new URLSearchParams(location.hash.slice(1));
  search.value = wanted.get("search") || "";
  if (wanted.has("to")) Object.assign(view, { from: Number(wanted.get("from")), to: Number(wanted.get("to")) });
  look();
  show(view.from, view.to);
})();
