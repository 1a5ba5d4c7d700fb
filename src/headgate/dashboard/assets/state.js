// What the page knows, for all of its parts.

import { $ } from "./dom.js";
import { History } from "./history.js";

export const state = {
  history: new History(),
  hello: null,
  tick: null,
  tables: null,
  held: null, // {tick, tables}: what is shown while the page is held.
  range: 900, // Seconds on the timeline.
  chosenRange: null,
  closeUpUntil: 0,
  link: null, // The feed.
  offset: null, // The service's clock minus ours.
  simulation: null, // A sentence, while this page simulates.
};

/** What is to be shown: the newest, or what was there when the page was held. */
export const shown = () => state.held ?? state;

/** The service's clock; ours may be wrong. */
export const now = () => (state.offset === null ? 0 : performance.now() / 1000 + state.offset);

export function setClock(at) {
  state.offset = at - performance.now() / 1000;
}

/** The newest second on the timeline. It moves on while nothing is heard, so that the gap can be seen. */
export function lastSecond() {
  const { tick } = shown();
  if (!tick) return state.history.newest ?? Math.floor(now());
  return state.held || state.link.state === "live" ? tick.at : Math.max(tick.at, Math.floor(now()) - 2);
}

export const mayOperate = () => ["operator", "admin"].includes(state.hello?.you?.role);

/** Attributes of a button that only some may use. */
export const forOperators = () => ({ disabled: !mayOperate(), title: mayOperate() ? null : "needs an operator token" });

/** Which node the figures are about, when they are about one alone. */
export const seenAlone = () => (shown().tick?.seen === "node" ? `on ${state.hello?.node ?? "this node"}` : "");

const waiting = [];
let spokenAt = -Infinity;

/** Tell screen readers: one message in five seconds, and of those that wait the newest two. */
export function announce(text) {
  if (!waiting.length) setTimeout(speak, Math.max(0, spokenAt + 5000 - performance.now()));
  waiting.push(text);
  if (waiting.length > 2) waiting.shift();
}

function speak() {
  spokenAt = performance.now();
  $("announcer").textContent = waiting.shift();
  if (waiting.length) setTimeout(speak, 5000);
}
