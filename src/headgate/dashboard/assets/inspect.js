// The key inspector: why a key is denied, when it passes, what it has used, and what can be done about it.

import { ask, wordsFor } from "./api.js";
import { $, bar, el, field, fill, icon, keyText, plainKey, reasonField, select, set, submitting, valuesOf } from "./dom.js";
import { algorithmName, clockTime, countdown, duration, momentOf, rateWords, sentence, SPAN_OPTIONS, whole, WINDOW_OPTIONS } from "./format.js";
import { keyButton, recentKeys, remember } from "./keys.js";
import { announce, forOperators, mayOperate, now, state } from "./state.js";

let key = null;
let answer = null;
let timer = 0;

/** Show a key; without one, those that were looked at before. */
export function inspect(wanted) {
  key = wanted || null;
  answer = null;
  clearTimeout(timer);
  set($("no-key"), { hidden: key !== null });
  set($("inspected"), { hidden: key === null });
  if (key === null) {
    fill($("recent"), recentKeys().map((one) => keyButton(one, keyText(one))));
    return;
  }
  remember(key);
  close();
  fill($("inspected-key"), keyText(key));
  fill($("answer"), el("p.soft", "Asking …"));
  $("answer").classList.remove("denied");
  for (const id of ["limits", "settings", "act-result", "explained"]) fill($(id));
  for (const [name, prefix] of [["ip", "ip:"], ["user_id", "user:"]]) $("explain").elements[name].value = key.startsWith(prefix) ? key.slice(prefix.length) : "";
  look();
}

/** Ask again every second while the panel is open. */
async function look() {
  const asked = key;
  clearTimeout(timer);
  if (!$("panel-inspect").hidden && !document.hidden && !state.held) {
    try {
      const got = await ask("GET", `/api/keys/${encodeURIComponent(asked)}`);
      if (asked !== key) return;
      answer = got;
      draw();
    } catch (error) {
      if (asked !== key) return;
      $("answer").classList.add("denied");
      fill($("answer"), el("p", error.status === 503 ? "The store does not answer, so this key's usage is unknown." : wordsFor(error)));
      for (const id of ["limits", "settings"]) fill($(id));
    }
  }
  timer = setTimeout(look, 1000);
}

function draw() {
  const { allowed, passes_after: after, limits, why } = answer;
  const window = Math.max(1, ...limits.filter((one) => !one.allowed).map((one) => one.window));
  const [title, when] = allowed ? ["Allowed", answer.remaining === null ? "" : `${whole(answer.remaining)} left`] : ["Denied", after === null ? "until it is removed" : `passes in ${countdown(after)}`];
  $("answer").classList.toggle("denied", !allowed);
  fill($("answer"),
    el("div.pair", el("h3", title), el("span", when)),
    el("p.break", plainKey(why)),
    !allowed && bar("drain", after === null ? 1 : after / window));
  fill($("limits"), limits.map(limitBlock));
  fill($("settings"), settings());
  for (const button of $("acts").children) set(button, forOperators());
  if (!mayOperate() && !$("act-result").textContent) fill($("act-result"), el("p.soft", "Changes need an operator token; switch tokens at the top right."));
}

function limitBlock(one) {
  const note = !one.enforced ? "shadow: never denies" : one.backoff_level ? `level ${one.backoff_level}` : one.allowed ? "" : "denies";
  return el(one.allowed ? "div.limit" : "div.limit.denied",
    el("div.pair", el("b", one.name), el("span.sub", `${one.said}, ${algorithmName(one.algorithm).toLowerCase()}`)),
    bar("use", one.limit ? one.used / one.limit : 1),
    el("div.pair.sub", el("span", el("b", `${whole(one.used)} of ${whole(one.limit)}`), " used"), el("span", note)),
    one.rights && el("p.sub", sentence(one.rights.said)),
    one.candidates && el("ul.candidates", one.candidates.map(candidate)));
}

function candidate({ algorithm, decides, remaining, allowed, passes_after: after }) {
  const says = allowed ? `${whole(remaining)} left` : after === null ? "denies" : `denies for ${countdown(after)}`;
  return el(decides ? "li.now" : "li", { "data-algorithm": algorithm }, icon(algorithm), el("span", el("b", algorithmName(algorithm)), decides ? " decides" : ""), el("span", says));
}

/** What people have set for the key. */
function settings() {
  const lines = (answer.settings ?? []).map(({ what, by, until, reason, undo, rule }) => {
    const end = until ? `until ${clockTime(momentOf(until))}` : "until it is removed";
    const path = `${pathOf(undo)}?reason=undone%20on%20the%20dashboard${rule ? `&rule=${encodeURIComponent(rule)}` : ""}`;
    const button = el("button.link", { onclick: () => change("DELETE", path, undefined, `${what} is undone.`) }, "Undo");
    return el("p.sub.pair", el("span.break", el("b", what), ` by ${by}, ${end}${reason ? `: ${reason}` : ""}`), undo && mayOperate() ? button : el("span"));
  });
  if (!lines.length) lines.push(el("p.sub", "This key has no ban, override or own limit."));
  if (!answer.complete) lines.push(el("p.sub", "Checks may have named other limits for it that this node does not know."));
  return lines;
}

