// Histograms of one name over the steps: bars of one step at a time.

// The bars are stretched to the chart's width; what is below them is text of the page, which is not.
function drawBars(svg, scale, { edges, counts }) {
  const width = 400, height = 150, most = Math.max(...counts, 1), span = edges.at(-1) - edges[0] || 1;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const place = (edge) => ((edge - edges[0]) / span) * width;
  svg.replaceChildren(
    ...counts.map((count, i) => shape("rect", { x: place(edges[i]), width: Math.max(0.5, place(edges[i + 1]) - place(edges[i]) - 0.5),
      y: height - (count / most) * height, height: (count / most) * height },
    shape("title", {}, `${numberText(edges[i])} to ${numberText(edges[i + 1])}: ${count}`))));
  scale.replaceChildren(...[numberText(edges[0]), `tallest ${numberText(most)}`, numberText(edges.at(-1))].map((text) => node("span", {}, text)));
}

function histogramChart(name, list) {
  const svg = shape("svg", { class: "bars", preserveAspectRatio: "none", role: "img", "aria-label": `histogram of ${name}` });
  const scale = node("div", { class: "bar-scale" });
  const shown = node("span", { class: "kinds" });
  const show = (index) => {
    drawBars(svg, scale, list[index]);
    shown.textContent = `step ${list[index].step}`;
  };
  const slider = node("input", { type: "range", min: 0, max: list.length - 1, value: list.length - 1, "aria-label": "step",
    oninput: (event) => show(Number(event.target.value)) });
  show(list.length - 1);
  return node("div", { class: "chart" }, node("div", { class: "chart-head" }, node("b", {}, name), shown), svg, scale,
    list.length > 1 ? slider : null);
}

function histogramSection(runs) {
  const parts = runs.flatMap((run, index) => {
    const byName = new Map();
    for (const histogram of run.histograms) {
      if (!byName.has(histogram.name)) byName.set(histogram.name, []);
      byName.get(histogram.name).push(histogram);
    }
    if (!byName.size) return [];
    return [...(runs.length > 1 ? [node("h3", {}, runTitle(run, index, runs))] : []),
      node("div", { class: "charts" }, ...[...byName].map(([name, list]) => histogramChart(name, list)))];
  });
  return parts.length ? node("div", {}, ...parts) : null;
}
