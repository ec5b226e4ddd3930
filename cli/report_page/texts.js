// What else the runs have logged as text: the model's summary, tables of metrics.

function textSection(runs) {
  const parts = runs.flatMap((run, index) => run.texts
    .filter(([name, text]) => name !== "runtime_info" && !matrixOfText(text))
    .map(([name, text]) => node("details", { open: runs.length === 1 },
      node("summary", {}, name, runs.length > 1 ? ": " : "", runs.length > 1 ? runTitle(run, index, runs) : null),
      node("pre", {}, text))));
  return parts.length ? node("div", {}, ...parts) : null;
}
