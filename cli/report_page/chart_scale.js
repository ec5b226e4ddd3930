// Where values lie on an axis, and where its ticks are.

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.8) ?? 10;
  return step * power;
}

function linearTicks(low, high, count) {
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && ticks.length < 50; ++i) ticks.push(i * step);
  return { ticks, step };
}

// Powers of ten; what lies between if there are few of them.
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  return inside.length >= 2 ? { ticks: inside, step: 0 } : linearTicks(low, high, 4);
}

// Maps [low, high] to the pixels [from, to].
function makeScale({ low, high, from, to, log = false }) {
  const bent = log ? Math.log10 : (value) => value;
  const a = bent(low), span = bent(high) - a || 1;
  return {
    low, high,
    at: (value) => from + ((bent(value) - a) / span) * (to - from),
    value: (pixel) => {
      const place = a + ((pixel - from) / (to - from)) * span;
      return log ? 10 ** place : place;
    },
    ticks: (count) => (log ? logTicks(low, high) : linearTicks(low, high, count)),
  };
}

// The range of the values with some room around; of one value alone a range around it.
function rangeOf(values, { log = false, cut = false, room = 0.05 } = {}) {
  const used = values.filter((value) => Number.isFinite(value) && (!log || value > 0)).sort((a, b) => a - b);
  if (used.length === 0) return null;
  const at = (share) => used[Math.round((used.length - 1) * share)];
  let low = cut ? at(0.02) : used[0], high = cut ? at(0.98) : used[used.length - 1];
  if (log) {
    const factor = high > low ? (high / low) ** room : 1.5;
    return [low / factor, high * factor];
  }
  const margin = high > low ? (high - low) * room : Math.abs(low) * 0.1 || 1;
  return [low - margin, high + margin];
}
