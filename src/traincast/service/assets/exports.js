// What leaves the page: tables as CSV, answers as JSON, charts as SVG or PNG, and text for the clipboard.
function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 5000);
  say(`${name} is downloaded.`);
}

const fileName = (text, ending) => `${text.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "").slice(0, 80) || "traincast"}.${ending}`;

function toCsv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    // A text that a spreadsheet would compute is kept a text.
    const text = typeof value === "string" && /^[=+@-]/.test(value) ? `'${value}` : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} is copied.`);
  } catch {
    say(`Copy it from the page: ${text}`);
  }
}

// A chart by itself: the colours of the style sheet are written into it.
function svgText(svg) {
  const style = getComputedStyle(document.documentElement), alone = svg.cloneNode(true);
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  alone.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  alone.setAttribute("width", width);
  alone.setAttribute("height", height);
  alone.prepend(drawn("style", {}, "text{fill:var(--soft);font:11px system-ui,sans-serif}.axis{stroke:var(--line)}.limit{stroke:var(--bad);stroke-dasharray:5 4}"),
    drawn("rect", { width: "100%", height: "100%", fill: "var(--card)" }));
  return new XMLSerializer().serializeToString(alone).replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

async function pngOf(svg) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const image = new Image(width, height);
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await image.decode();
  const canvas = element("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function addChartTools(place) {
  for (const svg of place.querySelectorAll("svg.chart")) {
    const title = svg.closest(".card")?.querySelector("h2")?.textContent || "Chart";
    const tool = (kind, action) => element("button", { type: "button", class: "quiet", "aria-label": `${title} as ${kind}`, onclick: () => action().catch((error) => say(error.message, { bad: true })) }, kind);
    svg.after(element("div", { class: "chart-tools" },
      tool("SVG", async () => download(fileName(title, "svg"), svgText(svg), "image/svg+xml")),
      tool("PNG", async () => download(fileName(title, "png"), await pngOf(svg)))));
  }
}

// What is done with a forecast next: kept, sent on, started, improved.
function takeAlong() {
  const { request, answer } = current, plain = { ...answer };
  delete plain.detail;
  const kinds = element("select", { id: "emit-kind" }, ASKED.emit.map((kind) => element("option", {}, kind)));
  const shown = element("div", { id: "along-answer" });
  const ask = async (more, words, show) => {
    shown.replaceChildren(busy(words));
    try {
      show(await call("POST", "forecast", { ...request, ...more }));
    } catch (error) {
      shown.replaceChildren(problem(error));
    }
  };
  const write = () => ask({ emit: kinds.value }, "Writing the file", ({ emitted }) => {
    const ending = emitted.startsWith("#!") ? "sh" : emitted.trimStart().startsWith("{") ? "json" : "txt";
    shown.replaceChildren(element("pre", { tabindex: "0", id: "emitted" }, emitted), element("div", { class: "actions" },
      element("button", { type: "button", onclick: () => download(fileName(`${answer.workload} ${kinds.value}`, ending), emitted, "text/plain") }, "Download"),
      element("button", { type: "button", onclick: () => copy(emitted, "The file") }, "Copy")));
  });
  const advise = () => ask({ advice: true }, "Trying changes", ({ advice }) =>
    shown.replaceChildren(element("ul", { class: "notes", id: "advice" }, advice.sentences.map((sentence) => element("li", {}, sentence)))));
  const button = (id, words, onclick) => element("button", { type: "button", id, onclick }, words);
  return element("div", { class: "card", id: "along" }, element("h2", {}, "Take it along"),
    answer.command ? element("pre", { class: "command", id: "command", tabindex: "0" }, answer.command) : element("p", { class: "hint" }, "No command asks this: the model was uploaded, or the nodes differ."),
    element("div", { class: "actions" },
      answer.command && button("copy-command", "Copy command", () => copy(answer.command, "The command")),
      button("export-json", "JSON", () => download(fileName(answer.workload, "json"), JSON.stringify({ request, answer: plain }, null, 2), "application/json")),
      button("export-csv", "CSV", () => download(fileName(answer.workload, "csv"), runsToCsv([{ name: titleOf(answer), figures: figuresOf(answer) }]), "text/csv")),
      button("advise", "Advice", advise),
      element("label", { for: "emit-kind", class: "inline" }, "Start it with"), element("div", { class: "narrow" }, kinds), button("emit", "Write the file", write)),
    shown);
}
