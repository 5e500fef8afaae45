"use strict";
// Paints the numbers of a slice: blue below zero, red above it; NaN and infinities in colours of their own.
(() => {
  const data = document.getElementById("slice");
  if (!data) return;
  const { index, rowStep, columnStep, values, hasRows } = JSON.parse(data.textContent);
  const canvas = document.getElementById("heat"), pen = canvas.getContext("2d");
  const tip = document.getElementById("tip"), rows = values.length, columns = values[0].length;
  const cell = Math.max(2, Math.min(24, Math.floor(1024 / columns), hasRows ? Math.floor(1024 / rows) : 24));
  const tall = hasRows ? cell : 40;
  const odd = { NaN: "#c0c", Infinity: "#fa0", "-Infinity": "#0a8" };
  const words = { NaN: "magenta", Infinity: "orange", "-Infinity": "green" };

  const finite = values.flat().filter(value => typeof value === "number");
  const low = finite.reduce((least, value) => Math.min(least, value), Infinity);
  const high = finite.reduce((most, value) => Math.max(most, value), -Infinity);
  const both = low < 0 && high > 0, most = Math.max(Math.abs(low), Math.abs(high)) || 1;

  // How strong the colour is, from 0 to 1: the distance from zero, or from the end of the range that is nearer to it.
  function strength(value) {
    if (both || low === high) return Math.abs(value) / most;
    return (high <= 0 ? high - value : value - low) / (high - low);
  }

  function color(value) {
    if (typeof value === "string") return odd[value];
    const blue = both ? value < 0 : high <= 0;
    return `hsl(${blue ? 215 : 8} 75% ${97 - 55 * strength(value)}%)`;
  }

  canvas.width = columns * cell;
  canvas.height = rows * tall;
  values.forEach((row, down) => row.forEach((value, across) => {
    pen.fillStyle = color(value);
    pen.fillRect(across * cell, down * tall, cell, tall);
  }));

  const counts = Object.keys(odd).map(name => [name, values.flat().filter(value => value === name).length]);
  const others = counts.filter(each => each[1]).map(([name, count]) => `${count} ${name} (${words[name]})`);
  const ends = both ? `0 to ±${most}` : high <= 0 ? `${high} to ${low}` : `${low} to ${high}`;
  const range = !finite.length ? "no finite number" : low === high ? `every number is ${low}` : `white to colour: ${ends}`;
  document.getElementById("legend").textContent = [range, ...others].join("; ");

  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    const across = Math.floor((event.clientX - box.left) / cell), down = Math.floor((event.clientY - box.top) / tall);
    tip.hidden = !(values[down] && values[down][across] !== undefined);
    if (tip.hidden) return;
    const place = [...index, ...(hasRows || index.length ? [down * rowStep] : []), across * columnStep];
    tip.textContent = `[${place.join(", ")}]  ${values[down][across]}`;
    tip.style.left = `${event.clientX + 14}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
})();
