// Open substreams: how many wait for what, and those that somebody looks for.

import { Refusal, ask } from "./api.js";
import { Table, el, fill, nameOf, setAttribute, setName, setText, visible } from "./dom.js";
import { ago, count, duration, many, now } from "./format.js";
import { address, go } from "./routes.js";
import { aged } from "./ticking.js";

const REFRESH_MS = 4000;
const WAIT_MS = 300; // after a key, before a search begins
const SHOWN = 8; // fronts and segments that are listed at once

/** The parameters of the address that choose substreams. */
export const FILTERS = ["front", "segment", "kind", "text"];

const KINDS = {
  staged: ["An epoch to be committed", "Something of them is reported, and the epoch is not committed"],
  ordered: ["Earlier substreams", "They are complete, and the job's ordering lets those of earlier end times end first"],
  stalled: ["Stalled", "Closed, not balanced, and unchanged for longer than the job's stall_after"],
};

export class Substreams {
  /** @param {function(): Object} parameters: those of the address now. */
  constructor(parameters) {
    this.parameters = parameters;
    this.job = parameters().job;
    this.afters = [];
    this.list = el("ul", { class: "waits" });
    this.counted = el("p", { class: "quiet" });
    this.search = el("input", { type: "search", id: "text", autocomplete: "off", spellcheck: "false", maxlength: 500 });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => go(this.link({ text: this.search.value.trim() || null }), true), WAIT_MS);
    });
    this.chosen = el("p", { class: "chosen" });
    this.found = el("p", { class: "quiet", role: "status" });
    this.table = new Table("Open substreams", columns(this), (one) => JSON.stringify([one.scope, one.name]));
    this.pages = el("nav", { class: "pages", "aria-label": "Pages of substreams" });
    this.element = el(
      "section",
      { class: "block", id: "substreams", "aria-labelledby": "substreams-title" },
      el("h2", { id: "substreams-title", text: "Open substreams" }),
      el(
        "div",
        { class: "split" },
        el("div", { class: "side" }, el("h3", { text: "What they wait for" }), this.list, this.counted),
        el(
          "div",
          { class: "rest" },
          el(
            "form",
            { class: "search", role: "search", on: { submit: (event) => event.preventDefault() } },
            el("label", { for: "text", text: "Find by scope or name" }),
            this.search,
          ),
          this.chosen,
          this.found,
          el("div", { class: "wide" }, this.table.element),
          this.pages,
        ),
      ),
    );
    this.timer = setInterval(() => this.refresh(), REFRESH_MS);
  }

  stop() {
    clearInterval(this.timer);
    clearTimeout(this.typing);
    this.asking?.abort();
  }

  /** The address with other parameters, and no explanation. */
  link(changed) {
    return address("job", { ...this.parameters(), scope: null, name: null, ...changed });
  }

  /** The address has changed. */
  choose() {
    const chosen = JSON.stringify(FILTERS.map((name) => this.parameters()[name] ?? null));
    if (chosen === this.shown) return;
    this.shown = chosen;
    if (document.activeElement !== this.search) this.search.value = this.parameters().text ?? "";
    this.afters = [];
    this.showChosen();
    this.mark();
    this.load();
  }

  showChosen() {
    const { front, segment, kind } = this.parameters();
    const parts = [];
    if (front !== undefined) parts.push(front ? ["Waiting for front ", nameOf(front)] : ["Waiting for their source to close them"]);
    if (segment !== undefined) parts.push(["In flight on ", nameOf(segment)]);
    if (KINDS[kind]) parts.push([KINDS[kind][0]]);
    fill(this.chosen, ...parts.flat());
    if (parts.length) {
      this.chosen.append(el("a", { class: "clear", href: this.link({ front: null, segment: null, kind: null }), text: "Show all" }));
    }
    this.chosen.hidden = !parts.length;
  }

  // ------------------------------------------------------------ how many wait for what

  update(state) {
    this.all = state.open;
    const survey = state.survey;
    if (!survey) {
      setText(this.counted, "Counting …");
      return;
    }
    const lines = [
      ...survey.fronts.slice(0, SHOWN).map(([front, number]) => line(this, "front", front, number)),
      ...Object.entries(survey.segments).slice(0, SHOWN).map(([segment, number]) => line(this, "segment", segment, number)),
      ...["staged", "ordered", "stalled"]
        .filter((kind) => survey[kind])
        .map((kind) => line(this, "kind", kind, survey[kind])),
    ];
    const hidden = Math.max(0, survey.fronts.length - SHOWN) + Math.max(0, Object.keys(survey.segments).length - SHOWN);
    this.show(lines, survey.looked);
    const more = hidden ? ` ${many(hidden, "more front or segment").replace(/segments$/, "segments")} not shown.` : "";
    const when = now() - survey.at > 5000 ? `, counted ${ago(survey.at)}` : "";
    setText(this.counted, survey.looked ? `Of ${count(survey.looked)} open${when}. One may wait for several.${more}` : "Nothing is open.");
  }

  show(lines, all) {
    const keys = lines.map((each) => each.key);
    const known = this.lines ?? new Map();
    this.lines = new Map(lines.map((each) => [each.key, known.get(each.key) ?? item(each)]));
    if (JSON.stringify(keys) !== this.order) {
      this.order = JSON.stringify(keys);
      const focused = document.activeElement;
      fill(this.list, ...[...this.lines.values()].map((each) => each.element));
      if (focused && this.list.contains(focused)) focused.focus();
    }
    for (const each of lines) {
      const shown = this.lines.get(each.key);
      setText(shown.number, count(each.number));
      shown.bar.style.width = `${all ? Math.max(1, (100 * each.number) / all) : 0}%`;
      setAttribute(shown.link, "href", each.href);
      shown.link.classList.toggle("alarm", each.key === "kind:stalled");
    }
    this.mark();
  }

  mark() {
    const parameters = this.parameters();
    for (const [key, shown] of this.lines ?? []) {
      const at = key.indexOf(":");
      const chosen = parameters[key.slice(0, at)] === key.slice(at + 1);
      setAttribute(shown.link, "aria-current", chosen ? "true" : null);
    }
  }

  // ------------------------------------------------------------ those that are looked for

  query() {
    const { front, segment, kind, text } = this.parameters();
    return { job: this.job, front, segment, kind, text };
  }

  async load() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const taken = [];
    let [after, looked, began] = [this.afters.at(-1) ?? "-1", 0, performance.now()];
    this.rounds = 0;
    try {
      do {
        const answer = await ask("/substreams", { ...this.query(), after, limit: 50 - taken.length }, asking.signal);
        taken.push(...answer.substreams);
        looked += answer.looked;
        after = answer.following;
        this.rounds += 1;
        if (after !== null && taken.length < 50) {
          const sofar = taken.length ? `${many(taken.length, "substream")} so far` : "None so far";
          setText(this.found, `${sofar}; looked at ${count(looked)}${this.all ? ` of ${count(this.all)}` : ""} …`);
        }
        this.table.update(taken);
      } while (after !== null && taken.length < 50);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Refusal)) throw error;
      setText(this.found, error.message);
      return;
    }
    this.table.element.hidden = !taken.length;
    const took = performance.now() - began > 2000 ? `, found in ${duration(performance.now() - began)}` : "";
    const first = this.afters.length ? "further " : "";
    setText(this.found, taken.length ? `${after === null ? "" : "The first "}${first}${many(taken.length, "open substream")}, oldest first${took}` : "No open substream is like that.");
    this.showPages(after);
  }

  showPages(after) {
    const buttons = [];
    const to = (afters) => () => {
      this.afters = afters;
      this.load();
      this.found.scrollIntoView({ block: "nearest" });
    };
    if (this.afters.length) buttons.push(el("button", { type: "button", text: "First page", on: { click: to([]) } }));
    if (after !== null) {
      buttons.push(el("button", { type: "button", text: "Next page", on: { click: to([...this.afters, after]) } }));
    }
    const shown = JSON.stringify([this.afters, after !== null]);
    if (shown !== this.pagesShown) fill(this.pages, ...buttons);
    else if (after !== null) this.pages.lastChild.replaceWith(buttons.at(-1));
    this.pagesShown = shown;
  }

  /** Looks again at a first page that is quick to find. */
  refresh() {
    const quiet = document.hidden || this.afters.length || this.rounds !== 1 || this.table.element.contains(document.activeElement);
    if (!quiet && !document.querySelector("dialog[open]")) this.load();
  }
}

