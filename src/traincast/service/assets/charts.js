// Data to SVG: axes, curves, lanes and points in the colours of the style sheet.
const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const colour = (place) => `var(${COLOURS[place % COLOURS.length]})`;
const CATEGORY = { compute: "--compute", memory: "--memory", communication: "--communication", host: "--host", bubble: "--bubble", wait: "--wait" };
const categoryColour = (name) => `var(${CATEGORY[name] || "--c7"})`;

function widthOf(place) {
  return Math.max(280, Math.min(1100, place.clientWidth || 800));
}

function chart(width, height, says, ...children) {
  return drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says }, ...children);
}

function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= raw) || raw;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(at);
  return ticks;
}

function byteTicks(high) {
  const step = 2 ** Math.ceil(Math.log2(high / 6));
  return [0, 1, 2, 3, 4, 5, 6].map((at) => at * step).filter((at) => at <= high);
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const each of [1, 2, 5]) {
      const at = each * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) ticks.push(at);
    }
  if (ticks.length < 3) return niceTicks(low, high, 4);
  return ticks.length > 7 ? ticks.filter((at) => Math.abs(Math.log10(at) % 1) < 1e-9) : ticks;
}

// Times that people say: minutes, hours and days in round numbers.
function timeTicks(low, high) {
  const units = [[1e-3, [1, 2, 5, 10, 20, 50, 100, 200, 500]], [1, [1, 2, 5, 10, 20, 30]], [60, [1, 2, 5, 10, 20, 30]], [3600, [1, 2, 3, 6, 12]], [86400, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]]];
  const ticks = units.flatMap(([unit, counts]) => counts.map((count) => count * unit)).filter((at) => at >= low && at <= high);
  return ticks.length < 2 ? logTicks(low, high) : ticks;
}

// Axes of a plot: how values become places, and the lines and words around them.
function frame({ width, height, x, y, left = 62, bottom = 40, top = 14, right = 14 }) {
  const inner = { left, right: width - right, top, bottom: height - bottom };
  const scale = (axis, from, to) => {
    const f = axis.log ? Math.log : (v) => v;
    const low = f(axis.low), span = f(axis.high) - low || 1;
    return (value) => from + ((f(value) - low) / span) * (to - from);
  };
  const px = scale(x, inner.left, inner.right), py = scale(y, inner.bottom, inner.top);
  const ticks = (axis, count) => axis.ticks || (axis.log ? logTicks(axis.low, axis.high) : niceTicks(axis.low, axis.high, count));
  const words = [];
  for (const at of ticks(y, 5)) {
    words.push(drawn("line", { class: "axis", x1: inner.left, x2: inner.right, y1: py(at), y2: py(at) }));
    words.push(drawn("text", { x: inner.left - 6, y: py(at) + 4, "text-anchor": "end" }, y.show(at)));
  }
  let last = -Infinity;
  for (const at of ticks(x, width > 500 ? 7 : 4)) {
    const shown = x.show(at), half = shown.length * 3.4;
    if (px(at) - half < last) continue;
    last = px(at) + half + 6;
    words.push(drawn("text", { x: px(at), y: inner.bottom + 16, "text-anchor": "middle" }, shown));
  }
  words.push(drawn("text", { x: (inner.left + inner.right) / 2, y: height - 6, "text-anchor": "middle" }, x.name || ""));
  if (y.name) words.push(drawn("text", { x: inner.left, y: top - 3 }, y.name));
  return { px, py, inner, words };
}

const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function drawMemory(place, detail, memory) {
  const width = widthOf(place), height = 250, points = detail.points;
  const most = Math.max(memory.capacity_bytes, ...points.map(([, amount]) => amount)) * 1.05;
  const { px, py, inner, words } = frame({
    width, height, x: { low: 0, high: points.length, ticks: [], show: String, name: "operations of one pass, in order" },
    y: { low: 0, high: most, ticks: byteTicks(most), show: showBytes },
  });
  const line = points.flatMap(([, amount], at) => [[px(at), py(amount)], [px(at + 1), py(amount)]]);
  const area = `${path(line)}L${inner.right} ${inner.bottom}L${inner.left} ${inner.bottom}Z`;
  const limit = py(memory.capacity_bytes);
  const peak = points.reduce((best, point, at) => (point[1] > points[best][1] ? at : best), 0);
  return chart(width, height, `Memory over the step: at most ${showBytes(memory.needed_bytes)} of ${showBytes(memory.capacity_bytes)}, at ${memory.peak_at}`,
    ...words,
    drawn("path", { d: area, fill: "var(--memory)", "fill-opacity": ".35" }),
    drawn("path", { d: path(line), fill: "none", stroke: "var(--memory)", "stroke-width": 1.6 }),
    drawn("line", { class: "limit", x1: inner.left, x2: inner.right, y1: limit, y2: limit }),
    drawn("text", { x: inner.right, y: limit + 14, "text-anchor": "end" }, `device ${showBytes(memory.capacity_bytes)}`),
    drawn("circle", { cx: px(peak + 0.5), cy: py(points[peak][1]), r: 4, fill: "var(--bad)" }, drawn("title", {}, points[peak][0])),
    drawn("text", { class: "peak", x: px(peak + 0.5) + (peak > points.length / 2 ? -8 : 8), y: py(points[peak][1]) - 6, "text-anchor": peak > points.length / 2 ? "end" : "start" }, `peak ${showBytes(points[peak][1])}`));
}

