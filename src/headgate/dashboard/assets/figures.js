// The verdict, the banner and the four figures: whether anything is wrong, in five seconds.

import { drawSpark } from "./chart.js";
import { $, el, emphasised, fill, icon, set, tag } from "./dom.js";
import { clockTime, duration, large, millis, percent, plural, short } from "./format.js";
import { announce, lastSecond, now, seenAlone, shown, state } from "./state.js";

let lastLevel = null;

const asOf = () => `as of ${clockTime(shown().tick?.now)}`;

/** What to say above everything else. */
function verdict() {
  const link = state.link.state;
  if (link === "lost" && state.tick) {
    const text = `Figures are ${asOf()}. The page retries automatically; limits do not depend on this page.`;
    return { level: "bad", text: "The connection to the service is lost", problems: [{ text }] };
  }
  const say = (level, text) => ({ level, text, problems: [] });
  if (link === "late") return say("warn", `Nothing was heard for ${duration(state.link.silence)}. Figures are ${asOf()}.`);
  const told = shown().tick?.verdict;
  if (!told) return link === "lost" ? say("warn", "The service does not answer. The page retries automatically.") : say("none", "Connecting to the service.");
  return state.simulation && told.level !== "bad" ? say("warn", state.simulation) : told;
}

export function drawVerdict() {
  const { level, text, problems } = verdict();
  const rules = (shown().tables?.rules.rows ?? []).map((row) => row.rule);
  const first = text.match(/^[^.]*\.(?=\s|$)/)?.[0] ?? text;
  const [isBad, isWrong] = [level === "bad", level === "bad" || level === "warn"];
  set($("verdict"), { "data-level": level, hidden: isBad });
  fill($("verdict"), el("span.mark", icon(isWrong ? "warn" : "ok")), el("span", el("b", first), emphasised(text.slice(first.length), rules)));
  document.body.classList.toggle("has-banner", isBad);
  set($("banner"), { hidden: !isBad });
  const details = problems.map((one) => one.text).filter((one) => one !== text);
  fill($("banner"), isBad && [el("span.mark", icon("warn")), el("h2", text), el("ul", { "aria-live": "off" }, details.map((one) => el("li", emphasised(one, rules))))]);
  const node = state.hello?.node ? ` · ${state.hello.node}` : "";
  fill(document.querySelector("title"), isWrong ? `${isBad ? "✖" : "▲"} ${first} · Headgate` : `Headgate${node}`);
  if (level === "none") return;
  if (lastLevel !== null && lastLevel !== level) announce(isBad ? text : first);
  lastLevel = level;
}

export function drawConnection() {
  const { state: link, silence, tries, polling } = state.link;
  const held = link === "live" && state.held?.tick.at;
  const at = state.offset === null ? "" : clockTime(now());
  const [words, time] = held ? ["Held", `at ${clockTime(held)}, ${Math.max(0, state.tick.at - held)} s behind`] : {
    connecting: ["Connecting", ""],
    live: [polling ? "Live, every 2 s" : "Live", at],
    late: [`Late, ${Math.floor(silence)} s`, at],
    lost: [`Reconnecting, try ${tries}`, at],
    locked: ["Needs a token", ""],
  }[link];
  set($("connection"), { "data-state": held ? "held" : link });
  fill($("connection"), el("i.dot"), el("b", words), " ", el("time", time));
  const isStale = link === "late" || (link === "lost" && state.tick !== null);
  document.body.classList.toggle("stale", isStale);
  if (isStale) document.body.style.setProperty("--as-of", `"${asOf()}"`);
}

/** Sums over the ten seconds that end with each; the first nine are left out. */
function tens(values) {
  let sum = 0;
  return values.map((value, at) => {
    sum += (value || 0) - (values[at - 10] || 0);
    return Number.isNaN(value) ? NaN : sum;
  }).slice(9);
}

function figure(id, colours, { value, sub, level = "ok", tag: warning, spark, colour = "soft", threshold, least }) {
  const [title, number, canvas, below] = set($(id), { "data-level": level }).children;
  fill(title, title.firstChild.data, tag(warning, `.${level}`));
  fill(number.firstChild, value);
  fill(below, sub);
  const strong = { warn: colours.warn, bad: colours.deny }[level] ?? colours[colour];
  drawSpark(canvas, spark, { colour: strong, soft: colours.soft, threshold, least });
}

export function drawFigures(colours) {
  const { tick, tables } = shown();
  if (!tick) return;
  const { traffic, latency_us: { p50, p95, p99 }, choice, levels = {} } = tick; // Older nodes say less.
  const { req_per_sec: rate, deny_rate: share, burst_ratio: burst, total_requests: total } = traffic;
  const past = (name, more = 0) => state.history.values(lastSecond(), state.range + more, name);
  const [allowed, denied] = [past("allowed", 9), past("denied", 9)];
  const asked = tens(allowed.map((value, at) => value + denied[at]));
  const alone = seenAlone();
  const keys = tables?.blocked.total;
  const { enough, burst: { enter } } = state.hello.thresholds;
  figure("kpi-requests", colours, {
    value: short(rate), sub: alone ? `${alone}, this node` : `${large(total)} in all`,
    spark: asked.map((sum) => sum / 10), least: 5,
  });
  figure("kpi-denied", colours, {
    value: percent(share ?? 0), sub: `${short(rate * share)} /s, ${alone || (keys ? plural(keys, "key") : "no key now")}`,
    spark: tens(denied).map((sum, at) => (asked[at] ? sum / asked[at] : asked[at])), threshold: 0.5, ...levels.denied,
  });
  figure("kpi-burst", colours, {
    value: burst ? burst.toFixed(1) : "–", sub: alone || (burst ? "busiest second to mean" : `under ${enough ?? 20} requests`),
    spark: past("burst_ratio"), threshold: enter, colour: choice.algorithm === "token_bucket" ? "token_bucket" : "soft",
  });
  figure("kpi-latency", colours, {
    value: millis(p99), sub: p99 === null ? "nothing was decided" : `p50 ${millis(p50)}, p95 ${millis(p95)} ms`,
    spark: past("p99_us"), least: 2000, ...levels.latency,
  });
}
