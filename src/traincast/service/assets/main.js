// Wires the fields to the panels.
const TABS = ["forecast", "scaling", "plan", "schedule"];

function openTab(name, { focus = false } = {}) {
  tab = TABS.includes(name) ? name : "forecast";
  for (const each of TABS) {
    const chosen = each === tab, button = byId(`tab-${each}`);
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    byId(`panel-${each}`).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  saveAddress();
  if (tab === "scaling") scale();
  else redraw();
}

function setUpload(found) {
  upload = found;
  byId("file-label").textContent = found ? found.name : "Drop or choose a config.json, a saved graph or an ONNX file";
  byId("file-label").classList.toggle("set", Boolean(found));
  byId("forget").hidden = !found;
  byId("name").disabled = Boolean(found);
  if (!found) byId("file").value = "";
}

async function takeModel(file) {
  if (!file) return;
  // What was asked before the file came must not be answered over it.
  underWay?.abort();
  byId("ask").disabled = false;
  byId("panel-forecast").replaceChildren(busy(`Reading ${file.name}`));
  say(`Reading ${file.name}`);
  try {
    const found = await call("POST", "models", undefined, { raw: file });
    setUpload({ model: found.model, name: `${file.name}: ${showCount(found.parameters)} parameters` });
    // What was recorded at one batch has no other.
    if (!found.any_batch) byId("batch").value = String(found.batch_size);
    await forecast();
  } catch (error) {
    setUpload(null);
    byId("panel-forecast").replaceChildren(problem(error));
    say(error.message, { bad: true });
  }
}

function acceptDrops(place, take) {
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => { event.preventDefault(); place.classList.remove("over"); take(event.dataTransfer.files[0]); });
}

function redraw() {
  if (tab === "forecast" && current) showForecast();
  if (tab === "scaling" && scaling) showScaling();
  if (tab === "plan" && plans) showPlans();
  if (tab === "schedule" && simulated) showSchedule();
}

function showKind() {
  const machine = document.querySelector("input[name=kind]:checked").value === "machine";
  byId("device").setAttribute("list", machine ? "machines" : "devices");
  byId("device-label").textContent = machine ? "Machine" : "Accelerator";
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

function later(action, pause) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(action, pause); };
}

async function fillLists() {
  const lists = [["workloads", "workloads", (each) => `${each.family}, ${showCount(each.parameters)} parameters`], ["devices", "devices", (each) => each.title], ["nodes", "machines", (each) => `${each.devices_per_node} x ${each.device}`]];
  await Promise.all(lists.map(async ([kind, id, describe]) => {
    const entries = await call("GET", `catalog/${kind}?brief=true`);
    byId(id).replaceChildren(...entries.map((each) => element("option", { value: each.name }, describe(each))));
    if (kind === "workloads") byId("name").placeholder = `search ${entries.length} models`;
  }));
}

function start() {
  byId("policies").append(...POLICIES.map((name) => element("label", {}, element("input", { type: "checkbox", value: name, name: "policy" }), name)));
  const kept = localStorage.getItem("traincast-theme");
  setTheme(kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const given = readAddress();
  writeState({ ...DEFAULTS, ...given });
  showKind();
  const soon = later(forecast, 350);
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); forecast(); });
  byId("form").addEventListener("change", (event) => { if (event.target.type !== "file") { showKind(); soon(); } });
  byId("form").addEventListener("input", (event) => { if (event.target.name === "name" && [...byId("workloads").options].some((option) => option.value === event.target.value)) soon(); });
  document.querySelectorAll("input[name=kind]").forEach((radio) => radio.addEventListener("change", () => { byId("device").value = radio.value === "machine" ? "aws-p4d.24xlarge" : "a100-80g"; byId("devices_per_node").value = radio.value === "machine" ? "" : "8"; }));
  byId("reset").addEventListener("click", () => { writeState(DEFAULTS); takeTrace(null); showKind(); forecast(); });
  byId("file").addEventListener("change", (event) => takeModel(event.target.files[0]));
  byId("forget").addEventListener("click", () => { setUpload(null); forecast(); byId("name").focus(); });
  acceptDrops(byId("drop"), takeModel);
  byId("plan-form").addEventListener("submit", (event) => { event.preventDefault(); searchPlans(); });
  byId("schedule-form").addEventListener("submit", (event) => { event.preventDefault(); simulate(); });
  byId("trace-file").addEventListener("change", (event) => takeTrace(event.target.files[0]));
  byId("trace-forget").addEventListener("click", () => takeTrace(null));
  acceptDrops(byId("trace-drop"), takeTrace);
  byId("share").addEventListener("click", async () => {
    saveAddress();
    try { await navigator.clipboard.writeText(location.href); say("The link is copied; it holds everything you asked."); }
    catch { say(`Copy the address of this page: ${location.href}`); }
  });
  byId("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme !== "dark";
    localStorage.setItem("traincast-theme", dark ? "dark" : "light");
    setTheme(dark);
  });
  TABS.forEach((name, at) => {
    byId(`tab-${name}`).addEventListener("click", () => openTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) openTab(TABS[(at + move + TABS.length) % TABS.length], { focus: true });
      if (event.key === "Home") openTab(TABS[0], { focus: true });
      if (event.key === "End") openTab(TABS.at(-1), { focus: true });
    });
  });
  window.addEventListener("resize", later(redraw, 150));
  window.addEventListener("hashchange", () => { const state = readAddress(); writeState({ ...DEFAULTS, ...state }); showKind(); openTab(state.tab); forecast(); });
  byId("plan-answer").append(element("div", { class: "card empty" }, "No search yet. Set a deadline or a budget and search."));
  byId("schedule-answer").append(element("div", { class: "card empty" }, "No simulation yet. Choose policies and simulate."));
  openTab(given.tab || "forecast");
  fillLists().catch((error) => say(error.message, { bad: true }));
  forecast();
}

start();
