// The page: choose models, send a command to the worker, show its answer as text. No text becomes markup.

const element = (id) => document.getElementById(id);
const models = { first: null, second: null };
const NEED_MODEL = ["inspect", "check", "plan"];
let worker = null;
let waiting = null; // what to do with the answer of the running command
let started = 0;
let running = []; // the models that the command reads
let asked = []; // the words of the last command
let failure = ""; // why tieconv was loaded again
let answered = null; // the words of the command whose answer is shown

const mega = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);
const say = (text) => (element("status").textContent = text);

// The worker. It is a blob, because such a worker is bound by the Content-Security-Policy of this page.
function start() {
  element("progress").hidden = false;
  say("Loading …");
  const address = JSON.stringify(new URL("worker.js", location.href).href);
  worker = new Worker(URL.createObjectURL(new Blob([`import ${address};`], { type: "text/javascript" })), { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data.loaded !== undefined) {
      element("progress").value = data.loaded / data.total;
      say(`Loading tieconv: ${mega(data.loaded)} of ${mega(data.total)}`);
    } else if (data.ready) {
      element("progress").hidden = true;
      worker.isReady = true;
      say(`${failure}tieconv ${data.ready} is ready.${models.first ? "" : " Choose a model."}`);
      failure = "";
      update();
    } else if (data.read !== undefined) {
      say(`Running: ${progress(data.read)}`);
    } else {
      finish(data);
    }
  };
  worker.onerror = (event) => failed(event.message);
}

// A command reads a byte of a file once, and rarely all bytes. The sizes of models on the Hub are not known here.
function progress(read) {
  const seconds = (performance.now() - started) / 1000;
  const sizes = running.map((model) => model.entries?.reduce((sum, { data }) => sum + data.size, 0) ?? NaN);
  const left = (sizes.reduce((sum, size) => sum + size, 0) - read) / (read / seconds);
  return `read ${mega(read)} in ${seconds.toFixed(1)} s${left >= 0 ? `, at most ${Math.ceil(left)} s left` : ""}`;
}

// A model may end Python. Then the page starts it again, unless it never was ready.
function failed(message) {
  const restarts = worker.isReady;
  worker.terminate();
  worker.isReady = false;
  waiting = null;
  element("progress").hidden = true;
  failure = `The page failed: ${message || "the browser gave no reason"}. `;
  if (restarts) start();
  else say(`${failure}Reload it to try again.`);
  update();
}

function update() {
  const free = Boolean(worker.isReady) && !waiting;
  for (const id of NEED_MODEL) element(id).disabled = !free || !models.first;
  element("diff").disabled = !free || !models.first || !models.second;
  element("explain").disabled = !free;
  element("json").disabled = !free;
  for (const button of element("codes").children) button.disabled = !free;
  element("cancel").hidden = !waiting;
}

function cancel() {
  worker.terminate();
  waiting = null;
  element("progress").value = 0;
  start();
  say("Cancelled. Loading tieconv again.");
  update();
  element("inspect").focus();
}

function send(words, next) {
  [waiting, asked] = [next, words];
  started = performance.now();
  say("Running …");
  const both = words[0] === "diff" || words.includes("--base");
  running = [models.first, both ? models.second : null].filter((model) => model && words[0] !== "explain");
  const folder = words[0] !== "diff" && models.first?.alone ? models.first.name : "";
  worker.postMessage({ words, models: running.filter((model) => model.entries), folder });
  update();
}

function finish(answer) {
  const next = waiting;
  waiting = null;
  if (answer.failure) return failed(answer.failure);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  say(`${outcome(answer.code)} (exit code ${answer.code}). Read ${mega(answer.bytes)} in ${seconds} s.`);
  next(answer);
  update();
}

function outcome(code) {
  if (code === 0) return "Done";
  if (code !== 1) return "tieconv could not do this";
  return asked[0] === "diff" ? "The models differ" : "The check failed";
}

// Commands. A lone file is named as the user knows it; only beside a second model it has a directory.
const path = (slot, compared = false) => {
  if (models[slot].address) return models[slot].address;
  const { name, entries, alone } = models[slot];
  const own = !alone ? name : compared ? `${name}/${entries[0].name}` : entries[0].name;
  return own.startsWith("-") ? `./${own}` : own;
};

const isAdapter = ({ entries }) => entries?.some((entry) => entry.name.endsWith("adapter_config.json"));

// An adapter is compared with its base, the second model. Models below a model are checked too.
const base = () => (isAdapter(models.first) && models.second ? ["--base", path("second", true)] : []);
const below = () => (models.first.entries?.some((entry) => entry.name.includes("/")) ? ["--recursive"] : []);

function ask(words) {
  send(words, (answer) => show(words, answer));
}

