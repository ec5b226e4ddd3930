// Confusion matrices: from the table that the metric logs, or from its cells where they are logged as numbers.

function matrixOfText(text) {
  const rows = text.split("\n").map((line) => line.trim().split(/\s{2,}/));
  if (!text.startsWith("target \\ predicted") || rows.length < 2) return null;
  const columns = rows[0].slice(1);
  const lines = rows.slice(1).map((row) => ({ name: row[0], values: row.slice(1).map(Number) }));
  return lines.every((line) => line.values.length === columns.length) ? { columns, lines } : null;
}

// Cells are named confusion_<target>_<prediction>, all targets in the order of all predictions.
function matrixOfCells(cells) {
  const size = Math.round(Math.sqrt(cells.length));
  if (size < 2 || size * size !== cells.length) return null;
  const prefix = cells[0].name.indexOf("confusion_") + "confusion_".length;
  const names = Array.from({ length: size }, (_, i) => {
    const own = cells[i * size + i].name.slice(prefix);
    return own.slice(0, (own.length - 1) / 2);
  });
  const lines = names.map((name, t) => ({ name, values: names.map((_, p) => cells[t * size + p].y.at(-1) ?? NaN) }));
  return { columns: names, lines };
}

function matricesOf(run) {
  const found = run.texts.map(([name, text]) => ({ name: name.replace(/(^|\/)table$/, "$1confusion matrix"), matrix: matrixOfText(text) })).filter((entry) => entry.matrix);
  const kinds = new Set(run.curves.filter((curve) => isCell(curve.name)).map((curve) => curve.kind));
  for (const kind of found.length ? [] : kinds) {
    const matrix = matrixOfCells(run.curves.filter((curve) => isCell(curve.name) && curve.kind === kind));
    if (matrix) found.push({ name: kind, matrix });
  }
  return found;
}

// The darker, the larger the share of the row's samples.
function matrixTable({ columns, lines }) {
  const rows = lines.map(({ name, values }) => {
    const whole = values.reduce((sum, value) => sum + (value || 0), 0) || 1;
    return node("tr", {}, node("th", {}, name), ...values.map((value) => node("td",
      { style: `background:rgba(var(--cell), ${((value || 0) / whole * 0.55).toFixed(3)})`, title: `${numberText(value / whole * 100)} % of ${name}` },
      numberText(value))));
  });
  return table(["target \\ predicted", ...columns], rows, { class: "matrix" });
}

function matrixSection(runs) {
  const parts = runs.flatMap((run, index) => matricesOf(run).map(({ name, matrix }) =>
    node("div", {}, node("h3", {}, runs.length > 1 ? runTitle(run, index, runs) : null, runs.length > 1 ? ", " : "", name), matrixTable(matrix))));
  return parts.length ? node("div", {}, node("p", { class: "note" }, "Of the last evaluation; a row is what the targets of one class were taken for."), ...parts) : null;
}
