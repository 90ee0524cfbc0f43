// What the page reads from the server: answers, and states as they happen.

import { setNow } from "./format.js";

const TOKEN = "tracker-token";
const SILENT_MS = 25_000; // the server says something every ten seconds
const LONGEST_PAUSE_MS = 15_000;

/** The server refuses, or cannot be reached (status 0). */
export class Refusal extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

async function request(path, parameters, signal) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const token = sessionStorage.getItem(TOKEN);
  const address = `/api${path}?${new URLSearchParams(given)}`;
  let answer;
  try {
    answer = await fetch(address, { signal, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "", "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  let said = {};
  const text = await answer.text();
  try {
    said = JSON.parse(text);
  } catch {
    said = { error: text.slice(0, 300) || answer.statusText };
  }
  throw new Refusal(answer.status, said.reason ?? "", said.error ?? `status ${answer.status}`);
}

/** The answer to one question. An empty front is a name, too: that of a substream's only source. */
export async function ask(path, parameters, signal) {
  return (await request(path, parameters, signal)).json();
}

/**
 * Follows states until `stop` is called, and connects again by itself.
 * @param {string} path
 * @param {Object} parameters
 * @param {{state: function(Object), connection: function(string, number), refused: function(Refusal)}} tell
 *     `connection` is told "live", or "lost" with the milliseconds until the next try.
 * @returns {function(): void} stops.
 */
export function follow(path, parameters, tell) {
  const stopping = new AbortController();
  let pause = 500;

  async function once() {
    const silence = new AbortController();
    const signal = AbortSignal.any([stopping.signal, silence.signal]);
    let timer = setTimeout(() => silence.abort(), SILENT_MS);
    try {
      const reader = (await request(path, parameters, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      let held = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENT_MS);
        held += value;
        const messages = held.split("\n\n");
        held = messages.pop();
        for (const message of messages) {
          pause = 500;
          tell.connection("live", 0);
          try {
            read(message);
          } catch (error) {
            reportError(error); // a fault of the page, which must not look like one of the connection
          }
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  function read(message) {
    const lines = message.split("\n");
    const event = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "";
    const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
    if (data === undefined) return;
    if (event === "refused") {
      const said = JSON.parse(data);
      tell.refused(new Refusal(404, said.reason, said.error));
      pause = 3_000;
    } else if (event === "hello") {
      setNow(JSON.parse(data).now);
    } else {
      tell.state(JSON.parse(data));
    }
  }

  async function run() {
    while (!stopping.signal.aborted) {
      try {
        await once();
      } catch (error) {
        if (stopping.signal.aborted) return;
        if (error instanceof Refusal && error.status !== 0) {
          tell.refused(error);
          pause = Math.max(pause, 3_000);
        }
      }
      if (stopping.signal.aborted) return;
      tell.connection("lost", pause);
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  run();
  return () => stopping.abort();
}
