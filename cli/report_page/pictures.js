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
  const count = Math.min(Number(configValue(run, "model.num_classes")) || 0, 256);
  if (count === 0) return null;
  const palette = listOf(configValue(run, "default_hooks.visualization.palette"));
  const names = run.config.filter(([key]) => key.endsWith(".class_names")).map(([, value]) => listOf(value)).find((list) => list.length) ?? [];
  const color = (i) => (/^#[0-9a-f]{6}$/i.test(palette[i] ?? "") ? palette[i] : vocColor(i));
  const ignored = configValue(run, "default_hooks.visualization.ignore_index");
  return node("div", { class: "classes" }, "classes:",
    ...Array.from({ length: count }, (_, i) => node("span", {}, swatch(color(i)), names[i] ?? String(i))),
    ignored ? node("span", {}, node("span", { class: "swatch", style: "background:#fff;border:1px solid #888" }), `ignored (${ignored})`) : null);
}

// Whole multiples of the picture's own pixels, at least 256 on its shorter side.
function enlarge(event) {
  const image = event.target;
  const factor = Math.max(1, Math.ceil(256 / Math.min(image.naturalWidth, image.naturalHeight)));
  image.style.width = `${image.naturalWidth * factor}px`;
  image.style.height = `${image.naturalHeight * factor}px`;
  const panels = Math.round(image.naturalWidth / image.naturalHeight);
  const legends = { 3: "Left to right: image, target, prediction.", 2: "Left to right: image, prediction.",
    1: "Frame: green if the class is right, red if not. Below the image: colour of the target on the left, of the prediction on the right." };
  image.closest(".run-pictures").querySelector(".panels").textContent = legends[panels] ?? "";
}

// Shows the picture of a step, or the last one before it.
function pictureFigure(list) {
  const image = node("img", { onload: enlarge, alt: "" });
  const caption = node("figcaption");
  const show = (wanted) => {
    const { pass, sample, step, png } = list.findLast((picture) => picture.step <= wanted) ?? list[0];
    caption.textContent = `${pass}, sample ${sample}, step ${step}`;
    image.alt = `prediction of ${caption.textContent}`;
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

function runPictures(run, title) {
  const { shown, found } = run.pictures;
  const samples = new Map();
  for (const picture of shown) {
    const key = `${picture.pass} ${picture.sample}`;
    samples.set(key, [...(samples.get(key) ?? []), picture]);
  }
  const steps = [...new Set(shown.map((picture) => picture.step))].sort((a, b) => a - b);
  const figures = [...samples.values()].map(pictureFigure);
  const show = (step) => figures.forEach((figure) => figure.show(step));
  show(steps.at(-1));
  return node("div", { class: "run-pictures" }, title,
    found > shown.length ? node("p", { class: "note" }, `${shown.length} of ${found} pictures; all are in ${run.path}/vis_data.`) : null,
    node("p", { class: "panels note" }), classLegend(run), steps.length > 1 ? stepSlider(steps, show) : null,
    node("div", { class: "pictures" }, ...figures.map((figure) => figure.element)));
}

function pictureSection(runs) {
  const parts = runs.flatMap((run, index) =>
    (run.pictures.shown.length ? [runPictures(run, runs.length > 1 ? node("h3", {}, runTitle(run, index, runs)) : null)] : []));
  return parts.length ? node("div", {}, ...parts) : null;
}
