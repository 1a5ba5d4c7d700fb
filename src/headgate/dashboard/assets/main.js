// The page: frames come in, are remembered, and drawn once a second.

import { measure, palette } from "./chart.js";
import { drawDecisions } from "./decisions.js";
import { Feed } from "./feed.js";
import { drawConnection, drawFigures, drawVerdict } from "./figures.js";
import { startInspector } from "./inspect.js";
import { drawKeys } from "./keys.js";
import { lock, selectTab, startShell, unlock } from "./shell.js";
import { drawSimulator, startSimulator, stopSimulation } from "./simulate.js";
import { announce, setClock, state } from "./state.js";
import { collectRules, drawTables } from "./tables.js";
import { drawBadge, drawTimelineCard, fitRange, startTimeline } from "./timeline.js";

const VERSION = 1;
const PARTS = [drawVerdict, drawFigures, drawBadge, drawTimelineCard, drawDecisions, drawTables, drawKeys, drawSimulator];
let colours = palette();
let isAsked = false;
let wasLost = false;

function draw() {
  if (isAsked || document.hidden) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    measure();
    drawConnection();
    if (document.body.classList.contains("is-locked")) return;
    fitRange();
    for (const drawPart of PARTS) drawPart(colours);
  });
}

const TAKE = {
  hello(frame) {
    state.hello = frame;
    state.history.begin(frame);
    setClock(frame.now);
    unlock();
  },
  tick(frame) {
    if (!state.tick && !frame.traffic.total_requests && !location.hash) selectTab("simulate"); // Newcomers start there.
    state.tick = frame;
    state.history.add(frame);
    setClock(frame.now);
    draw();
  },
  tables(frame) {
    state.tables = frame;
    collectRules(frame);
    if (!state.tick) draw();
  },
};

function onFrame(frame) {
  if (frame.v !== VERSION) location.reload();
  else if (state.hello || frame.type === "hello") TAKE[frame.type]?.(frame); // A second may come before the beginning.
}

function onState() {
  const isLost = state.link.state === "lost";
  if (isLost) stopSimulation();
  if (isLost !== wasLost && state.tick) announce(`The link to the service is ${isLost ? "lost" : "back"}.`);
  wasLost = isLost;
  draw();
}

function onTheme() {
  colours = palette();
  draw();
}

state.link = new Feed({ onFrame, onState, onLocked: lock });
startInspector();
startSimulator();
startTimeline(draw);
startShell({ draw, connect: () => state.link.start(), onTheme });
document.addEventListener("visibilitychange", draw);
state.link.start();
