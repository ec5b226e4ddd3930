// Pictures of predictions, each sample with its steps.

// Pascal VOC's colours, which the painter uses unless the config names others.
function vocColor(number) {
  const parts = [0, 0, 0];
  for (let bit = 7; number > 0; --bit, number >>= 3) {
    for (let channel = 0; channel < 3; ++channel) parts[channel] |= ((number >> channel) & 1) << bit;
  }
  return `rgb(${parts.join(",")})`;
}

function configValue(run, path) {
  return run.config.find(([key]) => key === path)?.[1] ?? "";
}

function listOf(text) {
  return text.startsWith("[") && text.endsWith("]") ? text.slice(1, -1).split(", ").filter(Boolean) : [];
}

function classLegend(run) {
  const all = Number(configValue(run, "model.num_classes")) || 0, count = Math.min(all, 256);
  if (count === 0) return null;
  const palette = listOf(configValue(run, "default_hooks.visualization.palette"));
  const named = run.config.filter(([key]) => /\.class_names$|^data\.train\.(.*\.)?classes$/.test(key));
  const names = named.map(([, value]) => listOf(value)).find((list) => list.length === count) ?? [];
  const color = (i) => (/^#[0-9a-f]{6}$/i.test(palette[i] ?? "") ? palette[i] : vocColor(i));
  const ignored = configValue(run, "default_hooks.visualization.ignore_index");
  return node("div", { class: "classes" }, "classes:",
    ...Array.from({ length: count }, (_, i) => node("span", {}, swatch(color(i)), names[i] ?? String(i))),
    all > count ? node("span", {}, `and ${all - count} more`) : null,
    ignored ? node("span", {}, node("span", { class: "swatch", style: "background:#fff" }), `ignored (${ignored})`) : null);
}

// Whole multiples of the picture's own pixels, at least 256 on its shorter side.
function enlarge({ target: image }) {
  const factor = Math.max(1, Math.ceil(256 / Math.min(image.naturalWidth, image.naturalHeight)));
  image.style.width = `${image.naturalWidth * factor}px`;
  image.style.height = `${image.naturalHeight * factor}px`;
}

// Shows the picture of a step, or the last one before it.
function pictureFigure(list, ownLegend) {
  const image = node("img", { onload: enlarge, alt: "" });
  const caption = node("figcaption");
  const show = (wanted) => {
    const { pass, sample, step, shrink, legend, png } = list.findLast((picture) => picture.step <= wanted) ?? list[0];
    const name = `${pass}, sample ${sample}, step ${step}`;
    caption.replaceChildren(name, shrink > 1 ? `, at 1/${shrink} of its size` : "",
      ownLegend && legend ? node("div", { class: "note" }, legend) : "");
    image.alt = `prediction of ${name}`;
    image.classList.toggle("shrunk", shrink > 1);
    image.src = `data:image/png;base64,${png}`;
  };
  return { element: node("figure", {}, node("div", { class: "wide" }, image), caption), show };
}

function stepSlider(steps, show) {
  const shown = node("output", {}, `step ${steps.at(-1)}`);
  const slider = node("input", { type: "range", min: 0, max: steps.length - 1, value: steps.length - 1, "aria-label": "step",
    oninput: (event) => {
      const step = steps[Number(event.target.value)];
      shown.value = `step ${step}`;
      show(step);
    } });
  return node("label", { class: "steps" }, "training ", slider, shown);
}

// What of a run's pictures is not shown as it is, and where it lies.
function pictureNotes(run) {
  const { shown, found, unreadable } = run.pictures;
  const shrunk = shown.filter((picture) => picture.shrink > 1).length;
  const notes = [];
  if (found > shown.length) notes.push(`${shown.length || "None"} of ${found} pictures ${shown.length === 1 ? "is" : "are"} shown.`);
  if (shrunk) notes.push(`${shrunk} ${shrunk === 1 ? "is" : "are"} scaled down to keep the page small.`);
  if (unreadable) notes.push(`${unreadable} ${unreadable === 1 ? "is no whole PNG file" : "are no whole PNG files"}.`);
  return notes.length ? node("p", { class: "note" }, [...notes, `All are in ${run.path}/vis_data.`].join(" ")) : null;
}

function runPictures(run, title) {
  const { shown } = run.pictures;
  if (!shown.length) return node("div", {}, title, pictureNotes(run));
  const samples = new Map();
  for (const picture of shown) {
    const key = `${picture.pass} ${picture.sample}`;
    samples.set(key, [...(samples.get(key) ?? []), picture]);
  }
  const steps = [...new Set(shown.map((picture) => picture.step))].sort((a, b) => a - b);
  const legends = [...new Set(shown.map((picture) => picture.legend).filter(Boolean))];
  const figures = [...samples.values()].map((list) => pictureFigure(list, legends.length > 1));
  const show = (step) => figures.forEach((figure) => figure.show(step));
  show(steps.at(-1));
  return node("div", {}, title, pictureNotes(run), legends.length === 1 ? node("p", { class: "note panels" }, legends[0]) : null,
    legends.length ? classLegend(run) : null, steps.length > 1 ? stepSlider(steps, show) : null,
    node("div", { class: "pictures" }, ...figures.map((figure) => figure.element)));
}

function pictureSection(runs) {
  const parts = runs.flatMap((run, index) =>
    (run.pictures.found ? [runPictures(run, runs.length > 1 ? node("h3", {}, runTitle(run, index, runs)) : null)] : []));
  return parts.length ? node("div", {}, ...parts) : null;
}
