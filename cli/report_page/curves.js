// All charts and what steers them together.

function curvesSection(runs, mostPoints) {
  const groups = groupedCurves(runs);
  if (!groups.length) return null;
  const view = { axis: "step", smoothing: 0, log: false, cut: false, hidden: new Set() };
  const charts = [];
  const parts = groups.map(([title, list]) => {
    const made = list.map(([name, curves]) => new Chart(UNITS[name] ? `${name}, ${UNITS[name]}` : name, curves, view));
    charts.push(...made);
    const width = `flex:${list.length} 1 ${Math.min(list.length, 4) * 300}px`;
    return node("details", { open: true, class: "group", style: width, ontoggle: () => made.forEach((chart) => chart.draw()) },
      node("summary", {}, title), node("div", { class: "charts" }, ...made.map((chart) => chart.element)));
  });
  const redraw = () => charts.forEach((chart) => chart.draw());
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
  const section = node("div", {}, chartControls(runs, view, charts), thinningNote(runs, mostPoints), node("div", { class: "groups" }, ...parts));
  section.drawAll = redraw;
  return section;
}

function chartControls(runs, view, charts) {
  const redraw = () => charts.forEach((chart) => chart.draw());
  const shown = node("output", {}, "0");
  const smoothing = node("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: 0, oninput: (event) => {
    view.smoothing = Number(event.target.value);
    shown.value = view.smoothing;
    redraw();
  } });
  const toggle = (id, name, text) => node("label", {}, node("input", { type: "checkbox", id, onchange: (event) => {
    view[name] = event.target.checked;
    redraw();
  } }), text);
  const axis = node("select", { id: "axis", onchange: (event) => {
    view.axis = event.target.value;
    charts.forEach((chart) => chart.zoomTo(null));
  } }, node("option", { value: "step" }, "step"), node("option", { value: "time" }, "time"));
  return node("div", { class: "controls" },
    node("label", {}, "smoothing ", smoothing, shown), toggle("log", "log", "log scale"), toggle("cut", "cut", "cut outliers"),
    node("label", {}, "x axis ", axis),
    node("button", { id: "reset", onclick: () => charts.forEach((chart) => chart.zoomTo(null)) }, "reset all"),
    runs.length > 1 ? chartLegend(runs, view, redraw) : null);
}

function chartLegend(runs, view, redraw) {
  return node("div", { class: "legend" }, ...runs.map((run, index) => node("label", {},
    node("input", { type: "checkbox", checked: true, onchange: (event) => {
      if (event.target.checked) view.hidden.delete(index);
      else view.hidden.add(index);
      redraw();
    } }), runTitle(run, index, runs))));
}

function thinningNote(runs, mostPoints) {
  const thinned = runs.some((run) => run.curves.some((curve) => curve.low));
  const left = runs.filter((run) => run.curves_in_log > run.curves.length);
  return node("div", {}, node("p", { class: "note" }, "Drag over a chart to zoom in, double-click to reset. Curves of at most 40 points are not smoothed."),
    thinned ? node("p", { class: "note", id: "thinned" },
      `Long curves are thinned to ${mostPoints} points: each is the mean of its neighbours, the band behind it reaches from `,
      "the smallest to the largest of them. log.jsonl has every value.") : null,
    ...left.map((run) => node("p", { class: "note" },
      `${run.name}: ${run.curves.length} of ${run.curves_in_log} curves are shown.`)));
}
