// What graph mode made of the steps: the report that a run has left, and what it has logged about it.

function isGraphText(name) {
  return /^(graph|explain|capture)/i.test(name);
}

function flatRows(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, String(value)]];
  if (Array.isArray(value) && value.every((item) => item === null || typeof item !== "object")) return [[path, value.length ? value.join(", ") : "none"]];
  return Object.entries(value).flatMap(([key, item]) => flatRows(item, path ? `${path}.${key}` : key));
}

function graphSection(runs) {
  const parts = runs.flatMap((run, index) => {
    const texts = run.texts.filter(([name]) => isGraphText(name));
    if (!run.graph && !texts.length) return [];
    return [...(runs.length > 1 ? [node("h3", {}, runTitle(run, index, runs))] : []),
      run.graph ? table(["", ""], flatRows(run.graph).map(([name, value]) => [node("code", {}, name), value])) : null,
      ...texts.map(([name, text]) => node("div", {}, node("p", { class: "note" }, name), node("pre", {}, text)))];
  });
  return parts.length ? node("div", {}, ...parts) : null;
}
