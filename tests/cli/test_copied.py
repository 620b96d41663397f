"""Commands that tieconv prints, copied to a shell as they stand: by `inspect`, and by the hints of refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import BERT, LLAMA, T5, bert, flagged, llama, matrix, save, save_shards, vector
from tests.children import sound
from tests.cli.run import ok, run
from tests.conftest import ROOT

ODD_NAMES = (
    "-o", "--help", "two words ünï 模型", 'it\'s $HOME `x` \\ "y"', "a;b&c|d", "#x", "~", "*", "new\nline", "!x",
)  # fmt: skip
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The line in bash, in ``folder``, where `tieconv` is this one."""
    script = f'tieconv() {{ "{sys.executable}" -m tieconv "$@"; }}\n{line}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


def copied(folder: Path) -> Path:
    """A tied model with a redundant copy: `tieconv retie` is what helps."""
    return save(folder, flagged(LLAMA, True), llama(head=matrix()))


def recommended(source: str) -> str:
    (finding,) = api.inspect(source).findings
    assert finding.remedy is not None
    return finding.remedy.command


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_is_one_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command works for a model of any name, also one that looks like an option or an order to the shell."""
    copied(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    sound(shell(recommended(name), tmp_path))
    assert api.inspect("OUT").findings == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("inside", "source"), [("", "."), ("", "./"), ("", "model.safetensors"), ("sub", ".."), ("sub/two", "../..//.")]
)
def test_inside_the_model_the_output_stands_beside_it(
    inside: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written inside a model, so a command for the directory that the user stands in leaves it."""
    model = copied(tmp_path / "model")
    (model / inside).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(model / inside)
    sound(shell(recommended(source), Path.cwd()))
    assert api.inspect(tmp_path / "OUT").findings == ()


