// Print, as one zip, the bytecode of the modules that the commands of the page import: node compile.mjs VENDOR MODEL
import { readFileSync } from "node:fs";

const [vendor, model] = process.argv.slice(2);
const { loadPyodide } = await import(`${vendor}/pyodide.mjs`);
const pyodide = await loadPyodide({ indexURL: `${vendor}/`, env: { HOME: "/home" } });
pyodide.unpackArchive(new Uint8Array(readFileSync(`${vendor}/tieconv.zip`)), "zip", { extractDir: "/app" });
pyodide.FS.mkdirTree("/model");
pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: model }, "/model");
const archive = pyodide.runPython(`
import io, py_compile, sys, zipfile
sys.dont_write_bytecode = True
sys.path.insert(0, "/app")
import browser_commands
for words in ("inspect /model --consumers", "check /model"):
    assert not browser_commands.run(words.split())["err"].startswith("error"), words
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w") as compiled:
    for file in sorted({getattr(module, "__file__", None) or "" for module in sys.modules.values()}):
        if file.startswith("/app/"):
            # The browser never has the source, so nothing is compared with it. Rules and commands print docstrings.
            unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
            level = 0 if file.startswith(("/app/tieconv/checks/", "/app/tieconv/cli/")) else 2
            py_compile.compile(file, "/one.pyc", file, doraise=True, optimize=level, invalidation_mode=unchecked)
            compiled.write("/one.pyc", file.removeprefix("/app/") + "c")
archive.getvalue()
`);
process.stdout.write(archive.toJs(), () => process.exit(0));
