// pytest in Pyodide, with the directories of this machine: node run.mjs VENDOR ROOT SCRATCH WORD...
// The descriptors 3 and 4 are the requests and answers of tests/pyodide/libraries.py.
import { readSync, writeSync } from "node:fs";

const [vendor, root, scratch, ...words] = process.argv.slice(2);
const { loadPyodide } = await import(`${vendor}/pyodide.mjs`);
const { HOME, TMPDIR, TIECONV_WITHOUT, TIECONV_OUTCOMES, COLUMNS } = process.env;
const pyodide = await loadPyodide({ indexURL: `${vendor}/`, env: { HOME, TMPDIR, TIECONV_WITHOUT, TIECONV_OUTCOMES, COLUMNS } });
for (const folder of [root, scratch]) {
  pyodide.FS.mkdirTree(folder);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: folder }, folder);
}

function received(size) {
  const bytes = new Uint8Array(size);
  for (let count = 0; count < size; ) {
    const more = readSync(4, bytes, count, size - count);
    if (!more) throw new Error("the process with the libraries has ended");
    count += more;
  }
  return bytes;
}

function ask(request) {
  const bytes = request.toJs();
  request.destroy();
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(bytes.length));
  for (let rest of [head, bytes]) while (rest.length) rest = rest.subarray(writeSync(3, rest));
  return received(Number(Buffer.from(received(8)).readBigUInt64LE()));
}

pyodide.registerJsModule("host", { ask });

const main = pyodide.runPython(`
def main(root, site, words):
    import os, sys
    sys.dont_write_bytecode = True
    sys.path[:0] = [root, site]
    os.chdir(root)
    import host, pytest
    from pyodide.ffi import create_proxy
    from tests.pyodide.libraries import give_to_tests
    give_to_tests(lambda data: host.ask(create_proxy(data)).to_bytes())
    return int(pytest.main(words))
main
`);
let code = 70; // Pyodide has ended
try {
  code = main(root, `${scratch}/site`, pyodide.toPy(words));
} catch (error) {
  console.error(error);
}
process.exit(code);
