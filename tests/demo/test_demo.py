"""The demo: its text, its models as every loader reads them, and the effect that it shows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from hashlib import sha256
from math import cos, pi
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import Result

import tieconv as api
from tests.cli.run import ok, refused, run
from tests.patience import received
from tieconv.analysis.alignment import align_models, opened
from tieconv.checkpoint.results.analysis import Section
from tieconv.demo import toy_settings, toys
from tieconv.demo.toy_settings import PASSAGE, REFERENCE, ROLES, VOCABULARY, WORDS, generate, grammar, sample
from tieconv.errors import RefusedError
from tieconv.install import install_command

ROOT = Path(__file__).parents[2]
STEPS = 40


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A short run."""
    out = tmp_path_factory.mktemp("demo") / "toy"
    return out, ok(f"demo --steps {STEPS} -o", out)


def alignment(out: Path) -> dict[str, object]:
    document = json.loads((out / "report.json").read_text("utf-8"))
    assert document["schema"] == "tieconv.analyze/1"
    section: dict[str, object] = document["sections"][0]
    return section


@pytest.mark.slow
def test_the_next_command_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a space is quoted."""
    monkeypatch.chdir(tmp_path)
    assert "next: open 'a toy/report.html', or tieconv inspect 'a toy/tied'" in run("demo --steps 1 -o 'a toy'").stderr


def test_effect_is_there_already(shown: tuple[Path, Result]) -> None:
    """After a few steps the tied table is nearer to the untied head than to the untied input, beyond chance."""
    measures = {entry["name"]: entry for entry in alignment(shown[0])["measures"]}  # type: ignore[attr-defined]
    for name in ("rsa", "cka", "procrustes"):
        head, embedding = measures[f"{name} U→T"], measures[f"{name} E→T"]
        assert head["value"] > embedding["value"] and head["value"] > head["floor"]
        assert head["ceiling"] == measures[f"{name} U→U'"]["value"]
    assert alignment(shown[0])["detail"]["shape"] == "output"  # type: ignore[index]


def test_table_is_printed_beside_the_reference(shown: tuple[Path, Result]) -> None:
    """stdout has each measure with its floor, and the reference's figures below."""
    out, result = shown
    lines = result.stdout.splitlines()
    for name, values in REFERENCE.items():
        at = next(index for index, line in enumerate(lines) if line.startswith(f"{name} "))
        assert lines[at].count("[") == 5
        assert lines[at + 1].split()[0] == "reference" and f"{values[2]:.3f}" in lines[at + 1]
    assert f"{out / 'report.html'}" in result.stderr


def test_models_are_what_they_say(shown: tuple[Path, Result]) -> None:
    """The tied one stores one table and the untied ones two, in the eyes of `inspect`, of `check` and of `retie`."""
    out, _ = shown
    tied, untied = api.inspect(out / "tied"), api.inspect(out / "untied")
    assert tied.head.output_head is not None and not tied.head.output_head.stored
    assert untied.head.output_head is not None and untied.head.output_head.stored
    ok("check", out / "tied", out / "untied", out / "untied-second")
    assert "differ" in refused("retie", out / "untied")
    ok("untie", out / "tied", "-o", out.parent / "untied-tied")
    assert json.loads(ok("analyze --json", out.parent / "untied-tied").stdout)["relation"] in ("bit-equal", "alias")


