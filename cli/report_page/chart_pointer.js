// What the pointer does on a chart: dragging selects a range, hovering shows the values there.

class ChartPointer {
  constructor(chart) {
    this.chart = chart;
    this.start = null;
    const on = (name, act) => chart.svg.addEventListener(name, act);
    on("pointerdown", (event) => this.down(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.up(event));
    on("pointercancel", () => this.leave());
    on("pointerleave", () => { if (this.start === null) this.leave(); });
    on("dblclick", () => chart.zoomTo(null));
  }

  place(event) {
    const { svg, scales } = this.chart;
    const x = event.clientX - svg.getBoundingClientRect().left;
    return Math.min(Math.max(x, MARGIN.left), scales.width - MARGIN.right);
  }

  down(event) {
    if (event.button !== 0) return;
    this.start = this.place(event);
    this.chart.svg.setPointerCapture(event.pointerId);
    event.preventDefault();
  }

  move(event) {
    const x = this.place(event);
    if (this.start === null) return this.hover(x);
    const left = Math.min(this.start, x);
    this.chart.tip.hidden = true;
    this.chart.marks.replaceChildren(shape("rect", { class: "selection", x: left, width: Math.abs(x - this.start),
      y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom }));
  }

  up(event) {
    if (this.start === null) return;
    const ends = [this.start, this.place(event)].sort((a, b) => a - b);
    this.leave();
    if (ends[1] - ends[0] < 5) return;
    const scale = this.chart.scales.x;
    this.chart.zoomTo([scale.value(ends[0]), scale.value(ends[1])]);
  }

  leave() {
    this.start = null;
    this.chart.tip.hidden = true;
    this.chart.marks.replaceChildren();
  }

  hover(x) {
    const { chart } = this;
    const wanted = chart.scales.x.value(x);
    const found = chart.visible().filter((curve) => curve.y.length).map((curve) => ({ curve, i: nearestIndex(chart.xs(curve), wanted) }));
    if (!found.length) return this.leave();
    chart.marks.replaceChildren(
      shape("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...found.map(({ curve, i }) => this.dot(curve, i)).filter(Boolean));
    chart.tip.replaceChildren(...found.map(({ curve, i }) => this.line(curve, i)));
    chart.tip.hidden = false;
    const width = chart.tip.offsetWidth, room = chart.element.clientWidth;
    chart.tip.style.left = `${x + 24 + width < room ? x + 20 : Math.max(4, x - width - 4)}px`;
  }

  dot(curve, i) {
    const { scales } = this.chart;
    const cx = scales.x.at(this.chart.xs(curve)[i]), cy = scales.y.at(curve.shown[i]);
    return Number.isFinite(cy) ? shape("circle", { cx, cy, r: 4, fill: curve.color }) : null;
  }

  line(curve, i) {
    const value = numberText(curve.y[i]);
    const range = curve.low && curve.low[i] < curve.high[i] ? ` (${numberText(curve.low[i])} to ${numberText(curve.high[i])})` : "";
    const smooth = curve.shown === curve.y ? "" : `, smoothed ${numberText(curve.shown[i])}`;
    return node("div", {}, swatch(curve.color), node("b", {}, value), `${range}${smooth} at step ${curve.x[i]}, `,
      `${curve.kind}${curve.label ? `, ${curve.label}` : ""}`);
  }
}
