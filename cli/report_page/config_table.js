// Tables of named texts of all runs side by side: configs with origins, environments.

// lists: of each run, [[name, text, origin?]...]. One that failed before it wrote any differs from none.
function sideBySide(lists) {
  const names = [...new Set(lists.flatMap((list) => list.map(([name]) => name)))];
  const maps = lists.map((list) => new Map(list.map((entry) => [entry[0], entry])));
  const first = maps.find((map) => map.size);
  return names.map((name) => {
    const entries = maps.map((map) => map.get(name));
    const others = maps.map((map) => map.size > 0 && map.get(name)?.[1] !== first.get(name)?.[1]);
    return { name, entries, others, differs: others.some(Boolean) };
  });
}

// A long key breaks after its dots.
function keyText(name) {
  return node("code", {}, ...name.split(/(?<=\.)/).flatMap((part) => [node("wbr"), part]));
}

// Of several runs the origins stand below the values, of one beside them.
function comparisonRow({ name, entries, others, differs }) {
  const cells = entries.map((entry, index) => node("td", { class: others[index] ? "other" : undefined }, node("code", {}, entry ? entry[1] : "–"),
    entries.length > 1 && entry?.[2] ? node("div", { class: "origin" }, entry[2]) : null));
  if (entries.length === 1 && entries[0].length > 2) cells.push(node("td", { class: "origin" }, entries[0][2]));
  return node("tr", { class: differs ? "differs" : undefined }, node("td", {}, keyText(name)), ...cells);
}

function comparisonTable(runs, lists, what) {
  const rows = sideBySide(lists);
  if (!rows.length) return null;
  const lines = rows.map((row) => ({ ...row, line: comparisonRow(row), words: `${row.name} ${row.entries.map((entry) => entry?.[1]).join(" ")}`.toLowerCase() }));
  const count = node("span", { class: "note" });
  const search = node("input", { type: "search", placeholder: "filter", "aria-label": `filter ${what}`, oninput: () => update() });
  const only = node("input", { type: "checkbox", checked: runs.length > 1, onchange: () => update() });
  const hasOrigins = rows.some(({ entries }) => entries.some((entry) => entry?.length > 2));
  const head = runs.length > 1 ? runs.map((run, index) => runTitle(run, index, runs)) : ["value", ...(hasOrigins ? ["origin"] : [])];
  const update = () => {
    for (const { line, words, differs } of lines) {
      line.hidden = !words.includes(search.value.toLowerCase()) || (runs.length > 1 && only.checked && !differs);
    }
    count.textContent = `${lines.filter(({ line }) => !line.hidden).length} of ${lines.length}`;
  };
  update();
  return node("div", {},
    node("p", {}, search, " ", runs.length > 1 ? node("label", {}, only, " differences only ") : null, count),
    table([what, ...head], lines.map(({ line }) => line)));
}

function configSection(runs) {
  return comparisonTable(runs, runs.map((run) => run.config), "key");
}

function environmentSection(runs) {
  return comparisonTable(runs, runs.map((run) => run.environment), "environment");
}