def test_transformers_loads_them(shown: tuple[Path, Result]) -> None:
    """transformers reads weights and tokenizer: every word of the text is one token, its row the word's number."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(shown[0] / "tied")
    tokenizer = AutoTokenizer.from_pretrained(shown[0] / "tied")
    words = grammar(WORDS).words
    assert tokenizer(" ".join(words), add_special_tokens=False)["input_ids"] == list(range(WORDS))
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert model.lm_head.weight.shape[0] == VOCABULARY


@pytest.mark.slow
def test_page(shown: tuple[Path, Result]) -> None:
    """The page has the maps of all three tables."""
    text = (shown[0] / "report.html").read_text("utf-8")
    assert text.count("Map of tokens") == 3 and "log p" in text


def test_the_report_names_what_there_is(shown: tuple[Path, Result]) -> None:
    """The tables are of the directories under OUT, not of the one that they were made in."""
    out, _ = shown
    sections = json.loads((out / "report.json").read_text("utf-8"))["sections"]
    assert sections[0]["detail"]["tables"]["E"] == f"input embedding of {out / 'untied'}"
    maps = [f"Map: {table}" for table in ("tied table", "untied input embedding", "untied output embedding")]
    assert [section["title"] for section in sections] == ["Alignment", *maps, "Training"]
    text = generate(STEPS, 0)
    assert [measure["n"] for measure in sections[-1]["measures"]] == [text.held_out.size - len(text.held_out)] * 3
    assert {len(series) for series in sections[-1]["series"].values()} == {STEPS}
    assert sections[-1]["detail"]["rows_of_padding"] == VOCABULARY - WORDS


def test_losses_are_shown_as_means() -> None:
    """At most 200 of them, each of as many steps in a row."""
    assert toys._smooth(tuple(range(1000))) == tuple(float(5 * part + 2) for part in range(200))
    assert toys._smooth((3.0, 5.0)) == (3.0, 5.0)


def test_how_a_toy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate rises for 50 steps and falls to a tenth along a cosine; each passage is read once, in a seed's order."""
    import torch

    from tieconv.demo import train

    rates, read, made = [], [], {}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Any, labels: Any, use_cache: bool) -> SimpleNamespace:
            assert torch.equal(input_ids, labels) and not use_cache
            read.append(input_ids)
            return SimpleNamespace(loss=self.weight.sum())

    class Optimiser:
        def __init__(self, parameters: object, **settings: object) -> None:
            made.update(settings)
            self.param_groups = [{"lr": 0.0}]

        def step(self) -> None:
            rates.append(self.param_groups[0]["lr"] / toy_settings.RATE)

        def zero_grad(self, set_to_none: bool) -> None:
            assert set_to_none

    monkeypatch.setattr(torch.optim, "AdamW", Optimiser)
    steps, done = 100, []
    passages = np.arange(steps * toy_settings.BATCH * toy_settings.CONTEXT).reshape(-1, toy_settings.CONTEXT)
    losses = list(train._steps(Model(), passages, 3, steps, lambda: done.append(1)))
    assert losses == [1.0] * steps and len(done) == steps
    assert made == {"lr": toy_settings.RATE, "weight_decay": toy_settings.DECAY, "betas": (0.9, 0.95)}
    assert [rates[at] for at in (0, 24, 49, 50, 75, 99)] == pytest.approx(
        [0.02, 0.5 * (0.55 + 0.45 * cos(0.24 * pi)), 0.55 + 0.45 * cos(0.49 * pi), 0.55,
         0.55 - 0.45 * cos(0.25 * pi), 0.55 + 0.45 * cos(0.99 * pi)]
    )  # fmt: skip
    order = torch.cat(read)[:, 0] // toy_settings.CONTEXT
    assert sorted(order.tolist()) == list(range(len(passages))) != order.tolist()
    assert order.tolist() == torch.randperm(len(passages), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.slow
def test_same_seed_same_bytes(shown: tuple[Path, Result], tmp_path: Path) -> None:
    """A second run writes the same weights."""
    ok(f"demo --steps {STEPS} -o", tmp_path / "again")
    for name in ("tied", "untied", "untied-second"):
        first, again = (root / name / "model.safetensors" for root in (shown[0], tmp_path / "again"))
        assert first.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """A bar over the steps of all three models, to its end; stdout has the result alone."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "tieconv", "demo", "--steps", "2", "-o", str(tmp_path / "toy")]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    output = received(ours).decode()
    assert "training" in output and "6/6" in output and b"training" not in done.stdout


def test_table_fits_a_terminal(shown: tuple[Path, Result]) -> None:
    """No line of the table is wider than 100 columns, and the answer comes first."""
    lines = shown[1].stdout.splitlines()
    assert lines[0].startswith("The tied table is output-shaped")
    assert max(map(len, (line.rstrip() for line in lines[2:]))) <= 110
    assert all(len(line.rstrip()) <= 100 for line in lines if "[" in line)


def test_existing_directory_is_left_alone(tmp_path: Path) -> None:
    """OUT must not exist, and a missing parent is an error; nothing is trained or left behind."""
    (tmp_path / "there").mkdir()
    assert "exists" in refused("demo -o", tmp_path / "there")
    assert refused("demo -o", tmp_path / "none" / "toy").endswith("toy cannot be made: no such file or directory")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle: neither OUT nor a temporary directory."""
    monkeypatch.setattr("tieconv.demo.train._loss", Mock(side_effect=KeyboardInterrupt))
    assert run("demo --steps 1 -o", tmp_path / "toy").exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_torch_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch: one sentence, and the command that installs it."""
    cases = {"torch, which is": ["torch"], "torch and safetensors, which are": ["torch", "safetensors"]}
    for words, absent in cases.items():
        monkeypatch.setattr("tieconv.demo.toys.find_spec", lambda name, absent=absent: None if name in absent else name)
        result = run("demo -o", tmp_path / "toy")
        assert result.exit_code == 2 and install_command("torch") in result.stderr
        assert f"the demo needs {words} not installed" in result.stderr


def test_roles_are_refused(shown: tuple[Path, Result]) -> None:
    """A tied reference, or two different tables as the tied model, is refused by name."""
    out, _ = shown
    with opened(out / "tied") as tied, opened(out / "untied") as untied:
        with pytest.raises(RefusedError, match="stores one table, but a reference must be untied"):
            align_models(tied, tied)
        with pytest.raises(RefusedError, match="two tables"):
            align_models(untied, untied)


def test_untied_clone_counts_as_tied(shown: tuple[Path, Result], tmp_path: Path) -> None:
    """A tied model whose head is stored as a copy gives the same answer."""
    out, _ = shown
    ok("untie", out / "tied", "-o", tmp_path / "copy")
    with opened(out / "tied") as tied, opened(tmp_path / "copy") as copy, opened(out / "untied") as untied:
        assert _values(align_models(copy, untied)) == _values(align_models(tied, untied))


def _values(section: Section) -> list[float | None]:
    return [measure.value for measure in section.measures]


def test_text_follows_its_grammar() -> None:
    """Words differ, frequencies fall as Zipf's law has it, no role is missing, and a seed decides the rest."""
    made = grammar(WORDS)
    assert len(set(made.words)) == WORDS and all(word.isascii() and word.isalpha() for word in made.words)
    text = generate(200, 0)
    counts = np.sort(text.counts)[::-1]
    assert counts[0] > 20 * counts[200] > 0 and (text.counts == 0).sum() < WORDS // 10
    assert set(np.unique(made.follows)) == set(range(ROLES))
    assert not np.array_equal(sample(made, 4, PASSAGE, 1), sample(made, 4, PASSAGE, 2))
    assert np.array_equal(text.train, generate(200, 0).train)
    assert np.array_equal(sample(made, 4, PASSAGE), sample(made, 4, PASSAGE, 0))
    again = generate(2, 0)
    parts = (again.train.tobytes(), again.held_out.tobytes(), " ".join(again.words).encode())
    # docs/measured/demo.json was measured with this text.
    assert sha256(b"".join(parts)).hexdigest() == "05c3778f029c337b358b68341db4116d49ecdfda6e606bc012debfed9c3407fb"


def test_the_toy_is_the_one_of_the_record() -> None:
    """docs/measured/demo.json was measured with these sizes and steps."""
    from tieconv.demo import train

    made = train.config(tied=True)
    sizes = made.vocab_size, made.hidden_size, made.intermediate_size, made.num_hidden_layers
    assert (*sizes, made.num_attention_heads, made.num_key_value_heads) == (2048, 64, 128, 2, 4, 4)
    assert (made.max_position_embeddings, made.tie_word_embeddings) == (128, True)
    learnt = toy_settings.STEPS, toy_settings.BATCH, toy_settings.CONTEXT, toy_settings.RATE, toy_settings.DECAY
    assert learnt == (1000, 16, 64, 3e-3, 0.1) and [toy.seed(2) for toy in toy_settings.TOYS] == [6, 7, 8]


def test_held_out_text_is_not_trained_on() -> None:
    """No passage is in both parts."""
    text = generate(50, 3)
    trained = {row.tobytes() for row in text.train}
    assert not any(row.tobytes() in trained for row in text.held_out)


def test_the_record_of_the_docs_is_such_a_report(shown: tuple[Path, Result]) -> None:
    """It has the measures that the demo reports today."""
    record = json.loads((ROOT / "docs" / "measured" / "demo.json").read_text("utf-8"))
    sections = {section["title"]: section for section in record["sections"]}
    measured = [[measure["name"] for measure in section["measures"]] for section in (sections["Alignment"],)]
    assert measured == [[measure["name"] for measure in alignment(shown[0])["measures"]]]  # type: ignore[attr-defined]
    assert sections.keys() == {"Alignment", "Training"}
