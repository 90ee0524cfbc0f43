// The drawing of a job's segments: each is a line from where elements enter it to the dot of the one who reads it, with
// the number of elements in flight on the line. Where the dot leads, the elements travel next.

import { el, fill, setAttribute, svg, visible } from "./dom.js";
import { count, many } from "./format.js";
import { layered } from "./layout.js";

const NODE = { width: 172, height: 58, line: 31, least: 104 };
const GAP = { across: 56, along: 16, pass: 30, loop: 14, edge: 10 };
const MOST = 120; // segments that are drawn; a table has them all

/** @param {function(string): string} link: the address that shows the open substreams of a segment. */
export class GraphView {
  constructor(link) {
    this.link = link;
    this.shape = "";
    this.parts = new Map();
    this.element = el("div", { class: "graph" });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  update(state) {
    this.state = state;
    this.draw();
    if (!this.parts.size) return;
    const busiest = Math.max(1, ...Object.values(state.survey?.in_flight ?? {}));
    for (const segment of state.segments) this.show(segment, busiest);
  }

  show(segment, busiest) {
    const part = this.parts.get(segment.name);
    if (!part) return;
    const survey = this.state.survey;
    const flight = survey?.in_flight[segment.name] ?? 0;
    const waiting = survey?.segments[segment.name] ?? 0;
    part.number.textContent = survey ? count(flight) : "…";
    const width = Math.max(30, 8 * part.number.textContent.length + 16);
    setAttribute(part.pill, "width", width);
    setAttribute(part.pill, "x", part.middle - width / 2);
    setAttribute(part.track, "stroke-width", flight ? 2 + 5 * Math.sqrt(flight / busiest) : 1.5);
    part.group.classList.toggle("busy", flight > 0);
    const unread = segment.unread && flight > 0;
    part.group.classList.toggle("unread", unread);
    part.note.textContent = unread ? "never read" : waiting ? many(waiting, "substream") : "";
    const read = unread ? ", and nobody has ever received any" : "";
    setAttribute(
      part.group,
      "aria-label",
      `Segment ${visible(segment.name)}: ${many(flight, "element")} in flight${read}, ` +
        `${many(waiting, "open substream")} do not balance`,
    );
  }

  draw() {
    if (!this.state) return;
    const room = Math.floor(this.element.clientWidth);
    const segments = this.state.segments;
    const shape = JSON.stringify([room, segments.map((each) => [each.name, each.feeds])]);
    if (!room || shape === this.shape) return;
    this.shape = shape;
    this.parts.clear();
    if (segments.length > MOST) {
      fill(this.element, el("p", { class: "quiet", text: `The graph has ${count(segments.length)} segments, too many to draw.` }));
      return;
    }
    const graph = layered(segments);
    const plan = across(graph, segments.length, room) ?? down(graph, segments.length, room);
    const drawing = svg("svg", {
      width: plan.width,
      height: plan.height,
      viewBox: `0 0 ${plan.width} ${plan.height}`,
      role: "group",
      "aria-label": `The job's ${many(segments.length, "segment")}`,
    });
    segments.forEach((segment, from) => {
      for (const to of segment.feeds) drawing.append(this.edge(plan, from, to, graph.back.has(`${from}>${to}`)));
    });
    segments.forEach((segment, at) => drawing.append(this.node(segment, plan.at[at], plan.node)));
    fill(this.element, drawing);
    const busiest = Math.max(1, ...Object.values(this.state.survey?.in_flight ?? {}));
    for (const segment of segments) this.show(segment, busiest);
  }

  node(segment, { x, y }, width) {
    const middle = width / 2;
    const name = visible(segment.name);
    const fits = Math.floor(width / 7.4);
    const part = {
      middle,
      track: svg("path", { class: "track", d: `M0 ${NODE.line}H${width - 5}` }),
      pill: svg("rect", { class: "pill", y: NODE.line - 10, height: 20, rx: 10 }),
      number: svg("text", { class: "flight", x: middle, y: NODE.line + 4.5, "text-anchor": "middle" }),
      note: svg("text", { class: "note", x: middle, y: NODE.line + 24, "text-anchor": "middle" }),
    };
    part.group = svg(
      "a",
      { class: "segment", href: this.link(segment.name), transform: `translate(${x} ${y})` },
      svg("rect", { class: "halo", x: -6, y: -2, width: width + 12, height: NODE.height + 2, rx: 6 }),
      svg("title", { text: name }),
      svg("text", { class: "label", x: middle, y: 13, "text-anchor": "middle" }, shortened(name, fits)),
      part.track,
      svg("circle", { class: "reader", cx: width - 4, cy: NODE.line, r: 4 }),
      part.pill,
      part.number,
      part.note,
    );
    this.parts.set(segment.name, part);
    return part.group;
  }

  edge(plan, from, to, back) {
    const path = back ? plan.loop(from, to) : plan.way(from, to);
    return svg("path", { class: back ? "edge back" : "edge", d: path });
  }
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Layers from left to right; null if there is no room for them. */
function across(graph, nodes, room) {
  const layers = graph.layers;
  const gaps = (layers.length - 1) * GAP.across + 2 * GAP.edge;
  const node = Math.min(NODE.width, Math.floor((room - gaps) / layers.length));
  if (node < NODE.least) return null;
  const heightOf = (place) => (place < nodes ? NODE.height + GAP.along : GAP.pass);
  const heights = layers.map((layer) => layer.reduce((sum, place) => sum + heightOf(place), 0) - GAP.along);
  const inner = Math.max(...heights);
  const at = [];
  layers.forEach((layer, column) => {
    let y = GAP.edge + (inner - heights[column]) / 2;
    for (const place of layer) {
      at[place] = { x: GAP.edge + column * (node + GAP.across), y: place < nodes ? y : y + GAP.pass / 2 - NODE.line };
      y += heightOf(place);
    }
  });
  let loops = 0;
  const line = (place) => at[place].y + NODE.line;
  const curve = (x1, y1, x2, y2) => `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
  return {
    node,
    at,
    width: gaps + node * layers.length,
    height: inner + 2 * GAP.edge + 6 + graph.back.size * GAP.loop,
    way(from, to) {
      let path = `M${at[from].x + node} ${line(from)}`;
      const chain = [from, ...graph.ways.get(`${from}>${to}`), to];
      chain.slice(1).forEach((place, before) => {
        path += curve(at[chain[before]].x + node, line(chain[before]), at[place].x, line(place));
        if (place !== to) path += `H${at[place].x + node}`;
      });
      return path;
    },
    loop(from, to) {
      const [x1, y1, x2, y2] = [at[from].x + node, line(from), at[to].x, line(to)];
      const low = inner + 2 * GAP.edge + 4 + loops++ * GAP.loop;
      return `M${x1} ${y1}C${x1 + 26} ${y1} ${x1 + 26} ${low} ${x1} ${low}L${x2} ${low}C${x2 - 26} ${low} ${x2 - 26} ${y2} ${x2} ${y2}`;
    },
  };
}

/** Layers from top to bottom, as on a phone; a layer that is too wide goes on in the next line. */
function down(graph, nodes, room) {
  const layers = graph.layers.map((layer) => layer.filter((place) => place < nodes));
  const long = [...graph.ways].filter(([, places]) => places.length).length;
  const left = GAP.edge + Math.min(5, long) * GAP.loop;
  const right = GAP.edge + Math.min(5, graph.back.size) * GAP.loop;
  const most = Math.max(1, Math.floor((room - left - right + GAP.along) / (NODE.least + GAP.along)));
  const columns = Math.min(most, Math.max(...layers.map((layer) => layer.length)));
  const node = Math.min(NODE.width + 40, Math.floor((room - left - right - (columns - 1) * GAP.along) / columns));
  const at = [];
  let y = GAP.edge;
  for (const layer of layers) {
    for (let start = 0; start < layer.length; start += columns) {
      const part = layer.slice(start, start + columns);
      const free = room - left - right - part.length * (node + GAP.along) + GAP.along;
      part.forEach((place, column) => {
        at[place] = { x: left + free / 2 + column * (node + GAP.along), y };
      });
      y += NODE.height + 6;
    }
    y += 22;
  }
  let loops = 0;
  let passes = 0;
  return {
    node,
    at,
    width: room,
    height: y - 20,
    way(from, to) {
      const [x1, y1, x2, y2] = [at[from].x + node / 2, at[from].y + NODE.height, at[to].x + node / 2, at[to].y];
      if (!graph.ways.get(`${from}>${to}`).length) return `M${x1} ${y1}C${x1} ${y1 + 18} ${x2} ${y2 - 18} ${x2} ${y2}`;
      const x = left - GAP.loop * (0.6 + (passes++ % 5));
      return `M${x1} ${y1}C${x1} ${y1 + 14} ${x} ${y1 + 4} ${x} ${y1 + 26}V${y2 - 26}C${x} ${y2 - 4} ${x2} ${y2 - 14} ${x2} ${y2}`;
    },
    loop(from, to) {
      const x = room - right + GAP.loop * (0.6 + (loops++ % 5));
      const [x1, y1, y2] = [at[from].x + node, at[from].y + NODE.line, at[to].y + NODE.line - 22];
      return `M${x1} ${y1}C${x} ${y1} ${x} ${y1} ${x} ${y1 - 8}V${y2 + 8}C${x} ${y2} ${x} ${y2} ${at[to].x + node - 8} ${y2}`;
    },
  };
}
