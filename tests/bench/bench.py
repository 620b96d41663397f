"""Whole-process measurements beside what peers and the operating system take.

    python -m tests.bench.bench [--gigabytes 2] [--runs 5] [--folder DIR] [--json FILE]

Commands are run in turn (A B C A B C …) so that a drifting machine slows all of them alike, and figures are
medians; quote the ratios. Needs about ten times the checkpoint's size on disk. Linux only: peak memory is the
kernel's account of the finished process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = sys.executable
TIECONV = str(Path(PYTHON).with_name("tieconv"))
VOCABULARY, WIDTH = 128256, 2048


@dataclass(frozen=True)
class Command:
    """What to run; ``clean`` paths are removed before each run."""

    argv: list[str]
    clean: tuple[Path, ...] = ()
    prepare: Callable[[], None] | None = None


@dataclass
class Figures:
    """Wall seconds and peak MiB of each run."""

    wall: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


def make_model(folder: Path, gigabytes: float, *, head: bool, shards: int) -> Path:
    """A Llama-shaped bfloat16 checkpoint of random bits; with ``head`` a bit-equal lm_head, flag false."""
    import numpy as np

    from tieconv.formats.safetensors import encode_header

    folder.mkdir(parents=True)
    matrix = VOCABULARY * WIDTH * 2
    layer = 16_777_216
    layers = max(1, int((gigabytes * 1e9 - matrix) // layer))
    tensors = [("model.embed_tokens.weight", (VOCABULARY, WIDTH), matrix)]
    for i in range(layers):
        tensors.append((f"model.layers.{i}.input_layernorm.weight", (WIDTH,), WIDTH * 2))
        tensors.append((f"model.layers.{i}.mlp.up_proj.weight", (4096, WIDTH), layer))
    if head:
        tensors.append(("lm_head.weight", (VOCABULARY, WIDTH), matrix))
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        names = ["model.safetensors"]
    weight_map = {name: names[i * shards // len(tensors)] for i, (name, _, _) in enumerate(tensors)}
    for file in names:
        mine = [entry for entry in tensors if weight_map[entry[0]] == file]
        with (folder / file).open("wb") as stream:
            stream.write(encode_header(((n, "BF16", s, b) for n, s, b in mine), {"format": "pt"}))
            for name, _, size in mine:
                seed = 0 if name in ("lm_head.weight", "model.embed_tokens.weight") else zlib.crc32(name.encode())
                random = np.random.default_rng(seed)
                for start in range(0, size, 1 << 26):
                    stream.write(random.bytes(min(1 << 26, size - start)))
    total = sum(size for _, _, size in tensors)
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "vocab_size": VOCABULARY,
        "intermediate_size": 4096, "num_hidden_layers": layers, "num_attention_heads": 16,
        "tie_word_embeddings": not head,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def make_apart(folder: Path, gigabytes: float, *, head: bool, shards: int) -> Path:
    """`make_model` in a process of its own: a child's peak memory starts at what its parent holds."""
    words = [PYTHON, "-m", "tests.bench.bench", "--gigabytes", str(gigabytes)]
    subprocess.run([*words, "--make", str(folder), str(head), str(shards)], check=True)
    return folder


def once(command: Command) -> tuple[float, float]:
    """One run: wall seconds and peak MiB. Raises on a non-zero exit."""
    clean(command)
    if command.prepare:
        command.prepare()
    os.sync()
    start = time.perf_counter()
    process = subprocess.Popen(command.argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{command.argv} failed: {process.stderr.read() if process.stderr else ''}")
    clean(command)
    return wall, usage.ru_maxrss / 1024


def clean(command: Command) -> None:
    """Remove what a run writes."""
    for path in command.clean:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)


