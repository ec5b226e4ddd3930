function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(5)));
}

// Ticks of one axis share their number of digits.
function tickText(value, step) {
  const size = Math.abs(value);
  const tiny = size > 0 && size < 1e-3 && step < 1e-5;
  if (size >= 1e6 || tiny) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  const digits = step > 0 && step < 1 ? Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)) : 0;
  return value.toFixed(digits);
}

function durationText(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${Math.round(seconds * 10) / 10} s`;
  const two = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return hours > 0 ? `${hours}:${rest} h` : `${rest} min`;
}

// In the reader's own time.
function timeText(iso) {
  const time = new Date(iso);
  return iso && !Number.isNaN(time.getTime()) ? time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : "–";
}
