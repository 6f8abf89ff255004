// The schedule panel: a trace under several policies, their figures and who held which node.
let simulated = null;
let traceText = null;
const MEASURES = [
  ["policy", (each) => each.policy], ["done", (each) => each.finished.toLocaleString("en-US")], ["mean completion", (each) => showSeconds(each.mean_jct_s)],
  ["p99", (each) => showSeconds(each.p99_jct_s)], ["mean wait", (each) => showSeconds(each.mean_wait_s)], ["slowdown", (each) => digits(each.mean_slowdown)],
  ["makespan", (each) => showSeconds(each.makespan_s)], ["used", (each) => percent(each.utilization, 1)], ["late", (each) => (each.deadline_misses === null ? "-" : `${each.deadline_misses}/${each.deadlines}`)],
  ["cost", (each) => showUsd(each.cost_usd)],
];

async function simulate({ known } = {}) {
  const place = byId("schedule-answer"), button = byId("schedule-ask"), state = readState();
  saveAddress();
  button.disabled = true;
  try {
    const policies = state.policies.split(",").filter(Boolean);
    if (!policies.length) throw new Refusal("No policy is chosen; choose at least one.");
    const trace = traceText === null ? { synthetic: Number(state.trace_jobs), load: Number(state.load) } : { text: traceText };
    const started = () => keepRun({ kind: "schedule", key: `schedule ${jobs.schedule}`, name: `${policies.join(", ")} on ${state.fleet}`, state: { ...state, schedule_job: jobs.schedule, plan_job: "", compare: "" } });
    const asked = { trace, cluster: state.fleet, policies, sigma: Number(state.sigma), seed: Number(state.seed) };
    simulated = { answer: await followJob("schedule", asked, place, { known, started }), shown: 0, job: jobs.schedule };
    showSchedule();
    say(`${plural(simulated.answer.num_jobs, "job")} simulated under ${plural(policies.length, "policy").replace("policys", "policies")}.`);
  } catch (error) {
    if (error instanceof Superseded) return;
    simulated = null;
    place.replaceChildren(problem(error));
    say(error.message, { bad: true });
  } finally {
    button.disabled = false;
  }
}

function showSchedule() {
  const { answer, shown } = simulated, place = byId("schedule-answer"), policies = answer.policies;
  const gantt = element("div", { class: "card", id: "gantt" });
  const queue = element("div", { class: "card" }, element("h2", {}, "Jobs that wait"));
  place.replaceChildren(
    element("div", { class: "card" }, element("h2", {}, `${answer.trace}: ${plural(answer.num_jobs, "job")} on ${plural(answer.num_gpus, "GPU")}`),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of policies" }, element("table", { id: "measures" }, element("thead", {}, element("tr", {}, MEASURES.map(([name]) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, policies.map((each) => element("tr", {}, MEASURES.map(([, show]) => element("td", {}, show(each)))))))),
      answer.num_bad_rows ? element("p", { class: "hint" }, `${plural(answer.num_bad_rows, "row")} could not be used; the first: ${answer.bad_rows[0]}`) : null,
      answer.notes.length ? element("ul", { class: "notes" }, answer.notes.map((note) => element("li", {}, note))) : null),
    gantt, queue);
  const chooser = element("select", { id: "gantt-policy", onchange: (event) => { simulated.shown = Number(event.target.value); showSchedule(); byId("gantt-policy").focus(); } },
    policies.map((each, at) => element("option", { value: at, selected: at === shown }, each.policy)));
  const policy = policies[shown], cut = [];
  if (policy.num_bars > policy.bars.length) cut.push(`the first ${policy.bars.length.toLocaleString("en-US")} of ${plural(policy.num_bars, "bar")}`);
  if (policy.num_nodes > policy.gpus_of_node.length) cut.push(`the first ${policy.gpus_of_node.length} of ${plural(policy.num_nodes, "node")}`);
  gantt.append(element("div", { class: "actions", style: "margin:0 0 .6rem" }, element("h2", { style: "margin:0" }, "Who holds which node"), element("label", { for: "gantt-policy", style: "margin:0" }, "under"), element("div", { style: "width:9rem" }, chooser)),
    drawGantt(gantt, policy), cut.length ? element("p", { class: "hint" }, `Shown: ${cut.join(", ")}.`) : "");
  queue.append(drawQueues(queue, policies), element("ul", { class: "legend" }, policies.map((each, at) => element("li", {}, element("i", { style: `background:${colour(at)}` }), each.policy))));
  addChartTools(place);
}

async function takeTrace(file) {
  traceText = file ? await file.text() : null;
  byId("trace-label").textContent = file ? `${file.name}, ${showBytes(file.size)}` : "Drop or choose a job log instead (CSV, SWF, sacct, Kubernetes JSON)";
  byId("trace-label").classList.toggle("set", Boolean(file));
  byId("trace-forget").hidden = !file;
  for (const field of ["trace_jobs", "load"]) byId(field).disabled = Boolean(file);
  if (!file) byId("trace-file").value = "";
}
