// All jobs.

import { follow } from "./api.js";
import { Table, el, fill, nameOf, setAttribute, setName, setText } from "./dom.js";
import { ago, count, many } from "./format.js";
import { address, go, here } from "./routes.js";
import { aged } from "./ticking.js";

const COLUMNS = [
  {
    title: "Job",
    show(cell, job) {
      const link = cell.firstChild ?? cell.appendChild(el("a", {}, nameOf(job.job)));
      setAttribute(link, "href", address("job", { job: job.job }));
      setName(link.firstChild, job.job);
    },
  },
  { title: "Deployment", show: (cell, job) => named(cell, job.deployment) },
  { title: "Open", number: true, show: (cell, job) => setText(cell, count(job.open)) },
  { title: "In flight", number: true, show: (cell, job) => setText(cell, count(job.in_flight)) },
  { title: "Late", number: true, show: (cell, job) => setText(cell, count(job.late)) },
  { title: "Fronts", show: (cell, job) => setText(cell, fronts(job)) },
  { title: "Producers", number: true, show: (cell, job) => setText(cell, count(job.producers)) },
  { title: "Drain", show: (cell, job) => setText(cell, job.drain === "not_draining" ? "–" : job.drain.replaceAll("_", " ")) },
  { title: "Last report", show: (cell, job) => aged(cell, job.contact, ago) },
];

function named(cell, name) {
  setName(cell.firstChild ?? cell.appendChild(nameOf(name)), name);
}

function fronts(job) {
  const parts = [];
  if (job.finished_fronts) parts.push(`${count(job.finished_fronts)} finished`);
  if (job.idle_fronts) parts.push(`${count(job.idle_fronts)} idle`);
  return parts.length ? `${count(job.fronts)}, ${parts.join(", ")}` : count(job.fronts);
}

/** Shows the list until the returned function is called. */
export function showJobs(place, tell) {
  const table = new Table("All jobs of this tracker", COLUMNS, (job) => job.job);
  const found = el("p", { class: "quiet", role: "status" });
  const search = el("input", { type: "search", id: "jobs-text", autocomplete: "off", spellcheck: "false" });
  const pages = el("nav", { class: "pages", "aria-label": "Pages of jobs" });
  const parameters = here().parameters;
  search.value = parameters.text ?? "";
  search.addEventListener("change", () => go(address("jobs", { text: search.value || null }), true));
  fill(
    place,
    el("h1", { text: "Jobs" }),
    el("form", { class: "search", role: "search", on: { submit: (event) => event.preventDefault() } },
      el("label", { for: "jobs-text", text: "Find a job" }), search),
    found,
    el("div", { class: "wide" }, table.element),
    pages,
  );
  document.title = "Jobs – Substream tracker";
  return follow("/live/jobs", { text: parameters.text, after: parameters.after }, {
    ...tell,
    state(state) {
      table.update(state.jobs);
      const none = parameters.text
        ? "No job has this in its name."
        : "There are no jobs yet. A program defines one with its first report; `tracker dev` shows an example.";
      setText(found, state.all ? many(state.all, "job") : none);
      table.element.hidden = !state.all;
      const links = [];
      if (state.start) links.push(el("a", { href: address("jobs", { text: parameters.text }), text: "First page" }));
      if (state.following !== null) {
        links.push(el("a", { href: address("jobs", { text: parameters.text, after: state.following }), text: "Next page" }));
      }
      if (pages.childElementCount !== links.length) fill(pages, ...links);
    },
  });
}
