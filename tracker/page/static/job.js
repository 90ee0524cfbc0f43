// One job: numbers, graph, open substreams, fronts, producers, drain and events, kept up to date.

import { follow } from "./api.js";
import { el, fill, nameOf, setText, visible } from "./dom.js";
import { Explanation } from "./explanation.js";
import { count } from "./format.js";
import { GraphView } from "./graphview.js";
import { address, go, here } from "./routes.js";
import { Drain, Events, Fronts, Producers } from "./sections.js";
import { Substreams } from "./substreams.js";

const NUMBERS = [
  ["open", "open substreams"],
  ["in_flight", "elements in flight"],
  ["stalled", "stalled"],
  ["late", "late reports"],
  ["ended", "ended, still kept"],
];

/** Shows a job until `stop` is called. */
export class JobView {
  constructor(place, job, tell) {
    this.job = job;
    const parameters = () => here().parameters;
    this.explanation = new Explanation(() => go(address("job", { ...parameters(), scope: null, name: null })));
    this.substreams = new Substreams(parameters);
    this.graph = new GraphView((segment) => address("job", { job, segment }));
    this.parts = [new Fronts(), new Producers(), new Drain(), new Events(job)];
    const [fronts, producers, drain, events] = this.parts.map((part) => part.element);
    this.deployment = el("span", { class: "quiet" });
    this.numbers = Object.fromEntries(NUMBERS.map(([key]) => [key, el("dd", { text: "–" })]));
    this.notice = el("p", { class: "notice", role: "alert", hidden: "" });
    fill(
      place,
      el(
        "div",
        { class: "title" },
        el("nav", { "aria-label": "Where you are" }, el("a", { href: "#/", text: "Jobs" }), el("span", { "aria-hidden": "true", text: " / " })),
        el("h1", {}, nameOf(job)),
        this.deployment,
      ),
      this.notice,
      el("dl", { class: "numbers" }, ...NUMBERS.map(([key, title]) => el("div", { data: { number: key } }, el("dt", { text: title }), this.numbers[key]))),
      el("section", { class: "block", "aria-labelledby": "graph-title" }, el("h2", { id: "graph-title", text: "Segments, and elements in flight" }), this.graph.element),
      this.substreams.element,
      fronts,
      el("div", { class: "pair" }, producers, drain),
      events,
    );
    document.title = `${visible(job)} – Substream tracker`;
    this.end = follow("/live/job", { job }, {
      ...tell,
      state: (state) => this.update(state),
      refused: (refusal) => this.refuse(refusal, tell),
    });
    this.choose();
  }

  /** The address has changed, and is of the same job. */
  choose() {
    this.substreams.choose();
    this.explanation.choose(here().parameters);
  }

  update(state) {
    this.notice.hidden = true;
    const shown = { ...state, stalled: state.survey ? state.survey.stalled : null };
    for (const [key] of NUMBERS) setText(this.numbers[key], shown[key] === null ? "…" : count(shown[key]));
    this.numbers.stalled.parentElement.classList.toggle("alarm", shown.stalled > 0);
    const order = { none: "", scope: ", in the order of end times in each scope", global: ", in the order of end times" }[state.ordering];
    setText(this.deployment, `deployment ${visible(state.deployment)}${order}`);
    this.graph.update(state);
    this.substreams.update(state);
    for (const part of this.parts) part.update(state);
  }

  refuse(refusal, tell) {
    setText(this.notice, refusal.status === 404 ? `There is no job ${visible(this.job)} now. It will appear here when it is defined.` : refusal.message);
    this.notice.hidden = false;
    tell.refused(refusal);
  }

  stop() {
    this.end();
    this.substreams.stop();
    this.explanation.choose({});
  }
}
