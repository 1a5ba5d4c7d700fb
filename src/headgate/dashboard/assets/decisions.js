// How the algorithm is chosen: the three tests in their order, and how near each is to its threshold.

import { ask, wordsFor } from "./api.js";
import { $, bar, el, fill, icon, make, openDialog, reasonField, select, submitting } from "./dom.js";
import { algorithmName, SPAN_OPTIONS } from "./format.js";
import { announce, forOperators, shown, state } from "./state.js";

const measure = ({ name, leave, text, share }) => [el("div.measure", { title: leave }, el("span", name), el("b", text)), bar("gauge", share)];

export function drawDecisions() {
  const { tick } = shown();
  if (!tick) return;
  const { tests = [], choice: { algorithm: chosen, pinned_by: pinned, agree }, board } = tick;
  const isKept = board?.state === "stale";
  const boxes = tests.map(({ algorithm, when, measures }) => {
    const wins = algorithm === chosen;
    const said = wins ? (pinned ? "pinned" : isKept ? "kept" : "now") : isKept || pinned ? "idle" : when;
    return el(wins ? "div.choice.now" : "div.choice", { "data-algorithm": algorithm },
      el("h3", icon(algorithm), el("b", algorithmName(algorithm)), el("span", said)), measures.flatMap(measure));
  });
  const [follow, up] = agree ?? [1, 1];
  const agreed = isKept ? "It cannot change now." : up === 1 ? "One node decides." : `${follow} of ${up} nodes agree.`;
  const pin = el("button.link.tap", { onclick: pinOrUnpin, ...forOperators() }, pinned ? "Unpin" : "Pin");
  fill($("decisions"), boxes, el("p.agree", el("span", agreed), pin));
}

function pinOrUnpin() {
  if (state.tick.choice.pinned_by) return change("DELETE", "/api/choice/*?reason=unpinned%20on%20the%20dashboard", undefined, "Traffic decides again.");
  const radio = ({ algorithm: value }) => el("label", el("input", { type: "radio", name: "algorithm", value, checked: value === state.tick.choice.algorithm }), icon(value), algorithmName(value));
  const pin = ({ algorithm, ttl, reason }) => change("PUT", "/api/choice/*", { algorithm, ttl: Number(ttl), reason }, `${algorithmName(algorithm)} is pinned.`);
  return openDialog("Pin the algorithm", el("form.pad", { onsubmit: submitting(pin) },
    el("p.soft", "One algorithm decides, whatever the traffic looks like, until this ends or it is unpinned. No count is reset."),
    el("fieldset.choices.box", el("legend", "Algorithm"), state.tick.tests.map(radio)),
    select("ttl", "For", SPAN_OPTIONS.slice(0, 3)), reasonField(), el("button.main", { type: "submit" }, "Pin it")));
}

async function change(method, path, body, done) {
  try {
    await ask(method, path, body);
    announce(done);
    $("dialog").close();
  } catch (error) {
    const problem = el("p.problem", { role: "alert" }, wordsFor(error));
    if ($("dialog").open) $("dialog-body").append(make(problem));
    else openDialog("Nothing was changed", problem);
  }
}
