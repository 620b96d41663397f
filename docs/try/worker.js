// tieconv in Pyodide. One message is one command: mount the models, run it, answer.
import { loadPyodide } from "./vendor/pyodide.mjs";

const vendor = new URL("./vendor/", import.meta.url).href;
const network = self.fetch.bind(self);
const Network = self.XMLHttpRequest;

const ENVIRONMENT = { HOME: "/home", COLUMNS: "80", HF_HUB_DISABLE_TELEMETRY: "1", HF_HUB_DISABLE_IMPLICIT_TOKEN: "1" };

async function load() {
  const { total } = await (await network(`${vendor}sizes.json`)).json();
  let loaded = 0;
  self.fetch = async (...request) => {
    const response = await network(...request);
    const count = new TransformStream({
      transform(chunk, controller) {
        loaded += chunk.byteLength;
        self.postMessage({ loaded: Math.min(loaded, total), total });
        controller.enqueue(chunk);
      },
    });
    return new Response(response.body.pipeThrough(count), response);
  };
  const archive = self.fetch(`${vendor}tieconv.zip`).then((response) => response.arrayBuffer());
  const pyodide = await loadPyodide({ indexURL: vendor, env: ENVIRONMENT });
  pyodide.unpackArchive(await archive, "zip", { extractDir: "/app" });
  pyodide.runPython("import sys; sys.path.insert(0, '/app')");
  const program = pyodide.pyimport("browser_commands");
  // From here on nothing is sent but what browser_hub.py asks of the Hub. The page's policy admits no other host.
  for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "EventSource", "WebTransport"]) self[name] = undefined;
  pyodide.registerJsModule("page_network", { ask });
  countReads(pyodide);
  self.postMessage({ ready: program.VERSION });
  return { pyodide, program };
}

// huggingface_hub is loaded with the first model on the Hub.
async function loadHub({ pyodide }) {
  const response = await network(`${vendor}hub.zip`);
  if (!response.ok) throw new Error(`hub.zip: HTTP ${response.status}`);
  pyodide.unpackArchive(await response.arrayBuffer(), "zip", { extractDir: "/app" });
  pyodide.pyimport("importlib").invalidate_caches();
  pyodide.pyimport("browser_hub");
}

// One request, without cookies. Python waits for it, as it cannot for fetch in all browsers.
function ask(address, range, seconds) {
  const request = new Network();
  request.open("GET", address, false);
  request.responseType = "arraybuffer";
  request.timeout = 1000 * seconds;
  if (range) request.setRequestHeader("Range", range);
  try {
    request.send();
  } catch (error) {
    return { failure: error.name };
  }
  const body = new Uint8Array(request.response ?? []);
  report(body.length);
  return { failure: "", status: request.status, headers: request.getAllResponseHeaders(), body };
}

let bytes = 0;
let hub = null;
let reported = 0;
const SMALL = 1 << 16;
const LARGE = 1 << 20;
const MOST_WINDOWS = 4; // of a file: a comparison reads two tensors in turn

// Files are read in windows: one read of a file costs over a millisecond, whatever its size.
function countReads(pyodide) {
  const reader = new FileReaderSync();
  const windows = new WeakMap();
  const after = (file, position, length) => {
    const recent = windows.get(file) ?? windows.set(file, []).get(file);
    let window = recent.find(({ start, data }) => start <= position && position < start + data.length);
    if (!window) {
      const size = length < SMALL ? SMALL : LARGE;
      const start = position - (position % size);
      window = { start, data: new Uint8Array(reader.readAsArrayBuffer(file.slice(start, start + size))) };
      recent.unshift(window);
      recent.length = Math.min(recent.length, MOST_WINDOWS);
      report(window.data.length);
    }
    return window.data.subarray(position - window.start);
  };
  pyodide.FS.filesystems.WORKERFS.stream_ops.read = ({ node }, buffer, offset, length, position) => {
    if (position >= node.size) return 0;
    const data = after(node.contents, position, length).subarray(0, length);
    buffer.set(data, offset);
    return data.length;
  };
}

function report(size) {
  bytes += size;
  // Chromium frees what was read only when the heap of JavaScript grows, and reading alone does not grow it. Without
  // this array, reading 2.6 GB took 2.6 GB of memory.
  self.garbage = new Array(1 << 18).fill(bytes);
  if (performance.now() - reported < 100) return;
  reported = performance.now();
  self.postMessage({ read: bytes });
}

function run({ pyodide, program }, { words, models, folder }) {
  const { FS } = pyodide;
  bytes = 0;
  const mounted = models.map(({ name, entries }) => {
    const directory = `/models/${name}`;
    FS.mkdirTree(directory);
    FS.mount(FS.filesystems.WORKERFS, { blobs: entries }, directory);
    return directory;
  });
  const list = pyodide.toPy(words);
  try {
    const answer = program.run(list, folder).toJs({ dict_converter: Object.fromEntries });
    return { ...answer, bytes };
  } finally {
    list.destroy();
    mounted.forEach((directory) => {
      FS.unmount(directory);
      FS.rmdir(directory);
    });
  }
}

const loading = load();
loading.catch((error) => self.postMessage({ failure: String(error) }));
self.onmessage = async ({ data }) => {
  try {
    const loaded = await loading;
    if (data.words.some((word) => word.startsWith("hf://"))) await (hub ??= loadHub(loaded));
    self.postMessage(run(loaded, data));
  } catch (error) {
    self.postMessage({ failure: String(error.message ?? error) }); // an error of the file system has no text
  }
};
