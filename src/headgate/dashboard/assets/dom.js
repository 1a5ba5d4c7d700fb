// Parts of the page say what is to be seen; only what differs from what is there is written, so that focus, selection and
// scrolling stay. Text goes in as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Write attributes: `true` and `false` set and remove one; `onclick` takes a function, `style` an object. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = value === true ? "" : String(value);
    if (name.startsWith("on") || name === "row") node[name] = value;
    else if (name === "style") Object.assign(node.style, value);
    else if (value === false || value === undefined || value === null) node.removeAttribute(name);
    else if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
  return node;
}

/** Make an element: `el("p.sub", {title: "…"}, "text", child)`. Attributes are optional; empty children are left out. */
export function el(selector, ...children) {
  const [tag, ...classes] = selector.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  if (tag === "button") made.type = "button";
  if (children[0]?.constructor === Object) set(made, children.shift());
  made.append(...children.flat().filter((child) => child || child === 0));
  return made;
}

/** Let `node` have these children. What is there already stays and is only written to where it differs. */
export const fill = (node, ...children) => matchChildren(node, [...el("div", ...children).childNodes]);

function match(node, wanted) {
  if (node.isEqualNode(wanted)) return; // The browser sees that faster than we do.
  if (node.nodeName !== wanted.nodeName) node.replaceWith(wanted);
  else if (wanted.nodeType === Node.TEXT_NODE) node.data = wanted.data;
  else if (node.nodeName !== "CANVAS") {
    for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
    for (const { name, value } of wanted.attributes) {
      if (name !== "style") set(node, { [name]: value });
      else if (node.style.cssText !== wanted.style.cssText) node.style.cssText = wanted.style.cssText;
    }
    node.onclick = wanted.onclick;
    matchChildren(node, [...wanted.childNodes]);
  }
}

function matchChildren(node, wanted) {
  if (wanted[0]?.row !== undefined) return matchRows(node, wanted);
  while (node.childNodes.length > wanted.length) node.lastChild.remove();
  return wanted.forEach((child, at) => (at < node.childNodes.length ? match(node.childNodes[at], child) : node.append(child)));
}

/** Children that have a name, `row`, keep it. They are sorted every three seconds at most, and never under the pointer or the focus. */
function matchRows(node, wanted) {
  const gone = new Map([...node.children].map((child) => [child.row, child]));
  const rows = wanted.map((child) => {
    const there = gone.get(child.row);
    gone.delete(child.row);
    if (there) match(there, child);
    else node.append(child);
    return there ?? child;
  });
  for (const child of gone.values()) child.remove();
  const isBusy = node.matches(":hover") || node.contains(document.activeElement);
  if (isBusy || performance.now() - (node.sortedAt ?? -Infinity) < 3000) return;
  node.sortedAt = performance.now();
  rows.forEach((child, at) => node.children[at] !== child && node.insertBefore(child, node.children[at]));
}

/** A table. `columns` are pairs of a title and a class, such as ".number"; rows are elements, or lists of cells. */
export function table(columns, rows) {
  const line = (tag, cells, attributes) => el("tr", cells.map((cell, at) => el(tag + (columns[at][1] ?? ""), attributes, cell)));
  const head = line("th", columns.map(([title]) => title), { scope: "col" });
  return el("table", el("thead", head), el("tbody", rows.map((row) => (Array.isArray(row) ? line("td", row, {}) : row))));
}

export const field = (name, label, attributes) => el("label", label, el("input", { name, ...attributes }));
export const reasonField = () => field("reason", "Why", { required: true, maxlength: 200, autocomplete: "off" });
export const select = (name, label, options) =>
  el("label", label, el("select", { name }, options.map(([value, text]) => el("option", { value }, text))));

/** Call `act` with the values of a form when it is submitted. */
export function onSubmit(form, act) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(Object.fromEntries(new FormData(form)));
  });
  return form;
}

export function openDialog(title, ...content) {
  $("dialog-title").textContent = title;
  $("dialog-body").replaceChildren(...content.filter(Boolean));
  if (!$("dialog").open) $("dialog").showModal();
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the symbols at the top of the page; an algorithm without one gets "other". */
export function icon(name) {
  const [made, use] = ["svg", "use"].map((tag) => document.createElementNS(SVG, tag));
  made.append(set(use, { href: $(`i-${name}`) ? `#i-${name}` : "#i-other" }));
  return set(made, { "aria-hidden": "true" });
}

/** A tag, if it has a text. */
export const tag = (text, kind = "") => text && el(`span.tag${kind}`, text);

/** A bar that is filled to a share of its width. */
export const bar = (kind, share) => el(`div.${kind}`, el("i", { style: { width: `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%` } }));

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
