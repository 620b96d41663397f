"""Work and memory are bounded by the file; Python beside the weights is read as text, within limits."""

from __future__ import annotations

import ast
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import tieconv as api
from fixtures.hostile import TIB, entry, file_of
from tests.checks.fixtures.model import LLAMA, REMOTE, Config, flagged, llama, save
from tests.patience import HANGS, patient
from tieconv.formats import directory

MEASURE = """
import resource, sys, time
from pathlib import Path
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.sources.local import locate, open_files
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
tensors, code = 0, ""
try:
    listing = locate(sys.argv[1])
    with open_files(Path(listing.root)) as files:
        tensors = sum(len(file.tensors) for file in read_checkpoint(listing, files).files)
except UnreadableError as error:
    code = error.code
print(time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024, tensors, code)
"""


def measure(path: Path) -> tuple[float, int, int, str]:
    """Seconds of CPU, MiB beyond the imports, tensors found and the code of a refusal, in a process of its own."""
    program = [sys.executable, "-P", "-c", MEASURE, str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANGS, check=True)
    seconds, memory, tensors, code = (done.stdout.rstrip("\n") + " ").split(" ")[:4]
    return float(seconds), int(memory), int(tensors), code


LYING = {
    "header-length": (struct.pack("<Q", 99_999_999) + b"{}", "safetensors.truncated-header"),
    "huge-header-length": (struct.pack("<Q", (1 << 64) - 1) + b"{}", "safetensors.header-too-large"),
    "shape": (file_of({"a": entry(shape=[1 << 50])}, bytes(4)), "safetensors.width"),
    "offsets": (file_of({"a": entry(shape=[1 << 50], offsets=[0, 1 << 50])}, bytes(4)), "safetensors.truncated"),
    "far-offsets": (file_of({"a": entry(offsets=[1 << 50, (1 << 50) + 4])}, bytes(4)), "safetensors.truncated"),
}


@pytest.mark.parametrize("name", LYING)
def test_lying_numbers_allocate_nothing(name: str, tmp_path: Path) -> None:
    content, expected = LYING[name]
    (tmp_path / "model.safetensors").write_bytes(content)
    seconds, memory, _, code = measure(tmp_path)
    assert code == expected
    assert memory < 16
    assert seconds < patient(1)


def test_a_sparse_tebibyte(tmp_path: Path) -> None:
    """Inspected from its header, in a second and a few megabytes."""
    header = file_of({"big": entry(shape=[TIB], offsets=[0, TIB])})
    path = tmp_path / "model.safetensors"
    path.write_bytes(header)
    try:
        os.truncate(path, len(header) + TIB)
    except OSError:
        pytest.skip("the file system has no files of 1 TiB")
    seconds, memory, tensors, code = measure(tmp_path)
    assert (tensors, code) == (1, "")
    assert memory < 16
    assert seconds < patient(1)


@pytest.mark.parametrize(
    "text", ["[]," * 3_000_000, '"ab",' * 1_500_000, "{}," * 3_000_000], ids=["lists", "strings", "objects"]
)
def test_a_header_of_small_things(text: str, tmp_path: Path) -> None:
    """Nine megabytes of the smallest values are refused before they are made."""
    (tmp_path / "model.safetensors").write_bytes(file_of('{"a":[' + text + "0]}"))
    seconds, memory, _, code = measure(tmp_path)
    assert code in ("safetensors.entry", "json.too-large")
    assert memory < 256
    assert seconds < 5


