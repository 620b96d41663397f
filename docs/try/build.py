"""Vendor what the page of docs/try needs, from pinned packages of npm and PyPI: ``python docs/try/build.py OUT``.

Copies the page to OUT. Writes Pyodide, click, huggingface_hub and this checkout's tieconv to OUT/vendor. Needs npm,
node and pip.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent
ROOT = PAGE.parents[1]
PYODIDE = "pyodide@314.0.7"
PYODIDE_FILES = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
CLICK = ("click==8.5.1 --hash=sha256:8bb5376d2006950386f8c6427613334a2acadc5f559cb80e638d00b4df957e37",)
HUB = (
    "filelock==4.2.11 --hash=sha256:020e229e4bb9d410fc799c07ddf45fa217cba970278f40b30751d94f309b69e2",
    "httpx2==2.16.2 --hash=sha256:f05c13aade4c45dbf1c9060647a1058f0acad62398fad96e741269edb33d46f5",
    "httpx2-jsfetch==1.0 --hash=sha256:cb916b707601e69a07721aabc8f3f6659be3a6893bc1ff5c6f9e02241df2da32",
    "huggingface_hub==2.4.0 --hash=sha256:42ecfd93ede47bdd333daebbf66a32d7bfe2e18752754fe4d2d4f98a0179d801",
    "idna==3.20 --hash=sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c",
    "packaging==26.3 --hash=sha256:d7193f7c8e4e93f444fde0262bf90af30e16fa0ad0ad44cb553c87339b23cd1c",
    "pyyaml==6.0.3 --hash=sha256:c458b6d084f9b935061bc36216e8a69a7e293a2f1e68bf956dcd9e6cbcd143f5",
    "tqdm==4.70.1 --hash=sha256:c293e525e6fef9c20e8728fd4612df02a0aa31bb5fe91ecd93e123b1b7bffa73",
)
"""huggingface_hub and what it imports to read a model. Of pyyaml only the Python is used."""
UNUSED = (
    *(f"huggingface_hub/{name}" for name in ("_bucket", "_commit_scheduler", "_sandbox", "_upload_pipeline")),
    *(f"huggingface_hub/{name}" for name in ("_webhooks_server", "cli/", "fastai_utils", "hub_mixin", "inference/")),
    *(f"huggingface_hub/{name}" for name in ("repocard.py", "serialization/")),
    *(f"filelock/{name}" for name in ("_read_write", "_soft_rw/", "_strict", "asyncio")),
    *("httpx2/_main", "httpx2/websockets/", "packaging/licenses/", "packaging/metadata", "packaging/pylock"),
)
"""What no import reaches that reading a model needs."""
NEVER_RUN = {"analysis", "demo", "integrations", "onnx"}
"""Packages of tieconv for commands that the page does not offer. `dedup` of a graph needs onnx, and says so."""
STATIC = ("index.html", "style.css", "page.js", "worker.js", "offline.js")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(out: Path) -> None:
    """Write the page to ``out``. Raises if a package has another content than the pinned one."""
    vendor = out / "vendor"
    vendor.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in pyodide(Path(scratch)):
            (vendor / name).write_bytes(data)
        own = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in _sources()}
        own["browser_commands.py"] = (PAGE / "browser_commands.py").read_bytes()
        own |= _packages(Path(scratch, "click"), CLICK)
        _archive(vendor / "tieconv.zip", own)
        compiled = _compiled(vendor)
        _archive(vendor / "tieconv.zip", {name: own[name] for name in own if f"{name}c" not in compiled} | compiled)
        # In a browser httpx2 does without httpcore2. huggingface_hub imports it only for the logs of jobs.
        hub = {"browser_hub.py": (PAGE / "browser_hub.py").read_bytes(), "httpcore2.py": b""}
        _archive(vendor / "hub.zip", hub | _packages(Path(scratch, "hub"), HUB))
    lock = json.loads((vendor / "pyodide-lock.json").read_text(encoding="utf-8"))
    # The page loads no package of Pyodide's own, and needs no list of them.
    (vendor / "pyodide-lock.json").write_text(json.dumps(lock | {"packages": {}}), encoding="utf-8")
    for name in STATIC:
        if (PAGE / name).resolve() != (out / name).resolve():
            shutil.copyfile(PAGE / name, out / name)
    # What worker.js fetches with progress; the browser itself imports the modules.
    sizes = [
        path.stat().st_size
        for path in vendor.iterdir()
        if path.suffix not in (".mjs", ".json") and path.name != "hub.zip"
    ]
    (vendor / "sizes.json").write_text(json.dumps({"total": sum(sizes)}), encoding="utf-8")
    _name_build(out)


def pyodide(scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of Pyodide from its npm package."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("build.py needs npm")
    subprocess.run([npm, "pack", "--silent", PYODIDE], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    (package,) = scratch.glob("*.tgz")
    with tarfile.open(package) as archive:
        for name, expected in PYODIDE_FILES.items():
            member = archive.extractfile(f"package/{name}")
            data = member.read() if member else b""
            if hashlib.sha256(data).hexdigest() != expected:
                raise SystemExit(f"{name} of {PYODIDE} is not the pinned file")
            yield name, data


def _packages(scratch: Path, pins: tuple[str, ...]) -> dict[str, bytes]:
    """Return the Python and the licences of wheels by name; pip checks their hashes."""
    scratch.mkdir()
    (scratch / "pins.txt").write_text("\n".join(pins), encoding="utf-8")
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    call += ["--python-version=3.14", "--platform=manylinux2014_x86_64", "--platform=any"]
    subprocess.run([*call, "--dest", str(scratch), "--requirement", str(scratch / "pins.txt")], check=True)
    entries: dict[str, bytes] = {}
    for path in sorted(scratch.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if not name.startswith(UNUSED)]
            entries |= {name: wheel.read(name) for name in names if name.endswith(".py") or "/licenses/" in name}
    return entries


def _compiled(vendor: Path) -> dict[str, bytes]:
    """Return the bytecode of the modules that the page's commands import, for the Python of Pyodide, by name.

    A browser does not compile them then: the first answer comes a second sooner.
    """
    call = ["node", str(PAGE / "compile.mjs"), str(vendor.resolve()), str(ROOT / "fixtures/models/llama-duplicated")]
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE)
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(path: Path, entries: dict[str, bytes]) -> None:
    """Write an archive. The same entries give the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, 9)


def _sources() -> list[Path]:
    package = ROOT / "tieconv"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in files if path.relative_to(package).parts[0] not in NEVER_RUN]


def _name_build(out: Path) -> None:
    """Write the digest of all files into offline.js, so that a browser drops the files of an older build."""
    digest = hashlib.sha256()
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    script = (PAGE / "offline.js").read_text(encoding="utf-8")
    (out / "offline.js").write_text(script.replace('"development"', f'"{digest.hexdigest()[:16]}"'), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    build(Path(sys.argv[1]))
