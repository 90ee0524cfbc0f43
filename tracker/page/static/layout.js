// Where the segments of a graph are drawn: in layers, each after those that feed it; retry loops lead back.

/**
 * @param {Array<{feeds: number[]}>} nodes
 * @returns {{layers: number[][], back: Set<string>, ways: Map<string, number[]>}} what each layer has from top to
 *     bottom: nodes, and from `nodes.length` on the places where an edge passes that spans several layers; the edges
 *     `from>to` that lead back; and for each other edge the places that it passes.
 */
export function layered(nodes) {
  const back = backEdges(nodes);
  const forward = nodes.map((node, from) => node.feeds.filter((to) => to !== from && !back.has(`${from}>${to}`)));
  const before = nodes.map(() => []);
  forward.forEach((feeds, from) => feeds.forEach((to) => before[to].push(from)));
  const layerOf = longestPaths(forward, before);
  const ways = new Map();
  forward.forEach((feeds, from) => {
    feeds.forEach((to) => ways.set(`${from}>${to}`, passing(from, to, layerOf)));
  });
  const layers = [];
  layerOf.forEach((layer, place) => (layers[layer] ??= []).push(place));
  const after = layerOf.map(() => []);
  const prior = layerOf.map(() => []);
  for (const [edge, places] of ways) {
    const [from, to] = edge.split(">").map(Number);
    const chain = [from, ...places, to];
    chain.slice(1).forEach((place, at) => {
      after[chain[at]].push(place);
      prior[place].push(chain[at]);
    });
  }
  order(layers, after, prior);
  return { layers, back, ways };
}

/** New places in the layers between two nodes. */
function passing(from, to, layerOf) {
  const places = [];
  for (let layer = layerOf[from] + 1; layer < layerOf[to]; layer++) places.push(layerOf.push(layer) - 1);
  return places;
}

/** The edges that close a loop, as a walk from the beginnings finds them. */
function backEdges(nodes) {
  const back = new Set();
  const state = nodes.map(() => 0); // 0: not seen, 1: on the way, 2: done
  const fed = nodes.map(() => 0);
  nodes.forEach((node, from) => node.feeds.forEach((to) => to !== from && (fed[to] += 1)));
  const starts = [...nodes.keys()].sort((a, b) => Number(fed[a] > 0) - Number(fed[b] > 0));
  for (const start of starts) {
    if (state[start]) continue;
    const way = [[start, 0]];
    state[start] = 1;
    while (way.length) {
      const top = way[way.length - 1];
      const [node, next] = top;
      if (next === nodes[node].feeds.length) {
        state[node] = 2;
        way.pop();
        continue;
      }
      top[1] += 1;
      const to = nodes[node].feeds[next];
      if (to === node || state[to] === 1) back.add(`${node}>${to}`);
      else if (!state[to]) {
        state[to] = 1;
        way.push([to, 0]);
      }
    }
  }
  return back;
}

function longestPaths(forward, before) {
  const layer = forward.map(() => 0);
  const left = before.map((from) => from.length);
  const ready = left.flatMap((count, node) => (count ? [] : [node]));
  while (ready.length) {
    const node = ready.shift();
    for (const to of forward[node]) {
      layer[to] = Math.max(layer[to], layer[node] + 1);
      left[to] -= 1;
      if (!left[to]) ready.push(to);
    }
  }
  return layer;
}

/** Sorts each layer by the mean place of the neighbours, forth and back, so that fewer edges cross. */
function order(layers, forward, before) {
  const place = new Map();
  const note = () => layers.forEach((layer) => layer.forEach((node, at) => place.set(node, at / layer.length)));
  note();
  for (let round = 0; round < 6; round++) {
    const neighbours = round % 2 ? forward : before;
    for (const layer of round % 2 ? [...layers].reverse() : layers) {
      const mean = new Map(
        layer.map((node) => {
          const around = neighbours[node];
          const sum = around.reduce((total, each) => total + place.get(each), 0);
          return [node, around.length ? sum / around.length : place.get(node)];
        }),
      );
      layer.sort((a, b) => mean.get(a) - mean.get(b));
      note();
    }
  }
}