def test_many_tiny_tensors_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that would take more than 300 MiB refuses before it writes; a large model has no such limit."""
    import tieconv as api
    from tieconv.errors import TieconvError
    from tieconv.plans import guards
    from tieconv.plans.verbs import convert

    monkeypatch.setattr(guards, "MANY", 3)
    monkeypatch.setattr(guards.guard_many, "__defaults__", (3,))
    monkeypatch.setattr(convert, "MANY_FOR_TORCH", 1)
    for side, number, name, refused in ((1, 4, "t", True), (4096, 4, "t", False), (1, 1, "t" * 400, True)):
        folder = tmp_path / f"{side}-{number}"
        folder.mkdir()
        entries = {
            f"{name}{i}": {"dtype": "U8", "shape": [side], "data_offsets": [i * side, (i + 1) * side]}
            for i in range(number)
        }
        header = json.dumps(entries).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(number * side)
        (folder / "model.safetensors").write_bytes(data)
        for name, plan in {
            "dedup": lambda path=folder: api.plan_dedup(path),
            "safetensors": lambda path=folder: api.plan_convert("safetensors", path),
            "torch": lambda path=folder: api.plan_convert("torch", path),
        }.items():
            try:
                plan()
                code = ""
            except TieconvError as error:
                code = error.code
            assert (code == "plan.many-tensors") == refused, (name, side, code)


CLASS = "class A:\n    _tied_weights_keys{} = {}\n"


def rules(folder: Path, source: bytes | str, *, used: bool = True, config: Config = REMOTE) -> list[str]:
    more = {"auto_map": {"AutoModelForCausalLM": "modeling_a.A"}} if used else {}
    save(folder, {"tie_word_embeddings": True, **config, **more}, llama())
    (folder / "modeling_a.py").write_bytes(source.encode() if isinstance(source, str) else source)
    return [f"{finding.rule} {finding.level}" for finding in api.inspect(folder).findings if finding.rule == "COD001"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, "COD001 note"),
        (flagged(LLAMA, False), "COD001 note"),
        (flagged(REMOTE, False), "COD001 warning"),
        (flagged(REMOTE, True), "COD001 error"),
    ],
    ids=["known to transformers", "known, untied", "untied", "tied"],
)
def test_the_level_is_what_transformers_5_does(config: Config, expected: str, tmp_path: Path) -> None:
    """Measured with 5.23: a tied model is not loaded, an untied one not saved; without `trust_remote_code` transformers
    runs its own class where it has one, and nothing stops.
    """
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]'), config=config)[:1] == [expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CLASS.format("", '["lm_head.weight"]'), ["COD001 error"]),
        (CLASS.format(": list[str]", '["lm_head.weight"]'), ["COD001 error"]),
        (CLASS.format("", '("lm_head.weight",)'), ["COD001 error"]),
        (CLASS.format("", "[name for name in ()]"), []),
        (CLASS.format("", '{"lm_head.weight": "lm_head.weight"}'), ["COD001 warning"]),
        (CLASS.format("", '{"lm_head.weight": "model.embed_tokens.weight"}'), []),
        (CLASS.format("", '{**{}, "lm_head.weight": "model.embed_tokens.weight"}'), []),
        ("_tied_weights_keys = ['elsewhere']", []),
        ("# _tied_weights_keys = ['a comment']", []),
        ('class A:\n    """Set this:\n\n    _tied_weights_keys = ["lm_head.weight"]\n    """', []),
        ('class A:\n    """Set this."""\n    _tied_weights_keys = ["lm_head.weight"]', ["COD001 error"]),
    ],
    ids=range(11),
)
def test_declarations(source: str, expected: list[str], tmp_path: Path) -> None:
    assert rules(tmp_path / "model", source) == expected


def test_code_that_no_config_names_is_a_note(tmp_path: Path) -> None:
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]'), used=False) == ["COD001 note"]


def test_nothing_is_run_or_imported(tmp_path: Path) -> None:
    """Statements at the top of the file, which an import would run, do not fire."""
    canary = tmp_path / "canary"
    source = f"open({str(canary)!r}, 'w')\n" + CLASS.format("", f'[open({str(canary)!r}, "w")]')
    assert rules(tmp_path / "model", source) == ["COD001 error"]
    assert not canary.exists()


@pytest.mark.parametrize(
    "source",
    [
        "_tied_weights_keys = [",
        b"\x00_tied_weights_keys",
        b"\xff_tied_weights_keys",
        "_tied_weights_keys = " + "(" * 5000,
        "_tied_weights_keys = " + "-" * 200 + "1",
        "_tied_weights_keys = a" + ".a" * 200,
        "_tied_weights_keys = '\\d'",
    ],
    ids=["syntax", "nul", "encoding", "parentheses", "signs", "attributes", "escape"],
)
def test_hostile_source_says_nothing(source: bytes | str, tmp_path: Path) -> None:
    assert rules(tmp_path / "model", source) == []


def test_only_what_cannot_be_nested_deeply_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in a browser ends in an expression of some thousand levels. Texts and comments are no levels."""
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(directory.ast, "parse", lambda text: parsed.append(text) or parse(text))
    attributes, limit = ".a" * ((directory.NESTING_LIMIT - 5) // 2), directory.NESTING_LIMIT
    for count, (value, expected) in enumerate(
        [
            (f'["lm_head.weight", a{attributes}]', ["COD001 error"]),
            (f'["lm_head.weight", a{attributes}.a]', []),
            ("[" + "'lm_head.weight',  # [(\n" * limit + "]", ["COD001 error"]),
            ("['lm_head.weight'," + "()," * limit + "]", []),
        ]
    ):
        source = "x = 0" + "".join(f"\nif {word}:\n    y = a{'.a' * 200}" for word in "xy")
        assert rules(tmp_path / str(count), f"{source}\n{CLASS.format('', value)}") == expected, value
        assert len(parsed) == bool(expected)
        parsed.clear()


def test_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SIZE_LIMIT", 20)
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]')) == []
