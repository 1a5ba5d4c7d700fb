// Charts on a canvas. They draw what they are given and keep nothing.
//
// The timeline shows allowed requests above zero and denied ones below, on one linear scale, so that neither hides the
// other and colour is not needed to tell them apart. An unknown second is hatched, never drawn as zero.

export const AXIS = 44; // Room for the labels on the left; the bands below keep the same distance.
const BARS_UP_TO = 120; // Seconds; above that, areas.
const COLOURS = ["line", "control", "ink", "soft", "allow", "deny", "warn", "sliding_window", "token_bucket", "exponential_backoff", "other"];

/** The colours and the font of the theme, from the style sheet; where the system forces colours, that of text, with a fainter grid. */
export function palette() {
  const style = getComputedStyle(document.body);
  const isForced = matchMedia("(forced-colors: active)").matches;
  const forced = (name) => (name === "line" ? `color-mix(in srgb, ${style.color} 25%, transparent)` : style.color);
  const colours = COLOURS.map((name) => [name, isForced ? forced(name) : style.getPropertyValue(`--${name}`)]);
  return { font: `11px ${style.fontFamily}`, ...Object.fromEntries(colours) };
}

/** The smallest of 1, 2, 5, 10, 20 … that needs at most `most` steps for `span`. */
export function niceStep(span, most) {
  const least = Math.max(span / most, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least * 0.999_999);
}

/** How far the scale goes up and down, and its labels. It grows in half steps, so that it rarely moves. */
export function scaleFor(mostUp, mostDown, mostLabels = 4) {
  const up = Math.max(mostUp, mostDown * 0.12, 4);
  const down = Math.max(mostDown, up * 0.1);
  const step = Math.max(1, niceStep(up + down, mostLabels));
  const top = Math.ceil((up * 1.04) / (step / 2)) * (step / 2);
  const bottom = mostDown > 0 ? Math.ceil((down * 1.02) / (step / 4)) * (step / 4) : top * 0.06;
  const labels = [];
  for (let at = -Math.floor(bottom / step); at * step <= top; at += 1) labels.push(at * step);
  return { top, bottom, labels };
}

/** Moments to label between two, at most one in 72 pixels. */
export function timeLabels(from, to, width) {
  const step = [1, 5, 10, 15, 30, 60, 120, 300].find((one) => ((to - from) / one) * 72 <= width) ?? 600;
  const zone = new Date(to * 1000).getTimezoneOffset() * 60;
  const labels = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) labels.push(at);
  return { labels, step };
}

/** At most `many` values, each the largest of its neighbours, so that a spike survives. */
export function thinned(values, many) {
  if (values.length <= many) return values;
  const found = new Array(many).fill(NaN);
  values.forEach((value, at) => {
    const place = Math.floor((at * many) / values.length);
    if (value > found[place] || Number.isNaN(found[place])) found[place] = value;
  });
  return found;
}

/** 500, 1.5k, 2M. */
export function axisLabel(value) {
  const [size, unit] = Math.abs(value) >= 1e6 ? [1e6, "M"] : Math.abs(value) >= 1000 ? [1000, "k"] : [1, ""];
  return `${+(Math.abs(value) / size).toFixed(1)}${unit}`;
}

/** Runs of indices for which `test` holds, as pairs of the first and one past the last. */
export function runs(length, test) {
  const found = [];
  for (let at = 0, begins = -1; at <= length; at += 1) {
    const holds = at < length && test(at);
    if (holds && begins < 0) begins = at;
    if (!holds && begins >= 0) {
      found.push([begins, at]);
      begins = -1;
    }
  }
  return found;
}

const sizeOf = ({ clientWidth, clientHeight }) => [clientWidth, clientHeight];
let sizes = new WeakMap();

/** Look up the sizes of all canvases, before anything is written: after that the browser would lay out the page for each. */
export function measure() {
  sizes = new WeakMap([...document.querySelectorAll("canvas")].map((canvas) => [canvas, sizeOf(canvas)]));
}

