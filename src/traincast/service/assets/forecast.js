// The first two panels: one forecast with its explanation, and the same job on other numbers of GPUs.
let current = null; // the last forecast, to draw again when the page changes its width
let underWay = null;

function figure(name, value, note, mood = "") {
  return element("div", { class: "card" }, element("p", { class: "figure-name" }, name), element("p", { class: `figure ${mood}` }, value), element("p", { class: "figure-note" }, note));
}

function stack(parts, show) {
  const whole = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  return [
    element("div", { class: "bar", "aria-hidden": "true" }, parts.map((part) => element("span", { style: `flex:${(part.value / whole).toFixed(4)};background:${part.colour}`, title: `${part.name} ${show(part.value)}` }))),
    element("ul", { class: "legend" }, parts.map((part) => element("li", {}, element("i", { style: `background:${part.colour}` }), `${part.name} `, element("b", {}, show(part.value))))),
  ];
}

const WORDS = { communication: "exposed communication", memory: "memory traffic", host: "host", bubble: "pipeline bubble", compute: "compute" };

async function forecast() {
  underWay?.abort();
  underWay = new AbortController();
  const { signal } = underWay;
  const place = byId("panel-forecast");
  saveAddress();
  if (!place.querySelector(".cards")) place.replaceChildren(busy("Forecasting"));
  byId("ask").disabled = true;
  try {
    const state = readState(), asked = makeRequest(state), request = withConfigs(asked);
    current = { request, answer: await call("POST", "forecast", { ...request, detail: true }, { signal }) };
    keepForecast(state, asked, current.answer);
    showForecast();
    say(`${current.answer.workload} on ${plural(current.answer.num_devices, "GPU")}: one step takes ${showSeconds(current.answer.step.seconds)}.`);
  } catch (error) {
    if (error.name === "AbortError") return;
    current = null;
    place.replaceChildren(problem(error));
    say(error.message, { bad: true });
  } finally {
    if (!signal.aborted) byId("ask").disabled = false;
  }
  if (tab === "scaling" && !signal.aborted) scale();
}