function drawTimeline(place, lanes, duration) {
  const width = widthOf(place), row = 26, left = width < 500 ? 74 : 120, height = 40 + lanes.length * (row + 4);
  const scale = (width - left - 8) / duration;
  const marks = [];
  lanes.forEach((lane, at) => {
    const y = 4 + at * (row + 4);
    marks.push(drawn("text", { x: 0, y: y + 17 }, `${lanes.length > 2 ? `rank ${lane.rank} ` : ""}${lane.stream}`));
    marks.push(drawn("rect", { x: left, y, width: width - left - 8, height: row, fill: "var(--line)", "fill-opacity": ".45", rx: 3 }));
    for (const [start, end, category, name] of lane.spans)
      marks.push(drawn("rect", { x: (left + start * scale).toFixed(2), y, width: Math.max(0.4, (end - start) * scale).toFixed(2), height: row, fill: categoryColour(category) },
        drawn("title", {}, `${name}: ${showSeconds(end - start)} from ${showSeconds(start)}`)));
  });
  for (const at of niceTicks(0, duration, width > 500 ? 6 : 3))
    marks.push(drawn("text", { x: left + at * scale, y: height - 10, "text-anchor": at ? "middle" : "start" }, at ? showSeconds(at) : "0"));
  return chart(width, height, `Timeline of one step of ${showSeconds(duration)} on ${plural(lanes.length, "lane")}`, ...marks);
}

function drawScaling(place, rows) {
  const width = widthOf(place), height = 280;
  const rates = rows.map((row) => row.samples_per_s), counts = rows.map((row) => row.num_devices);
  const ideal = (count) => (rates[0] / counts[0]) * count;
  const { px, py, words } = frame({
    width, height,
    x: { low: counts[0], high: counts.at(-1) * 1.05, log: true, ticks: counts, show: String, name: "GPUs" },
    y: { low: rates[0] * 0.8, high: Math.max(ideal(counts.at(-1)), ...rates) * 1.15, log: true, show: showCount, name: "samples per second" },
  });
  const line = rows.map((row) => [px(row.num_devices), py(row.samples_per_s)]);
  const band = [...rows.map((row) => [px(row.num_devices), py(row.high)]), ...rows.map((row) => [px(row.num_devices), py(row.low)]).reverse()];
  return chart(width, height, `Scaling: ${rows.map((row) => `${row.num_devices} GPUs ${digits(row.samples_per_s)} samples per second`).join(", ")}`,
    ...words,
    drawn("path", { d: path(counts.map((count) => [px(count), py(ideal(count))])), fill: "none", stroke: "var(--soft)", "stroke-dasharray": "4 4" }),
    drawn("path", { d: `${path(band)}Z`, fill: "var(--c1)", "fill-opacity": ".18" }),
    drawn("path", { d: path(line), fill: "none", stroke: "var(--c1)", "stroke-width": 2 }),
    ...rows.map((row) => drawn("circle", { cx: px(row.num_devices), cy: py(row.samples_per_s), r: 4, fill: row.fits ? "var(--c1)" : "var(--bad)" },
      drawn("title", {}, `${row.num_devices} GPUs: ${digits(row.samples_per_s)} samples/s${row.fits ? "" : ", does not fit"}`))));
}

