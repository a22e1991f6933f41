// Sorts and filters the table of all runs, which the server renews. A reload keeps how.
(() => {
  const state = { column: -1, down: false, filter: "", ended: true, ...JSON.parse(sessionStorage.getItem("table") ?? "{}") };
  const columns = () => [...document.querySelectorAll("thead button")];
  const names = () => columns().map(button => button.textContent.trim().replace(/\s+/g, "_"));
  const valueOf = (row, column) => {
    const cell = row.children[column], text = cell.dataset.value ?? cell.textContent.trim();
    return text === "" || text === "-" ? null : isNaN(text) ? text : +text;
  };
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const compare = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

  // The conditions of `--filter`, with spaces between them, as functions of a row: `state=fail*`, `cost>2`, or a part of any text.
  function conditions(typed, problems) {
    const parts = typed.toLowerCase().replace(/\s*([!<>]=|[=<>])\s*/g, "$1").match(/(?:"[^"]*"|'[^']*'|\S)+/g) ?? [];
    return parts.map(part => part.replace(/"([^"]*)"|'([^']*)'/g, "$1$2")).map(part => {
      const [, name, how, value] = /^([\w.-]+)([!<>]=|[=<>])(.*)$/.exec(part) ?? [];
      if (!name) return row => row.textContent.toLowerCase().includes(part);
      const column = names().indexOf(name), wanted = value === "" ? NaN : +value, isOrder = /[<>]/.test(how);
      const problem = column < 0 ? `no column ${name}; there are ${names().join(", ")}` : isOrder && isNaN(wanted) ? `${how} compares with a number` : "";
      if (problem) {
        problems.push(problem);
        return () => true;
      }
      const like = new RegExp(`^${value.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".")}$`, "s");
      return row => {
        const found = valueOf(row, column);
        if (typeof found === "number" && !isNaN(wanted)) return compare[how](found, wanted);
        return !isOrder && like.test(found === null ? "" : row.children[column].textContent.trim().toLowerCase()) === (how === "=");
      };
    });
  }

  function show() {
    const body = document.querySelector("tbody"), rows = [...body.rows], problems = [];
    if (state.column >= 0) {
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, state.column), valueOf(other, state.column)];
        return a === null ? (b === null ? 0 : 1) : b === null ? -1 : (state.down ? -1 : 1) * order(a, b);
      });
      body.append(...rows);
    }
    const all = conditions(state.filter, problems);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !all.every(holds => holds(row)) || (!state.ended && row.dataset.ended === "1");
      shown += !row.hidden;
    }
    columns().forEach((button, i) => { // one in which no row has anything needs no room
      const isEmpty = rows.length > 0 && rows.every(row => valueOf(row, i) === null);
      for (const row of [button.closest("tr"), ...rows]) row.children[i].hidden = isEmpty;
      button.closest("th").setAttribute("aria-sort", i !== state.column ? "none" : state.down ? "descending" : "ascending");
    });
    document.querySelector("output").textContent = [`${shown} of ${rows.length} rows`, ...problems].join(" · ");
    document.querySelector("[name=filter]").value = state.filter;
    document.querySelector("[name=ended]").checked = state.ended;
    sessionStorage.setItem("table", JSON.stringify(state));
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
