// Elements are made here alone, and texts become text nodes: nothing from a file is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function node(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function swatch(color) {
  return node("span", { class: "swatch", style: `background:${color}` });
}

// After the chosen ones the hues go round by the golden angle, which never comes back to one.
function runColor(index) {
  return index < 8 ? `var(--run${index})` : `hsl(${((index * 137.508) % 360).toFixed(1)} 60% var(--run-light))`;
}

// A run's name with its colour, if there is more than one run.
function runTitle(run, index, runs) {
  return node("span", {}, runs.length > 1 ? swatch(runColor(index)) : null, run.name);
}

function table(head, rows, attributes = {}) {
  const cells = (tag, row) => row.map((cell) => (cell instanceof HTMLTableCellElement ? cell : node(tag, {}, cell)));
  return node("div", { class: "wide" }, node("table", attributes,
    node("thead", {}, node("tr", {}, ...cells("th", head))),
    node("tbody", {}, ...rows.map((row) => (row instanceof HTMLElement ? row : node("tr", {}, ...cells("td", row)))))));
}