function show(words, answer) {
  answered = words;
  element("answer").hidden = false;
  element("output").textContent = answer.out + answer.err;
  const quoted = words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`));
  element("command").textContent = `tieconv ${quoted.join(" ")}`;
  element("unchecked").textContent = words[0] === "check" && answer.code < 2 ? unchecked(models.first) : "";
  element("json").hidden = words[0] === "explain";
  const codes = words[0] === "explain" ? [] : [...new Set(answer.out.match(/\b[A-Z]{3}\d{3}\b/g))].slice(0, 12);
  element("codes").replaceChildren(
    ...codes.map((code) => made("button", `Explain ${code}`, { type: "button", onclick: () => ask(["explain", code]) })),
  );
  element("files").replaceChildren(...answer.files.flatMap(repaired));
}

// What rules read that a browser does not give to a page.
function unchecked(model) {
  if (!model.entries) return "";
  const alone = isAdapter(model) && !models.second;
  const rules = "PEF001, PEF002, PEF004 and PEF005 against the base model. Choose it as the second model.";
  return `Not checked: SEC001, because a browser hides symlinks.${alone ? ` Not checked: ${rules}` : ""}`;
}

function made(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function repaired({ name, text, diff, alone }) {
  const button = made("button", `Download ${name}`, { type: "button", onclick: () => download(name, text) });
  const what = alone ? `This repair changes only ${name}:` : `Of this repair, the page can write ${name}. The command also writes weights:`;
  return [made("p", what), made("pre", diff, { tabIndex: 0 }), button];
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  made("a", "", { href: address, download: name.split("/").pop() }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

element("inspect").onclick = () => ask(["inspect", path("first"), "--consumers", ...base(), ...(element("full").checked ? ["--depth", "full"] : [])]);
element("check").onclick = () => ask(["check", path("first"), ...base(), ...below()]);
element("diff").onclick = () => ask(["diff", path("first", true), path("second", true)]);
element("plan-form").onsubmit = (event) => {
  event.preventDefault();
  ask([...element("verb").value.split(" "), path("first")]);
};
element("explain-form").onsubmit = (event) => {
  event.preventDefault();
  ask(["explain", element("rule").value.trim().replace(/^-+/, "")]);
};
element("json").onclick = () => {
  const words = [...answered, ...(answered[0] === "check" ? ["--format", "json"] : ["--json"])];
  send(words, (answer) => (answer.out ? download(`${answered[0]}.json`, answer.out) : show(answered, answer)));
};
element("copy").onclick = async () => {
  await navigator.clipboard.writeText(element("command").textContent);
  say("Copied.");
};
element("cancel").onclick = cancel;
element("wrap").onchange = () => element("output").classList.toggle("wrapped", element("wrap").checked);
element("wrap").checked = matchMedia("(max-width: 40rem)").matches;
element("wrap").onchange();

// Choose, name or drop a model.
const HUB = "hf://";

function name(slot, text) {
  const typed = text.trim();
  if (!typed) return;
  const address = HUB + typed.replace(HUB, "");
  use(slot, { address }, `${address}. The page asks the Hub for it, without a token.`);
}

// The answer about an earlier model goes.
function use(slot, model, text) {
  models[slot] = model;
  element(slot).querySelector(".chosen").textContent = text;
  element("answer").hidden = true;
  if (worker?.isReady && !waiting) say(models.first ? "Ready. Inspect or check the model." : "Choose a model.");
  update();
}

function choose(slot, entries) {
  const wanted = entries.filter(({ name }) => !`/${name}`.includes("/.git/"));
  if (!wanted.length) return use(slot, null, "Nothing chosen: it holds no file.");
  const top = wanted[0].name.split("/")[0];
  const directory = wanted.every(({ name }) => name.startsWith(`${top}/`));
  const inside = directory ? wanted.map(({ name, data }) => ({ name: name.slice(top.length + 1), data })) : wanted;
  let name = directory ? top : "files";
  const other = models[slot === "first" ? "second" : "first"];
  if (other && other.name === name) name = `${name}-${slot}`;
  const bytes = inside.reduce((sum, { data }) => sum + data.size, 0);
  const what = `${directory ? top : inside.map((entry) => entry.name).join(", ")}: ${inside.length} ${inside.length === 1 ? "file" : "files"}, ${mega(bytes)}`;
  const whole = directory || inside.some((entry) => /config\.json$|\.(gguf|onnx)$/.test(entry.name));
  const advice = ". config.json is missing: choose it with the weights, so that tieconv knows the model's class.";
  use(slot, { name, entries: inside, alone: !directory && inside.length === 1 }, what + (whole ? "" : advice));
}

async function walk(entry, before = "") {
  if (entry.isFile) {
    const data = await new Promise((good, bad) => entry.file(good, bad));
    return [{ name: before + entry.name, data }];
  }
  const reader = entry.createReader();
  const listed = [];
  for (;;) {
    const batch = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!batch.length) break;
    listed.push(...batch);
  }
  return (await Promise.all(listed.map((inner) => walk(inner, `${before}${entry.name}/`)))).flat();
}

for (const slot of Object.keys(models)) {
  const box = element(slot);
  const forget = (used) => box.querySelectorAll("input").forEach((input) => input !== used && (input.value = ""));
  for (const input of box.querySelectorAll("[type=file]")) {
    input.onchange = () => {
      forget(input);
      choose(slot, [...input.files].map((file) => ({ name: file.webkitRelativePath || file.name, data: file })));
    };
  }
  box.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    forget(box.querySelector("[data-hub]"));
    name(slot, box.querySelector("[data-hub]").value);
  };
  box.ondragover = (event) => {
    event.preventDefault();
    box.classList.add("over");
  };
  box.ondragleave = () => box.classList.remove("over");
  box.ondrop = async (event) => {
    event.preventDefault();
    box.classList.remove("over");
    forget();
    const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    try {
      choose(slot, (await Promise.all(dropped.map((entry) => walk(entry)))).flat());
    } catch (error) {
      say(`The browser cannot read what you dropped: ${error.message}`);
    }
  };
}

// With a service worker the page also works without a network, once it was loaded.
if ("serviceWorker" in navigator) {
  try {
    await navigator.serviceWorker.register("offline.js");
    const controls = new Promise((done) => navigator.serviceWorker.addEventListener("controllerchange", done));
    const patience = new Promise((done) => setTimeout(done, 2000));
    if (!navigator.serviceWorker.controller) await Promise.race([controls, patience]);
  } catch {
    // A browser may forbid it, as in some private windows.
  }
}
element("not-started").remove();
start();
update();
