"use strict";
// Sorts tables by the heading that is clicked, and hides the rows that a search does not find.
for (const box of document.querySelectorAll(".searched")) {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const note = box.querySelector(".note"), heads = [...box.querySelectorAll("th[data-sort]")];
  const words = rows.map(row => row.textContent.toLowerCase());

  const search = box.querySelector("input");
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    let shown = 0;
    rows.forEach((row, number) => {
      const found = words[number].includes(wanted);
      row.hidden = !found;
      shown += found;
    });
    note.textContent = wanted ? `${shown} of ${rows.length} rows` : "";
  });

  const value = (row, column) => row.cells[column].textContent;
  const order = {
    number: column => (one, other) => parseFloat(value(other, column)) - parseFloat(value(one, column)),
    text: column => (one, other) => value(one, column).localeCompare(value(other, column)),
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const again = head.dataset.again = head.dataset.again === "no" ? "yes" : "no";
    const sorted = [...rows].sort(order[head.dataset.sort](column));
    if (again === "yes") sorted.reverse();
    for (const other of heads) other.classList.remove("up", "down");
    head.classList.add((again === "yes") === (head.dataset.sort === "number") ? "up" : "down");
    body.append(...sorted);
  }));
}
