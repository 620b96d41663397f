"""Torch files that would run something, cost too much or lie are refused; bit rot of a storage is noticed."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import tieconv
import tieconv as api
from fixtures.torch_files import Case, honest, hostile
from tests.patience import prompt
from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord, WeightFile
from tieconv.cli import main
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.formats.torch import pickle_machine
from tieconv.formats.torch.globals_ import ALLOWED, storage_reference
from tieconv.formats.torch.pickle_stack import MAX_NESTED, PickleProblem, opcode_name
from tieconv.formats.torch.reader import read_torch_file
from tieconv.sources.digest import Sums
from tieconv.sources.local import locate, open_files

CANARY = Path("/nonexistent") / "canary"
CASES = hostile(CANARY)


def read(case: Case) -> WeightFile:
    data = case.data
    return read_torch_file(lambda size, offset: data[offset : offset + size], len(data), f"{case.name}.bin")[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_file_is_refused_by_its_code(case: Case) -> None:
    """In less than a second, with the reason that belongs to the file, in one sentence that names it."""
    with prompt(1), pytest.raises(UnreadableError) as refusal:
        read(case)
    assert refusal.value.code == case.code
    assert refusal.value.message.startswith(f"{case.name}.bin")
    assert refusal.value.hint
    assert len(refusal.value.message) < 1000
    assert refusal.value.message.isprintable()


@pytest.mark.parametrize("case", honest(), ids=lambda case: case.name)
def test_honest_file_is_read(case: Case) -> None:
    """What real writers make, and what is merely unusual, is no fault."""
    tensors = read(case).tensors
    assert [tensor.name for tensor in tensors] == (["weight"] if case.name != "empty-state" else [])


LEVELS: dict[str, Callable[[int], bytes]] = {
    "tuples": lambda inner: b")" + b"\x85" * inner,
    "tuples after a mark": lambda inner: b"(" * inner + b")" + b"t" * inner,
    "lists": lambda inner: b"]" + b"]" * inner + b"a" * inner,
    "lists, the outer one first": lambda inner: (
        b"]q\x000" + b"".join(b"h%c]q%ca0" % (at, at + 1) for at in range(inner)) + b"h\x00"
    ),
    "dictionaries": lambda inner: b"}" + b"N}" * inner + b"s" * inner,
    "attributes": lambda inner: b"}" + b"}" * inner + b"b" * inner,
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_the_levels_of_a_value_are_bounded(levels: Callable[[int], bytes]) -> None:
    """Python frees a value with its parts. Some thousand levels end it in a browser."""
    for inner in (1, MAX_NESTED - 1):
        pickle_machine.run(levels(inner) + b".", 0, ALLOWED, storage_reference, lambda: 10_000)
    with pytest.raises(PickleProblem, match=f"nests values more than {MAX_NESTED} levels"):
        pickle_machine.run(levels(MAX_NESTED) + b".", 0, ALLOWED, storage_reference, lambda: 10_000)


def test_the_corpus_is_wide() -> None:
    """At least 60 hostile files, each with a name of its own."""
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_refused_global_is_named() -> None:
    """The sentence says what the file asked for and that nothing was run."""
    case = next(case for case in CASES if case.name == "run-global-os-system")
    with pytest.raises(UnreadableError, match=r"asks to import os\.system: tieconv refuses the file and runs nothing"):
        read(case)


def test_nothing_runs_and_memory_stays_small(tmp_path: Path) -> None:
    """The whole corpus through the command line in one process: no canary, exit 2 each, less than 256 MB."""
    canary = tmp_path / "canary"
    for case in hostile(canary):
        (tmp_path / f"{case.name}{case.suffix}").write_bytes(case.data)
    script = (
        "import pathlib, sys\n"
        "from tieconv.cli import main\n"
        "codes = set()\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.bin')):\n"
        "    sys.argv = ['tieconv', 'inspect', str(path)]\n"
        "    try:\n"
        "        codes.add(main())\n"
        "    except SystemExit as end:\n"
        "        codes.add(end.code)\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(codes, int(peak.split()[1]) // 1024)\n"
        "print(sorted({'torch', 'numpy', 'pickle'} & sys.modules.keys()))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    codes, modules = run.stdout.strip().splitlines()[-2:]
    assert codes.startswith("{2} ")
    assert int(codes.split()[1]) < 256
    assert modules == "[]"
    assert not canary.exists()


def test_opcodes_have_the_names_of_pickletools() -> None:
    import pickletools

    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    assert {code: opcode_name(code) for code in range(256)} == {
        code: names.get(code, f"0x{code:02x}") for code in range(256)
    }


@pytest.mark.parametrize("name", ["run-global-os-system", "run-stack-global", "run-inst", "raw-pickle"])
def test_the_canary_is_alive(name: str, tmp_path: Path) -> None:
    """Python's own loader runs these files: that nothing ran is no accident of how they are written."""
    import pickle
    import zipfile

    canary = tmp_path / "canary"
    case = next(case for case in hostile(canary) if case.name == name)
    path = tmp_path / "file.bin"
    path.write_bytes(case.data)
    body = zipfile.ZipFile(path).read("archive/data.pkl") if case.data.startswith(b"PK") else case.data
    pickle.loads(body)
    assert canary.exists()


