// The traffic simulator: three buttons that show how the limiter decides, and one for your own traffic.

import { send, wordsFor } from "./api.js";
import { drawTimeline } from "./chart.js";
import { $, el, field, fill, icon, submitting } from "./dom.js";
import { algorithmName, capitalised, clockTime, short, shortName, whole } from "./format.js";
import { announce, now, state } from "./state.js";
import { closeUp } from "./timeline.js";

const SHAPES = {
  steady: ["Steady", "5 a second for 5 s"],
  burst: ["Burst", "100 at once"],
  abuse: ["Abuse", "30 a second"],
  own: ["Your own", "rate, length, keys, cost, limit"],
};
const OWN = [["rate", "requests/s", 50, 200], ["seconds", "length in s", 20, 60], ["keys", "keys", 1, 100], ["cost", "cost", 1, 1000], ["limit", "limit", 100, 1e6], ["window", "window in s", 60, 86_400]];
const INTRODUCTION = "Here each key has a limit of 100 requests a minute. Three algorithms count every request, and the one that suits the traffic decides. Press the three buttons in turn and watch.";
const NOTE = "This is real traffic: it is in all figures, and may change the algorithm for all clients. It stops when you leave.";
const REFILLS = " It refills meanwhile, so more than the limit can pass in a minute.";
const OFF = "Simulating needs an operator token, or is turned off here (setting simulator).";
const SECONDS = 60; // On the small chart.

let running = null; // {shape, stop, switched, sent, allowed, denied}, while one runs.
let story = newStory(); // What all runs with one key have done.
let isOwnOpen = false;

/** `results` says how each shape ended, {words, algorithm, isDone}; `log` what happened, {at, algorithm, text}. */
function newStory() {
  const name = crypto.getRandomValues(new Uint32Array(1))[0].toString(36).slice(0, 4).padStart(4, "0");
  return { key: `sim:${name}`, seconds: new Map(), sent: 0, allowed: 0, denied: 0, answer: "", results: {}, log: [] };
}

function tell(text, algorithm) {
  story.log = [...story.log, { at: clockTime(now()), algorithm, text }].slice(-24);
}

function setResult(words, algorithm) {
  story.results[running.shape] = { words, algorithm };
}

