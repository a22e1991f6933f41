// Sorts and filters the table of all runs, which the server renews.
(() => {
  const state = { column: -1, down: false, filter: "", ended: true };
  const columns = () => [...document.querySelectorAll("thead button")];
  const valueOf = (row, column) => {
    const cell = row.children[column], text = cell.dataset.value ?? cell.textContent.trim();
    return text === "" || text === "-" ? null : isNaN(text) ? text : +text;
  };
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

  function show() {
    const body = document.querySelector("tbody"), rows = [...body.rows];
    if (state.column >= 0) {
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, state.column), valueOf(other, state.column)];
        return a === null ? (b === null ? 0 : 1) : b === null ? -1 : (state.down ? -1 : 1) * order(a, b);
      });
      body.append(...rows);
    }
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word)) || (!state.ended && row.dataset.ended === "1");
      shown += !row.hidden;
    }
    document.querySelector("output").textContent = `${shown} of ${rows.length} rows`;
    document.querySelector("[name=filter]").value = state.filter;
    document.querySelector("[name=ended]").checked = state.ended;
    columns().forEach((button, i) => button.closest("th").setAttribute("aria-sort", i !== state.column ? "none" : state.down ? "descending" : "ascending"));
  }

  document.addEventListener("input", ({ target }) => {
    if (target.name === "filter") state.filter = target.value;
    if (target.name === "ended") state.ended = target.checked;
    show();
  });
  document.addEventListener("submit", event => event.preventDefault());
  document.addEventListener("click", ({ target }) => {
    const column = columns().indexOf(target.closest("thead button"));
    if (column < 0) return;
    state.down = column === state.column ? !state.down : columns()[column].dataset.down === "1";
    state.column = column;
    show();
  });
  show();
  renew(show);
})();
