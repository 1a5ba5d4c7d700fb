// What holds the page together: tabs, addresses, keys, theme and token.

import { hasToken, setToken } from "./api.js";
import { $, el, fill, icon, openDialog, set, submitting } from "./dom.js";
import { clockTime } from "./format.js";
import { inspect } from "./inspect.js";
import { addressOf } from "./keys.js";
import { isSimulating, stopSimulation } from "./simulate.js";
import { shown, state } from "./state.js";
import { setRange, timelineTable } from "./timeline.js";

const TABS = ["keys", "inspect", "simulate"];
let redraw = null;

const onClick = (id, act) => $(id).addEventListener("click", act);

export function selectTab(name, focus = false) {
  for (const one of TABS) {
    const isSelected = one === name;
    set($(`tab-${one}`), { "aria-selected": String(isSelected), tabindex: isSelected ? 0 : -1 });
    set($(`panel-${one}`), { hidden: !isSelected });
  }
  if (focus) $(`tab-${name}`).focus();
  redraw();
}

/** The address says what is shown, so that a view can be sent to a colleague. */
function follow() {
  const hash = location.hash.slice(1);
  if (hash.startsWith("key=")) {
    let key = hash.slice(4);
    try {
      key = decodeURIComponent(key);
    } catch {
      // Typed by hand: take it as it is.
    }
    $("dialog").close();
    $("find-key").value = key;
    view("keys");
    selectTab("inspect");
    inspect(key);
  } else if (["keys", "rules", "simulate", ""].includes(hash)) {
    if (document.activeElement !== $("find-key")) $("find-key").value = "";
    view(hash || "now");
    selectTab(hash === "simulate" ? "simulate" : "keys");
  }
}

function view(name) {
  document.documentElement.dataset.view = name;
  for (const link of document.querySelectorAll("[data-goto]")) link.ariaCurrent = link.dataset.goto === name ? "page" : null;
}

function openTab(name) {
  if (name === "inspect") {
    selectTab(name);
    if (!location.hash.startsWith("#key=")) inspect(null);
  } else if (location.hash === `#${name}`) selectTab(name);
  else location.hash = name;
}

function startTabs() {
  TABS.forEach((name, at) => {
    onClick(`tab-${name}`, () => openTab(name));
    $(`tab-${name}`).addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: 2 }[key];
      if (step) selectTab(TABS[(at + step) % TABS.length], true);
    });
  });
  addEventListener("hashchange", follow);
  $("find").onsubmit = submitting(() => {
    const key = $("find-key").value;
    if (key && location.hash === addressOf(key)) follow();
    else if (key) location.hash = addressOf(key);
  });
}

function toggleHold() {
  const { tick, tables } = state;
  state.held = state.held || !tick ? null : { tick, tables };
  set($("hold"), { "aria-pressed": String(state.held !== null) });
  redraw();
}

const usesSingleKeys = () => localStorage.getItem("headgate-keys") !== "off";

function help() {
  const text = $("help-text").content.cloneNode(true);
  const toggle = text.querySelector("input");
  toggle.checked = usesSingleKeys();
  toggle.addEventListener("change", () => localStorage.setItem("headgate-keys", toggle.checked ? "on" : "off"));
  openDialog("Shortcuts and terms", text);
}

function find() {
  if (getComputedStyle($("find")).display === "none") location.hash = "keys";
  setTimeout(() => $("find-key").select());
}

const showTable = () => openDialog(`The last 15 minutes, up to ${clockTime(shown().tick?.at)}`, ...timelineTable());

function startKeys() {
  const acts = {
    "/": find, "?": help, p: toggleHold, t: showTable, 1: () => setRange(60), 5: () => setRange(300), 0: () => setRange(900),
    k: () => openTab("keys"), i: () => openTab("inspect"), s: () => openTab("simulate"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !$("dialog").open) {
      if (isSimulating()) stopSimulation();
      else document.activeElement?.blur();
      return;
    }
    const isTyping = event.target.closest("input, select, textarea, dialog");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !usesSingleKeys() || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
}

function startTheme(onChange) {
  const light = matchMedia("(prefers-color-scheme: light)");
  const { dataset } = document.documentElement;
  const stored = localStorage.getItem("headgate-theme");
  if (stored) dataset.theme = stored;
  onClick("theme", () => {
    dataset.theme = (dataset.theme ?? (light.matches ? "light" : "dark")) === "light" ? "dark" : "light";
    localStorage.setItem("headgate-theme", dataset.theme);
    onChange();
  });
  for (const query of [light, matchMedia("(forced-colors: active)")]) query.addEventListener("change", onChange);
}

/** Ask for a token; /health tells what may be known without one. */
export async function lock({ status, retryAfter }) {
  document.body.classList.add("is-locked");
  set($("locked"), { hidden: false });
  const words = { 401: hasToken() ? "That token is not valid." : "", 403: "That token lacks the viewer role." };
  fill($("token-problem"), words[status] ?? `Too many wrong tokens; wait ${retryAfter} s.`);
  const health = await fetch("/health").then((response) => response.json(), () => null);
  const isWell = health?.status === "ok";
  set($("verdict"), { "data-level": isWell ? "ok" : "warn", hidden: false });
  fill($("verdict"), el("span.mark", icon(isWell ? "ok" : "warn")), el("span", el("b", isWell ? "The service is up." : "The service is up, but has problems."), " To see more, you need a token."));
}

export function unlock() {
  document.body.classList.remove("is-locked");
  set($("locked"), { hidden: true });
  const { you } = state.hello;
  fill(set($("who"), { hidden: !hasToken(), title: "Use another token, and forget this one" }), el("b", you?.name ?? ""), ` ${you?.role ?? ""}`);
  fill($("place"), location.host);
}

function startToken(connect) {
  $("token-form").onsubmit = submitting(() => {
    setToken($("token").value.trim(), $("keep-token").checked);
    $("token").value = "";
    fill($("token-problem"));
    connect();
  });
  onClick("who", () => {
    setToken("", false);
    lock({ status: 401 });
    connect(); // It ends the socket that the token opened.
  });
}

export function startShell({ draw, connect, onTheme }) {
  redraw = draw;
  startTabs();
  startKeys();
  startTheme(onTheme);
  startToken(connect);
  onClick("hold", toggleHold);
  onClick("help", help);
  onClick("dialog-close", () => $("dialog").close());
  onClick("dialog", (event) => event.target === $("dialog") && $("dialog").close());
  onClick("badge", () => ($("badge").ariaExpanded = String($("decisions").classList.toggle("open"))));
  follow();
}
