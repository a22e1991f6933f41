"use strict";
// Draws the curves of the page from the JSON in it. Nothing here fetches anything; `renew`, of a page that is served, does.
(() => {
  let data;
  // What was chosen, apart from the data and the elements: a page that is drawn again keeps it. `off`: the names of runs;
  // `zooms`: what is seen of the x axis, by the name of the chart.
  const state = { axis: "step", log: false, smoothing: 0, off: new Set(), zooms: new Map() };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];
  const PAPER = 640; // pixels that fit a sheet
  const plots = [];
  let printing = false;

  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = v => {
    if (v == null) return "";
    if (Math.abs(v) >= 1000 && Math.abs(v) < 1e9) return Math.round(v).toLocaleString("en-US");
    return v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(3).replace(/\.?0+e/, "e") : String(+v.toPrecision(4));
  };
  const duration = s => s < 60 ? short(s) + " s" : s < 3600 ? short(s / 60) + " m" : short(s / 3600) + " h";

  // The second at which a step ended, between the steps of which it is known.
  function secondsOf(clock, step) {
    const { step: steps, at_s: at } = clock;
    let low = 0, high = steps.length - 1;
    if (step <= steps[0]) return steps[0] ? at[0] * step / steps[0] : at[0];
    if (step >= steps[high]) return at[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return at[low] + (at[high] - at[low]) * (step - steps[low]) / (steps[high] - steps[low]);
  }

  // Only a step has a time: a value that was written without one does not.
  const clockOf = series => series.stepped ? data.runs[series.run].clock : null;
  const isOff = run => data.runs.length > 1 && state.off.has(data.runs[run].name);
  const xName = chart => {
    const stepped = chart.series.filter(series => series.stepped).length;
    return stepped === chart.series.length ? "step" : stepped ? "step or value" : "value";
  };

  // An exponential moving average, without its pull to the first values (TensorBoard's). A hole stays one.
  function smoothed(ys, weight) {
    let sum = 0, left = 1;
    return ys.map(y => {
      if (y == null) return y;
      sum = sum * weight + y * (1 - weight);
      left *= weight;
      return sum / (1 - left);
    });
  }

  function table(series, overTime) {
    const clock = clockOf(series);
    if (overTime && !clock) return [[], []];
    const xs = [], ys = [];
    series.x.forEach((step, i) => {
      const x = overTime ? secondsOf(clock, step) : step;
      if (xs.length && xs[xs.length - 1] === x) { // several values of one step: its lowest and highest are neighbours
        if (series.y[i] == null) return;
        xs.push(x + Math.max(Math.abs(x), 1) * 1e-9); ys.push(series.y[i]);
      } else { xs.push(x); ys.push(series.y[i]); }
    });
    return [xs, ys];
  }

  // Behind the curves: steps that compiled, and steps at which an attempt went on.
  function marks(chart, shown, overTime) {
    return u => {
      const { left, width, top, height } = u.bbox;
      const at = (run, step) => {
        const { clock } = data.runs[run];
        return overTime && !clock ? NaN : u.valToPos(overTime ? secondsOf(clock, step) : step, "x", true);
      };
      u.ctx.save();
      u.ctx.fillStyle = color("--mark-step");
      u.ctx.beginPath(); // one fill, so that the marks of several runs do not add up
      for (const [run, first, last] of chart.marks) {
        if (isOff(run)) continue;
        const from = Math.max(at(run, first - 1), left);
        const to = Math.min(Math.max(at(run, last), from + 3), left + width);
        if (to > from) u.ctx.rect(from, top, to - from, height);
      }
      u.ctx.fill();
      u.ctx.setLineDash([4, 4]);
      for (const { run } of shown.filter(series => series.stepped)) {
        u.ctx.strokeStyle = color(data.runs.length > 1 ? "--c" + run % 8 : "--soft");
        for (const step of data.runs[run].restarts) {
          const x = at(run, step);
          if (x < left || x > left + width) continue;
          u.ctx.beginPath();
          u.ctx.moveTo(x, top);
          u.ctx.lineTo(x, top + height);
          u.ctx.stroke();
        }
      }
      u.ctx.restore();
    };
  }

  function read(u, chart, shown, overTime, out) {
    const i = u.cursor.idx;
    if (i == null || !shown.length) { out.textContent = ""; return; }
    const at = overTime ? duration(u.data[0][i]) : xName(chart) + " " + Math.round(u.data[0][i]).toLocaleString("en-US");
    const values = [];
    shown.forEach(({ run }, s) => {
      const v = u.data[s + 1][i], smooth = u.data[s + 1 + shown.length]?.[i];
      const also = smooth == null ? "" : ` (smoothed ${short(smooth)})`;
      if (v != null) values.push((data.runs.length > 1 ? data.runs[run].name + " " : "") + short(v) + also);
    });
    out.textContent = at + ": " + values.join(" · ");
  }

  function drawChart(box) {
    const chart = data.charts[+box.dataset.chart];
    const [out, note] = ["reading", "note"].map(name => document.querySelector(`[data-${name}="${box.dataset.chart}"]`));
    const shown = chart.series.filter(series => !isOff(series.run));
    const overTime = state.axis === "time" && chart.series.some(clockOf);
    const raw = shown.map(series => table(series, overTime));
    let tables = state.smoothing ? [...raw, ...raw.map(([xs, ys]) => [xs, smoothed(ys, state.smoothing)])] : raw;
    // A logarithm has no place for 0 and less.
    const hasMore = raw.some(([, ys]) => ys.some(y => y != null && y <= 0));
    const isLog = state.log && raw.some(([, ys]) => ys.some(y => y > 0));
    if (isLog) tables = tables.map(([xs, ys]) => [xs, ys.map(y => y > 0 ? y : null)]);
    note.textContent = [
      !state.log || !hasMore ? "" : isLog ? "Values of 0 or less are left out: a logarithmic axis has no place for them." : "No value is above 0, so the axis is linear.",
      state.axis === "time" && chart.series.length && !overTime ? "It is not known when these values were written, so they are drawn one after the other." : "",
    ].filter(Boolean).join(" ");
    const joined = tables.length ? uPlot.join(tables) : [[]];
    const ink = color("--soft"), line = color("--line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const curve = isRaw => series => ({
      stroke: color("--c" + series.run % 8),
      dash: DASHES[Math.floor(series.run / 8) % DASHES.length],
      width: isRaw && state.smoothing ? 1 : 1.6,
      alpha: isRaw && state.smoothing ? 0.3 : 1,
      spanGaps: false,
      points: { show: isRaw && series.x.length < 40, size: 5, fill: color("--c" + series.run % 8) },
    });
    const u = new uPlot({
      width: printing ? PAPER : Math.max(box.clientWidth, 200),
      height: 250,
      padding: [8, 26, 0, 0], // the last label of the axis needs room
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [
        { ...axis, size: 34, label: overTime ? "time of the job" : xName(chart), labelSize: 18, labelFont: axis.font, values: (_, ticks) => ticks.map(v => overTime ? duration(v) : short(v)), space: 60 },
        { ...axis, size: (_, ticks) => Math.max(36, 20 + 7 * Math.max(0, ...(ticks ?? []).map(text => text.length))), values: (_, ticks) => ticks.map(v => v == null ? "" : short(v)) },
      ],
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      legend: { show: false },
      hooks: {
        drawClear: [marks(chart, shown, overTime)],
        setCursor: [u => read(u, chart, shown, overTime, out)],
        setSelect: [({ select: { left, width }, posToVal }) => { if (width) state.zooms.set(chart.name, [posToVal(left, "x"), posToVal(left + width, "x")]); }],
      },
      series: [{}, ...shown.map(curve(true)), ...(state.smoothing ? shown.map(curve(false)) : [])],
    }, joined, box);
    const zoom = state.zooms.get(chart.name);
    if (zoom) u.setScale("x", { min: zoom[0], max: zoom[1] });
    u.over.addEventListener("dblclick", () => state.zooms.delete(chart.name));
    Object.assign(box.dataset, { drawn: joined[0].length, curves: joined.length - 1, x: overTime ? "time" : xName(chart), y: isLog ? "log" : "linear" });
    read(u, chart, shown, overTime, out);
    box.onkeydown = event => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      const ends = { Home: 0, End: joined[0].length - 1 }[event.key];
      if ((steps === undefined && ends === undefined) || !joined[0].length) return;
      event.preventDefault();
      const last = joined[0].length - 1, now = u.cursor.idx ?? 0;
      const i = Math.min(Math.max(ends ?? now + steps, 0), last);
      u.setCursor({ left: u.valToPos(joined[0][i], "x"), top: u.over.clientHeight / 2 });
    };
    plots.push(u);
  }

  // Draws this data, or the same again, into the elements that are there by now, with what was chosen before.
  function draw(found = data) {
    data = found;
    plots.splice(0).forEach(u => u.destroy());
    if (!document.querySelector(".controls")) return; // nothing to draw yet
    const { axis, log, smoothing } = document.querySelector(".controls").elements;
    for (const each of axis) each.checked = each.value === state.axis;
    log.checked = state.log;
    smoothing.value = state.smoothing;
    document.querySelector("output").textContent = state.smoothing ? state.smoothing.toFixed(2) : "off";
    for (const each of document.querySelectorAll("input[name=run]")) each.checked = !isOff(+each.value);
    document.querySelectorAll(".plot").forEach(drawChart);
  }

  function choose({ target }) {
    if (!target.closest(".controls")) return;
    if (target.name === "axis") { state.axis = target.value; state.zooms.clear(); }
    if (target.name === "log") state.log = target.checked;
    if (target.name === "smoothing") state.smoothing = +target.value;
    if (target.name === "run") state.off[target.checked ? "delete" : "add"](data.runs[+target.value].name);
    draw();
  }

  // Of a log, the end is what is looked for.
  const toEnd = log => { log.scrollTop = log.scrollHeight; };
  document.querySelectorAll("pre.log").forEach(toEnd);
  document.addEventListener("toggle", ({ target }) => target.querySelectorAll("pre.log").forEach(toEnd), true);

  document.addEventListener("input", choose);
  document.addEventListener("submit", event => event.preventDefault());
  document.addEventListener("click", ({ target }) => { // all runs on or off
    const on = target.dataset.runs;
    if (!on) return;
    state.off = new Set(on === "on" ? [] : data.runs.map(run => run.name));
    draw();
  });
  dark.addEventListener("change", () => draw());
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  // On paper everything is light.
  const print = on => () => { printing = on; document.documentElement.classList.toggle("printing", on); draw(); };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  const found = page => JSON.parse(page.getElementById("data").textContent);
  draw(found(document));
  renew(page => draw(found(page)));
})();