def test_inside_the_model_an_index_is_no_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index stands for its directory."""
    shards = {FIRST: {"model.embed_tokens.weight": matrix()}, SECOND: {"lm_head.weight": matrix()}}
    homes = {name: file for file, tensors in shards.items() for name in tensors}
    model = save_shards(tmp_path / "model", flagged(LLAMA, True), shards, homes)
    monkeypatch.chdir(model)
    sound(shell(recommended("model.safetensors.index.json"), model))


TWO_SHARDS = {FIRST: {"model.embed_tokens.weight": matrix()}, SECOND: {"model.norm.weight": vector(4)}}
APART = flagged(LLAMA, False), llama(head=matrix(seed=1))
TIED, INVERTED = ((flagged(LLAMA, True), stored) for stored in (llama(), {"lm_head.weight": matrix()}))
BIASED, NO_BIAS = (flagged(LLAMA, True), llama(bias=vector())), (flagged(BERT, True), bert())
TWO_BIASES = flagged(BERT, True), bert(outer=vector(), inner=vector(seed=3))
SCALED = {**flagged(T5, True), "d_model": 8}, {"shared.weight": matrix(columns=8)}
HEADLESS = {**BERT, "architectures": ["BertModel"]}, bert()
REFUSED = {
    "retie.not-equal": (APART, "retie"),
    "set-tie.discards": (APART, "set-tie true"),
    "set-tie.random": (TIED, "set-tie false"),
    "set-tie.inverted": (INVERTED, "set-tie true"),
    "bias.nonzero": (BIASED, "bias strip"),
    "bias.nonzero of retie": (BIASED, "retie --bias strip"),
    "bias.copies-differ": (TWO_BIASES, "bias unify"),
    "bias.absent": (NO_BIAS, "bias unify"),
    "bias.absent of resize": (NO_BIAS, "bias resize"),
    "flag.forward": (SCALED, "untie"),
    "index.absent": (None, "retie"),
    "reindex.one-file": (TIED, "reindex"),
    "tie.headless": (HEADLESS, "untie"),
}
"""Config and tensors of a model, two shards without an index if none, and the verb that refuses it."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("refusal", REFUSED)
def test_commands_of_hints_name_the_model_and_work(
    refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of a hint is whole: copied to a shell, it is about the refused model and is not refused itself."""
    held, verb = REFUSED[refusal]
    if held is None:
        save_shards(tmp_path / "my model", flagged(LLAMA, True), TWO_SHARDS, None)
    else:
        save(tmp_path / "my model", *held)
    monkeypatch.chdir(tmp_path)
    result = run(verb, "my model")
    assert result.exit_code == 2, result.output
    hint = result.stderr.splitlines()[-1]
    commands = re.findall(r"tieconv .*?(?=; or|, or| \(or|$)", hint)
    assert hint.startswith("hint: ") and commands
    for command in commands:
        assert "'my model'" in command
        done = shell(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_an_absent_shard_is_to_be_fetched(tmp_path: Path) -> None:
    """Without a numbered shard tensors are lost, which `reindex` refuses: it is not recommended then."""
    shards = {FIRST: {"model.embed_tokens.weight": matrix()}}
    homes = {"model.embed_tokens.weight": FIRST, "lm_head.weight": SECOND}
    model = save_shards(tmp_path / "model", flagged(LLAMA, False), shards, homes)
    hint = run("inspect", model).stderr.splitlines()[-1]
    assert hint == "hint: fetch the missing file"


def test_an_entry_for_a_file_of_another_name_can_be_rebuilt(tmp_path: Path) -> None:
    """Where the file bears no number the index may be what is wrong, and the command that rebuilds it works."""
    homes = {"model.embed_tokens.weight": FIRST, "model.norm.weight": "weights.safetensors"}
    model = save_shards(tmp_path / "model", flagged(LLAMA, True), TWO_SHARDS, homes)
    hint = run("inspect", model).stderr.splitlines()[-1]
    command = hint[hint.index("tieconv") :]
    assert shell(f"{command} -o OUT", tmp_path).returncode == 0
    assert api.inspect(tmp_path / "OUT").findings == ()


def test_a_lone_file_is_written_alone(tmp_path: Path) -> None:
    """A change that leaves the config as it is needs no directory, though a config stands beside the file."""
    model = copied(tmp_path / "model")
    config = (model / "config.json").read_bytes()
    ok("retie", model / "model.safetensors", "-o", tmp_path / "out.safetensors")
    ok("retie --in-place", model / "model.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert api.inspect(model).findings == ()
    assert (model / "config.json").read_bytes() == config


@pytest.mark.parametrize("second_file", ["pytorch_model.bin", "model.safetensors.index.json"])
def test_a_file_that_is_not_its_directory_gets_no_command_for_it(second_file: str, tmp_path: Path) -> None:
    """Where the directory holds the model in other files too, a command for the directory is about those as well."""
    model = copied(tmp_path / "model")
    (model / second_file).write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    (finding,) = api.inspect(model / "model.safetensors").findings
    assert (finding.rule, finding.remedy) == ("TIE002", None)


@pytest.mark.parametrize("code", ["IDX009", "TIE002"])
def test_two_formats_have_a_way_out(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command leaves the other format out, which is for the user to decide, and ends what was found."""
    torch = pytest.importorskip("torch")
    model = copied(tmp_path / "model")
    torch.save({"lm_head.weight": torch.zeros(8, 4)}, model / "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    remedies = {finding.rule: finding.remedy for finding in api.inspect("model").findings}
    assert remedies.keys() == {"IDX009", "TIE002"}
    remedy = remedies[code]
    assert remedy is not None and not remedy.safe
    sound(shell(remedy.command, tmp_path))
    assert api.inspect("OUT").findings == ()


def test_an_export_of_two_formats_has_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`export` leaves nothing out: its hint is a command that does."""
    torch = pytest.importorskip("torch")
    model = copied(tmp_path / "my model")
    torch.save({"lm_head.weight": torch.zeros(8, 4)}, model / "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    result = run("export", "my model", "--dry-run")
    sentence = "error: my model: the directory holds weights as safetensors and as torch"
    assert result.exit_code == 2 and result.stderr.startswith(sentence)
    hint = result.stderr.splitlines()[-1]
    sound(shell(hint[hint.index("tieconv") :], tmp_path))
