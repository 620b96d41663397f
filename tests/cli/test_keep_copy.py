"""A copy of a tied tensor that is wanted: `untie --keep-flag` marks it, and the gate lets it pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import safe_open

import tieconv
from tests.cli.run import ok, run
from tieconv.checkpoint import weight_file
from tieconv.loaders.registry import CONSUMERS

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "np") as opened:
        return opened.metadata()


def findings(model: Path, *options: str) -> list[tuple[str, str]]:
    document = json.loads(run("check --format json", model, *options).stdout)
    return [(finding["rule"], finding["level"]) for finding in document["models"][0]["findings"]]


@pytest.mark.parametrize("name", ["llama-tied", "llama-duplicated"])
def test_the_gate_passes_what_untie_keep_flag_writes(tmp_path: Path, name: str) -> None:
    """The copy is marked in the metadata, so TIE002 is a note without a command."""
    out = tmp_path / "out"
    ok("untie --keep-flag", MODELS / name, "-o", out)
    assert json.loads(metadata(out / "model.safetensors")["tieconv.keep"]) == ["lm_head.weight"]
    assert metadata(out / "model.safetensors")["format"] == "pt"
    result = ok("check", out)
    (finding,) = tieconv.inspect(out).findings
    assert (finding.rule, finding.level, finding.remedy) == ("TIE002", "note", None)
    assert finding.message in result.stdout and "is wanted" in finding.message
    assert "nothing to change" in ok("untie --keep-flag", out).stdout


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda entry: f"{entry.name}-{entry.version}")
def test_no_loader_makes_it_a_warning(tmp_path: Path, consumer) -> None:
    """With every `--for` the marked copy is at most a note."""
    out = tmp_path / "out"
    ok("untie --keep-flag", MODELS / "llama-tied", "-o", out)
    reported = findings(out, "--for", f"{consumer.name} {consumer.version}")
    assert ("TIE002", "note") in reported and ("TIE002", "warning") not in reported


def test_a_sharded_model_gets_the_mark_in_the_new_shard(tmp_path: Path) -> None:
    """The shards that exist stay byte for byte."""
    model = Path(shutil.copytree(MODELS / "llama-tied", tmp_path / "model"))
    sharded, out = tmp_path / "sharded", tmp_path / "out"
    ok("convert --to safetensors --max-shard-size 30kB", model, "-o", sharded)
    ok("untie --keep-flag", sharded, "-o", out)
    assert json.loads(metadata(out / "model-head.safetensors")["tieconv.keep"]) == ["lm_head.weight"]
    for shard in sharded.glob("*.safetensors"):
        assert (out / shard.name).read_bytes() == shard.read_bytes()
    assert findings(out) == [("TIE002", "note")]
    tied = tmp_path / "tied"
    ok("retie", out, "-o", tied)
    assert not (tied / "model-head.safetensors").exists() and findings(tied) == []


def test_retie_removes_the_mark(tmp_path: Path) -> None:
    """No metadata names a tensor that is not stored."""
    out, tied = tmp_path / "out", tmp_path / "tied"
    ok("untie --keep-flag", MODELS / "llama-tied", "-o", out)
    plan = ok("retie", out, "-o", tied).stderr
    assert "tieconv.keep removed: the file no longer has the copy" in plan
    assert metadata(tied / "model.safetensors") == {"format": "pt"}
    assert findings(tied) == []


def test_a_mark_for_another_name_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the copy that the entry lists is wanted; a malformed entry lists nothing, and a deep one is not parsed."""
    monkeypatch.setattr(weight_file, "json", Mock(loads=shallow))
    model = Path(shutil.copytree(MODELS / "llama-duplicated", tmp_path / "model"))
    for entry in ('["model.norm.weight"]', "lm_head.weight", '{"lm_head.weight": 1}', "[" * 5000, "[1]"):
        rewrite(model / "model.safetensors", {"format": "pt", "tieconv.keep": entry})
        assert findings(model) == [("TIE002", "warning")], entry
    rewrite(model / "model.safetensors", {"format": "pt", "tieconv.keep": '["lm_head.weight"]'})
    assert findings(model) == [("TIE002", "note")]


def test_where_there_is_no_metadata_the_plan_prints_the_setting(tmp_path: Path) -> None:
    """A torch file cannot carry the mark: the plan gives the lines for tieconv.toml, and they work."""
    model, out = tmp_path / "model", tmp_path / "out"
    ok("convert --to torch", MODELS / "llama-tied", "-o", model)
    result = ok("untie --keep-flag", model, "-o", out)
    assert "tieconv.toml" in result.stderr
    assert findings(out) == [("TIE002", "warning")]
    note = " ".join(result.stderr.split())
    stanza = note[note.index("per-model =") : note.index("}]") + 2]
    settings = tmp_path / "tieconv.toml"
    settings.write_text(stanza.replace('"OUT"', '"out"'))
    ok("check", "--config", settings, out)


def shallow(text: str) -> object:
    """Parse JSON. Python for WebAssembly ends at a deep text, where others raise `RecursionError`."""
    assert not text.startswith("[[[")
    return json.loads(text)


def rewrite(file: Path, entries: dict[str, str]) -> None:
    """Replace the metadata of a safetensors file and leave its tensors as they are."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size]) | {"__metadata__": entries}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
