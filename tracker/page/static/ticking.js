// Ages that grow by themselves between two states from the server.

import { setAttribute, setText } from "./dom.js";
import { moment } from "./format.js";

const shown = new Map(); // by element: [milliseconds, how it is written]

/** Shows how long ago something was, in an element that stays up to date; the moment is its tooltip. */
export function aged(element, milliseconds, write) {
  shown.set(element, [milliseconds, write]);
  setText(element, write(milliseconds));
  setAttribute(element, "title", milliseconds === null ? null : `${moment(milliseconds)} UTC`);
}

setInterval(() => {
  for (const [element, [milliseconds, write]] of shown) {
    if (element.isConnected) setText(element, write(milliseconds));
    else shown.delete(element);
  }
}, 1000);