const pathOf = (kind) => `/api/${kind}/${encodeURIComponent(key)}`;

function close() {
  for (const button of $("acts").children) set(button, { "aria-expanded": "false" });
  fill($("act-form"));
}

function open(button, showForm) {
  const wasOpen = button.getAttribute("aria-expanded") === "true";
  close();
  if (wasOpen) return;
  set(button, { "aria-expanded": "true" });
  showForm();
  $("act-form").querySelector("input, select, button").focus();
}

/** Show a form whose button says what will happen. */
function show(title, fields, label, act) {
  const audited = `As ${state.hello.you?.name || "anybody"}; it goes into the audit log.`;
  const draw = (said) => fill($("act-form"), el("form.box", { onsubmit: submitting(act), oninput: say },
    el("h3", el("b", title)), fields, reasonField(), el("div.pair", el("span.sub.break", audited), el("button.main", { type: "submit" }, said))));
  const say = () => draw(label(valuesOf($("act-form").firstChild)));
  draw("");
  say();
}

function resetForm() {
  const used = answer?.limits.filter((one) => one.used > 0).map((one) => `${whole(one.used)} used of ${one.rule ?? one.said}`) ?? [];
  show("Reset its usage", [el("p.sub", used.length ? `This resets: ${used.join("; ")}.` : "This node knows of no usage.")],
    () => "Reset it", ({ reason }) => change("POST", "/api/reset", { key, reason }, "Its usage is reset."));
}

function overrideForm() {
  const limits = answer?.limits ?? [];
  const known = limits.find((one) => !one.allowed) ?? limits.find((one) => one.rule === null);
  const rules = [...new Set([known?.rule ?? null, null, ...limits.map((one) => one.rule)])];
  const windows = WINDOW_OPTIONS.toSorted(([a], [b]) => (Number(b) === known?.window) - (Number(a) === known?.window));
  const limit = field("limit", "Limit", { type: "number", min: 0, max: 1_000_000_000, required: true, value: known?.limit ?? 100 });
  const what = rules.length > 1 ? select("rule", "Replaces", rules.map((rule) => [rule ?? "", rule ? `the limit of rule ${rule}` : "the limit of checks"])) : el("p.sub", "It applies to checks of this key.");
  show("Set a temporary limit", [what, el("div.fields", limit, select("window", "in", windows), select("ttl", "for", SPAN_OPTIONS))],
    (said) => `Allow ${rateWords(Number(said.limit), Number(said.window))}`,
    (said) => {
      const [limit, window, ttl] = [said.limit, said.window, said.ttl].map(Number);
      return change("PUT", pathOf("overrides"), { limit, window, ttl, reason: said.reason, rule: said.rule || undefined }, `The key is now allowed ${rateWords(limit, window)}.`);
    });
}

function banForm() {
  show("Deny all its requests", [select("ttl", "for", [...SPAN_OPTIONS, ["", "good"]])], ({ ttl }) => `Ban it for ${ttl ? duration(Number(ttl)) : "good"}`,
    ({ ttl, reason }) => change("PUT", pathOf("bans"), { ...(ttl && { ttl: Number(ttl) }), reason }, "It is banned."));
}

/** Nothing is shown as done before the service has said so. */
async function change(method, path, body, done) {
  try {
    let { cursor } = await ask(method, path, body);
    while (cursor) ({ cursor } = await ask(method, path, { ...body, cursor }));
    fill($("act-result"), el("p", `${clockTime(now())} ${done}`));
    announce(done);
    close();
    look();
  } catch (error) {
    fill($("act-result"), el("p.problem", wordsFor(error)));
  }
}

/** What every rule says to a request. */
async function explain(values) {
  const request = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
  try {
    const { allowed, why, trace } = await ask("POST", "/api/explain", { request });
    fill($("explained"), el("p", el("b", allowed ? "Allowed: " : "Denied: "), why), trace.rules.map((one) => el("p.sub.break", el("b", one.rule), ` ${one.outcome}: ${one.why}`)));
  } catch (error) {
    fill($("explained"), el("p.problem", wordsFor(error)));
  }
}

export function startInspector() {
  const forms = [resetForm, overrideForm, banForm];
  [...$("acts").children].forEach((button, at) => button.addEventListener("click", () => open(button, forms[at])));
  $("copy-key").addEventListener("click", () => navigator.clipboard?.writeText(key).then(() => announce("Key copied."), () => {}));
  $("explain").onsubmit = submitting(explain);
}
