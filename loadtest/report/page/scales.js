// Units and scales: numbers to text, data to pixels. Nothing here touches the page.

const three = (value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 99.95) return Math.round(value).toLocaleString("en-US");
  const text = size >= 9.995 ? value.toFixed(1) : size >= 0.1 ? value.toFixed(2) : value.toPrecision(2);
  return text.includes("e") ? text : text.replace(/\.?0+$/, "");
};

const UNITS = {
  duration: (seconds) => {
    if (seconds === 0) return "0";
    if (seconds < 0.9995e-3) return `${three(seconds * 1e6)} µs`;
    if (seconds < 0.9995) return `${three(seconds * 1e3)} ms`;
    return `${three(seconds)} s`;
  },
  clock: (seconds) => {
    if (seconds < 120) return `${three(seconds)} s`;
    const whole = Math.round(seconds), pad = (part) => String(part).padStart(2, "0");
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60)];
    return hours ? `${hours}:${pad(minutes % 60)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
  },
  count: (value) => three(value),
  rate: (value) => three(value),
  // More digits near 1, where a tail is read: 99.9 % is not 100 %.
  share: (value) => `${value > 0.99 && value < 1 ? Math.floor(value * 1e5 + 1e-6) / 1e3 : three(value * 100)} %`,
};

const STEPS = [1, 2, 2.5, 5, 10];
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];
const MANTISSAS = [[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];
const TAIL = [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];

function niceStep(span, most, unit) {
  if (unit === "clock" && span > most) return CLOCK_STEPS.find((step) => span / step <= most) || 14400 * Math.ceil(span / most / 14400);
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.find((one) => one * power >= rough * 0.999) * power;
  return unit === "count" ? Math.max(1, step) : step;
}

function linearTicks(low, high, most, unit) {
  const step = niceStep(high - low, most, unit), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}

function logTicks(low, high, most) {
  let ticks = [];
  for (const mantissas of MANTISSAS) {
    ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const mantissa of mantissas) ticks.push(+(mantissa * 10 ** power).toPrecision(6));
    }
    ticks = ticks.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
    if (ticks.length <= most) return ticks;
  }
  const keep = Math.ceil(ticks.length / most);
  return ticks.filter((_, k) => k % keep === 0);
}

/** A scale from an axis's description and the values on it: `at` gives pixels, `value` goes back, `ticks` are values. */
function makeScale(axis, values, from, to) {
  const room = Math.abs(to - from);
  const most = Math.max(2, Math.floor(room / (to > from ? 78 : 40)));
  const known = values.filter((value) => value !== null && (axis.scale !== "log" || value > 0));
  let low = axis.low ?? (known.length ? Math.min(...limits(known)) : 0);
  let high = axis.high ?? (known.length ? Math.max(...limits(known)) : 1);
  if (axis.scale === "log") {
    low = Math.max(low, 1e-6);
    if (axis.low === null) low /= 1.15;
    if (axis.high === null) high *= 1.15;
    if (high < low * 1.5) [low, high] = [low / 1.5, high * 1.5];
    const [a, b] = [Math.log(low), Math.log(high)];
    const at = (value) => from + ((Math.log(Math.max(value, 1e-9)) - a) / (b - a)) * (to - from);
    return { at, value: (pixel) => Math.exp(a + ((pixel - from) / (to - from)) * (b - a)), ticks: logTicks(low, high, most), low, high };
  }
  if (axis.scale === "tail") {
    const bend = (share) => -Math.log10(1 - Math.min(share, high));
    const span = bend(high) || 1;
    const at = (share) => from + (bend(share) / span) * (to - from);
    return { at, value: (pixel) => 1 - 10 ** (-((pixel - from) / (to - from)) * span), ticks: TAIL.filter((tick) => tick <= high), low, high };
  }
  if (high <= low) high = low + 1;
  if (axis.high === null) {
    const step = niceStep(high - low, most, axis.unit);
    high = Math.ceil(high / step - 1e-9) * step;
  }
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  return { at, value: (pixel) => low + ((pixel - from) / (to - from)) * (high - low), ticks: linearTicks(low, high, most, axis.unit), low, high };
}

/** Smallest and largest in one pass: spreading ten thousand arguments into Math.min breaks some browsers. */
function limits(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