@pytest.mark.parametrize("lie", [1 << 20, 1 << 40, 1 << 62])
def test_a_number_in_the_file_allocates_nothing(lie: int) -> None:
    """A reader that is asked for more than the file holds would have to allocate it."""
    asked = []

    def pread(size: int, offset: int) -> bytes:
        asked.append(size)
        return b"PK\x03\x04"[offset : offset + size]

    with pytest.raises(UnreadableError):
        read_torch_file(pread, lie, "sparse.bin")
    assert max(asked) <= 1 << 20


def test_every_code_is_on_the_page() -> None:
    """docs/formats.md lists the codes that the readers of torch files refuse with, and no others."""
    root = Path(__file__).parents[2]
    sources = (root / "tieconv/formats/torch").rglob("*.py")
    codes = re.findall(r'"(pickle|zip|torch)\.([a-z0-9-]+)"', "".join(path.read_text() for path in sources))
    tools = json.loads((root / "tieconv/formats/data/other_tools.json").read_text())["kinds"]
    kinds = [kind["code"] for kind in tools if "ends" not in kind] + ["safetensors", "empty", "shape"]
    codes = {f"{group}.{code}" for group, code in codes} | {f"torch.{kind}" for kind in kinds}
    cautions = {"torch.training", "torch.several", "torch.extra", "torch.prefix", "torch.expanded", "torch.unused"}
    page = (root / "docs/formats.md").read_text().partition("### Codes of refusals")[2]
    listed: set[str] = set()
    for part in re.split(r"(?=`(?:pickle|zip|torch|git)\.\*`)", page):
        group, *names = re.findall(r"`([a-z0-9.-]+?)(?:\.\*)?`", part) or [""]
        listed |= {f"{group}.{name}" for name in names}
    names_of_torch = {"torch.device", "torch.storage"}
    assert codes - cautions - names_of_torch - listed == set()
    of_git = {"git.lfs-pointer", "git.symlink-text"}
    assert listed - codes - of_git - {"torch.checksum"} == set()


@pytest.mark.parametrize(("entries", "code"), [(250_000, "zip.directory"), (251_001, "zip.too-large")])
def test_an_archive_of_too_many_storages(entries: int, code: str) -> None:
    """Half as many storages are read as tensors: more of them take more memory than any file may."""
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, entries, entries, 46 * entries, 64)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 64 + 46 * entries, 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    data = b"PK\x03\x04" + bytes(60 + 46 * entries) + end64 + locator + end
    with pytest.raises(UnreadableError) as caught:
        read_torch_file(lambda size, offset: data[offset : offset + size], len(data), "model.pt")
    assert caught.value.code == code


EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}


def state(*, aliased: bool = False) -> dict[str, torch.Tensor]:
    embed = torch.randn(300, 64, generator=torch.Generator().manual_seed(1))
    return {EMBED: embed, HEAD: embed if aliased else embed.clone(), NORM: torch.ones(64)}


def single(root: Path) -> Path:
    return saved(root, {"pytorch_model.bin": state()})


def aliased(root: Path) -> Path:
    return saved(root, {"pytorch_model.bin": state(aliased=True)})


