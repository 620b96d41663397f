"""Torch files that would run something, cost too much or lie are refused at once; honest ones are read."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.torch_files import Case, honest, hostile
from tests.loops import case as in_case
from tests.patience import prompt
from tests.refusals import failure_of
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.torch import pickle_machine
from tieconv.formats.torch.globals_ import ALLOWED, storage_reference
from tieconv.formats.torch.pickle_stack import MAX_NESTED, PickleProblem, opcode_name
from tieconv.formats.torch.reader import read_torch_file

CANARY = Path("/nonexistent") / "canary"
CASES = hostile(CANARY)


def read(case: Case) -> WeightFile:
    data = case.data
    return read_torch_file(lambda size, offset: data[offset : offset + size], len(data), f"{case.name}.bin")[0]


def test_hostile_file_is_refused_by_its_code() -> None:
    """In less than a second, with the reason that belongs to the file, in one sentence that names it."""
    for case in CASES:
        with in_case(case.name):
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


INSPECT_ALL = """
import pathlib, sys
from tieconv.cli import main
codes = set()
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.bin")):
    sys.argv = ["tieconv", "inspect", str(path)]
    try:
        codes.add(main())
    except SystemExit as end:
        codes.add(end.code)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(codes, int(peak.split()[1]) // 1024)
print(sorted({"torch", "numpy", "pickle"} & sys.modules.keys()))
"""


def test_nothing_runs_and_memory_stays_small(tmp_path: Path) -> None:
    """The whole corpus through the command line in one process: no canary, exit 2 each, less than 256 MB."""
    canary = tmp_path / "canary"
    for case in hostile(canary):
        (tmp_path / f"{case.name}{case.suffix}").write_bytes(case.data)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", INSPECT_ALL, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
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
    error = failure_of(read_torch_file, UnreadableError, lambda size, at: data[at : at + size], len(data), "model.pt")
    assert error.code == code
