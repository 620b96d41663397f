"""Vendor what the page of docs/try needs, from pinned packages of npm and PyPI: ``python docs/try/build.py OUT``.

Copies the page to OUT and writes Pyodide, click and this checkout's tieconv to OUT/vendor. Needs npm and pip.
"""

from __future__ import annotations

import hashlib
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
CLICK = "click==8.5.1 --hash=sha256:8bb5376d2006950386f8c6427613334a2acadc5f559cb80e638d00b4df957e37"
STATIC = ("index.html", "style.css", "page.js", "worker.js", "offline.js")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(out: Path) -> None:
    """Write the page to ``out``. Raises if a package has another content than the pinned one."""
    vendor = out / "vendor"
    vendor.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in _pyodide(Path(scratch)):
            (vendor / name).write_bytes(data)
        _archive(vendor / "tieconv.zip", _click(Path(scratch)))
    lock = json.loads((vendor / "pyodide-lock.json").read_text(encoding="utf-8"))
    # The page loads no package of Pyodide's own, and needs no list of them.
    (vendor / "pyodide-lock.json").write_text(json.dumps(lock | {"packages": {}}), encoding="utf-8")
    for name in STATIC:
        if (PAGE / name).resolve() != (out / name).resolve():
            shutil.copyfile(PAGE / name, out / name)
    # What worker.js fetches with progress; the browser itself imports the modules.
    sizes = [path.stat().st_size for path in vendor.iterdir() if path.suffix not in (".mjs", ".json")]
    (vendor / "sizes.json").write_text(json.dumps({"total": sum(sizes)}), encoding="utf-8")
    _name_build(out)


def _pyodide(scratch: Path) -> Iterator[tuple[str, bytes]]:
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


def _click(scratch: Path) -> Path:
    """Return the wheel of click; pip checks its hash."""
    pins = scratch / "pins.txt"
    pins.write_text(CLICK, encoding="utf-8")
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    subprocess.run([*call, "--dest", str(scratch), "--requirement", str(pins)], check=True)
    return next(scratch.glob("click-*.whl"))


def _archive(path: Path, click: Path) -> None:
    """Write one archive of tieconv, click and the page's Python. The same inputs give the same bytes."""
    entries = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in _sources()}
    entries["browser_commands.py"] = (PAGE / "browser_commands.py").read_bytes()
    with zipfile.ZipFile(click) as wheel:
        entries |= {name: wheel.read(name) for name in wheel.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, 9)


def _sources() -> list[Path]:
    files = [path for path in (ROOT / "tieconv").rglob("*") if path.is_file()]
    return [path for path in files if "__pycache__" not in path.parts]


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
