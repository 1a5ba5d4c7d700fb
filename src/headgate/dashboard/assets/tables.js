// Rules, and nodes with what they depend on. Only what is out of the ordinary has colour.

import { drawSpark } from "./chart.js";
import { $, el, fill, icon, openDialog, set, table, tag } from "./dom.js";
import { algorithmName, duration, millis, percent, plural, short } from "./format.js";
import { shown, state } from "./state.js";

const COLUMNS = [["Rule"], ["Counted by", ".optional-2"], ["Allowed /s", ".number"], ["Denied /s", ".number"], ["Share", ".number"], ["Last minute", ".optional-1"]];
const MINUTE = 30; // Tables come every two seconds.
const minutes = new Map(); // By rule: denials a second, over the last minute.
let drawn = {}; // The tables and the colours that are drawn.

/** All rules by denials; checks that name no rule are one more. What a shadow rule would deny counts too. */
function ruleRows({ checks, rules }) {
  const plain = { rule: null, limit: "what each check names", by: "key", algorithm: shown().tick?.choice.algorithm, adaptive: true, mode: "enforced", ...checks };
  return [...(plain.allowed + plain.denied > 0 ? [plain] : []), ...rules.rows]
    .map((row) => {
      const isShadow = row.mode === "shadow";
      const denials = isShadow ? row.shadow_denied : row.denied;
      const share = denials / (isShadow ? Math.max(row.allowed, denials) : row.allowed + denials) || 0;
      const isHot = !isShadow && share >= 0.1 && denials >= 1;
      return { ...row, name: row.rule ?? "checks without a rule", all: row.denied + (row.shadow_denied ?? 0), isShadow, denials, share, isHot };
    })
    .sort((a, b) => b.all - a.all || b.allowed - a.allowed);
}

/** One row of the rules. Without `isWhole` it has no last column, and moves at once when rows are sorted. */
function ruleRow(row, isWhole = true) {
  const { rule, name, limit, by, mode, algorithm, adaptive, choice, gives, isShadow, denials } = row;
  const about = `${limit}, by ${String(by).replaceAll("_", " ").replace("ip address", "IP address")}`;
  const chosen = adaptive && (choice?.pinned_by ? `pinned by ${choice.pinned_by}` : "chosen by adaptive");
  return el(row.isHot ? "tr.hot" : "tr", { row: isWhole ? rule : undefined },
    el("td", { title: `${name}: ${about}` }, el("span.name", name), " ", tag(mode !== "enforced" ? mode : row.percent < 100 && `${row.percent} %`), el("div.sub", about)),
    el("td.optional-2", el("div.chosen", { "data-algorithm": algorithm }, el("span.tone", icon(algorithm)), el("div", algorithmName(algorithm), chosen && el("div.sub", chosen)))),
    el("td.number", row.allowed ? short(row.allowed) : "–"),
    el("td.number", isShadow ? `(${short(denials)})` : denials ? short(denials) : "–"),
    el("td.number", row.allowed + denials > 0 ? `${percent(row.share)} %` : "–"),
    isWhole && el("td.optional-1", gives ? tag(gives, gives === "nothing" ? ".bad" : "") : el("canvas", { "aria-hidden": "true" })));
}

/** Remember the denials of each rule, whether it is shown or not. */
export function collectRules(tables) {
  const rows = ruleRows(tables);
  for (const { rule, all } of rows) minutes.set(rule, [...(minutes.get(rule) ?? []), all].slice(-MINUTE));
  for (const rule of minutes.keys()) if (!rows.some((row) => row.rule === rule)) minutes.delete(rule);
}

