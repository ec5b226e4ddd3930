// The runs at a glance.

function stateCell(run) {
  const said = run.reason && run.reason !== "done" ? run.reason : "";
  return node("td", { class: `state-${run.state.replace(/\W/g, "")}` }, run.state, said ? node("div", { class: "note" }, said.slice(0, 300)) : null);
}

function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? " is" : "s are"}`;
}

function logNotes(run) {
  const notes = [];
  if (run.lines === 0) notes.push("nothing is logged yet");
  if (run.unreadable_lines) notes.push(`${counted(run.unreadable_lines, "unreadable line")} left out of the log (one that a killed process has not finished?)`);
  if (run.earlier_runs) notes.push(`${counted(run.earlier_runs, "earlier run")} left out, with which the log begins`);
  if (run.config_problem) notes.push(run.config_problem);
  return notes.map((note) => node("p", { class: "note" }, `${run.name}: ${note}.`));
}

function runsSection(runs) {
  const number = (text) => node("td", { class: "number" }, text);
  const rows = runs.map((run, index) => [
    node("td", {}, runTitle(run, index, runs), node("div", { class: "origin" }, run.path)), run.mode || "–", stateCell(run),
    number(run.planned_steps ? `${run.step} of ${run.planned_steps}` : String(run.step)), number(String(run.epoch)),
    run.best ? node("td", {}, node("b", {}, numberText(run.best.best)), ` ${run.best.name}`,
      node("div", { class: "origin" }, `at step ${run.best.step}; last ${numberText(run.best.last)}`)) : "–",
    number(typeof run.last_loss === "string" ? run.last_loss : numberText(run.last_loss)), timeText(run.began), number(durationText(run.seconds)),
  ]);
  return node("div", {},
    table(["run", "mode", "state", "steps", "epochs", "best metric", "last loss", "began", "took"], rows),
    ...runs.flatMap(logNotes));
}
