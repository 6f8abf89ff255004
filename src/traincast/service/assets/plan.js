// The plan panel: a search as a job of the service, its cost plot and its table.
let plans = null;
const COLUMNS = [
  ["cluster", (row) => row.cluster, (row) => row.cluster, "left"],
  ["GPUs", (row) => row.num_devices, (row) => String(row.num_devices)],
  ["plan", (row) => describePlan(row), (row) => describePlan(row), "left"],
  ["job", (row) => row.job_s, (row) => showSeconds(row.job_s)],
  ["cost", (row) => row.usd ?? Infinity, (row) => showUsd(row.usd)],
  ["energy", (row) => row.energy_joules ?? Infinity, (row) => showEnergy(row.energy_joules)],
  ["step", (row) => row.step_s, (row) => showSeconds(row.step_s)],
  ["memory", (row) => row.needed_bytes / row.capacity_bytes, (row) => percent(row.needed_bytes / row.capacity_bytes)],
  ["in time", (row) => row.deadline_probability ?? -1, (row) => (row.deadline_probability === null ? "-" : percent(row.deadline_probability))],
];
const AXES = [["data", "DP"], ["tensor", "TP"], ["pipeline", "PP"], ["context", "CP"], ["expert", "EP"]];

function describePlan({ parallelism, batch }) {
  const words = AXES.filter(([axis]) => parallelism[axis] > 1).map(([axis, short]) => `${short}${parallelism[axis]}`);
  if (parallelism.zero) words.push(`ZeRO${parallelism.zero}`);
  if (parallelism.recompute !== "none") words.push(`recompute ${parallelism.recompute}`);
  if (parallelism.pipeline > 1 && parallelism.order !== "1f1b") words.push(parallelism.order);
  if (parallelism.sequence_parallel) words.push("SP");
  return `${words.join(" ") || "one device"}, ${batch} x ${parallelism.micro_batches}`;
}

function planRequest(state) {
  const request = withConfigs(makeRequest(state));
  // The search has its own degrees; whatever else was said about the plan stays.
  request.parallelism = Object.fromEntries(Object.entries(request.parallelism).filter(([name]) => !HELD.get("parallelism").has(name)));
  delete request.cluster.nodes;
  const limits = numbers(state, [["global_batch"], ["max_gpus"], ["budget", "budget_usd"]]);
  if (state.deadline) limits.deadline_s = Number(state.deadline) * 3600;
  if (!limits.global_batch) limits.global_batch = (Number(state.batch) || 1) * Math.max(1, (Number(state.nodes) || 1) * (Number(state.devices_per_node) || 1));
  if (state.all_machines) Object.assign(request, { cluster: {}, all_machines: true });
  delete request.workload.batch;
  return { ...request, ...limits, objective: state.objective, top: Number(state.top) };
}

async function searchPlans({ known } = {}) {
  const place = byId("plan-answer"), button = byId("plan-ask"), state = readState();
  saveAddress();
  button.disabled = true;
  try {
    const name = `Plans for ${state.model_name || state.name || "configurations"} on ${state.all_machines ? "all machines" : state.device}, up to ${state.max_gpus} GPUs`;
    const keep = (figures) => keepRun({ kind: "plan", key: `plan ${jobs.plan}`, name, state: { ...state, plan_job: jobs.plan, schedule_job: "", compare: "" }, figures });
    const found = await followJob("plan", known ? null : planRequest(state), place, { known, started: () => keep(null) });
    plans = { found, state, job: jobs.plan };
    const [best] = found.plans;
    if (best) keep({ step_s: best.step_s, job_s: best.job_s, usd: best.usd, needed_bytes: best.needed_bytes, fits: true });
    showPlans();
    say(`${plural(plans.found.plans.length, "plan")} of ${plans.found.num_plans.toLocaleString("en-US")} kept.`);
  } catch (error) {
    if (error instanceof Superseded) return;
    plans = null;
    place.replaceChildren(problem(error));
    say(error.message, { bad: true });
  } finally {
    button.disabled = false;
  }
}