def sharded(root: Path) -> Path:
    whole = state()
    names = {"pytorch_model-00001-of-00002.bin": (EMBED, NORM), "pytorch_model-00002-of-00002.bin": (HEAD,)}
    shards = {shard: {name: whole[name] for name in held} for shard, held in names.items()}
    saved(root, shards)
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in names.items() for name in held}}
    (root / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return root


def saved(root: Path, files: dict[str, dict[str, torch.Tensor]]) -> Path:
    root.mkdir()
    for name, tensors in files.items():
        torch.save(tensors, root / name)
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def rot(root: Path, *tensors: str) -> None:
    """Flip a bit of each of the tensors, the same one."""
    with open_files(root) as files:
        checkpoint = read_checkpoint(locate(str(root)), files)
    for span in {checkpoint.tensors[tensor].range for tensor in tensors}:
        path = root / span.file
        data = bytearray(path.read_bytes())
        data[span.start + 4099] ^= 4
        path.write_bytes(data)


Make = Callable[[Path], Path]
MODELS: list[Make] = [single, sharded, aliased]
WRITES: dict[str, tuple[str, ...]] = {
    "convert": ("convert", "--to", "safetensors"),
    "convert in shards": ("convert", "--to", "safetensors", "--max-shard-size", "100KB"),
    "convert to torch": ("convert", "--to", "torch"),
    "convert to torch in shards": ("convert", "--to", "torch", "--max-shard-size", "100KB"),
    "retie": ("retie",),
    "dedup": ("dedup",),
    "bias zero": ("bias", "zero"),
    "set-tie": ("set-tie", "false"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MODELS)
def test_no_write_hands_damage_on(make: Make, write: str, tmp_path: Path) -> None:
    """Both copies rot alike, so they are equal still: the file is blamed in one sentence, and nothing is written."""
    source = make(tmp_path / "source")
    rot(source, EMBED, HEAD)
    result = CliRunner().invoke(main, [*WRITES[write], str(source), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    error, hint = result.stderr.splitlines()[-2:]
    assert "pytorch_model" in error and "do not match their checksum" in error
    assert hint == "hint: the file is damaged: fetch it again"
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", MODELS)
def test_sound_files_are_written(make: Make, write: str, tmp_path: Path) -> None:
    """The checks above would prove nothing if every write were refused."""
    source = make(tmp_path / "source")
    result = CliRunner().invoke(main, [*WRITES[write], str(source), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("make", [single, sharded])
@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--depth", "full"), ("check",), ("analyze",)], ids=str)
def test_no_equality_is_claimed(make: Make, words: tuple[str, ...], tmp_path: Path) -> None:
    """Two rotten copies are equal, and nobody says so."""
    source = make(tmp_path / "source")
    rot(source, EMBED, HEAD)
    result = CliRunner().invoke(main, [*words, str(source)])
    assert result.exit_code == 2, result.output
    assert "do not match their checksum" in result.output and "identical" not in result.output


def test_a_comparison_of_two_files(tmp_path: Path) -> None:
    """`diff` reads both sides whole."""
    first, second = single(tmp_path / "one"), single(tmp_path / "two")
    for root in (first, second):
        rot(root, EMBED)
    with pytest.raises(UnreadableError, match="do not match their checksum"):
        tieconv.diff(first, second)


@pytest.mark.parametrize("verify", ["full", "structure"])
@pytest.mark.parametrize("make", MODELS)
def test_safetensors_has_no_checksum_to_tell(make: Make, verify: Any, tmp_path: Path) -> None:
    """A tensor that no claim is about is held to its checksum too, whatever is verified: the result could not tell."""
    source = make(tmp_path / "source")
    with open_files(source) as files:
        span = read_checkpoint(locate(str(source)), files).tensors[NORM].range
    data = bytearray((source / span.file).read_bytes())
    data[span.start] ^= 1
    (source / span.file).write_bytes(data)
    with pytest.raises(UnreadableError, match=f"tensor {NORM} do not match their checksum"):
        api.plan_convert("safetensors", source).execute(tmp_path / "out", verify=verify)
    assert os.listdir(tmp_path) == ["source"]


def test_reads_of_any_order() -> None:
    """Only what is read in order counts; a new start begins anew; what lies between storages is passed over."""
    data = bytes(range(200))
    spans = [ByteRange("f", 10, 60), ByteRange("f", 64, 164)]
    storages = tuple(
        Storage(str(number), span, zlib.crc32(data[span.start : span.end])) for number, span in enumerate(spans)
    )
    records = tuple(
        TensorRecord(storage.key, "U8", (storage.range.size,), storage.range, None, storage.key) for storage in storages
    )
    file = WeightFile("f", 200, 10, records, None, storages)
    sums = Sums()
    sums.expect([file])
    view = memoryview(data)

    def read(start: int, end: int, content: memoryview = view) -> list[bool]:
        sums.seen("f", start, content[start:end])
        return [sums.is_right(storage) for storage in storages]

    assert read(64, 100) == [False, False]
    assert read(120, 164) == [False, False]  # a gap
    assert read(10, 30) == [False, False]
    assert read(10, 40) == [False, False]  # anew
    assert read(40, 110) == [True, False]  # over the border, into what was begun
    assert read(64, 164) == [True, True]
    assert read(0, 200) == [True, True]
    sums.seen("other", 0, view)
    damaged = Sums()
    damaged.expect([file])
    bad = bytearray(data)
    bad[150] ^= 1
    with pytest.raises(UnreadableError, match="f: the bytes of tensor 1 do not match their checksum"):
        damaged.seen("f", 0, memoryview(bad))
    assert damaged.is_right(storages[0])
