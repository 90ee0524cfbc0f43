// Why one substream is open: the sentences of `tracker explain`, and its account on each segment.

import { Refusal, ask } from "./api.js";
import { Table, el, fill, nameOf, setText, visible } from "./dom.js";
import { ago, count, many } from "./format.js";
import { aged } from "./ticking.js";

const REFRESH_MS = 2000;

const COLUMNS = [
  { title: "Segment", show: (cell, each) => cell.firstChild ?? cell.append(nameOf(each.name)) },
  {
    title: "State",
    show(cell, each) {
      setText(cell, each.state === "ended" ? "ended" : each.balanced ? `${each.state}, balanced` : `${each.state}, not balanced`);
      cell.classList.toggle("strong", !each.balanced && each.state !== "ended");
    },
  },
  { title: "Sent", number: true, show: (cell, each) => setText(cell, each.expected === null ? count(each.sent) : `${count(each.sent)} of ${count(each.expected)}`) },
  { title: "Received", number: true, show: (cell, each) => setText(cell, count(each.received)) },
  { title: "Last sender", show: (cell, each) => fill(cell, each.sender ? nameOf(each.sender) : "–") },
  { title: "Last receiver", show: (cell, each) => fill(cell, each.receiver ? nameOf(each.receiver) : "–") },
];

export class Explanation {
  /** @param {function(): void} close: what the address has to do when the sheet is closed. */
  constructor(close) {
    this.dialog = document.getElementById("explanation");
    this.dialog.onclose = () => {
      clearInterval(this.timer);
      this.asked = "";
      if (!this.silent) close();
    };
    this.dialog.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      this.dialog.close();
    };
    this.dialog.onclick = (event) => event.target === this.dialog && this.dialog.close();
  }

  /** Shows what the address asks for. */
  choose({ job, scope, name }) {
    const asked = name === undefined ? "" : JSON.stringify([job, scope ?? "", name]);
    if (asked === this.asked) return;
    this.asked = asked;
    clearInterval(this.timer);
    if (!asked) {
      this.hide();
      return;
    }
    this.about = { job, scope: scope ?? "", name };
    this.build();
    if (!this.dialog.open) this.dialog.showModal();
    this.load();
    this.timer = setInterval(() => document.hidden || this.load(), REFRESH_MS);
  }

  hide() {
    this.silent = true;
    if (this.dialog.open) this.dialog.close();
    setTimeout(() => (this.silent = false));
  }

  build() {
    const { job, scope, name } = this.about;
    this.verdict = el("p", { class: "verdict", text: "Looking …" });
    this.reasons = el("ul", { class: "reasons" });
    this.facts = el("dl", { class: "facts" });
    this.table = new Table("The substream's account on each segment", COLUMNS, (each) => each.name);
    this.more = el("p", { class: "quiet" });
    const words = [job, scope, name].map((each) => (/^[\w.@%+:/=-]+$/.test(each) ? each : `'${visible(each).replaceAll("'", "'\\''")}'`));
    fill(
      this.dialog,
      el(
        "header",
        {},
        el("h2", { id: "explanation-title" }, nameOf(name)),
        el("button", { type: "button", class: "close", "aria-label": "Close", text: "✕", on: { click: () => this.dialog.close() } }),
      ),
      el("p", { class: "quiet" }, "Scope ", nameOf(scope)),
      this.verdict,
      this.reasons,
      this.facts,
      el("div", { class: "wide" }, this.table.element),
      this.more,
      el("p", { class: "quiet command" }, "On the command line: ", el("code", { text: `tracker explain ${words.join(" ")}`.slice(0, 600) })),
    );
    this.table.element.hidden = true;
  }

  async load() {
    const asked = this.asked;
    let found;
    try {
      found = await ask("/explain", this.about);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (asked === this.asked) setText(this.verdict, error.message);
      return;
    }
    if (asked !== this.asked) return;
    this.show(found);
  }

  show(found) {
    const verdict = !found.named
      ? "Nothing was reported of it, or it has ended and is forgotten."
      : found.known && found.ended
        ? "It has ended."
        : "It has not ended:";
    setText(this.verdict, verdict);
    this.verdict.classList.toggle("open", found.named && !found.ended);
    const reasons = found.named ? found.reasons.map(visible) : [];
    if (found.more_reasons) reasons.push(`${count(found.more_reasons)} more reasons like these`);
    if (JSON.stringify(reasons) !== this.said) {
      this.said = JSON.stringify(reasons);
      fill(this.reasons, ...reasons.map((text) => el("li", { text: text.length > 3000 ? `${text.slice(0, 3000)}…` : text, dir: "auto" })));
    }
    this.table.element.hidden = !found.known;
    if (!found.known) {
      fill(this.facts);
      return;
    }
    this.table.update(found.segments);
    setText(this.more, found.more_segments ? `${many(found.more_segments, "more segment")}, all of them ended or balanced as the last ones here.` : "");
    if (!this.facts.childElementCount) {
      const [created, changed] = [el("dd"), el("dd")];
      fill(this.facts, el("dt", { text: "Ends" }), el("dd", { text: found.end_time ?? "no end time" }),
        el("dt", { text: "First reported" }), created, el("dt", { text: "Last changed" }), changed);
      if (found.late) this.facts.append(el("dt", { text: "Late reports" }), el("dd", { text: count(found.late) }));
      this.moments = [created, changed];
    }
    aged(this.moments[0], found.created, ago);
    aged(this.moments[1], found.changed, ago);
  }
}
