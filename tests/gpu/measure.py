"""Parity, memory and latency on a CUDA machine, into one JSON document (docs/gpu.md).

python -m tests.gpu.measure -o gpu.json                          everything, on CUDA
python -m tests.gpu.measure -o gpu.json --limit-seconds 540      stop in time; the same command goes on
python -m tests.gpu.measure -o try.json --provider cpu --small   a rehearsal, which no page reads
python -m tests.gpu.measure -o dry.json --provider standin       without a GPU: what goes there, nothing computed
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.job import FORMS_PART, MARK, Spec, key_of
from tests.gpu.record import PARTS, PLACEMENT, OtherMeasurementError, Record
from tests.gpu.standin import STANDIN, build, provider_library, without_standin

ROOT = Path(__file__).parents[2]
PRECISIONS = ("fp32", "fp16", "bf16")
STANDIN_PARTS = (PLACEMENT, "memory")
"""What needs no kernel."""
_GRACE = 5.0
"""Seconds that are kept back to write the document."""


@dataclass
class Run:
    """A measurement under way."""

    record: Record
    provider: str
    work: Path
    small: bool
    deadline: float
    libraries: str = ""
    left: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def groups(self, groups: Sequence[Sequence[Spec]], jobs: int) -> None:
        """Every group in a process of its own, ``jobs`` at a time; rows that are there are not measured again."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda group: self._group(group, jobs), groups))

    def _group(self, group: Sequence[Spec], jobs: int) -> None:
        missing = [spec for spec in group if not self._done(spec)]
        if missing and time.monotonic() < self.deadline:
            self._process(missing, jobs)
        with self.lock:
            self.left += ["/".join(spec) for spec in missing if spec[0] != FORMS_PART and not self._told(spec)]

    def _done(self, spec: Spec) -> bool:
        if spec[0] == FORMS_PART:
            return (self.work / f"forms-{spec[1]}").exists()
        return all(self.record.done(spec[0], key) for key in keys(spec))

    def _told(self, spec: Spec) -> bool:
        """Whether there is a row, be it one with an error. Graphs that could not be made show where they are needed."""
        if spec[0] == FORMS_PART:
            return True
        found = {row["key"] for row in self.record.document["parts"][spec[0]]}
        return key_of(spec) in found or all(key in found for key in keys(spec))

    def _process(self, specs: Sequence[Spec], jobs: int) -> None:
        given = {"provider": self.provider, "work": str(self.work), "small": self.small, "rows": specs}
        alone = any(spec[0] == "seven_billion" for spec in specs)
        threads = str(max(1, (os.cpu_count() or 1) // (1 if alone else jobs)))
        environment = os.environ | {
            "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        }  # fmt: skip
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = self.libraries
        command = [sys.executable, "-m", "tests.gpu.job", json.dumps(given)]
        with (
            tempfile.TemporaryFile("w+") as noise,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=noise, text=True, env=environment, cwd=ROOT
            ) as child,
        ):
            late = threading.Timer(max(0.0, self.deadline - time.monotonic()), child.kill)
            late.start()
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith(MARK):
                    self._add(json.loads(line.removeprefix(MARK)))
            status = child.wait()
            in_time = late.is_alive()
            late.cancel()
            if status and in_time:
                self._broken(specs, status, noise)

    def _add(self, told: dict[str, Any]) -> None:
        with self.lock:
            self.record.add(told["part"], told["row"])
        row = told["row"]
        print(f"{told['part']:9} {row['key']:45} {outcome(row)}", flush=True)

    def _broken(self, specs: Sequence[Spec], status: int, noise: Any) -> None:
        """The process ended with rows still to come: the first of them is to blame, the others are left."""
        noise.seek(0)
        last = collections.deque(noise, maxlen=8)
        spec = next((spec for spec in specs if not self._told(spec)), None)
        if spec is not None:
            error = f"the process ended with status {status}: {''.join(last)[-600:].strip()}"
            self._add({"part": spec[0], "row": {"key": key_of(spec), "error": error, "about": list(spec[1:])}})


def outcome(row: dict[str, Any]) -> str:
    """A row in a few words, for the one who waits."""
    if "error" in row:
        return f"ERROR {row['error'][:100]}"
    if "median" in row:
        return f"{row['median']} ms"
    if "loaded" in row:
        return f"{row['loaded'] / 1e6:.0f} MB, {row['beyond_stored']:+.2f} of the matrix beyond what is stored"
    if "verdict" not in row:
        return ", ".join(f"{sum(counts.values())} nodes on {name}" for name, counts in row["placement"].items())
    ratio = (row.get("gates") or {}).get("rms_ratio", {}).get("value")
    return f"{row['verdict']} on {row.get('active')} {'' if ratio is None else ratio}".rstrip()


def keys(spec: Spec) -> list[str]:
    """The rows that a spec makes."""
    if spec[0] == "serving":
        from tests.gpu.serving import keys as of_precision

        return of_precision(spec[1])
    if spec[0] != "latency":
        return [key_of(spec)]
    from tests.gpu.latency import LENGTHS, TORCH
    from tests.gpu.models import FORMS

    return [f"{spec[1]}/{form}/{length}" for length in LENGTHS for form in (*FORMS, TORCH)]


def plan(parts: Sequence[str], *, small: bool) -> list[tuple[list[list[Spec]], int]]:
    """What is measured, in stages: groups of rows, each group in a process, and how many side by side (0: as asked)."""
    from tests.gpu.device_faults import DEVICE_FAULTS
    from tests.gpu.memory import ARENAS
    from tests.gpu.models import FORMS, LARGE, tiny
    from tests.gpu.refusals import CASES, EXPORTS, FULL
    from tests.gpu.seven_billion import CASES as SEVEN_CASES, ON_DEVICE
    from tests.gpu.verdicts import planted

    by_model: dict[str, list[Spec]] = {name: [] for name in tiny(small=small)}
    large: list[list[Spec]] = []
    alone: list[list[Spec]] = []
    for part in ("verdicts", PLACEMENT):
        if part in parts:
            for name, specs in by_model.items():
                specs += [(part, name, precision) for precision in PRECISIONS]
            large += [[(part, LARGE, precision)] for precision in PRECISIONS]
    if "faults" in parts:
        for label, places in planted().items():
            for name, precision in places:
                if name in by_model:
                    by_model[name].append(("faults", name, precision, label))
    others: list[list[Spec]] = []
    if "device_faults" in parts:
        others += [[("device_faults", label)] for label in DEVICE_FAULTS]
    if "refusals" in parts:
        others.append([("refusals", case) for case in CASES if case != FULL])
        alone.append([("refusals", FULL)])
    if "exports" in parts:
        others += [[("exports", label)] for label in EXPORTS]
    if "on_device" in parts:
        others += [[("on_device", *case)] for case in ON_DEVICE]
    if "seven_billion" in parts:
        others.insert(0, [("seven_billion", SEVEN_CASES[0])])  # first, because it takes longest
        alone.append([("seven_billion", SEVEN_CASES[1])])
    if "memory" in parts:
        alone += [[("memory", *of)] for of in itertools.product(PRECISIONS, FORMS, ARENAS)]
    if "latency" in parts:
        alone += [[("latency", precision)] for precision in PRECISIONS]
    if "serving" in parts:
        # What is served is seldom float32.
        alone += [[("serving", precision)] for precision in reversed(PRECISIONS)]
    if alone:
        # The graphs of the next stage, which measures one at a time.
        large += [[(FORMS_PART, precision)] for precision in PRECISIONS]
    # Of the large one few at a time, which leaves each some threads and memory.
    return [([group for group in (*others, *by_model.values()) if group], 0), (large, 3), (alone, 1)]


def chosen(stages: list[tuple[list[list[Spec]], int]], rows: str) -> list[tuple[list[list[Spec]], int]]:
    """The stages with the rows whose part and key the expression ``rows`` finds, and the graphs that they need."""

    def wanted(spec: Spec) -> bool:
        return spec[0] == FORMS_PART or re.search(rows, "/".join(spec)) is not None

    kept = [([[spec for spec in group if wanted(spec)] for group in groups], jobs) for groups, jobs in stages]
    return [([group for group in groups if group], jobs) for groups, jobs in kept]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not yet in the document; 0 where every row was measured."""
    given = _parser().parse_args(arguments)
    from tests.gpu.machine import describe

    parts = given.parts or (STANDIN_PARTS if given.provider == STANDIN else PARTS)
    reason = _why_not(given.provider, parts)
    if reason:
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 2
    start = time.monotonic()
    try:
        record = Record(given.output, given.provider, describe(given.provider), small=given.small)
    except OtherMeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    record.write()
    stages = chosen(plan(parts, small=given.small), given.rows)
    deadline = start + (given.limit_seconds or 86_400.0) - _GRACE
    with tempfile.TemporaryDirectory() as scratch:
        # A rehearsal's models are never taken for the whole ones.
        work = (given.work or Path(scratch)).resolve() / ("small" if given.small else "whole")
        libraries = _device(Path(scratch)) if given.provider == STANDIN else ""
        run = Run(record, given.provider, work, given.small, deadline, libraries)
        for groups, jobs in stages:
            run.groups(groups, min(given.jobs, jobs or given.jobs))
    order: dict[str, list[str]] = {part: [] for part in record.document["parts"]}
    for spec in measured(stages):
        order[spec[0]] += keys(spec)
    record.finish(time.monotonic() - start, run.left, order)
    wrong = [row["key"] for part in parts for row in record.document["parts"][part] if "error" in row]
    print(f"{given.output}: {len(wrong)} rows with errors, {len(run.left)} left for another run", file=sys.stderr)
    return 1 if wrong or run.left else 0


def _why_not(provider: str, parts: Sequence[str]) -> str:
    """Why ``parts`` cannot be measured on ``provider`` here; empty where they can."""
    from tests.gpu import machine

    if provider == STANDIN:
        computed = set(parts) - set(STANDIN_PARTS)
        return f"{', '.join(sorted(computed))} cannot be without a GPU" if computed else without_standin()
    return machine.without_gpu() if provider == "cuda" else ""


def _device(folder: Path) -> str:
    """Where the stand-in lies, made in ``folder``."""
    import onnxruntime

    made = folder / "libraries"
    made.mkdir()
    build(provider_library(), onnxruntime.cuda_version, made)
    return str(made)


def measured(stages: Sequence[tuple[Sequence[Sequence[Spec]], int]]) -> list[Spec]:
    """Every spec that makes rows."""
    return [spec for groups, _ in stages for group in groups for spec in group if spec[0] != FORMS_PART]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--provider", choices=("cuda", "cpu", STANDIN), default="cuda")
    parser.add_argument("--parts", type=_parts, help=f"of {','.join(PARTS)}; all of them")
    parser.add_argument("--rows", default="", help="only rows whose part/key this expression finds")
    parser.add_argument("--limit-seconds", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--work", type=Path, help="keep models and graphs here, for the next run")
    parser.add_argument("--small", action="store_true", help="two tiny models and a small large one")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if set(found) - {*PARTS, PLACEMENT}:
        raise argparse.ArgumentTypeError(f"parts are {', '.join((*PARTS, PLACEMENT))}")
    return found


if __name__ == "__main__":
    sys.exit(main())
