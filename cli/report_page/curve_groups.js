// Which curves stand together.

const GROUPS = [
  ["Loss", (name) => /loss/i.test(name) && !/scale/i.test(name)],
  ["Learning rate and schedules", (name) => /^(max_)?lr$|momentum|loss_scale|weight_decay|^beta/i.test(name)],
  ["Throughput", (name) => /(^|_)time$|per_second|^eta$|throughput/i.test(name)],
  ["Memory", (name) => /memory|bytes/i.test(name)],
  ["Gradients and norms", (name) => /grad|norm/i.test(name)],
  ["Metrics", (name, kinds) => kinds.has("val") || kinds.has("test")],
  ["Further values", () => true],
];
const ORDER = ["Loss", "Metrics", "Learning rate and schedules", "Throughput", "Memory", "Gradients and norms", "Further values"];
const UNITS = { time: "s per step", data_time: "s per step", eta: "s", memory: "MB", samples_per_second: "1/s" };

function isCell(name) {
  return name.includes("confusion_");
}

function areTwins(one, other) {
  const same = (name) => one[name].length === other[name].length && one[name].every((value, i) => value === other[name][i]);
  return one.kind === other.kind && same("x") && same("y");
}

// {name: [curve of each run and pass]}
function curvesByName(runs) {
  const byName = new Map();
  runs.forEach((run, index) => {
    for (const curve of run.curves) {
      if (isCell(curve.name)) continue;
      if (!byName.has(curve.name)) byName.set(curve.name, []);
      const list = byName.get(curve.name);
      const isTwin = list.some((other) => areTwins(curve, other));
      list.push({ ...curve, run: index, isTwin, color: runColor(index), label: runs.length > 1 ? run.name : "" });
    }
  });
  return byName;
}

// [[title, [[name, curves]...]]...]
function groupedCurves(runs) {
  const groups = new Map(ORDER.map((title) => [title, []]));
  for (const [name, curves] of curvesByName(runs)) {
    const kinds = new Set(curves.map((curve) => curve.kind));
    const title = GROUPS.find(([, matches]) => matches(name, kinds))[0];
    groups.get(title).push([name, curves]);
  }
  return [...groups].filter(([, list]) => list.length);
}