function allRules() {
  const columns = COLUMNS.slice(0, 5);
  const values = [(row) => row.name, (row) => algorithmName(row.algorithm), (row) => row.allowed, (row) => row.all, (row) => row.share];
  let [by, isDown] = [3, true];
  const filter = el("input", { type: "search", "aria-label": "Filter rules", placeholder: "Filter", oninput: draw });
  const list = el("div.rules");
  function sort(at) {
    [by, isDown] = [at, by === at ? !isDown : at > 1];
    draw();
  }
  function draw() {
    const rows = ruleRows(state.tables).filter((row) => `${row.name} ${row.limit} ${row.algorithm}`.toLowerCase().includes(filter.value.toLowerCase()));
    rows.sort((a, b) => (values[by](a) > values[by](b) ? 1 : -1) * (isDown ? -1 : 1));
    const heads = columns.map(([title, kind], at) => [el("button", { onclick: () => sort(at) }, title), kind]);
    const made = table(heads, rows.map((row) => ruleRow(row, false)));
    [...made.tHead.rows[0].cells].forEach((cell, at) => set(cell, { "aria-sort": at !== by ? "none" : isDown ? "descending" : "ascending" }));
    fill(list, made);
  }
  draw();
  const { total, rows } = state.tables.rules;
  openDialog("All rules", filter, list, total > rows.length && el("p.soft", `The ${rows.length} busiest of ${total}; GET /api/rules has them all.`));
}

function nodeRow(row) {
  const { id, you, address, version, age, shards } = row;
  const isDown = row.state !== "Up";
  const isUnknown = shown().tick?.seen === "node" && !you;
  const silence = age < 120 ? `${Math.round(age)} s` : duration(age ?? 0);
  const where = [you ? "this node" : address === id ? "" : address, Number.isInteger(shards) ? plural(shards, "shard") : ""].filter(Boolean).join(", ");
  const [level, note] = isDown ? [".bad", `down, ${silence}`] : isUnknown ? [".unknown", `up, ${silence} ago`] : row.draining ? [".warn", "is ending"] : ["", where];
  const known = (write, value) => (isDown || isUnknown || value === null ? "–" : write(value));
  return el("tr", { row: id },
    el("td", { title: `${id} at ${address}, version ${version}` }, el(`i.dot${level}`), id, " ", el("span.sub", note)),
    el("td.number", known((rate) => `${short(rate)} /s`, row.req_per_sec)), el("td.number", known((p99) => `${millis(p99)} ms`, row.p99_us)));
}

const note = () => ["No rules here: each check names its own limit, or takes the default. ", el("code", "headgate rules init"), " writes some to begin with."];

export function drawTables(colours) {
  const { tables, tick } = shown();
  if (!tables || !tick) return;
  const nodes = [...tables.nodes.rows].sort((a, b) => Number(b.you) - Number(a.you) || a.id.localeCompare(b.id));
  const down = nodes.filter((row) => row.state !== "Up").length;
  const parts = (tick.parts ?? []).map(({ name, text, level, details }) => el("div", el("dt", el(`i.dot.${level}`), name), el("dd", { title: details }, text)));
  fill($("nodes"),
    el("div.title", el("h2", { id: "nodes-title" }, el("b", "Nodes and store")), down ? tag(`${down} down, ${nodes.length - down} up`, ".bad") : el("span.soft", `${nodes.length} of ${tables.nodes.total} up`)),
    table([["Node"], ["Requests", ".number"], ["p99", ".number"]], nodes.slice(0, 5).map(nodeRow)), el("dl.parts", parts));
  if (drawn.tables === tables && drawn.colours === colours) return;
  drawn = { tables, colours };
  const rows = ruleRows(tables).slice(0, 6);
  const { total } = tables.rules;
  const columns = rows.some((row) => row.gives) ? [...COLUMNS.slice(0, 5), ["Now gives", ".optional-1"]] : COLUMNS;
  fill($("rules"),
    el("div.title", el("h2", { id: "rules-title" }, el("b", "Rules"), " by denials"), total > 0 && el("button.link.tap", { onclick: allRules }, `All ${plural(total, "rule")}`)),
    rows.length > 0 && table(columns, rows.map((row) => ruleRow(row))), total === 0 && el("p.note", note()));
  for (const { row, lastChild: last } of $("rules").querySelectorAll("tbody tr")) {
    const { isHot } = rows.find((one) => one.rule === row);
    if (last.firstChild.getContext) drawSpark(last.firstChild, minutes.get(row) ?? [], { colour: isHot ? colours.deny : colours.soft, soft: colours.soft, least: 0.5 });
  }
}
