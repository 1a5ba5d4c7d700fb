// Rules, and nodes with what they depend on. Only what is out of the ordinary has colour.

import { drawSpark } from "./chart.js";
import { $, el, fill, icon, make, openDialog, table, tag } from "./dom.js";
import { algorithmName, millis, percent, plural, short } from "./format.js";
import { shown, state } from "./state.js";

const COLUMNS = [["Rule"], ["Counted by", ".optional-2"], ["Allowed /s", ".number"], ["Denied /s", ".number"], ["Share", ".number"], ["Last minute", ".optional-1"]];
const MINUTE = 30; // Tables come every two seconds.
const minutes = new Map(); // By rule: denials a second, over the last minute.
let drawn = {}; // The tables and the colours that are drawn.

/** All rules by denials; checks that name no rule are one more. What a shadow rule would deny counts too. */
function ruleRows({ checks, rules }) {
  return [...(checks.allowed + checks.denied > 0 ? [checks] : []), ...rules.rows]
    .map((row) => ({ ...row, name: row.rule ?? "checks without a rule", all: row.denied + row.shadow_denied }))
    .sort((a, b) => b.all - a.all || b.allowed - a.allowed);
}

const rateText = (rate) => (rate > 0 ? short(rate) : "–");

/** One row of the rules. Without `isWhole` it has no last column, and moves at once when rows are sorted. */
function ruleRow(row, isWhole = true) {
  const { rule, name, mode, algorithm, adaptive, choice, gives, allowed, denials } = row;
  const about = `${row.limit}, by ${row.by}`;
  const chosen = adaptive && (choice?.pinned_by ? `pinned by ${choice.pinned_by}` : "chosen by adaptive");
  const denied = mode === "shadow" ? `(${short(denials)})` : rateText(denials);
  return el(row.hot ? "tr.hot" : "tr", { row: isWhole ? rule : undefined },
    el("td", { title: `${name}: ${about}` }, el("span.name", name), " ", tag(mode !== "enforced" ? mode : row.percent < 100 && `${row.percent}%`), el("div.sub", about)),
    el("td.optional-2", el("div.chosen", { "data-algorithm": algorithm }, el("span.tone", icon(algorithm)), el("div", algorithmName(algorithm), chosen && el("div.sub", chosen)))),
    [rateText(allowed), denied, allowed + denials > 0 ? `${percent(row.share)}%` : "–"].map((text) => el("td.number", text)),
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
  const filter = make(el("input", { type: "search", "aria-label": "Filter rules", placeholder: "Filter", oninput: draw }));
  const list = make(el("div.rules"));
  function sort(at) {
    [by, isDown] = [at, by === at ? !isDown : at > 1];
    draw();
  }
  function draw() {
    const rows = ruleRows(state.tables).filter((row) => `${row.name} ${row.limit} ${row.algorithm}`.toLowerCase().includes(filter.value.toLowerCase()));
    rows.sort((a, b) => (values[by](a) > values[by](b) ? 1 : -1) * (isDown ? -1 : 1));
    const order = isDown ? "descending" : "ascending";
    const heads = columns.map(([title, kind], at) => [el("button", { onclick: () => sort(at) }, title), kind, { "aria-sort": at === by ? order : "none" }]);
    fill(list, table(heads, rows.map((row) => ruleRow(row, false))));
  }
  draw();
  const { total, rows } = state.tables.rules;
  openDialog("All rules", filter, list, total > rows.length && el("p.soft", `The ${rows.length} busiest of ${total}; GET /api/rules has them all.`));
}

function nodeRow({ id, address, version, level, note, req_per_sec: rate, p99_us: p99 }) {
  return el("tr", { row: id },
    el("td", { title: `${id} at ${address}, version ${version}` }, el(`i.dot.${level}`), id, el("div.sub", note)),
    el("td.number", rate === null ? "–" : `${short(rate)} /s`), el("td.number", p99 === null ? "–" : `${millis(p99)} ms`));
}

const note = () => ["No rules here: each check names its own limit, or takes the default. ", el("code", "headgate rules init"), " writes some to begin with."];

export function drawTables(colours) {
  const { tables, tick } = shown();
  if (!tables || !tick) return;
  const nodes = [...tables.nodes.rows].sort((a, b) => Number(b.you) - Number(a.you) || a.id.localeCompare(b.id));
  const down = nodes.filter((row) => row.state !== "Up").length;
  const parts = (tick.parts ?? []).map(({ name, text, level, details }) => el("div", el("dt", el(`i.dot.${level}`), name), el("dd", { title: details }, text)));
  fill($("nodes"),
    el("div.title", el("h2", el("b", "Nodes and store")), down ? tag(`${down} down, ${nodes.length - down} up`, ".bad") : el("span.soft", `${nodes.length} of ${tables.nodes.total} up`)),
    table([["Node"], ["Requests", ".number"], ["p99", ".number"]], nodes.slice(0, 5).map(nodeRow)), el("dl.parts", parts));
  if (drawn.tables === tables && drawn.colours === colours) return;
  drawn = { tables, colours };
  const rows = ruleRows(tables).slice(0, 6);
  const { total } = tables.rules;
  const columns = rows.some((row) => row.gives) ? [...COLUMNS.slice(0, 5), ["Now gives", ".optional-1"]] : COLUMNS;
  fill($("rules"),
    el("div.title", el("h2", el("b", "Rules"), " by denials"), total > 0 && el("button.link.tap", { onclick: allRules }, `All ${plural(total, "rule")}`)),
    rows.length > 0 && table(columns, rows.map((row) => ruleRow(row))), total === 0 && el("p.note", note()));
  for (const { row, lastChild: last } of $("rules").querySelectorAll("tbody tr")) {
    const { hot } = rows.find((one) => one.rule === row);
    if (last.firstChild.getContext) drawSpark(last.firstChild, minutes.get(row) ?? [], { colour: hot ? colours.deny : colours.soft, soft: colours.soft, least: 0.5 });
  }
}
