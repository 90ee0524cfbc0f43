// The rest of a job: its fronts, producers, drain and newest events.

import { Table, el, fill, nameOf, setAttribute, setName, setText } from "./dom.js";
import { ago, clock, count, many, moment } from "./format.js";
import { address } from "./routes.js";
import { aged } from "./ticking.js";

function block(id, title, ...children) {
  return el("section", { class: "block", id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title`, text: title }), ...children);
}

/** Shows a name; "" is shown as none. */
function name(cell, text) {
  if (!text) setText(cell, "–");
  else if (cell.firstElementChild) setName(cell.firstElementChild, text);
  else fill(cell, nameOf(text));
}

const FRONT_STATES = { open: "awake", idle: "idle", finished: "finished", silent: "has promised nothing" };

export class Fronts {
  constructor() {
    this.waiting = {};
    this.table = new Table(
      "Fronts, those that hold others up first",
      [
        { title: "Front", show: (cell, front) => name(cell, front.name) },
        {
          title: "State",
          show(cell, front) {
            setText(cell, FRONT_STATES[front.state]);
            cell.classList.toggle("strong", front.state === "silent");
          },
        },
        { title: "Promised up to", width: "whole", show: (cell, front) => setText(cell, front.state === "finished" ? "everything" : (front.frontier ?? "–")) },
        { title: "By scope", show: scopes },
        { title: "Last promise", show: (cell, front) => aged(cell, front.last_promise, ago) },
        { title: "Producer", show: (cell, front) => name(cell, front.producer) },
        { title: "Holds up", number: true, show: (cell, front) => setText(cell, count(this.waiting[front.name] ?? 0)) },
      ],
      (front) => front.name,
    );
    this.note = el("p", { class: "quiet" });
    this.element = block("fronts", "Fronts", el("div", { class: "wide" }, this.table.element), this.note);
  }

  update(state) {
    this.waiting = Object.fromEntries(state.survey?.fronts ?? []);
    this.table.update(state.front_list);
    this.table.element.hidden = !state.fronts;
    const left = state.fronts - state.front_list.length;
    setText(this.note, !state.fronts ? "The job has no fronts: each substream is closed by name." : left ? `${many(left, "more front")} not shown.` : "");
  }
}

function scopes(cell, front) {
  const text = front.scopes ? front.slowest.map(([scope, at]) => [scope, at]) : [];
  const key = JSON.stringify([text, front.scopes]);
  if (cell.dataset.shown === key) return;
  cell.dataset.shown = key;
  const parts = text.flatMap(([scope, at]) => [nameOf(scope), ` ${at}`, el("br")]);
  const left = front.scopes - front.slowest.length;
  if (left > 0) parts.push(`and ${many(left, "more scope")}`);
  fill(cell, ...(parts.length ? parts : ["–"]));
}

export class Producers {
  constructor() {
    this.table = new Table(
      "Producers, those with epochs that are not committed first",
      [
        { title: "Producer", show: (cell, each) => name(cell, each.name) },
        { title: "Run", width: "short", show: (cell, each) => name(cell, each.run) },
        { title: "State", show: (cell, each) => setText(cell, each.closed ? "closed" : each.mode === "immediate" ? "open, immediate" : "open") },
        { title: "Committed epoch", number: true, show: (cell, each) => setText(cell, each.committed ?? "–") },
        {
          title: "Staged epochs",
          number: true,
          show: (cell, each) => setText(cell, !each.staged ? "–" : each.staged === 1 ? each.staged_from : `${each.staged_from}–${each.staged_to} (${count(each.staged)})`),
        },
        { title: "Last report", show: (cell, each) => aged(cell, each.contact, ago) },
      ],
      (each) => each.name,
    );
    this.note = el("p", { class: "quiet" });
    this.element = block("producers", "Producers", el("div", { class: "wide" }, this.table.element), this.note);
  }

  update(state) {
    this.table.update(state.producer_list);
    this.table.element.hidden = !state.all_producers;
    const left = state.all_producers - state.producer_list.length;
    setText(this.note, !state.all_producers ? "Nobody has reported yet." : left ? `${many(left, "more producer")} not shown.` : "");
  }
}

const DRAINS = {
  not_draining: "Nobody has asked this deployment to drain.",
  pending: "Asked for before the deployment was defined.",
  draining: "Under way: the sources finish what they have begun.",
  drained: "Drained: nothing is left, and the deployment may stop.",
  timed_out: "Not over in time. It goes on.",
  cancelled: "Cancelled: the deployment goes on.",
};

const HAND_OVERS = {
  ...DRAINS,
  draining: "Under way: the sources stop, and what is open is left to the next deployment.",
  drained: "Handed over: the next deployment goes on with what is open.",
};

export class Drain {
  constructor() {
    this.state = el("p", {});
    this.steps = el("ul", { class: "steps" });
    this.element = block("drain", "Drain", this.state, this.steps);
  }

  update(state) {
    const drain = state.drain_status;
    setText(this.state, (drain.hands_over ? HAND_OVERS : DRAINS)[drain.state]);
    const key = JSON.stringify([drain, state.fronts]);
    if (key === this.shown) return;
    this.shown = key;
    if (drain.state === "not_draining" || drain.state === "cancelled" || drain.state === "pending") {
      fill(this.steps);
      return;
    }
    const uncommitted = step("Producers without a staged epoch", state.all_producers - drain.all_uncommitted, state.all_producers, drain.uncommitted, "With one: ");
    if (drain.hands_over) {
      const unbalanced = drain.unbalanced_segments;
      fill(
        this.steps,
        uncommitted,
        step("Runs closed", state.all_producers - drain.all_open_producers, state.all_producers, drain.open_producers, "Open: "),
        step("Segments with nothing in flight", state.segments.length - unbalanced.length, state.segments.length, unbalanced, "In flight on: "),
      );
      return;
    }
    this.most = Math.max(this.most ?? 0, drain.open);
    fill(
      this.steps,
      step("Fronts finished", state.fronts - drain.all_unfinished_fronts, state.fronts, drain.unfinished_fronts, "Not finished: "),
      step("Substreams ended", this.most - drain.open, this.most, [], "", drain.open ? `${many(drain.open, "substream")} open, ${many(drain.in_flight, "element")} in flight` : ""),
      uncommitted,
    );
  }
}

function step(title, done, all, names, about, note = "") {
  const bar = el("progress", { max: Math.max(all, 1), value: all ? done : 1, "aria-label": title });
  const item = el("li", { class: done >= all ? "done" : null }, el("span", { class: "title", text: title }), el("span", { class: "number", text: `${count(done)} of ${count(all)}` }), bar);
  if (names.length) {
    const shown = names.slice(0, 5).flatMap((each, at) => [at ? ", " : "", nameOf(each)]);
    item.append(el("span", { class: "quiet" }, about, ...shown, names.length > 5 ? " …" : ""));
  } else if (note) item.append(el("span", { class: "quiet", text: note }));
  return item;
}

const SHOWN = 25; // events
const KINDS = { Ended: "end", Late: "late", Stalled: "stall", Excess: "late" };

export class Events {
  constructor(job) {
    this.paused = false;
    this.table = new Table(
      "The newest events, newest first",
      [
        {
          title: "Time",
          show(cell, each) {
            setText(cell, clock(each.at));
            setAttribute(cell, "title", `${moment(each.at)} UTC, number ${each.seq}`);
          },
        },
        {
          title: "Event",
          show(cell, each) {
            if (cell.firstChild) return;
            fill(cell, el("span", { class: `kind ${KINDS[each.kind] ?? ""}`, text: each.kind.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase() }));
          },
        },
        { title: "Segment", show: (cell, each) => cell.firstChild ?? cell.append(each.segment ? nameOf(each.segment) : "–") },
        {
          title: "Substream",
          show(cell, each) {
            if (cell.firstChild) return;
            if (each.name === undefined) cell.append("–");
            else cell.append(el("a", { href: address("job", { job, scope: each.scope, name: each.name }) }, nameOf(each.name)), " ", nameOf(each.scope, "name about"));
          },
        },
        { title: "What", show: (cell, each) => setText(cell, each.text) },
      ],
      (each) => each.seq,
    );
    this.button = el("button", { type: "button", "aria-pressed": "false", text: "Pause", on: { click: () => this.pause() } });
    this.note = el("p", { class: "quiet" });
    this.element = block("events", "Events", el("div", { class: "tools" }, this.note, this.button), el("div", { class: "wide" }, this.table.element));
  }

  pause() {
    this.paused = !this.paused;
    setAttribute(this.button, "aria-pressed", this.paused);
    if (!this.paused && this.state) this.update(this.state);
  }

  update(state) {
    this.state = state;
    if (this.paused) return;
    this.table.update(state.events.slice(-SHOWN).reverse());
    this.table.element.hidden = !state.events.length;
    setText(this.note, state.last_seq ? `The last ${count(Math.min(SHOWN, state.events.length))} of ${count(state.last_seq)}` : "Nothing has happened yet.");
  }
}
