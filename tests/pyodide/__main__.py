"""Run tests in Pyodide, the Python of the page in docs/try: ``python -m tests.pyodide [PATH ...]``. Needs npm and node.

tieconv and the tests run there, without numpy, as on the page. The libraries with which tests build models run beside
it. What fails there runs again here, where the same is hidden from tieconv: a test is left out only if it fails alike.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = (
    "cases checkpoint checks cli composites consumers families formats gate inspection plans public reporters sources"
)

LEAST = 4700
"""Of all `ROOMS`, so many tests pass in Pyodide; fewer are a fault."""
WRITES = "tieconv writes no files there"
MEASURES = "tieconv has no numpy and no processes there"
WHEELS = "click hypothesis junitparser linkify-it-py markdown-it-py packaging pytest rich"
WITHOUT = (
    "_multiprocessing boto3 botocore check_jsonschema duckdb huggingface_hub obstore onnx_ir onnxruntime onnxscript "
    "peft pre_commit pyarrow ray"
)
PLUGIN = [
    "-q",
    "--continue-on-collection-errors",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.pyodide.outcomes",
]
Entry = dict[str, Any]


def prepare(scratch: Path) -> None:
    """Write Pyodide, as the page has it, and the wheels of the tests."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "try" / "build.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(build := importlib.util.module_from_spec(spec))
    for name in ("vendor", "site", "wheels", "tmp"):
        (scratch / name).mkdir()
    for name, data in build.pyodide(scratch):
        (scratch / "vendor" / name).write_bytes(data)
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--implementation=cp"]
    call += ["--python-version=3.14", "--abi=cp314", "--abi=none", "--platform=pyemscripten_2026_0_wasm32"]
    call += ["--platform=any", "--constraint", str(ROOT / ".ci" / "constraints.txt"), "--dest", str(scratch / "wheels")]
    subprocess.run([*call, *WHEELS.split()], check=True)
    for path in (scratch / "wheels").iterdir():
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(scratch / "site")


def in_pyodide(path: str, scratch: Path) -> list[Entry]:
    """The outcomes of the tests of ``path`` there."""
    requests, to_libraries = os.pipe()
    from_libraries, answers = os.pipe()
    words = [sys.executable, "-m", "tests.pyodide.libraries"]
    quiet = {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    libraries = subprocess.Popen(words, cwd=ROOT, stdin=requests, stdout=answers, env=os.environ | quiet)
    os.close(requests), os.close(answers)

    def wire() -> None:
        os.dup2(to_libraries, 103), os.dup2(from_libraries, 104)
        os.dup2(103, 3), os.dup2(104, 4)

    words = ["node", str(Path(__file__).with_name("run.mjs")), str(scratch / "vendor"), str(ROOT), str(scratch)]
    (scratch / "outcomes").unlink(missing_ok=True)
    shutil.rmtree(scratch / "run", ignore_errors=True)  # Pyodide cannot remove special files
    with (scratch / "log").open("w") as log:
        done = subprocess.run(
            [*words, *PLUGIN, f"--basetemp={scratch / 'run'}", path],
            env=os.environ | environment(scratch),
            preexec_fn=wire,
            pass_fds=(3, 4, to_libraries, from_libraries),
            stdout=log,
            stderr=log,
        )
    os.close(to_libraries), os.close(from_libraries)
    libraries.wait()
    entries = outcomes(scratch)
    if done.returncode not in (0, 1, 2, 5):
        text = (scratch / "log").read_text(encoding="utf-8", errors="replace")
        entries.append({"test": path, "outcome": "ended", "text": text[-3000:], "lacks": None, "full": ""})
    return entries


def environment(scratch: Path) -> dict[str, str]:
    folders = {"TMPDIR": str(scratch / "tmp"), "HOME": str(scratch / "tmp")}
    return folders | {"TIECONV_OUTCOMES": str(scratch / "outcomes"), "TIECONV_WITHOUT": WITHOUT, "COLUMNS": "80"}


def outcomes(scratch: Path) -> list[Entry]:
    lines = (scratch / "outcomes").read_text(encoding="utf-8").splitlines() if (scratch / "outcomes").exists() else []
    return [json.loads(line) for line in lines]


def beside(tests: list[str], scratch: Path) -> dict[str, str]:
    """The errors of the tests here, where tieconv lacks the same."""
    (scratch / "outcomes").unlink(missing_ok=True)
    (scratch / "tests").write_text("\n".join(tests), encoding="utf-8")
    call = [sys.executable, "-m", "pytest", *PLUGIN, "-n0", "-p", "no:randomly", f"--basetemp={scratch / 'run'}"]
    call += [f"@{scratch / 'tests'}"]
    if tests:
        subprocess.run(call, cwd=ROOT, env=os.environ | environment(scratch), stdout=subprocess.DEVNULL)
    return {entry["test"]: alike(entry["text"]) for entry in outcomes(scratch) if entry["outcome"] == "failed"}


def alike(text: str) -> str:
    """The first line of an error, without what differs from run to run."""
    # Python 3.14 says more, errors have other numbers in WebAssembly, directories of tests are numbered, and a test
    # may begin with another command.
    newer = r"(?<=tieconv ).* -o OUT|, got \d+|\. Did you mean: .*\?|: .* not in list|\[Errno \d+\]"
    return re.sub(rf"0x[0-9a-f]+|{newer}|(?<=\D)\d+(?=/)", "", text.partition("\n")[0])


def collected(paths: list[str]) -> list[str]:
    """The names of all tests of ``paths``."""
    call = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:randomly", *paths]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def main(paths: list[str]) -> int:
    """Print what ran, what was left out and why, and the faults."""
    rooms = paths or [f"tests/{room}" for room in ROOMS.split()]
    left: Counter[str] = Counter()
    faults: list[Entry] = []
    passed = 0
    names = collected(rooms)
    missing = {*names}
    with tempfile.TemporaryDirectory() as folder:
        prepare(scratch := Path(folder).resolve())
        for room in rooms:
            entries = in_pyodide(room, scratch)
            unclear = [entry["test"] for entry in entries if entry["outcome"] == "failed" and not entry["lacks"]]
            here = beside(unclear, scratch)
            for entry in entries:
                test, text = entry["test"], entry["text"]
                tests = [test] if "::" in test else [name for name in missing if name.startswith(f"{test}::")]
                count = len(tests)
                missing -= {*tests}
                if entry["outcome"] == "passed":
                    passed += 1
                elif entry["outcome"] == "skipped":
                    left[text] += count
                elif entry["lacks"]:
                    left[entry["lacks"]] += count
                elif here.get(test) == alike(text):
                    left[WRITES if "does not write files" in text + entry["full"] else MEASURES] += count
                else:
                    faults.append(entry)
                    print(f"\n{test}\n{entry['full'] or text}\nBeside Pyodide: {here.get(test, 'passes')}")
            print(f"{room}: {dict(Counter(entry['outcome'] for entry in entries))}", flush=True)
    print(f"\n{len(names)} tests, {passed} passed in Pyodide, {sum(left.values())} left out, {len(faults)} faults")
    print(f"{len(missing)} have no outcome:" if missing else "Left out:", *sorted(missing)[:9])
    for reason, count in left.most_common():
        print(f"{count:6d}  {reason}")
    times = os.times()
    print(f"{times.children_user + times.children_system:.0f} s of processor time")
    return int(bool(faults or missing) or (not paths and passed < LEAST))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
