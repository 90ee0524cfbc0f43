// Numbers and times as people write them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];

let ahead = 0; // milliseconds by which the server's clock is ahead of this one

/** 1,234 and 12.3 M: the digits that matter. */
export function count(number) {
  if (Math.abs(number) < 1e6) return WHOLE.format(number);
  const [size, unit] = Math.abs(number) >= 1e12 ? [1e12, "T"] : Math.abs(number) >= 1e9 ? [1e9, "G"] : [1e6, "M"];
  return `${(number / size).toPrecision(3)} ${unit}`;
}

/** "1 substream", "2 substreams". */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** The server's time, from which ages are counted. */
export function setNow(milliseconds) {
  ahead = milliseconds - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

/** "4 s", "12 min", "3 h 20 min", "5 d". */
export function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 600) return seconds % 60 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${seconds / 60} min`;
  const [size, unit] = UNITS.find(([least]) => seconds >= least);
  const left = Math.floor((seconds % size) / 60);
  const whole = `${Math.floor(seconds / size)} ${unit}`;
  return unit === "h" && left ? `${whole} ${left} min` : whole;
}

export function ago(milliseconds) {
  return milliseconds === null ? "never" : `${duration(now() - milliseconds)} ago`;
}

/** A moment in UTC, as the command line writes it. */
export function moment(milliseconds) {
  return milliseconds === null ? "–" : new Date(milliseconds).toISOString().replace("T", " ").replace("Z", "");
}

export function clock(milliseconds) {
  return new Date(milliseconds).toISOString().slice(11, 19);
}