// Cost against time: each plan a point, the front a line, limits dashed.
function drawCost(place, points, { deadline, budget, choose } = {}) {
  const known = points.filter((point) => point.usd !== null && point.usd > 0 && point.seconds > 0);
  if (!known.length) return element("p", { class: "empty" }, "No price is known, so time and money cannot be drawn; give a price per device-hour.");
  const width = widthOf(place), height = 300, around = (values) => [Math.min(...values) / 1.25, Math.max(...values) * 1.25];
  const [left, right] = around([...known.map((point) => point.seconds), ...(deadline ? [deadline] : [])]);
  const [low, high] = around([...known.map((point) => point.usd), ...(budget ? [budget] : [])]);
  const { px, py, inner, words } = frame({
    width, height, x: { low: left, high: right, log: true, ticks: timeTicks(left, right), show: showSeconds, name: "time of the whole job" },
    y: { low, high, log: true, show: (value) => showUsd(value).replace(/\.00$/, ""), name: "cost" }, left: 70,
  });
  const front = known.filter((point) => point.front).sort((a, b) => a.seconds - b.seconds);
  const marks = known.map((point) => drawn("circle", {
    cx: px(point.seconds), cy: py(point.usd), r: point.front ? 5 : 3.2, fill: point.front ? "var(--c3)" : "var(--c1)", "fill-opacity": point.front ? 1 : 0.45,
    style: choose ? "cursor:pointer" : null, onclick: choose ? () => choose(point) : null,
  }, drawn("title", {}, `${point.label}: ${showSeconds(point.seconds)}, ${showUsd(point.usd)}`)));
  return chart(width, height, `Cost against time of ${plural(known.length, "choice")}; from ${showSeconds(Math.min(...known.map((p) => p.seconds)))} and from ${showUsd(Math.min(...known.map((p) => p.usd)))}`,
    ...words,
    front.length > 1 && drawn("path", { d: path(front.map((point) => [px(point.seconds), py(point.usd)])), fill: "none", stroke: "var(--c3)", "stroke-width": 1.5 }),
    deadline && drawn("line", { class: "limit", x1: px(deadline), x2: px(deadline), y1: inner.top, y2: inner.bottom }, drawn("title", {}, "deadline")),
    budget && drawn("line", { class: "limit", x1: inner.left, x2: inner.right, y1: py(budget), y2: py(budget) }, drawn("title", {}, "budget")),
    ...marks.filter(Boolean));
}

// Who holds which node when; jobs on one node are stacked in the lowest free slice.
function drawGantt(place, policy) {
  const bars = policy.bars;
  if (!bars.length) return element("p", { class: "empty" }, "No job ran.");
  const width = widthOf(place), nodes = policy.gpus_of_node.length;
  const row = Math.max(8, Math.min(26, Math.floor(620 / nodes))), left = 58, height = nodes * (row + 2) + 34;
  const begin = Math.min(...bars.map((bar) => bar[2])), end = Math.max(...bars.map((bar) => bar[3]));
  const scale = (width - left - 8) / Math.max(end - begin, 1e-9);
  const held = new Map(), shades = new Map(), marks = [];
  for (const [node, count, start, stop, job] of bars) {
    const busy = (held.get(node) || []).filter((entry) => entry[2] > start);
    let floor = 0;
    for (const [low, high] of [...busy].sort((a, b) => a[0] - b[0])) {
      if (floor + count <= low + 1e-9) break;
      floor = Math.max(floor, high);
    }
    held.set(node, [...busy, [floor, floor + count, stop]]);
    if (!shades.has(job)) shades.set(job, colour(shades.size));
    const unit = row / policy.gpus_of_node[node];
    marks.push(drawn("rect", {
      x: (left + (start - begin) * scale).toFixed(2), y: (4 + node * (row + 2) + Math.min(floor, policy.gpus_of_node[node]) * unit).toFixed(2),
      width: Math.max(0.4, (stop - start) * scale).toFixed(2), height: Math.max(0.6, count * unit).toFixed(2), fill: shades.get(job), "fill-opacity": ".8",
    }, drawn("title", {}, `job ${job}: ${plural(count, "GPU")} for ${showSeconds(stop - start)}`)));
  }
  for (let node = 0; node < nodes; node += Math.max(1, Math.ceil(14 / row)))
    marks.push(drawn("text", { x: 0, y: 4 + node * (row + 2) + row * 0.75 }, `node ${node}`));
  for (const at of niceTicks(0, end - begin, width > 500 ? 6 : 3))
    marks.push(drawn("text", { x: left + at * scale, y: height - 8, "text-anchor": at ? "middle" : "start" }, at ? showSeconds(at) : "0"));
  return chart(width, height, `Gantt chart of ${policy.policy}: ${plural(policy.num_bars, "bar")} on ${plural(policy.num_nodes, "node")}`, ...marks);
}

function drawQueues(place, policies) {
  const width = widthOf(place), height = 220;
  const end = Math.max(1, ...policies.flatMap((policy) => policy.queue.map(([at]) => at)));
  const most = Math.max(1, ...policies.flatMap((policy) => policy.queue.map(([, count]) => count)));
  const { px, py, words } = frame({ width, height, x: { low: 0, high: end, show: (v) => (v ? showSeconds(v) : "0"), name: "time" }, y: { low: 0, high: most * 1.05, show: digits, name: "jobs that wait" } });
  return chart(width, height, `Jobs that wait over time, at most ${most}`, ...words,
    ...policies.map((policy, at) => {
      const line = policy.queue.flatMap(([time, count], place_) => (place_ ? [[px(time), py(policy.queue[place_ - 1][1])], [px(time), py(count)]] : [[px(time), py(count)]]));
      return drawn("path", { d: path(line), fill: "none", stroke: colour(at), "stroke-width": 1.7 });
    }));
}
