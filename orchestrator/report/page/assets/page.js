"use strict";
// Draws the curves of the page from the JSON in it. Nothing here fetches anything.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const controls = document.querySelector(".controls");
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

  function table(series, overTime) {
    const clock = data.runs[series.run].clock;
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
  function marks(chart, overTime) {
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
        const from = Math.max(at(run, first - 1), left);
        const to = Math.min(Math.max(at(run, last), from + 3), left + width);
        if (to > from) u.ctx.rect(from, top, to - from, height);
      }
      u.ctx.fill();
      u.ctx.setLineDash([4, 4]);
      for (const { run } of chart.series) {
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

  function read(u, chart, overTime, out) {
    const i = u.cursor.idx;
    if (i == null) { out.textContent = ""; return; }
    const at = overTime ? duration(u.data[0][i]) : "step " + Math.round(u.data[0][i]).toLocaleString("en-US");
    const values = [];
    for (let s = 1; s < u.data.length; s++) {
      const v = u.data[s][i];
      if (v != null) values.push((data.runs.length > 1 ? data.runs[chart.series[s - 1].run].name + " " : "") + short(v));
    }
    out.textContent = at + ": " + values.join(" · ");
  }

  function draw() {
    plots.splice(0).forEach(u => u.destroy());
    const overTime = controls.elements.axis.value === "time", wantsLog = controls.elements.log.checked;
    const ink = color("--soft"), line = color("--line");
    document.querySelectorAll(".plot").forEach(box => {
      const chart = data.charts[+box.dataset.chart];
      const out = document.querySelector(`[data-reading="${box.dataset.chart}"]`);
      const joined = uPlot.join(chart.series.map(series => table(series, overTime)));
      const positive = chart.series.every(series => series.y.every(v => v == null || v > 0));
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
      const u = new uPlot({
        width: printing ? PAPER : Math.max(box.clientWidth, 200),
        height: 250,
        padding: [8, 26, 0, 0], // the last label of the axis needs room
        scales: { x: { time: false }, y: { distr: wantsLog && positive ? 3 : 1 } },
        axes: [
          { ...axis, size: 34, label: overTime ? "time of the job" : "step", labelSize: 18, labelFont: axis.font, values: (_, ticks) => ticks.map(v => overTime ? duration(v) : short(v)), space: 60 },
          { ...axis, size: (_, ticks) => Math.max(36, 20 + 7 * Math.max(0, ...(ticks ?? []).map(text => text.length))), values: (_, ticks) => ticks.map(v => v == null ? "" : short(v)) },
        ],
        cursor: { drag: { x: true, y: false }, points: { size: 7 } },
        legend: { show: false },
        hooks: { drawClear: [marks(chart, overTime)], setCursor: [u => read(u, chart, overTime, out)] },
        series: [{}, ...chart.series.map(series => ({
          stroke: color("--c" + series.run % 8),
          dash: DASHES[Math.floor(series.run / 8) % DASHES.length],
          width: 1.6,
          spanGaps: false,
          points: { show: series.x.length < 40, size: 5, fill: color("--c" + series.run % 8) },
        }))],
      }, joined, box);
      box.dataset.drawn = String(joined[0].length);
      read(u, chart, overTime, out);
      box.onkeydown = event => {
        const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
        const ends = { Home: 0, End: joined[0].length - 1 }[event.key];
        if (steps === undefined && ends === undefined) return;
        event.preventDefault();
        const last = joined[0].length - 1, now = u.cursor.idx ?? 0;
        const i = Math.min(Math.max(ends ?? now + steps, 0), last);
        u.setCursor({ left: u.valToPos(joined[0][i], "x"), top: u.over.clientHeight / 2 });
      };
      plots.push(u);
    });
  }

  // Of a log, the end is what is looked for.
  document.querySelectorAll("pre.log").forEach(log => {
    const toEnd = () => { log.scrollTop = log.scrollHeight; };
    log.parentElement.addEventListener("toggle", toEnd);
    toEnd();
  });

  if (!controls) return;
  controls.addEventListener("change", draw);
  controls.addEventListener("submit", event => event.preventDefault());
  dark.addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  // On paper everything is light.
  const print = on => () => { printing = on; document.documentElement.classList.toggle("printing", on); draw(); };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  draw();
})();