/** Send one of the shapes, and follow what the service says about it. */
async function run(shape, own = {}) {
  if (running || !state.hello?.simulator) return;
  const controller = new AbortController();
  running = { shape, stop: () => controller.abort(), switched: false, sent: 0, allowed: 0, denied: 0 };
  closeUp(3600);
  setResult("sending …");
  drawSimulator();
  try {
    const response = await send("POST", "/api/simulate", { shape, key: story.key, ...own }, { signal: controller.signal });
    for await (const event of lines(response.body)) {
      EVENTS[event.type]?.(event);
      drawSimulator();
    }
  } catch (error) {
    ended(error.name === "AbortError" ? { why: "stopped" } : { why: "failed", problem: wordsFor(error) });
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}

function second({ at, sent, allowed, denied, text, answer }) {
  const place = Math.floor(at);
  const [up, down] = story.seconds.get(place) ?? [0, 0];
  story.seconds.set(place, [up + allowed, down + denied]);
  if (story.seconds.size > 2 * SECONDS) story.seconds.delete(story.seconds.keys().next().value);
  for (const one of [story, running]) {
    one.sent += sent;
    one.allowed += allowed;
    one.denied += denied;
  }
  story.answer = answer;
  if (sent) state.simulation = text;
}

function switched({ to, reason, after }) {
  running.switched = true;
  const isFirst = story.log.every((one) => !one.algorithm);
  tell(` decides: ${reason}.${isFirst ? " It had been counting all along, so no count was reset." : ""}${to === "token_bucket" ? REFILLS : ""}`, to);
  setResult(after < 1 ? "switched at once" : `switched in ${short(after)} s`, to);
}

function ended({ why, problem, algorithm = state.tick.choice.algorithm }) {
  const { shape, sent, allowed, denied } = running;
  if (why === "failed") {
    tell(problem ?? "It failed.");
    setResult("failed");
  } else {
    const isStopped = why === "stopped";
    const share = denied === 0 ? "all allowed" : allowed === 0 ? "all denied" : `${whole(allowed)} allowed, ${whole(denied)} denied`;
    tell(`${SHAPES[shape][0]}: ${whole(sent)} sent, ${share}${isStopped ? "; stopped" : ""}.`);
    announce(`Simulation ended: ${whole(sent)} sent, ${share}.`);
    if (!running.switched) setResult(isStopped ? "stopped" : `${shortName(algorithm)} stayed`, algorithm);
    story.results[shape].isDone = !isStopped;
  }
  running = state.simulation = null;
  drawSimulator();
  closeUp(20);
}

const EVENTS = { started: ({ said }) => (story.limit = said), second, switch: switched, ended };

export const stopSimulation = () => running?.stop();

export const isSimulating = () => running !== null;

const isSent = (shape) => running?.shape === shape;
const mayNotSend = (shape) => !state.hello.simulator || (running !== null && !isSent(shape)); // The one that runs keeps the focus.

function shapeButton([shape, [name, about]], at) {
  const { words, algorithm, isDone } = story.results[shape] ?? {};
  const [isRunning, isOwn] = [isSent(shape), shape === "own"];
  return el(`button.sim${isRunning ? ".running" : isDone ? ".done" : ""}`, {
    "data-testid": `sim-${shape}`, "data-algorithm": algorithm, "aria-expanded": isOwn ? String(isOwnOpen) : null,
    disabled: mayNotSend(shape), onclick: () => (isOwn ? toggleOwn() : run(shape)),
  }, el("span.mark", isDone ? icon("ok") : isOwn ? "+" : at + 1), el("span.what", el("b", name), el("div.sub", about)), el("span.result", algorithm && icon(algorithm), words && ` ${words}`));
}

function toggleOwn() {
  isOwnOpen = !isOwnOpen;
  drawSimulator();
}

/** What the form holds stays: writing the same again changes nothing that was typed. */
function ownForm() {
  const fields = OWN.map(([name, label, value, max]) => field(name, label, { type: "number", min: 1, max, value, required: true }));
  const button = el("button.main", { type: "submit", disabled: mayNotSend("own") }, isSent("own") ? "Sending …" : "Send it");
  const send = (values) => run("own", Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)])));
  return el("form.box", { hidden: !isOwnOpen, onsubmit: submitting(send) }, el("div.fields", fields), button);
}

function startOver() {
  story = newStory();
  drawSimulator();
}

function runBox() {
  const button = running ? el("button.plain.bad", { "data-testid": "sim-stop", onclick: stopSimulation }, "Stop") : el("button.link", { onclick: startOver }, "New key");
  const totals = ["sent", "allowed", "denied"].map((name) => el("div", el("dt", capitalised(name)), el("dd", whole(story[name]))));
  return el("div.box.run", el("div.pair", el("h3", el("b", story.limit ? `${story.key}, ${story.limit}` : story.key)), el("span", button)),
    el("canvas", { "aria-hidden": "true" }), el("dl.totals", totals), el("p.sub", story.answer));
}

function logLine({ at, algorithm, text }) {
  return el("p", { row: at + text }, el("time", at), el("span", algorithm && el("b.tone", { "data-algorithm": algorithm }, algorithmName(algorithm)), text));
}

export function drawSimulator(colours) {
  if (!state.hello || $("panel-simulate").hidden) return;
  fill($("panel-simulate"), el("div.pad",
    el("p.soft", !story.sent && INTRODUCTION), el("div.sims", Object.entries(SHAPES).map(shapeButton), ownForm()),
    el("div", (story.sent > 0 || running) && runBox()), el("div.log", { "data-testid": "sim-log", role: "log", "aria-label": "What happened" }, story.log.map(logLine)),
    el("p.sub", state.hello.simulator ? NOTE : OFF)));
  const canvas = $("panel-simulate").querySelector("canvas");
  if (!colours || !canvas) return;
  const from = Math.floor(now()) - SECONDS + 1;
  const column = (at) => Array.from({ length: SECONDS }, (_, second) => story.seconds.get(from + second)?.[at] ?? 0);
  drawTimeline(canvas, { from, allowed: column(0), denied: column(1), axes: false }, colours);
}

export function startSimulator() {
  document.addEventListener("visibilitychange", () => document.hidden && stopSimulation());
  addEventListener("pagehide", stopSimulation);
}
