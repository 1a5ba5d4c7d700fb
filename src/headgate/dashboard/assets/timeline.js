// The timeline: requests and denials by the second, bands for the algorithm that decided, and the reason of each switch.

import { AXIS, drawTimeline, timeLabels } from "./chart.js";
import { $, el, fill, icon, set, table } from "./dom.js";
import { algorithmName, clockTime, duration, plural, sentence, shortName, whole } from "./format.js";
import { announce, lastSecond, now, shown, state } from "./state.js";

// The most room that a flag takes, in pixels. On a phone it has no reason, which would cover the plot.
const FLAG = [190, 55];
const SMALL_FLAG = [132, 25];
const PHONE = 500;
let cursor = null; // The second that is pointed at.
let geometry = null;
let knownEpoch = null;
let describedAt = -Infinity;
let redraw = null;

export function drawTimelineCard(colours) {
  if (!state.hello) return;
  const last = lastSecond();
  const from = last - state.range + 1;
  const periods = state.history.periods(from, last + 1);
  const data = {
    from, periods, cursor,
    allowed: state.history.values(last, state.range, "allowed"),
    denied: state.history.values(last, state.range, "denied"),
    alone: state.history.alone.filter(([begin, end]) => end > from && begin <= last),
  };
  geometry = drawTimeline($("canvas"), data, colours) ?? geometry;
  if (!geometry) return;
  drawLegend(data);
  fill($("bands"), periods.map(band));
  drawHours(from, last + 1);
  drawFlags(periods.filter((one) => one.isSwitch && one.began > from));
  drawTip();
  drawEmpty();
  describe(data, last);
}

function drawLegend({ allowed, denied, alone, from }) {
  const at = (shown().tick?.at ?? -1) - from;
  const { started } = state.history;
  fill($("legend"),
    el("span.up", "allowed ", el("b", `${whole(allowed[at])} /s`)), el("span.down", "denied ", el("b", `${whole(denied[at])} /s`)),
    alone.length > 0 && el("span.alone", `${state.hello.node ?? "this node"} alone`), started > from + 1 && el("span", `running since ${clockTime(started)}`));
}

/** The style sheet shows as much of it as fits. */
function band({ from, to, began, epoch, algorithm, reason }) {
  const [left, right] = [geometry.xOf(from) - AXIS, geometry.xOf(to) - AXIS];
  const name = algorithmName(algorithm);
  return el("li", {
    row: epoch, title: `${name}, since ${clockTime(began)}: ${reason}`, style: `left: ${left.toFixed(1)}px; width: ${Math.max(2, right - left).toFixed(1)}px`,
    "data-algorithm": algorithm, "data-from": Math.floor(began),
  }, el("div", icon(algorithm), el("b.brief", shortName(algorithm)), el("b.name", name), el("span", reason)));
}

function drawHours(from, to) {
  const width = geometry.width - AXIS;
  const { labels, step } = timeLabels(from, to, width);
  const places = labels.map((at) => [clockTime(at).slice(0, step < 60 ? 8 : 5), geometry.xOf(at) - AXIS]).filter(([, x]) => x > 16 && x < width - 16);
  fill($("hours"), places.map(([label, x]) => el("span", { style: `left: ${x}px` }, label)));
}

/** On the shortest range the last switches say which algorithm decides, and why, each below the one before. */
function drawFlags(switches) {
  const isSmall = geometry.width < PHONE;
  const [width, height] = isSmall ? SMALL_FLAG : FLAG;
  fill($("flags"), state.range === 60 && switches.slice(-3).map((one, lane) => {
    const right = geometry.xOf(one.from);
    const isLeft = right > geometry.width - width && right > geometry.width / 2;
    const x = Math.round(isLeft ? geometry.xOf(one.from - 3) : right); // What called for the switch stays in sight.
    const style = `left: ${x}px; top: ${2 + height * lane}px; max-width: ${Math.min(width, isLeft ? x : geometry.width - x)}px`;
    return el(isLeft ? "p.left" : "p", { "data-algorithm": one.algorithm, style }, el("b", `${clockTime(one.began)} ${shortName(one.algorithm)}`), !isSmall && el("span", one.reason));
  }));
}

function drawTip() {
  const tip = set($("tip"), { hidden: cursor === null });
  if (cursor === null) return;
  const [allowed, denied] = ["allowed", "denied"].map((name) => state.history.get(cursor, name));
  const rows = Number.isNaN(allowed) ? [["nothing is known", ""]] : [["allowed", whole(allowed)], ["denied", whole(denied)]];
  const period = state.history.periodAt(cursor);
  if (period) rows.push(["decided by", shortName(period.algorithm)]);
  fill(tip, el("b", clockTime(cursor)), rows.map(([name, value]) => el("p", name, el("b", value))));
  const x = geometry.xOf(cursor);
  tip.style.left = `${Math.round(x > geometry.width - 190 ? x - 178 : x + 14)}px`;
}

