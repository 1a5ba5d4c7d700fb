// The keys that are denied right now, and those that ask most. Each leads to its reason.

import { ask, wordsFor } from "./api.js";
import { $, bar, el, fill, keyText, openDialog, set, table, tag } from "./dom.js";
import { clockTime, countdown, duration, momentOf, plural, whole } from "./format.js";
import { now, seenAlone, shown } from "./state.js";

const STORED = "headgate-recent";

export const addressOf = (key) => `#key=${encodeURIComponent(key)}`;
export const keyButton = (key, ...content) => el("button", { onclick: () => (location.hash = addressOf(key)) }, content);

/** Keys that were looked at last, newest first. */
export const recentKeys = () => JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
export const remember = (key) => sessionStorage.setItem(STORED, JSON.stringify([key, ...recentKeys().filter((one) => one !== key)].slice(0, 8)));

let offered = null; // The tables whose keys the field for finding one offers.

function blockedRow({ key, kind, until, window, rule, reason, denied }) {
  const left = until === null ? null : until - now();
  const isBan = kind === "ban";
  return el("li", { row: key, "data-testid": "blocked-row", "data-key": key }, keyButton(key,
    el("div.pair", keyText(key), el("span", isBan && tag("ban", ".bad"), " ", el("b", countdown(left)))),
    el("div.pair.sub", el("span", { title: reason }, isBan ? `banned ${reason}` : (rule ?? reason.replaceAll("_", " "))), el("span", denied === null ? "" : `${whole(denied)} denied`)),
    bar("drain", left === null ? 1 : window ? left / window : 0)));
}

function topRow({ key, hits, error }, most) {
  return el("li", { row: key, title: error ? `± ${whole(error)}` : "" }, bar("share", hits / most), keyButton(key, el("span.pair", keyText(key), el("span", whole(hits)))));
}

export function drawKeys() {
  const { tables } = shown();
  if (!tables) return;
  const { blocked, top, lists } = tables;
  const rows = blocked.rows.filter((row) => row.until === null || row.until > now());
  const total = blocked.total - (blocked.rows.length - rows.length); // Some may have passed since.
  const where = lists === "node" ? ", of this node" : seenAlone() ? `, ${seenAlone()}` : blocked.bans ? `, ${blocked.bans} banned` : "";
  for (const id of ["blocked-count", "bar-count"]) fill(set($(id), { hidden: !total }), whole(total));
  if (offered !== tables) {
    offered = tables;
    const known = new Set([...recentKeys(), ...[...rows, ...top.rows].map((row) => row.key)]);
    fill($("known-keys"), [...known].slice(0, 40).map((key) => el("option", { value: key })));
  }
  if ($("panel-keys").hidden) return;
  const most = Math.max(1, ...top.rows.map((row) => row.hits));
  fill($("panel-keys"),
    el("div.title", el("h2", el("b", "Denied right now"), total > 0 && ` ${plural(total, "key")}${where}`), total > 0 && el("button.link", { onclick: allBlocked }, "All")),
    rows.length ? el("p.columns.sub", el("span", "Key, and what denies it"), el("span", "Passes in")) : el("p.pad.soft", "No key is denied right now."),
    el("ul.blocked", rows.slice(0, 7).map(blockedRow)),
    el("div.section.top-keys", el("div.title", el("h2", el("b", "Busiest keys"), top.period && ` last ${duration(top.period[1])}`)), top.rows.length ? el("ul.most", top.rows.slice(0, 8).map((row) => topRow(row, most))) : el("p.pad.soft", "Nobody has asked.")));
}

async function allBlocked() {
  try {
    const { blocked } = await ask("GET", "/api/blocks");
    const rows = blocked.map(({ key, reason, blocked_until: until }) => [el("a", { href: addressOf(key) }, keyText(key)), reason, until ? clockTime(momentOf(until)) : "no end"]);
    openDialog(`Denied right now: ${plural(blocked.length, "key")}`, table([["Key"], ["Why"], ["Until", ".number"]], rows));
  } catch (error) {
    openDialog("Denied right now", el("p.problem", wordsFor(error)));
  }
}