/** An empty canvas of the size of its box in real pixels; null if it is not shown. */
function prepared(canvas) {
  const [width, height] = sizes.get(canvas) ?? sizeOf(canvas);
  if (!width || !height) return null;
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function line(context, x1, y1, x2, y2, colour, dashes = []) {
  context.beginPath();
  context.setLineDash(dashes);
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.moveTo(Math.floor(x1) + 0.5, Math.floor(y1) + 0.5);
  context.lineTo(Math.floor(x2) + 0.5, Math.floor(y2) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

function hatch(context, left, right, top, bottom, colour) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  context.globalAlpha = 0.45;
  for (let at = left - (bottom - top) - (left % 7); at < right; at += 7) line(context, at, bottom, at + bottom - top, top, colour);
  context.restore();
}

function bars(context, values, x, y, colour) {
  const width = x(1) - x(0);
  const gap = width > 3 ? Math.min(4, width * 0.35) : 0;
  context.fillStyle = colour;
  values.forEach((value, at) => {
    if (value > 0) context.fillRect(x(at) + gap / 2, Math.min(y(value), y(0)), width - gap, Math.max(1, Math.abs(y(value) - y(0))));
  });
}

/** A line through the known values, and a tint between it and `base`. */
function area(context, values, x, y, base, colour, tint) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1; // A wider line takes several times as long.
  for (const [begin, end] of runs(values.length, (at) => Number.isFinite(values[at]))) {
    context.beginPath();
    for (let at = begin; at < end; at += 1) context.lineTo(x(at), y(values[at]));
    context.stroke();
    context.lineTo(x(end - 1), base);
    context.lineTo(x(begin), base);
    context.globalAlpha = tint;
    context.fill();
    context.globalAlpha = 1;
  }
}

/**
 * Draw a timeline. `allowed` and `denied` hold one number for each second since `from`, NaN where nothing is known;
 * `alone` the pairs of moments in which only this node was seen; `periods` which algorithm decided, as History has it.
 * Returns where moments are, in pixels; null if the canvas is not shown.
 */
export function drawTimeline(canvas, { from, allowed, denied, alone = [], periods = [], cursor = null, axes = true }, colours) {
  const ready = prepared(canvas);
  if (!ready) return null;
  const { context, width, height } = ready;
  const many = allowed.length;
  const [left, top, bottom] = [axes ? AXIS : 0, 6, height - 4];
  const largest = (values) => values.reduce((most, one) => (one > most ? one : most), 0);
  const scale = scaleFor(largest(allowed), largest(denied), height > 220 ? 5 : 4);
  const perSecond = (width - left) / many;
  const x = (at) => left + at * perSecond;
  const xOf = (moment) => Math.min(width, Math.max(left, x(moment - from)));
  const y = (value) => top + ((scale.top - value) / (scale.top + scale.bottom)) * (bottom - top);
  const upright = (at, colour, dashes) => line(context, at, top, at, bottom, colour, dashes);
  const colourOf = ({ algorithm }) => colours[algorithm] ?? colours.other;

  context.globalAlpha = 0.09;
  for (const one of periods) {
    if (one.algorithm === "sliding_window") continue; // The usual algorithm has no tint.
    context.fillStyle = colourOf(one);
    context.fillRect(xOf(one.from), top, xOf(one.to) - xOf(one.from), bottom - top);
  }
  context.globalAlpha = 1;
  if (axes) {
    Object.assign(context, { font: colours.font, textAlign: "right", textBaseline: "middle", fillStyle: colours.soft });
    for (const value of scale.labels) {
      line(context, left, y(value), width, y(value), colours.line);
      context.fillText(axisLabel(value), left - 8, y(value));
    }
    for (const at of timeLabels(from, from + many, width - left).labels) upright(xOf(at), colours.line);
  }
  for (const [begin, end] of runs(many, (at) => !Number.isFinite(allowed[at]))) hatch(context, x(begin), x(end), top, bottom, colours.control);
  for (const [begin, end] of alone) hatch(context, xOf(begin), xOf(end), top, bottom, colours.deny);
  const below = (value) => y(-value);
  const middle = (at) => x(at + 0.5);
  if (many <= BARS_UP_TO) {
    bars(context, allowed, x, y, colours.allow);
    bars(context, denied, x, below, colours.deny);
  } else {
    area(context, allowed, middle, y, y(0), colours.allow, 0.34);
    area(context, denied, middle, below, y(0), colours.deny, 0.34);
  }
  line(context, left, y(0), width, y(0), colours.control);
  for (const one of periods) if (one.from > from && one.isSwitch) upright(xOf(one.from), colourOf(one), [4, 3]);
  if (cursor !== null && cursor >= from && cursor < from + many) upright(middle(cursor - from), colours.ink);
  return { width, xOf, secondAt: (pixel) => from + Math.min(many - 1, Math.max(0, Math.floor((pixel - left) / perSecond))) };
}

/** A small line without axes: `values`, a dashed `threshold`, and a dot at its end. */
export function drawSpark(canvas, values, { colour, soft, threshold = 0, least = 0 }) {
  const ready = prepared(canvas);
  if (!ready) return;
  const { context, width, height } = ready;
  const points = thinned(values, Math.floor(width - 8));
  const top = Math.max(...points.filter(Number.isFinite), least, threshold * 1.15) || 1;
  const x = (at) => (points.length > 1 ? at / (points.length - 1) : 1) * (width - 8);
  const y = (value) => height - 2 - (value / top) * (height - 8);
  if (threshold) line(context, 0, y(threshold), width, y(threshold), soft, [2, 3]);
  area(context, points, x, y, height, colour, 0.14);
  if (!Number.isFinite(points.at(-1))) return;
  context.beginPath();
  context.arc(x(points.length - 1), y(points.at(-1)), 2.2, 0, 7);
  context.fill();
}