function line(substreams, parameter, name, number) {
  const others = Object.fromEntries(["front", "segment", "kind"].map((each) => [each, null]));
  return { key: `${parameter}:${name}`, parameter, name, number, href: substreams.link({ ...others, [parameter]: name }) };
}

function item({ parameter, name, href }) {
  const [label, title] = parameter === "kind" ? KINDS[name] : [null, null];
  const about = { front: "Front", segment: "Segment" }[parameter];
  const text = label
    ? [el("span", { text: label })]
    : parameter === "front" && !name
      ? [el("span", { text: "Their source to close them" })]
      : [el("span", { class: "about", text: `${about} ` }), nameOf(name)];
  const number = el("span", { class: "number" });
  const bar = el("span", { class: "bar" });
  const link = el("a", { href, title }, el("span", { class: "what" }, ...text), number, el("span", { class: "rail", "aria-hidden": "true" }, bar));
  return { link, number, bar, element: el("li", {}, link) };
}

function columns(substreams) {
  return [
    {
      title: "Substream",
      show(cell, one) {
        const link = cell.firstChild ?? cell.appendChild(el("a", {}, nameOf(one.name)));
        setName(link.firstChild, one.name);
        setAttribute(link, "href", address("job", { ...substreams.parameters(), scope: one.scope, name: one.name }));
        setAttribute(link, "aria-label", `${visible(one.name) || "(empty)"} of scope ${visible(one.scope) || "(empty)"}: explain`);
      },
    },
    { title: "Scope", show: (cell, one) => setName(cell.firstChild ?? cell.appendChild(nameOf(one.scope)), one.scope) },
    { title: "Ends", width: "whole", show: (cell, one) => setText(cell, one.end_time ?? "–") },
    { title: "Waits for", show: (cell, one) => waits(cell, one) },
    { title: "In flight", number: true, show: (cell, one) => setText(cell, count(one.in_flight)) },
    { title: "Open for", number: true, show: (cell, one) => aged(cell, one.created, (at) => duration(now() - at)) },
    { title: "Unchanged", number: true, show: (cell, one) => aged(cell, one.changed, (at) => duration(now() - at)) },
  ];
}

function waits(cell, one) {
  const key = JSON.stringify([one.fronts, one.more_fronts, one.unbalanced.map((each) => each[0]), one.staged, one.ordered, one.stalled]);
  if (cell.dataset.waits === key) return;
  cell.dataset.waits = key;
  const parts = [];
  if (one.stalled) parts.push(el("span", { class: "tag alarm", text: "stalled" }));
  for (const front of one.fronts) {
    parts.push(el("span", { class: "tag" }, el("span", { class: "about", text: front ? "front " : "its source" }), ...(front ? [nameOf(front)] : [])));
  }
  if (one.more_fronts) parts.push(el("span", { class: "tag", text: many(one.more_fronts, "more front") }));
  for (const [segment] of one.unbalanced) parts.push(el("span", { class: "tag flow" }, nameOf(segment)));
  if (one.more_unbalanced) parts.push(el("span", { class: "tag flow", text: many(one.more_unbalanced, "more segment") }));
  if (one.staged) parts.push(el("span", { class: "tag", text: "a commit" }));
  if (one.ordered) parts.push(el("span", { class: "tag", text: "earlier ones" }));
  fill(cell, el("span", { class: "tags" }, ...parts));
}