function showPlans() {
  const { found, state } = plans, place = byId("plan-answer"), rows = found.plans;
  const excluded = Object.entries(found.excluded).map(([name, count]) => `${name}: ${count.toLocaleString("en-US")}`).join("; ");
  const account = `${found.num_plans.toLocaleString("en-US")} plans on ${plural(found.num_clusters, "cluster")}; ${found.num_evaluated.toLocaleString("en-US")} worked out, ${found.num_pruned.toLocaleString("en-US")} shown worse by a bound${excluded ? `; ruled out: ${excluded}` : ""}.`;
  if (!rows.length) {
    place.replaceChildren(element("div", { class: "card empty" }, element("p", {}, "No plan keeps every limit."), element("p", {}, found.nearest ? `Nearest: ${found.nearest}` : ""), element("p", { class: "hint" }, account)));
    return;
  }
  const plot = element("div", { class: "card" }, element("h2", {}, "Cost against deadline"));
  const body = element("tbody", {});
  const made = rows.map((row, rank) => ({ row, rank, line: planLine(row) }));
  body.append(...made.map((each) => each.line));
  const heads = COLUMNS.map(([name, key], at) => element("th", { scope: "col", class: COLUMNS[at][3] }, element("button", { type: "button", onclick: () => sortPlans(made, body, heads, at, key) }, name)));
  place.replaceChildren(plot, element("div", { class: "card" }, element("h2", {}, plural(rows.length, "plan")),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of plans" }, element("table", { id: "plans" }, element("caption", {}, element("span", {}, account)), element("thead", {}, element("tr", {}, ...heads, element("th", { scope: "col" }, "use"))), body))));
  const seen = new Set();
  const points = [...rows, ...found.front].filter((row) => !seen.has(JSON.stringify(row.parallelism) + row.cluster + row.batch) && seen.add(JSON.stringify(row.parallelism) + row.cluster + row.batch))
    .map((row) => ({ seconds: row.job_s, usd: row.usd, front: row.on_front, label: `${row.cluster}, ${describePlan(row)}`, row }));
  for (const row of found.front) for (const point of points) if (point.row === row) point.front = true;
  place.append(element("div", { class: "actions" }, element("button", { type: "button", id: "plans-json", onclick: () => download("traincast-plans.json", JSON.stringify(found, null, 2), "application/json") }, "Plans as JSON"),
    element("button", { type: "button", id: "plans-csv", onclick: () => download("traincast-plans.csv", plansToCsv(rows), "text/csv") }, "Plans as CSV")),
  found.notes.length ? element("ul", { class: "notes" }, found.notes.map((note) => element("li", {}, note))) : "");
  plot.append(drawCost(plot, points, { deadline: state.deadline ? Number(state.deadline) * 3600 : 0, budget: Number(state.budget) || 0, choose: (point) => usePlan(point.row) }),
    element("p", { class: "hint" }, "Each point is a plan; orange ones are on the front of time, money and energy. Choose one to forecast it in full."));
  addChartTools(plot);
}

function plansToCsv(rows) {
  const degrees = Object.keys(rows[0].parallelism), plain = Object.keys(rows[0]).filter((key) => key !== "parallelism");
  return toCsv([[...plain, ...degrees], ...rows.map((row) => [...plain.map((key) => row[key]), ...degrees.map((key) => row.parallelism[key])])]);
}

function planLine(row) {
  return element("tr", { class: row.on_front ? "front" : null },
    ...COLUMNS.map(([, , show, side]) => element("td", { class: side }, show(row))),
    element("td", {}, element("button", { type: "button", onclick: () => usePlan(row), "aria-label": `Forecast ${row.cluster}, ${describePlan(row)}` }, "Forecast")));
}

function sortPlans(made, body, heads, at, key) {
  const down = heads[at].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = made.map((each) => [key(each.row), each]);
  keyed.sort(([a, first], [b, second]) => (a < b ? -1 : a > b ? 1 : first.rank - second.rank) * (down ? -1 : 1));
  body.append(...keyed.map(([, each]) => each.line));
}

function usePlan(row) {
  const degrees = row.parallelism, machine = row.cluster.replace(/^\d+ x /, "");
  const named = [...byId("machines").options].some((option) => option.value === machine);
  writeState({ ...readState(), kind: named ? "machine" : "device", device: named ? machine : row.device, nodes: String(row.num_nodes), devices_per_node: String(row.devices_per_node), batch: String(row.batch),
    ...Object.fromEntries(["tensor", "pipeline", "context", "expert", "micro_batches"].map((axis) => [axis, degrees[axis] > 1 ? String(degrees[axis]) : ""])),
    zero: String(degrees.zero), recompute: degrees.recompute, order: degrees.pipeline > 1 ? degrees.order : "", sequence_parallel: degrees.sequence_parallel ? "1" : "" });
  openTab("forecast");
  forecast();
}
