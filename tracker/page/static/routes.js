// Addresses: what is shown stands behind the # of the page's address, so that it can be bookmarked and sent to others.

/** @returns {{view: string, parameters: Object<string, string>}} what the address asks for. */
export function here() {
  const [view, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: view || "jobs", parameters: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** The address of a view; parameters that are null are left out. */
export function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `#/${view}?${new URLSearchParams(given)}` : `#/${view}`;
}

/** Goes to an address; `replacing` leaves no step for the Back button. */
export function go(to, replacing = false) {
  if (replacing) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}
