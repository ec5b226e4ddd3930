// What graph mode made of the steps: the report that a run has left.

function isPlain(value) {
  return value === null || typeof value !== "object";
}

function plainText(value) {
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

// Single values by dotted name; empty ones say nothing.
function plainRows(value, path = "") {
  if (isPlain(value)) return value === "" || value === null ? [] : [[node("code", {}, path), plainText(value)]];
  if (Array.isArray(value)) return value.length && value.every(isPlain) ? [[node("code", {}, path), value.map(plainText).join(", ")]] : [];
  return Object.entries(value).flatMap(([key, item]) => plainRows(item, path ? `${path}.${key}` : key));
}

// Lists of objects, such as signatures and obstacles, each as a table.
function objectTables(value) {
  return Object.entries(value).filter(([, list]) => Array.isArray(list) && list.length && !list.some(isPlain)).map(([name, list]) => {
    const keys = [...new Set(list.flatMap(Object.keys))].filter((key) => list.some((item) => item[key] !== "" && item[key] !== undefined));
    const cell = (item) => (isPlain(item) ? plainText(item ?? "") : JSON.stringify(item) ?? "");
    return node("div", {}, node("h3", {}, name), table(keys, list.map((item) => keys.map((key) => cell(item[key] ?? "")))));
  });
}

function graphSection(runs) {
  const parts = runs.flatMap((run, index) => {
    if (!run.graph.length) return [];
    return [runs.length > 1 ? node("h3", {}, runTitle(run, index, runs)) : null,
      ...run.graph.flatMap(([name, report]) => [node("p", { class: "note" }, name), table(["what", "value"], plainRows(report)),
        ...objectTables(report)])];
  });
  return parts.length ? node("div", {}, ...parts) : null;
}
