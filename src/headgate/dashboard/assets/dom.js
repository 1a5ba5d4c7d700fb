// Parts of the page describe what is to be seen. A description is compared with the one before it, and only what differs is
// written, so that focus, selection and scrolling stay. Text goes in as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Write attributes: `true` and `false` set and remove one; `onclick` takes a function, `style` the text of a style. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") || name === "row") node[name] = value;
    else if (name === "style") node.style.cssText = value;
    else if (value === undefined || value === null) node.removeAttribute(name);
    else if (typeof value === "boolean") node.toggleAttribute(name, value);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  return node;
}

const listed = (children) => children.flat().filter((child) => child || child === 0);

class Description {
  node = null; // The element that it describes, as soon as there is one.

  constructor(selector, children) {
    const [tag, ...classes] = selector.split(".");
    this.tag = tag;
    this.className = classes.join(" ");
    this.attributes = children[0]?.constructor === Object ? children.shift() : {};
    this.children = listed(children);
  }
}

/** Describe an element: `el("p.sub", {title: "…"}, "text", child)`. Attributes are optional; empty children are left out. */
export const el = (selector, ...children) => new Description(selector, children);

/** The element that a description describes. Text, and what is an element already, stays as it is. */
export function make(wanted) {
  if (!(wanted instanceof Description)) return wanted;
  const { tag, className, attributes, children } = wanted;
  const node = tag === "svg" || tag === "use" ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (className) node.className = className;
  if (tag === "button") node.type = "button";
  set(node, attributes).append(...children.map(make));
  return (wanted.node = node);
}

/** Let `node` have these children. What is there already stays and is only written to where it differs. */
export function fill(node, ...children) {
  const wanted = listed(children);
  if (!node.described) node.replaceChildren();
  matchChildren(node, node.described ?? [], wanted);
  node.described = wanted;
}

function matchChildren(node, old, wanted) {
  if (wanted[0]?.attributes?.row !== undefined) return matchRows(node, old, wanted);
  for (let extra = old.length - wanted.length; extra > 0; extra -= 1) node.lastChild.remove();
  return wanted.forEach((child, at) => {
    if (at >= old.length) node.append(make(child));
    else if (child.tag && child.tag === old[at].tag) match(old[at], child);
    else if (child !== old[at]) replace(node.childNodes[at], child);
  });
}

function replace(node, wanted) {
  if (node.nodeType === Node.TEXT_NODE && !wanted.tag) node.data = wanted;
  else node.replaceWith(make(wanted));
}

function match(old, wanted) {
  const node = (wanted.node = old.node);
  if (wanted.className !== old.className) node.className = wanted.className;
  for (const name in { ...old.attributes, ...wanted.attributes }) {
    const value = wanted.attributes[name];
    if (value !== old.attributes[name]) set(node, { [name]: value });
  }
  matchChildren(node, old.children, wanted.children);
}

/** Children that have a name, `row`, keep it. They are sorted every three seconds at most, and never under the pointer or the focus. */
function matchRows(node, old, wanted) {
  const gone = new Map(old.map((child) => [child.attributes.row, child]));
  for (const child of wanted) {
    const { row } = child.attributes;
    if (gone.has(row)) match(gone.get(row), child);
    else node.append(make(child));
    gone.delete(row);
  }
  for (const child of gone.values()) child.node.remove();
  const isBusy = node.matches(":hover") || node.contains(document.activeElement);
  if (isBusy || performance.now() - (node.sortedAt ?? -Infinity) < 3000) return;
  node.sortedAt = performance.now();
  wanted.forEach((child, at) => node.children[at] !== child.node && node.insertBefore(child.node, node.children[at]));
}

/** A table. `columns` are titles with a class, such as ".number", and attributes; rows are elements, or lists of cells. */
export function table(columns, rows) {
  const cells = (row) => row.map((cell, at) => el(`td${columns[at][1] ?? ""}`, cell));
  const head = columns.map(([title, kind = "", attributes]) => el(`th${kind}`, { scope: "col", ...attributes }, title));
  return el("table", el("thead", el("tr", head)), el("tbody", rows.map((row) => (Array.isArray(row) ? el("tr", cells(row)) : row))));
}

export const field = (name, label, attributes) => el("label", label, el("input", { name, ...attributes }));
export const reasonField = () => field("reason", "Why", { required: true, maxlength: 200, autocomplete: "off" });
export const select = (name, label, options) =>
  el("label", label, el("select", { name }, options.map(([value, text]) => el("option", { value }, text))));

export const valuesOf = (form) => Object.fromEntries(new FormData(form));

/** What a form does when it is submitted: call `act` with its values. */
export const submitting = (act) => (event) => {
  event.preventDefault();
  act(valuesOf(event.currentTarget));
};

export function openDialog(title, ...content) {
  fill($("dialog-title"), title);
  $("dialog-body").replaceChildren(...listed(content).map(make));
  if (!$("dialog").open) $("dialog").showModal();
}

/** One of the symbols at the top of the page; an algorithm without one gets "other". */
const symbols = new Set(Array.from(document.querySelectorAll("symbol"), ({ id }) => id));
export const icon = (name) => el("svg", { "aria-hidden": "true" }, el("use", { href: symbols.has(`i-${name}`) ? `#i-${name}` : "#i-other" }));

/** A tag, if it has a text. */
export const tag = (text, kind = "") => text && el(`span.tag${kind}`, text);

/** A bar that is filled to a share of its width. */
export const bar = (kind, share) => el(`div.${kind}`, el("i", { style: `width: ${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%` }));

/** The text, with these words in bold. */
export function emphasised(text, words) {
  const word = words.find((one) => one && text.includes(one));
  if (!word) return [text];
  const at = text.indexOf(word);
  return [...emphasised(text.slice(0, at), words), el("b", word), ...emphasised(text.slice(at + word.length), words)];
}

// Control characters, and those that turn the direction of text, would make a key look like another one.
const MISLEADING = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
export const plainKey = (key) => key.replace(MISLEADING, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A key as it may be shown. It is cut in the middle, because the end tells keys apart. */
export function keyText(key) {
  const plain = plainKey(key);
  const cut = Math.max(0, plain.length - 9);
  return el("bdi.key.cut", { title: plain }, el("span.begin", plain.slice(0, cut)), el("span", plain.slice(cut)));
}
