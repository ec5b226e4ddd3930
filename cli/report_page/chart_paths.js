// Curves as the paths of SVG.

// An exponential mean without the pull of its first value; weight 0 leaves all as it is.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let mean = 0, share = 0;
  return values.map((value) => {
    mean = mean * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return mean / share;
  });
}

function placeText(x, y) {
  return `${x.toFixed(1)},${y.toFixed(1)}`;
}

// Broken where a value has no place, as on a logarithmic axis.
function linePath(xs, ys, scales) {
  let text = "", open = false;
  for (let i = 0; i < xs.length; ++i) {
    const x = scales.x.at(xs[i]), y = scales.y.at(ys[i]);
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      open = false;
      continue;
    }
    text += (open ? "L" : "M") + placeText(x, y);
    open = true;
  }
  return text;
}

// Between the smallest and the largest values.
function bandPath(xs, lows, highs, scales) {
  const bottom = scales.y.at(scales.y.low);
  const places = (ys) => xs.map((x, i) => {
    const y = scales.y.at(ys[i]);
    return placeText(scales.x.at(x), Number.isFinite(y) ? y : bottom);
  });
  return xs.length ? `M${places(highs).join("L")}L${places(lows).reverse().join("L")}Z` : "";
}

// The index of the value nearest to `wanted`; xs only grow.
function nearestIndex(xs, wanted) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - xs[low - 1] < xs[low] - wanted ? low - 1 : low;
}