function showForecast() {
  const { answer } = current, { step, memory, job, detail } = answer, place = byId("panel-forecast");
  const interval = (estimate) => `90% between ${showSeconds(estimate.low_s)} and ${showSeconds(estimate.high_s)}`;
  const fits = memory.fit_probability, mood = fits > 0.9 ? "good" : fits < 0.5 ? "bad" : "warn";
  const cards = element("div", { class: "cards" },
    figure("One step", showSeconds(step.seconds), `${interval(step)}; ${answer.asked}`),
    figure("Throughput", `${showCount(answer.samples_per_s)}/s`, `${plural(answer.global_batch, "sample")} per step, ${percent(answer.utilization)} MFU${answer.recomputed > 0.005 ? `, ${percent(answer.utilization * (1 + answer.recomputed))} HFU` : ""}`),
    figure("Whole job", showSeconds(job.total.seconds), `${plural(Math.round(job.num_steps), "step")}; ${interval(job.total)}`),
    figure("Cost", showUsd(answer.usd && answer.usd.value), answer.usd ? `${showUsd(answer.usd.low)} to ${showUsd(answer.usd.high)}; ${showEnergy(answer.energy_joules)}` : "no price is known; give one"),
    figure("Memory per device", showBytes(answer.needed_bytes), `of ${showBytes(memory.capacity_bytes)}: ${percent(fits)} likely to fit`, mood),
    figure("MFU", percent(answer.utilization, 1), "the model's own FLOP over the peak rate"));
  const shares = Object.entries(answer.timeline.shares).filter(([, share]) => share > 0.0005).sort((a, b) => b[1] - a[1])
    .map(([name, value]) => ({ name: WORDS[name] || name, value, colour: categoryColour(name) }));
  const parts = Object.entries({ ...memory.by_role, ...(Object.keys(memory.outside_parts).length ? memory.outside_parts : { "context, libraries and cached blocks": memory.outside_bytes }) }).filter(([, amount]) => amount > 0).sort((a, b) => b[1] - a[1])
    .map(([name, value], at) => ({ name: name.replaceAll("_", " "), value, colour: colour(at) }));
  const memoryCard = element("div", { class: "card", id: "memory-card" }, element("h2", {}, "Memory over the step"));
  const timelineCard = element("div", { class: "card", id: "timeline-card" }, element("h2", {}, "Timeline of the step"));
  const fitAnswer = element("div", { id: "fit-answer" });
  const notes = [...answer.notes, ...(answer.unknown_ops.length ? [`operations without a formula, priced by the bound: ${answer.unknown_ops.join(", ")}`] : [])];
  const phases = answer.phases.map((phase, at) => ({ name: phase.name, value: phase.share, colour: colour(at) }));
  place.replaceChildren(
    memory.fits ? "" : element("div", { class: "card unfit", id: "unfit", role: "alert" }, element("h2", { class: "bad" }, `It does not fit: a device needs ${showBytes(answer.needed_bytes)} and has ${showBytes(memory.capacity_bytes)}`),
      element("p", {}, "Time and cost below are those of a device with enough memory."), element("div", { class: "actions" }, element("button", { type: "button", class: "primary", id: "unfit-ask", onclick: () => fit(byId("unfit-answer")) }, "What would fit?"),
        element("button", { type: "button", onclick: () => openTab("plan", { focus: true }) }, "Search plans that fit")), element("div", { id: "unfit-answer" })),
    cards,
    whatIf(),
    phases.length ? element("div", { class: "card", id: "phases" }, element("h2", {}, "Phases of a step"), ...stack(phases, (value) => percent(value)),
      element("ul", { class: "notes" }, answer.phases.map((phase) => element("li", {}, `${phase.name}: ${showSeconds(phase.step.seconds)}${phase.peak_bytes ? `, ${showBytes(phase.peak_bytes)}, ${phase.fits ? "fits" : "does not fit"}` : ""}. ${phase.says}`)))) : "",
    element("div", { class: "card", id: "shares" }, element("h2", {}, "What dominates"), ...stack(shares, (value) => percent(value)), element("p", { class: "says" }, answer.limit.says)),
    element("div", { class: "two" },
      memoryCard,
      element("div", { class: "card" }, element("h2", {}, "Memory at its peak"), ...stack(parts, showBytes), element("p", { class: "says" }, `At ${memory.peak_at}.`),
        ...memory.moments.map((moment) => element("p", { class: "says" }, `Outside the step, during its ${moment.name}: ${showBytes(moment.peak_bytes + memory.outside_bytes)} per device.`)),
        memory.host ? element("p", { class: memory.host.exceeds ? "says bad" : "says", id: "host-memory" }, `Memory of a host: ${showBytes(memory.host.needed_bytes)}${memory.host.capacity_bytes ? ` of ${showBytes(memory.host.capacity_bytes)}` : ", of a size that is not known"} per node (${Object.entries(memory.host.by_part).map(([name, amount]) => `${name} ${showBytes(amount)}`).join(", ")}).`) : "",
        element("div", { class: "actions" }, element("button", { type: "button", id: "fit", onclick: () => fit(fitAnswer) }, "What fits?")), fitAnswer)),
    timelineCard,
    takeAlong(),
    element("div", { class: "two" },
      element("div", { class: "card" }, element("h2", {}, "Slowest tasks"), slowest(detail.slowest)),
      element("div", { class: "card" }, element("h2", {}, "What it rests on"),
        ...stack(Object.entries(answer.grounds).filter(([, share]) => share > 0).map(([name, value], at) => ({ name: { measured: "measured on this device", transfer: "carried over from others", bound: "physical bound alone" }[name], value, colour: colour(at + 1) })), (value) => percent(value)),
        element("p", { class: "says" }, answer.asked), element("p", { class: "figure-note" }, answer.price),
        notes.length ? element("ul", { class: "notes" }, notes.map((note) => element("li", {}, note))) : null)),
    ...(answer.assumptions.length ? [element("div", { class: "card", id: "assumptions" }, element("h2", {}, "What was assumed"),
      element("p", { class: "says" }, answer.settings_words), element("ul", { class: "notes" }, answer.assumptions.map((text) => element("li", {}, text))))] : []));
  memoryCard.append(drawMemory(memoryCard, detail.memory, { ...memory, needed_bytes: answer.needed_bytes }));
  const kinds = [...new Set(detail.lanes.flatMap((lane) => lane.spans.map((span) => span[2])))];
  timelineCard.append(drawTimeline(timelineCard, detail.lanes, answer.timeline.duration_s),
    element("ul", { class: "legend" }, kinds.map((name) => element("li", {}, element("i", { style: `background:${categoryColour(name)}` }), name === "memory" ? "memory traffic" : name))));
  addChartTools(place);
}

function slowest(tasks) {
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the slowest tasks" }, element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "task"), element("th", { scope: "col" }, "kind"), element("th", { scope: "col" }, "time"))),
    element("tbody", {}, tasks.map((task) => element("tr", {}, element("td", { class: "wrap" }, task.name), element("td", {}, task.category), element("td", {}, showSeconds(task.seconds)))))));
}

