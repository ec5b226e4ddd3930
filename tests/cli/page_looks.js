// What is wrong with the looks of a report, as lines of text: labels over each other or out of their chart, text that is cut off
// or hard to read on its ground, charts and sections with nothing in them. The value of this expression is the list.
(() => {
  const problems = [];
  const boxOf = (element) => element.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;

  for (const chart of document.querySelectorAll(".chart")) {
    const name = chart.querySelector("b").textContent, svg = chart.querySelector("svg"), frame = boxOf(svg);
    if (!svg.querySelector("path.curve, rect")) problems.push(`${name}: an empty chart`);
    const labels = [...svg.querySelectorAll("text")].map((text) => [text.textContent, boxOf(text)]);
    labels.forEach(([text, box], i) => {
      if (box.height < 9) problems.push(`${name}: '${text}' is too small`);
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) problems.push(`${name}: '${text}' is cut off`);
      for (const [other, place] of labels.slice(0, i)) if (meet(box, place)) problems.push(`${name}: '${text}' lies over '${other}'`);
    });
  }
  for (const section of document.querySelectorAll("section")) {
    if (section.textContent.length < 20 || boxOf(section).height < 60) problems.push(`${section.id}: an empty section`);
  }
  for (const element of document.querySelectorAll("td, th, figcaption, h1, h2, .note, .classes span")) {
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1) problems.push(`'${element.textContent.slice(0, 60)}' is cut off`);
  }
  for (const image of document.images) {
    if (!image.naturalWidth || Math.min(boxOf(image).width, boxOf(image).height) < 256) problems.push(`${image.alt}: no picture, or too small`);
  }

  // Contrast as WCAG 2 has it; a cell's shade of less than the whole lies over the ground below it.
  const numbers = (color) => color.match(/[\d.]+/g).map(Number);
  const groundOf = (element) => {
    if (!element) return [255, 255, 255];
    const [r, g, b, alpha = 1] = numbers(getComputedStyle(element).backgroundColor);
    const below = alpha < 1 ? groundOf(element.parentElement) : [0, 0, 0];
    return [r, g, b].map((level, i) => level * alpha + below[i] * (1 - alpha));
  };
  const light = (rgb) => rgb.slice(0, 3).map((level) => level / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const seen = new Set();
  for (const element of document.querySelectorAll("h1, h2, h3, a, td, th, label, .note, .origin, .kinds, .bar-scale span, .chart text, figcaption, pre")) {
    const style = getComputedStyle(element), text = numbers(element instanceof SVGElement ? style.fill : style.color), ground = groundOf(element);
    const [dark, bright] = [light(text), light(ground)].sort((a, b) => a - b), contrast = (bright + 0.05) / (dark + 0.05);
    const key = `${text} ${ground}`;
    if (contrast < 4.5 && !seen.has(key)) problems.push(`'${element.textContent.slice(0, 30)}' has a contrast of ${contrast.toFixed(1)}`);
    seen.add(key);
  }
  return problems;
})()
