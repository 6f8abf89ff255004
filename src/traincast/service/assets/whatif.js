// What if: three sliders around a forecast whose answer follows while one drags.
const answered = new Map(); // bodies to answers of this visit
const powers = (low, high) => Array.from({ length: Math.floor(Math.log2(high / low)) + 1 }, (_, at) => low * 2 ** at);

async function askAgain(request, signal) {
  const key = JSON.stringify(request);
  if (!answered.has(key)) {
    const answer = await call("POST", "forecast", { ...request, detail: false }, { signal });
    if (answered.size > 300) answered.clear();
    answered.set(key, answer);
  }
  return answered.get(key);
}

// The values around the asked one, which is always among them.
function around(value, values) {
  return [...new Set([...values, value])].sort((a, b) => a - b);
}

function whatIf() {
  const { request, answer } = current, batch = answer.settings.batch || request.workload.batch || 1, length = answer.settings.seq;
  const places = sizes(request, answer).map((size) => [size.nodes * size.devices_per_node, size]);
  const sized = new Map(places);
  const axes = [["gpus", "GPUs", around(answer.num_devices, places.map(([count]) => count)), answer.num_devices],
    ...(request.workload.model ? [] : [["batch", "Batch per pass", around(batch, powers(1, Math.max(64, 4 * batch))), batch]]),
    ...(length && !request.workload.model ? [["seq", "Sequence length", around(length, powers(128, Math.max(8192, 4 * length))), length]] : [])];
  const chosen = Object.fromEntries(axes.map(([id, , , value]) => [id, value]));
  const said = element("p", { class: "says", id: "what-if-answer", role: "status" }, "Drag a slider: the answer follows.");
  const use = element("button", { type: "button", id: "what-if-use", disabled: true, onclick: () => useWhatIf(chosen, sized.get(chosen.gpus)) }, "Forecast this in full");
  let asking = null;
  const ask = later(async () => {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking, changed = structuredClone(request);
    const size = sized.get(chosen.gpus);
    if (chosen.gpus !== answer.num_devices && size) Object.assign(changed.cluster, size);
    if (chosen.batch !== undefined && chosen.batch !== batch) changed.workload.batch = chosen.batch;
    if (chosen.seq !== undefined && chosen.seq !== length) changed.workload.seq = chosen.seq;
    try {
      const found = await askAgain(changed, signal);
      if (signal.aborted) return;
      const rate = found.samples_per_s * (found.settings.seq || 1), before = answer.samples_per_s * (length || 1);
      said.className = `says ${found.memory.fits ? "" : "bad"}`;
      said.textContent = `Step ${showSeconds(found.step.seconds)}, ${length ? "tokens" : "samples"} per second ${showCount(rate)} (${rate >= before ? "+" : ""}${percent(rate / before - 1)}), job ${showSeconds(found.job.total.seconds)}, ${found.usd ? showUsd(found.usd.value) : "no price"}, ${showBytes(found.needed_bytes)} of ${showBytes(found.memory.capacity_bytes)}: ${found.memory.fits ? "fits" : "does not fit"}.`;
    } catch (error) {
      if (error.name === "AbortError") return;
      said.className = "says bad";
      said.textContent = error.message;
    }
  }, 60);
  const slider = ([id, name, values, value]) => {
    const shown = element("output", { for: `what-if-${id}` }, value.toLocaleString("en-US"));
    const input = element("input", { type: "range", id: `what-if-${id}`, min: 0, max: values.length - 1, step: 1, value: values.indexOf(value), "aria-valuetext": String(value) });
    input.addEventListener("input", () => {
      chosen[id] = values[Number(input.value)];
      shown.textContent = chosen[id].toLocaleString("en-US");
      input.setAttribute("aria-valuetext", shown.textContent);
      use.disabled = false;
      ask();
    });
    return element("div", {}, element("label", { for: `what-if-${id}` }, `${name}: `, shown), input);
  };
  return element("div", { class: "card", id: "what-if" }, element("h2", {}, "What if"), element("div", { class: "grid sliders" }, axes.map(slider)), said, element("div", { class: "actions" }, use));
}

function useWhatIf(chosen, size) {
  const state = readState();
  if (size && current && chosen.gpus !== current.answer.num_devices) Object.assign(state, { nodes: String(size.nodes), devices_per_node: String(size.devices_per_node) });
  for (const id of ["batch", "seq"]) if (chosen[id] !== undefined) state[id] = String(chosen[id]);
  writeState(state);
  forecast();
}