async function fit(place) {
  place.replaceChildren(busy("Looking for what fits"));
  try {
    const found = await call("POST", "fit", current.request);
    const lines = [found.largest_batch ? `The largest batch that fits is ${found.largest_batch.toLocaleString("en-US")} per pass and replica.` : "Not even a batch of 1 fits."];
    if (found.longest_sequence) lines.push(`The longest sequence at batch ${found.batch} is ${found.longest_sequence.toLocaleString("en-US")} tokens.`);
    place.replaceChildren(element("ul", { class: "notes" }, lines.map((line) => element("li", {}, line)),
      found.changes.slice(0, 6).map((change) => element("li", {}, `${change.name}: ${showBytes(change.needed_bytes)}, ${percent(change.seconds_ratio - 1)} time per sample, ${change.fits ? "fits" : "does not fit"}`))));
    say(lines.join(" "));
  } catch (error) {
    place.replaceChildren(problem(error));
  }
}

// The same plan on 1, 2, 4 ... GPUs: within a node first, then by whole nodes.
function sizes(request, answer) {
  const perNode = Math.max(1, Math.round(answer.num_devices / (request.cluster.nodes || 1)));
  const most = Math.max(64, 4 * answer.num_devices), found = [];
  for (let count = 1; count <= most && found.length < 11; count *= 2) {
    if (count <= perNode && perNode % count === 0) found.push({ nodes: 1, devices_per_node: count });
    else if (count > perNode && count % perNode === 0) found.push({ nodes: count / perNode, devices_per_node: perNode });
  }
  return found;
}

let scaling = null;

async function scale() {
  const place = byId("panel-scaling");
  if (!current) {
    place.replaceChildren(element("div", { class: "card empty" }, "Forecast a job first; its scaling over GPU counts is drawn here."));
    return;
  }
  const { request, answer } = current;
  place.replaceChildren(busy("Forecasting other sizes"));
  const asked = await Promise.all(sizes(request, answer).map(async (size) => {
    try {
      const found = await call("POST", "forecast", { ...request, cluster: { ...request.cluster, ...size } });
      const samples = found.global_batch;
      return { num_devices: found.num_devices, samples_per_s: found.samples_per_s, low: samples / found.step.high_s, high: samples / found.step.low_s, fits: found.memory.fits,
        step_s: found.step.seconds, usd: found.usd && found.usd.value, seconds: found.job.total.seconds, global_batch: samples, utilization: found.utilization, size };
    } catch (error) {
      return { error };
    }
  }));
  const rows = asked.filter((row) => !row.error);
  if (!rows.length) {
    place.replaceChildren(problem(asked[0].error));
    return;
  }
  scaling = { rows, left: asked.length - rows.length, steps: answer.job.num_steps, batch: answer.global_batch };
  showScaling();
}

function showScaling() {
  const { rows, left, steps, batch } = scaling, place = byId("panel-scaling"), first = rows[0];
  const curve = element("div", { class: "card" }, element("h2", {}, "Throughput over GPU counts"));
  const cost = element("div", { class: "card" }, element("h2", {}, "Cost against time for the same samples"));
  const total = steps * batch;
  // The same samples on every size, so that sizes can be compared.
  const points = rows.map((row) => ({ seconds: total / row.samples_per_s, usd: row.usd === null ? null : (row.usd * total) / (row.samples_per_s * row.seconds), label: plural(row.num_devices, "GPU"), front: row.fits }));
  place.replaceChildren(curve, cost, element("div", { class: "card" }, element("h2", {}, "Sizes"), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of sizes" }, element("table", {},
    element("thead", {}, element("tr", {}, ["GPUs", "step", "samples/s", "efficiency", "utilization", "fits"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, element("td", {}, String(row.num_devices)), element("td", {}, showSeconds(row.step_s)), element("td", {}, digits(row.samples_per_s)),
      element("td", {}, percent(row.samples_per_s / row.num_devices / (first.samples_per_s / first.num_devices))), element("td", {}, percent(row.utilization, 1)), element("td", { class: row.fits ? "good" : "bad" }, row.fits ? "yes" : "no"))))))),
    left ? element("p", { class: "hint" }, `${plural(left, "size")} cannot hold this plan and ${left === 1 ? "is" : "are"} left out.`) : "");
  curve.append(drawScaling(curve, rows), element("p", { class: "hint" }, "Line: forecast with its 90% interval; dashed: perfect scaling from the smallest size; red: does not fit."));
  cost.append(drawCost(cost, points));
  addChartTools(place);
}
