// Elements made of text only: no function here takes HTML, so no name can become any.

/** Characters that do something instead of showing something: controls, direction marks, joiners, unassigned ones. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** A name as it can be read: what cannot be seen, or would turn the text around, is written as its code. */
export function visible(name) {
  return String(name).replace(INVISIBLE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/**
 * An element.
 * @param {string} tag
 * @param {Object} attributes: `text`, `on` (listeners by event), `data`, or attributes; null ones are left out.
 * @param {...(Node|string)} children
 */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Shows a text if it is another than before: a selection in what stays the same is kept. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** A name that somebody else chose: isolated from the text around it, whatever direction it has; whole in a tooltip. */
export function nameOf(name, className = "name") {
  const element = el("bdi", { class: className });
  setName(element, name);
  return element;
}

export function setName(element, name) {
  const text = name === "" ? "(empty)" : name.trim() === "" ? "(blank)" : visible(name);
  setText(element, text.length > 300 ? `${text.slice(0, 300)}…` : text);
  setAttribute(element, "title", text.length > 24 ? text.slice(0, 2000) : null);
  element.classList.toggle("empty", name.trim() === "");
}

/**
 * A table whose rows are kept while their keys stay, so that focus and selections survive an update.
 *
 * Roles are given in words: on a phone the style shows rows as blocks, and browsers would forget that it is a table.
 */
export class Table {
  /**
   * @param {string} caption
   * @param {Array<{title: string, number?: boolean, width?: string, show: function(Element, Object): void}>} columns: the first heads
   *     its row.
   * @param {function(Object): string} key
   */
  constructor(caption, columns, key) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.body = el("tbody", { role: "rowgroup" });
    const head = columns.map((column) =>
      el("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null, text: column.title }),
    );
    this.element = el(
      "table",
      { role: "table" },
      el("caption", { class: "hidden", text: caption }),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...head)),
      this.body,
    );
  }

  update(items) {
    const before = this.rows;
    this.rows = new Map();
    let place = this.body.firstChild;
    for (const item of items) {
      const key = this.key(item);
      if (this.rows.has(key)) continue;
      const row = before.get(key) ?? this.row();
      before.delete(key);
      this.rows.set(key, row);
      this.columns.forEach((column, at) => column.show(row.cells[at], item));
      if (row.element === place) place = place.nextSibling;
      else this.body.insertBefore(row.element, place);
    }
    for (const row of before.values()) row.element.remove();
  }

  row() {
    const cells = this.columns.map((column, at) =>
      el(at ? "td" : "th", {
        role: at ? "cell" : "rowheader",
        scope: at ? null : "row",
        class: column.number ? "number" : (column.width ?? null),
        data: { label: column.title },
      }),
    );
    return { cells, element: el("tr", { role: "row" }, ...cells) };
  }
}

/** Gives an element these children, in place of those that it has. */
export function fill(element, ...children) {
  element.replaceChildren(...children);
}
