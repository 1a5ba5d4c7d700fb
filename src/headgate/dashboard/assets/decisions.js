// How the algorithm is chosen: the three tests in their order, and how near each is to its threshold.

import { ask, wordsFor } from "./api.js";
import { $, bar, el, fill, icon, onSubmit, openDialog, reasonField, select } from "./dom.js";
import { algorithmName, percent, short, SPAN_OPTIONS } from "./format.js";
import { announce, forOperators, shown, state } from "./state.js";

// By algorithm: the word before its test, and what is measured: [name, value, threshold, text].
const TESTS = {
  exponential_backoff: ["if both", [
    ["denied", (traffic) => traffic.deny_rate, "abuse", (share) => `${percent(share)} %`],
    ["requests", (traffic) => traffic.req_per_sec, "abuse_rate", (rate) => `${short(rate)} /s`],
  ]],
  token_bucket: ["else, if", [["burst ratio", (traffic) => traffic.burst_ratio, "burst", (ratio) => (ratio ? ratio.toFixed(1) : "–")]]],
  sliding_window: ["else", []],
};

function measure([name, valueOf, threshold, text], traffic) {
  const { enter, leave } = state.hello.thresholds[threshold];
  const [above, below] = [enter, leave].map((one) => text(one).replace(".0", ""));
  const value = valueOf(traffic);
  return [el("div.measure", { title: `left below ${below}` }, el("span", `${name}, above ${above}`), el("b", text(value))), bar("gauge", value / enter / 2)];
}

export function drawDecisions() {
  const { tick } = shown();
  if (!tick) return;
  const { traffic, choice: { algorithm: chosen, pinned_by: pinned, agree }, board } = tick;
  const isKept = board?.state === "stale";
  const boxes = Object.entries(TESTS).map(([algorithm, [word, measures]]) => {
    const wins = algorithm === chosen;
    const said = wins ? (pinned ? "pinned" : isKept ? "kept" : "now") : isKept || pinned ? "idle" : word;
    return el(wins ? "div.choice.now" : "div.choice", { "data-algorithm": algorithm },
      el("h3", icon(algorithm), el("b", algorithmName(algorithm)), el("span", said)), measures.flatMap((one) => measure(one, traffic)));
  });
  const [follow, up] = agree ?? [1, 1];
  const agreed = isKept ? "It cannot change now." : up === 1 ? "One node decides." : `${follow} of ${up} nodes agree.`;
  const pin = el("button.link.tap", { onclick: pinOrUnpin }, pinned ? "Unpin" : "Pin");
  fill($("decisions"), boxes, el("p.agree", el("span", agreed), forOperators(pin)));
}

function pinOrUnpin() {
  if (state.tick.choice.pinned_by) return change("DELETE", "/api/choice/*?reason=unpinned%20on%20the%20dashboard", undefined, "Traffic decides again.");
  const radio = (name) => el("label", el("input", { type: "radio", name: "algorithm", value: name, checked: name === state.tick.choice.algorithm }), icon(name), algorithmName(name));
  const form = el("form.pad",
    el("p.soft", "One algorithm decides, whatever the traffic looks like, until this ends or it is unpinned. No count is reset."),
    el("fieldset.choices.box", el("legend", "Algorithm"), Object.keys(TESTS).map(radio)),
    select("ttl", "For", SPAN_OPTIONS.slice(0, 3)), reasonField(), el("button.main", { type: "submit" }, "Pin it"));
  onSubmit(form, ({ algorithm, ttl, reason }) => change("PUT", "/api/choice/*", { algorithm, ttl: Number(ttl), reason }, `${algorithmName(algorithm)} is pinned.`, form));
  return openDialog("Pin the algorithm", form);
}

async function change(method, path, body, done, form) {
  try {
    await ask(method, path, body);
    announce(done);
    $("dialog").close();
  } catch (error) {
    const problem = el("p.problem", { role: "alert" }, wordsFor(error));
    if (form) form.append(problem);
    else openDialog("It was not changed", problem);
  }
}
