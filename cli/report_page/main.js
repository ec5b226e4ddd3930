const data = JSON.parse(document.getElementById("data").textContent);

function showPage({ runs, duet, made, most_points: mostPoints }) {
  const title = runs.length === 1 ? runs[0].name : `${runs.length} runs`;
  document.title = `${title} – duet report`;
  document.querySelector("h1").textContent = title;
  const sections = [
    ["runs", runs.length > 1 ? "Runs" : "Run", runsSection(runs)],
    ["curves", "Curves", curvesSection(runs, mostPoints)],
    ["confusion", "Confusion", matrixSection(runs)],
    ["pictures", "Pictures", pictureSection(runs)],
    ["histograms", "Histograms", histogramSection(runs)],
    ["graph", "Graph mode", graphSection(runs)],
    ["config", runs.length > 1 ? "Configs" : "Config", configSection(runs)],
    ["environment", "Environment", environmentSection(runs)],
    ["texts", "Texts", textSection(runs)],
  ].filter(([, , content]) => content);
  document.getElementById("nav").append(...sections.map(([id, name]) => node("a", { href: `#${id}` }, name)));
  document.getElementById("main").replaceChildren(
    ...sections.map(([id, name, content]) => node("section", { id }, node("h2", {}, name), content)));
  document.getElementById("footer").textContent = `Made ${timeText(made)} by duet ${duet}.`;
  for (const [, , content] of sections) content.drawAll?.();
}

showPage(data);