def compare(commands: Mapping[str, Command], runs: int) -> dict[str, Figures]:
    """All commands in turn, ``runs`` times after one warm-up.

    Each round starts with another command: a disk that still works off what the last one wrote would always slow the
    same neighbour.
    """
    figures = {name: Figures() for name in commands}
    names = list(commands)
    for number in range(runs + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            wall, peak = once(commands[name])
            if number:
                figures[name].wall.append(wall)
                figures[name].peak.append(peak)
    return figures


def report(title: str, figures: Mapping[str, Figures], base: str, store: dict[str, object]) -> None:
    """Print a table with ratios to ``base``, pair by pair, and keep it for the JSON."""
    print(f"\n{title}")
    print(f"  {'command':44} {'wall s':>9} {'ratio':>7} {'peak MiB':>9}")
    rows = {}
    for name, measured in figures.items():
        ratio = statistics.median(a / b for a, b in zip(measured.wall, figures[base].wall, strict=True))
        peak = max(measured.peak)
        print(f"  {name:44} {measured.median:9.3f} {ratio:7.2f} {peak:9.1f}")
        rows[name] = {"wall_s": round(measured.median, 4), "ratio": round(ratio, 3), "peak_mib": round(peak, 1)}
    store[title] = rows


def shell(script: str, *clean: Path) -> Command:
    return Command(["sh", "-c", script], clean)


def python(script: str, *clean: Path) -> Command:
    return Command([PYTHON, "-c", script], clean)


def tieconv(*argv: str, clean: tuple[Path, ...] = ()) -> Command:
    return Command([TIECONV, *argv], clean)


def bench_inspect(model: Path, fixture: Path, runs: int, store: dict[str, object]) -> None:
    commands = {
        "python -c 'import click'": python("import click"),
        "tieconv inspect (fixture, tied)": tieconv("inspect", str(fixture)),
        "tieconv inspect --depth header (2 GB, sharded)": tieconv("inspect", "--depth", "header", str(model)),
        "tieconv --help": tieconv("--help"),
    }
    report("inspect", compare(commands, max(runs, 11)), "python -c 'import click'", store)


def bench_verb(
    verb: str, source: Path, expected: Path, layout: str, runs: int, store: dict[str, object], *, peers: bool
) -> None:
    """``verb`` beside ``cp`` and ``fsync`` of the very files that it must write."""
    out, copy = source.parent / "out", source.parent / "copy"
    subprocess.run([TIECONV, verb, str(source), "-o", str(expected)], check=True, capture_output=True)
    commands = {
        "cp + fsync of the output": shell(f"cp -r {expected} {copy} && sync {copy}/*", copy),
        f"tieconv {verb} --verify structure": tieconv(
            verb, str(source), "-o", str(out), "--verify", "structure", clean=(out,)
        ),
        f"tieconv {verb} (every byte compared)": tieconv(verb, str(source), "-o", str(out), clean=(out,)),
        f"tieconv {verb} --hardlink": tieconv(verb, str(source), "-o", str(out), "--hardlink", clean=(out,)),
    }
    base, ours = "cp + fsync of the output", f"tieconv {verb} (every byte compared)"
    report(f"{verb}, {layout}", compare(commands, runs), base, store)
    if peers:  # each takes as long as all of the above: one round
        slow = {base: commands[base], ours: commands[ours]}
        slow["safetensors load + save (no fsync)"] = python(_SAFETENSORS.format(source=source, out=out), out)
        slow["transformers load + save (no fsync)"] = python(_TRANSFORMERS.format(source=source, out=out), out)
        report(f"{verb}, {layout}, beside peers (one run)", compare(slow, 1), base, store)
    shutil.rmtree(expected)


_SAFETENSORS = """
from pathlib import Path
from tests.lazy import load_file, save_file
Path("{out}").mkdir()
for file in Path("{source}").glob("*.safetensors"):
    tensors = load_file(file)
    tensors.pop("lm_head.weight", None)
    save_file(tensors, Path("{out}") / file.name)
"""

_TRANSFORMERS = """
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("{source}", dtype=torch.bfloat16)
model.save_pretrained("{out}")
"""


def bench_in_place(verb: str, source: Path, layout: str, runs: int, store: dict[str, object]) -> None:
    """An in-place change of a sharded model beside ``cp`` and ``fsync`` of the shards that change."""
    work, copy = source.parent / "work", source.parent / "copy"
    subprocess.run([TIECONV, verb, str(source), "-o", str(work), "--hardlink"], check=True, capture_output=True)
    changed = [file for file in work.glob("*.safetensors") if not _same_inode(file, source / file.name)]
    changed_folder = source.parent / "changed"
    shutil.rmtree(changed_folder, ignore_errors=True)
    changed_folder.mkdir()
    for file in changed:
        shutil.copy(file, changed_folder)
    listed = " ".join(str(changed_folder / file.name) for file in changed)

    def fresh() -> None:
        shutil.copytree(source, work, copy_function=os.link)

    shutil.rmtree(work)
    commands = {
        "cp + fsync of the changed shards": shell(f"mkdir {copy} && cp {listed} {copy} && sync {copy}/*", copy),
        f"tieconv {verb} --in-place --verify structure": Command(
            [TIECONV, verb, str(work), "--in-place", "--verify", "structure"], (work,), fresh
        ),
        f"tieconv {verb} --in-place (every byte compared)": Command(
            [TIECONV, verb, str(work), "--in-place"], (work,), fresh
        ),
    }
    report(f"{verb} in place, {layout}", compare(commands, runs), "cp + fsync of the changed shards", store)
    shutil.rmtree(changed_folder)


def _same_inode(a: Path, b: Path) -> bool:
    return b.exists() and a.stat().st_ino == b.stat().st_ino


def bench_scan(model: Path, runs: int, store: dict[str, object]) -> None:
    hashing = (
        "import hashlib, json, sys\nfrom pathlib import Path\n"
        f"for file in Path({str(model)!r}).glob('*.safetensors'):\n"
        "    with file.open('rb') as stream: hashlib.file_digest(stream, 'sha256')\n"
    )
    commands = {
        "tieconv inspect --depth full": tieconv("inspect", "--depth", "full", str(model)),
        "tieconv inspect": tieconv("inspect", str(model)),
        "sha256 of everything": python(hashing),
    }
    report("duplicate scan", compare(commands, runs), "tieconv inspect --depth full", store)


def bench_torch(folder: Path, gigabytes: float, runs: int, store: dict[str, object]) -> None:
    """Inspection of a tied `.bin` beside torch's own quickest way to its tensors: mapped, not read."""
    folder.mkdir(parents=True)
    path = folder / "pytorch_model.bin"
    subprocess.run([PYTHON, "-c", _TORCH_MODEL.format(path=path, layers=int(gigabytes * 1e9 / 16_777_216))], check=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    out = folder.parent / "out"
    load = "import torch; torch.load({!r}, weights_only=True, mmap={})"
    commands = {
        "torch.load(mmap=True, weights_only=True)": python(load.format(str(path), True)),
        "torch.load(weights_only=True)": python(load.format(str(path), False)),
        "tieconv inspect": tieconv("inspect", str(folder)),
        "tieconv inspect --depth full": tieconv("inspect", "--depth", "full", str(folder)),
    }
    report("inspect a .bin", compare(commands, runs), "torch.load(mmap=True, weights_only=True)", store)
    bench_many(folder, runs, store)
    commands = {
        "cp + fsync": shell(f"cp {path} {out} && sync {out}", out),
        "tieconv untie": tieconv("untie", str(folder), "-o", str(out), clean=(out,)),
        "torch.load + torch.save (no fsync)": python(_TORCH_UNTIE.format(path=path, out=out), out),
    }
    report("untie a .bin", compare(commands, runs), "cp + fsync", store)
    shutil.rmtree(folder)


def bench_many(folder: Path, runs: int, store: dict[str, object]) -> None:
    """Half a million small tensors: reading the records alone, a whole inspection, and torch's own reading."""
    for suffix in ("bin", "safetensors"):
        path = folder / f"many.{suffix}"
        subprocess.run([PYTHON, "-c", _MANY_TENSORS.format(path=path)], check=True)
        load = f"torch.load({str(path)!r}, weights_only=True, mmap=True)"
        if suffix == "safetensors":
            load = f"safetensors.torch.load_file({str(path)!r})"
        commands = {
            "torch: a dictionary of tensors": python(f"import torch, safetensors.torch; {load}"),
            "tieconv: records": python(_RECORDS.format(path=path)),
            "tieconv inspect": tieconv("inspect", str(path)),
        }
        title = f"500,000 tensors, .{suffix}"
        report(title, compare(commands, runs), "torch: a dictionary of tensors", store)
        path.unlink()


_MANY_TENSORS = """
import torch
from tests.lazy import save_file
state = {{f"model.layers.{{i // 1000}}.mlp.experts.{{i % 1000}}.weight": torch.zeros(1) for i in range(500_000)}}
torch.save(state, "{path}") if "{path}".endswith(".bin") else save_file(state, "{path}")
"""

_RECORDS = """
from pathlib import Path
from tieconv.formats import read_checkpoint
from tieconv.sources.local import locate, open_files
listing = locate("{path}")
with open_files(Path(listing.root)) as files:
    checkpoint = read_checkpoint(listing, files)
import os
os._exit(len(checkpoint.tensors) != 500_000)
"""

_TORCH_MODEL = """
import torch
table = torch.empty(8192, 1024, dtype=torch.bfloat16).random_(0, 9)
state = {{"model.embed_tokens.weight": table, "lm_head.weight": table}}
for layer in range({layers}):
    state[f"model.layers.{{layer}}.mlp.up_proj.weight"] = torch.empty(8192, 1024, dtype=torch.bfloat16).random_(0, 9)
torch.save(state, "{path}")
"""

_TORCH_UNTIE = """
import torch
state = torch.load("{path}", weights_only=True, mmap=True)
state["lm_head.weight"] = state["lm_head.weight"].clone()
torch.save(state, "{out}")
"""


def compile_once() -> None:
    """Bytecode as an installed package has it: without it every start compiles every module."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(Path(__file__).parents[2] / "tieconv")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tieconv-bench")
    parser.add_argument("--no-peers", action="store_true", help="leave safetensors and transformers out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--make", nargs=3, metavar=("DIR", "HEAD", "SHARDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        folder, head, shards = arguments.make
        make_model(Path(folder), arguments.gigabytes, head=head == "True", shards=int(shards))
        return
    compile_once()
    root: Path = arguments.folder
    shutil.rmtree(root, ignore_errors=True)
    store: dict[str, object] = {}
    peers = not arguments.no_peers
    try:
        bench_torch(root / "torch", arguments.gigabytes, arguments.runs, store)
        for shards, layout in ((1, "single file"), (8, "8 shards")):
            untied = make_apart(root / f"untied-{shards}", arguments.gigabytes, head=True, shards=shards)
            if shards == 8:
                fixture = Path(__file__).parents[2] / "fixtures" / "models" / "llama-tied"
                bench_inspect(untied, fixture, arguments.runs, store)
                bench_in_place("retie", untied, layout, arguments.runs, store)
            bench_scan(untied, arguments.runs, store)
            bench_verb("retie", untied, root / "expected", layout, arguments.runs, store, peers=peers)
            shutil.rmtree(untied)
            tied = make_apart(root / f"tied-{shards}", arguments.gigabytes, head=False, shards=shards)
            if shards == 8:
                bench_in_place("untie", tied, layout, arguments.runs, store)
            bench_verb("untie", tied, root / "expected", layout, arguments.runs, store, peers=peers)
            shutil.rmtree(tied)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(store, indent=2) + "\n")


if __name__ == "__main__":
    main()