function drawEmpty() {
  const isEmpty = shown().tick?.traffic.total_requests === 0 && !state.simulation;
  const command = `curl ${location.origin}/check -H 'Content-Type: application/json' \\\n  -d '{"key": "user:42", "limit": 5, "window": 60}'`;
  set($("empty"), { hidden: !isEmpty });
  if (isEmpty) fill($("empty"), el("b", "No requests yet."), el("pre", command), el("p", "or send some: ", el("a", { href: "#simulate" }, "Simulate traffic")));
}

/** Which algorithm decides, and why. */
export function drawBadge() {
  const choice = shown().tick?.choice;
  if (!choice) return;
  const { algorithm, epoch, reason, since, pinned_by: by, pinned_until: until } = choice;
  const badge = set($("badge"), { "data-algorithm": algorithm, "data-epoch": epoch });
  fill(badge, icon(algorithm), el("span", algorithmName(algorithm)));
  const details = by ? [`Pinned by ${by}${until ? ` until ${clockTime(until)}` : ""}.`] : [];
  if (since) details.push(`decides since ${clockTime(since)}, for ${duration(now() - since)}.`);
  details.push(`${plural(state.history.changes(now() - 900), "switch", "switches")} in 15 min.`);
  for (const [id, text] of [["reason", sentence(reason ?? "")], ["since", details.join(" ")]]) fill(set($(id), { title: text }), text);
  if (knownEpoch !== null && epoch > knownEpoch) {
    badge.classList.remove("pulse");
    void badge.offsetWidth; // Restart the animation.
    badge.classList.add("pulse");
    setTimeout(() => badge.classList.remove("pulse"), 5000);
    announce(`${algorithmName(algorithm)} decides now: ${reason}`);
  }
  knownEpoch = epoch;
}

/** The picture in words, every fifteen seconds. */
function describe({ allowed, denied }, last) {
  if (performance.now() - describedAt < 15_000) return;
  describedAt = performance.now();
  const sum = (values) => whole(values.reduce((total, one) => total + (one || 0), 0));
  const choice = shown().tick?.choice;
  const decider = choice ? ` ${algorithmName(choice.algorithm)} decides.` : "";
  const range = plural(Math.round(state.range / 60), "minute");
  set($("canvas"), { "aria-label": `The last ${range} up to ${clockTime(last)}: ${sum(allowed)} allowed, ${sum(denied)} denied.${decider}` });
}

/** The same as a table by minute. */
export function timelineTable() {
  const last = lastSecond();
  const rows = state.history.minutes(last).map(({ minute, allowed, denied, most }) => [clockTime(minute).slice(0, 5), whole(allowed), whole(denied), whole(most)]);
  const periods = state.history.periods(last - 899, Infinity).reverse();
  return [
    el("h3", el("b", "Which algorithm decided")),
    el("ul", periods.map((one) => el("li", el("b", `${clockTime(one.began)} ${algorithmName(one.algorithm)}`), `: ${one.reason}`))),
    table([["Minute"], ["Allowed", ".number"], ["Denied", ".number"], ["Busiest second", ".number"]], rows),
  ];
}

export function startTimeline(draw) {
  redraw = draw;
  const box = $("timeline");
  let spoken = 0;
  const moveTo = (second) => {
    cursor = second;
    redraw();
  };
  box.addEventListener("pointermove", (event) => geometry && moveTo(geometry.secondAt(event.clientX - box.getBoundingClientRect().left)));
  box.addEventListener("pointerleave", () => moveTo(null));
  box.addEventListener("blur", () => moveTo(null));
  box.addEventListener("keydown", (event) => {
    const last = lastSecond();
    const first = last - state.range + 1;
    const step = event.shiftKey ? 10 : 1;
    const at = cursor ?? last;
    const target = { ArrowLeft: at - step, ArrowRight: at + step, Home: first, End: last }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    moveTo(Math.min(last, Math.max(first, target)));
    clearTimeout(spoken);
    spoken = setTimeout(() => ($("announcer").textContent = $("tip").innerText), 300);
  });
  for (const button of rangeButtons) button.addEventListener("click", () => setRange(Number(button.dataset.range)));
  new ResizeObserver(redraw).observe(box);
}

const rangeButtons = document.querySelectorAll("[data-range]");

/** Choose a range. Until somebody does, it grows with what there is to show. */
export function setRange(seconds) {
  state.chosenRange = seconds;
  closeUp(0);
  redraw();
}

/** Show the last minute for so many seconds. */
export function closeUp(seconds) {
  state.closeUpUntil = performance.now() + 1000 * seconds;
}

export function fitRange() {
  if (!state.hello) return;
  const running = now() - (state.history.started ?? 0);
  const range = performance.now() < state.closeUpUntil ? 60 : (state.chosenRange ?? [60, 300].find((one) => running < one) ?? 900);
  if (range === state.range) return;
  state.range = range;
  for (const button of rangeButtons) set(button, { "aria-pressed": String(Number(button.dataset.range) === range) });
}
