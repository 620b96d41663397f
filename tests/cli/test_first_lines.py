"""The first three lines of `inspect`: is the head tied, is anything wrong, what to run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import matrix, save
from tests.checks.fixtures.more import pef002_bad
from tests.cli.run import ok, run
from tieconv.reporters.text.inspect_text import render

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
COPY = {"model.embed_tokens.weight": matrix(), "lm_head.weight": matrix()}
MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def first_lines(folder: Path) -> list[str]:
    return ok("inspect", folder).stdout.splitlines()[:4]


def test_nothing_is_wrong() -> None:
    assert first_lines(MODELS / "llama-tied") == [
        "Tied: tie_word_embeddings is true.",
        "No findings.",
        "Nothing to repair.",
        "",
    ]


def test_a_copy_names_the_command(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY)
    tied, wrong, run, empty = first_lines(folder)
    assert tied == "Tied: tie_word_embeddings is true."
    assert wrong.startswith("1 warning: lm_head.weight is a byte-identical copy of model.embed_tokens.weight.")
    assert (run, empty) == (f"Run: tieconv retie {folder} -o OUT", "")


def test_a_command_that_changes_the_outputs_says_so(tmp_path: Path) -> None:
    alone = {"model.embed_tokens.weight": matrix()}
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": False}, alone)
    tied, wrong, run, _ = first_lines(folder)
    assert tied == "Untied: tie_word_embeddings is false."
    assert wrong.startswith("1 error: ")
    assert run.endswith("(review first: may change the model's outputs)")


def test_a_finding_without_a_remedy_is_explained(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", LLAMA, {"model.norm.weight": matrix()})
    tied, wrong, run, _ = first_lines(folder)
    assert tied == "Untied: tie_word_embeddings is absent, and the default of LlamaForCausalLM is false."
    assert wrong.startswith("1 error: ")
    assert run == "Run: tieconv explain TIE006"


@pytest.mark.parametrize("width", [40, 80])
def test_the_finding_is_wrapped_and_not_cut(width: int, tmp_path: Path) -> None:
    """The whole sentence is above the command, on a narrow terminal too."""
    folder = save(tmp_path / "m", LLAMA | {"tie_word_embeddings": True}, COPY)
    lines = render(api.inspect(folder), width=width).splitlines()
    run = next(number for number, line in enumerate(lines) if line.startswith("Run: "))
    assert lines[run - 1].endswith("the copy wastes 128 B.") and max(map(len, lines[:run])) <= width


def test_the_cause_comes_before_its_consequences() -> None:
    """Errors of loaders follow from the files: the first sentence says what is wrong with the files."""
    for options in ((), ("--consumers",), ("--for", "vllm")):
        lines = ok("inspect", MODELS / "llama-diverged", *options).stdout.splitlines()
        first = next(line for line in lines if "lm_head.weight differs from model.embed_tokens.weight" in line)
        assert lines.index(first) == 1, options


def test_tables_that_are_not_stored_are_named(tmp_path: Path) -> None:
    """A known class ties its tables, also if the file lacks them."""
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, {"model.norm.weight": matrix()})
    assert "ties\n  model.embed_tokens.weight, lm_head.weight: not stored\n" in ok("inspect", folder).stdout
    folder = save(tmp_path / "unknown", {}, {"norm.weight": matrix()})
    assert "ties\n  none known for this architecture\n" in ok("inspect", folder).stdout


def test_what_the_default_depth_did_not_compare(tmp_path: Path) -> None:
    """Equal layers are waste that only `--depth full` finds: the default depth claims no smaller size."""
    layers = {f"model.layers.{number}.mlp.up_proj.weight": np.ones((128, 200), np.float32) for number in range(4)}
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY | layers)
    sentence = "4 tensors were not compared with each other: --depth full compares them"
    text = ok("inspect", folder).stdout
    assert ", at most 410 kB unique (128 B stored twice)\n" + sentence in text
    document = json.loads(ok("inspect --json", folder).stdout)
    assert document["model"]["not_compared"] == {"tensors": 4, "bytes": 3 * 128 * 200 * 4}
    checked = run("check --select STO", folder)
    assert (checked.exit_code, sentence in checked.stderr) == (0, True)
    assert json.loads(run("check --format json", folder).stdout)["models"][0]["not_compared"] == 4
    full = run("check --select STO --depth full", folder)
    assert "STO001" in full.stdout and sentence not in full.stderr
    assert sentence not in ok("inspect --depth full", folder).stdout
    assert "not_compared" not in ok("inspect --depth full --json", folder).stdout


def test_a_head_that_was_not_compared_is_not_called_tied(tmp_path: Path) -> None:
    """The flag says tied, both tables are stored, and at depth `header` no byte is compared: transformers 5 decides."""
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY)
    first = ok("inspect --depth header", folder).stdout.splitlines()[0]
    assert first == "Unknown: lm_head.weight is stored, and tieconv did not compare it with the embedding."
    assert ok("inspect", folder).stdout.startswith("Tied: ")


def test_the_base_model_of_an_adapter_is_the_one_that_was_read(tmp_path: Path) -> None:
    """The adapter's config contains another path; the first line answers for the pair of the given model."""
    adapter = pef002_bad(tmp_path / "adapter")
    for name, verdict in (("llama-tied", "tied"), ("llama-untied", "untied")):
        lines = ok("inspect", adapter, "--base", MODELS / name).stdout.splitlines()
        row = next(line.split() for line in lines if line.lstrip().startswith("adapter of"))
        assert lines[0] == f"The base model is {verdict}." and row[2:] == [str(MODELS / name), verdict]
