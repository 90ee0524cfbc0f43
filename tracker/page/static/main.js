// The page: which view is shown, whether it is up to date, and its colours.

import { ask, setToken } from "./api.js";
import { el, fill, setText, visible } from "./dom.js";
import { duration } from "./format.js";
import { JobView } from "./job.js";
import { showJobs } from "./jobs.js";
import { here } from "./routes.js";

const THEME = "tracker-theme";
const SHORT_MS = 1500; // an interruption that nobody needs to know of
const content = document.getElementById("content");
const connection = document.getElementById("connection");

let shown = { key: "", stop() {}, choose() {} };

function show() {
  const { view, parameters } = here();
  const isJob = view === "job" && parameters.job !== undefined;
  const key = JSON.stringify(isJob ? ["job", parameters.job] : ["jobs", parameters.text, parameters.after]);
  if (key === shown.key) {
    shown.choose();
    return;
  }
  shown.stop();
  connect("waiting", 0);
  if (isJob) {
    const job = new JobView(content, parameters.job, tell);
    shown = { key, stop: () => job.stop(), choose: () => job.choose() };
  } else {
    const stop = showJobs(content, tell);
    shown = { key, stop, choose() {} };
  }
  if (shown.before) content.focus({ preventScroll: true });
  shown.before = true;
  scrollTo(0, 0);
}

const tell = {
  connection: connect,
  refused(refusal) {
    if (refusal.status === 401) askForToken();
  },
};

let late = 0;

/** Shows whether what is on the page is up to date. */
function connect(state, pause) {
  clearTimeout(late);
  if (state === "lost" && connection.dataset.state === "live") {
    late = setTimeout(() => connect("gone", pause), SHORT_MS);
    return;
  }
  if (document.getElementById("token").open) state = "token";
  const texts = { waiting: "Connecting …", live: "Live", gone: "Disconnected, trying again", lost: "Disconnected, trying again", token: "Needs a token" };
  connection.dataset.state = state === "lost" ? "gone" : state;
  setText(connection, texts[state]);
  connection.title = pause ? `The next try is in ${duration(pause)}` : "";
  document.body.classList.toggle("stale", connection.dataset.state === "gone");
}

function askForToken() {
  const dialog = document.getElementById("token");
  if (dialog.open) return;
  const input = el("input", { type: "password", id: "token-text", autocomplete: "off", required: "" });
  fill(
    dialog,
    el("h2", { id: "token-title", text: "This tracker asks for a token" }),
    el(
      "form",
      {
        method: "dialog",
        on: {
          submit() {
            setToken(input.value.trim());
            location.reload();
          },
        },
      },
      el("label", { for: "token-text", text: "Token" }),
      input,
      el("p", { class: "quiet", text: "It is kept until this tab is closed, and sent to this tracker only." }),
      el("button", { text: "Use it" }),
    ),
  );
  dialog.showModal();
}

function colour(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  document.querySelector("meta[name=color-scheme]").content = theme === "system" ? "light dark" : theme;
}

const themes = document.getElementById("theme");
themes.value = localStorage.getItem(THEME) ?? "system";
colour(themes.value);
themes.addEventListener("change", () => {
  localStorage.setItem(THEME, themes.value);
  colour(themes.value);
});

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the view
  content.focus();
});

ask("/server", {}).then(
  (server) => setText(document.getElementById("version"), visible(server.version)),
  () => {},
);
addEventListener("hashchange", show);
show();
