// One chart: the curves of one name, of all runs and passes. Dragging zooms in, a double click or the button resets.

const MARGIN = { left: 52, right: 10, top: 8, bottom: 24 };
const HEIGHT = 220;
const FEW = 40;  // points, which are drawn as such and not smoothed
const DASHES = { train: "", val: "6 3", test: "2 3" };

class Chart {
  // curves: [{run, color, kind, x, t, y, low?, high?, bad?}]
  constructor(name, curves, view) {
    this.curves = curves;
    this.view = view;
    this.zoom = null;
    this.reset = node("button", { hidden: true, onclick: () => this.zoomTo(null) }, "reset");
    const kinds = [...new Set(curves.map((curve) => curve.kind))];
    const names = { train: "train ─", val: "val ╌", test: "test ┈" };
    this.svg = shape("svg", { role: "img", "aria-label": `curves of ${name}` });
    this.tip = node("div", { class: "tip", hidden: true });
    this.element = node("div", { class: "chart", "data-name": name },
      node("div", { class: "chart-head" }, node("b", {}, name),
        node("span", { class: "kinds" }, kinds.map((kind) => names[kind] ?? kind).join("  ")), this.reset),
      this.svg, this.tip);
    new ChartPointer(this);
  }

  visible() {
    return this.curves.filter((curve) => !this.view.hidden.has(curve.run));
  }

  xs(curve) {
    return this.view.axis === "time" ? curve.t : curve.x;
  }

  zoomTo(range) {
    this.zoom = range;
    this.reset.hidden = range === null;
    this.draw();
  }

  makeScales() {
    const curves = this.visible();
    const width = this.svg.clientWidth || 480;
    const allX = rangeOf(curves.flatMap((curve) => this.xs(curve)), { room: 0.01 }) ?? [0, 1];
    const [left, right] = this.zoom ?? allX;
    const inside = curves.flatMap((curve) => {
      const xs = this.xs(curve);
      const keep = (values) => values.filter((_, i) => xs[i] >= left && xs[i] <= right);
      return [...keep(curve.y), ...(curve.low ? [...keep(curve.low), ...keep(curve.high)] : [])];
    });
    const range = rangeOf(inside, { log: this.view.log, cut: this.view.cut });
    const [low, high] = range ?? [this.view.log ? 0.1 : 0, 1];
    return {
      empty: range === null, width,
      x: makeScale({ low: left, high: right, from: MARGIN.left, to: width - MARGIN.right }),
      y: makeScale({ low, high, from: HEIGHT - MARGIN.bottom, to: MARGIN.top, log: this.view.log }),
    };
  }

  draw() {
    const scales = (this.scales = this.makeScales());
    this.svg.setAttribute("viewBox", `0 0 ${scales.width} ${HEIGHT}`);
    const clip = `clip${Chart.count = (Chart.count ?? 0) + 1}`;
    const area = { x: MARGIN.left, y: MARGIN.top, width: Math.max(1, scales.width - MARGIN.left - MARGIN.right),
      height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.marks = shape("g");
    this.svg.replaceChildren(
      shape("clipPath", { id: clip }, shape("rect", area)),
      this.drawAxes(scales),
      shape("g", { "clip-path": `url(#${clip})` }, ...this.visible().flatMap((curve) => this.drawCurve(curve, scales))),
      this.marks);
    if (scales.empty) {
      const why = this.visible().length && this.view.log ? "no value above 0 here" : "nothing to show here";
      this.svg.append(shape("text", { x: scales.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, why));
    }
  }

  drawAxes(scales) {
    const parts = [];
    const y = scales.y.ticks(4), x = scales.x.ticks(Math.max(3, Math.floor(scales.width / 100)));
    for (const tick of y.ticks) {
      const place = scales.y.at(tick);
      parts.push(shape("line", { class: "gridline", x1: MARGIN.left, x2: scales.width - MARGIN.right, y1: place, y2: place }));
      parts.push(shape("text", { x: MARGIN.left - 6, y: place + 4, "text-anchor": "end" }, tickText(tick, y.step)));
    }
    for (const tick of x.ticks) {
      const text = this.view.axis === "time" ? durationText(tick) : tickText(tick, x.step);
      const place = scales.x.at(tick), anchor = place > scales.width - 4 * text.length ? "end" : "middle";
      parts.push(shape("text", { x: anchor === "end" ? scales.width : place, y: HEIGHT - 7, "text-anchor": anchor }, text));
    }
    const bottom = HEIGHT - MARGIN.bottom;
    parts.push(shape("line", { class: "axis", x1: MARGIN.left, x2: scales.width - MARGIN.right, y1: bottom, y2: bottom }));
    return shape("g", {}, ...parts);
  }

  drawCurve(curve, scales) {
    // Of two curves that are the same the upper one has gaps, through which the lower one shows.
    const xs = this.xs(curve), parts = [], dash = curve.isTwin ? "9 9" : DASHES[curve.kind];
    const look = (name) => ({ class: name, stroke: curve.color, "stroke-dasharray": dash || undefined });
    if (curve.low) {
      parts.push(shape("path", { class: "band", fill: curve.color, d: bandPath(xs, curve.low, curve.high, scales) }));
    }
    if (this.view.smoothing > 0 && xs.length > FEW) parts.push(shape("path", { ...look("raw"), d: linePath(xs, curve.y, scales) }));
    curve.shown = xs.length > FEW ? smoothed(curve.y, this.view.smoothing) : curve.y;
    parts.push(shape("path", { ...look("curve"), d: linePath(xs, curve.shown, scales) }));
    if (xs.length <= FEW) {
      xs.forEach((x, i) => {
        const place = { cx: scales.x.at(x), cy: scales.y.at(curve.shown[i]) };
        if (Number.isFinite(place.cy)) parts.push(shape("circle", { ...place, r: 2.4, fill: curve.color }));
      });
    }
    for (const [step, seconds, what] of curve.bad ?? []) {
      const x = scales.x.at(this.view.axis === "time" ? seconds : step);
      parts.push(shape("text", { x, y: MARGIN.top + 9, "text-anchor": "middle", style: "fill:var(--bad)" }, what));
    }
    return parts;
  }
}
