"""May I re-tie it? The answer is that of the command, also where tying does more than share a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.analysis.lm import build, configure
from tests.checks.fixtures.model import KIMI, LLAMA, flagged, llama, matrix, save
from tests.cli.run import ok, refused, run
from tests.cli.stored import edit, editing, tensors
from tests.lazy import torch
from tieconv.errors import RefusedError, UnreadableError

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
EMBED, HEAD = "shared.weight", "lm_head.weight"


Copy = Callable[[str], Path]


@pytest.fixture
def model(models: Path, tmp_path: Path) -> Copy:
    """A writable copy of a fixture by name."""
    return lambda name: Path(shutil.copytree(models / name, tmp_path / name))


def retie_of(folder: Path) -> str:
    section = tieconv.analyze(folder).section("Re-tying")
    assert section is not None
    return section.sentence


@pytest.fixture
def apart(model: Copy, tmp_path: Path) -> Path:
    """T5 with a head of its own, as `untie` writes it: the embedding times d_model**-0.5."""
    ok("untie", model("t5"), "-o", tmp_path / "apart")
    return tmp_path / "apart"


def test_the_factor_of_the_tied_class_is_no_obstacle(apart: Path, tmp_path: Path) -> None:
    """E·2**e under a class that multiplies by 2**e once it is tied: nothing is lost, and the command says so too."""
    assert retie_of(apart) == (
        f"Yes, nothing is lost. The tied class applies the factor itself. Run: tieconv retie {apart} -o OUT."
    )
    told = ok("retie --survivor embed --max-kl 0", apart, "-o", tmp_path / "out").output
    assert "the probabilities do not change: the tied class applies the factor itself" in told
    bounds = tieconv.analyze(apart).section("Re-tying")
    assert bounds is not None and bounds.detail["certified"] == {"embed": 0.0, "head": 0.0, "mean": 0.0}


def drifted(values: dict[str, Any]) -> None:
    values[HEAD] = values[EMBED] / 4 + 1e-3 * torch.randn(values[EMBED].shape, generator=torch.manual_seed(0))


CHANGES = {
    "equal": lambda values: values.update({HEAD: values[EMBED].clone()}),
    "drifted": drifted,
    "doubled": lambda values: values[HEAD].mul_(2),
    "one element": lambda values: values[HEAD].view(-1)[7:8].mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_tied_class_would_rescale_stays_apart(apart: Path, tmp_path: Path, change: str) -> None:
    """Equal tables among them: the answer names the factor, no cost is given, and the command refuses."""
    edit(apart, CHANGES[change])
    assert "if tied, this class multiplies its logits by 2**-" in retie_of(apart)
    section = tieconv.analyze(apart).section("Re-tying")
    assert section is not None and section.measures == () and section.detail["certified"] == {}
    refused("retie", apart, "-o", tmp_path / "out")
    refused("retie --survivor embed --max-kl 9", apart, "-o", tmp_path / "out")


def test_the_hint_of_a_refusal_is_not_refused(apart: Path, tmp_path: Path) -> None:
    """No survivor is offered where --force would be refused as well; leaving them apart works."""
    edit(apart, CHANGES["equal"])
    told = run("retie", apart, "-o", tmp_path / "out").stderr
    assert f"keep them untied with: tieconv untie {apart}" in told and "--force" not in told
    ok("untie", apart, "-o", tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"architectures": ["HouseForCausalLM"], "model_type": "house"},
            "tieconv does not know the architecture HouseForCausalLM",
        ),
        ({key: KIMI[key] for key in ("architectures", "model_type")}, "never ties its output embedding"),
    ],
    ids=["unknown", "never"],
)
def test_a_class_that_cannot_be_tied_is_not_offered_a_tie(
    model: Copy, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Whatever the two tables hold: the reason is that of the command."""
    folder = model("llama-duplicated")
    configure(folder, **config)
    assert retie_of(folder).startswith(("No: ", "Not known: ")) and reason in retie_of(folder)
    assert reason in refused("retie", folder, "-o", tmp_path / "out")


@pytest.mark.parametrize("name", sorted(path.name for path in MODELS.iterdir()))
def test_the_answer_is_that_of_the_command(model: Copy, name: str) -> None:
    """Over every model of the repository with its tables apart: yes where `retie` goes ahead, and only there."""
    folder = model(name)
    try:
        tieconv.plan_retie(folder)
        goes = True
    except RefusedError:
        goes = False
    try:
        answer = retie_of(folder)
    except UnreadableError:
        assert not goes
        return
    is_open = "Nothing to re-tie" in answer or "is not stored" in answer  # one table has nothing to compare
    assert answer.startswith("Yes, nothing is lost") == goes or is_open, answer


def moved(*names: str) -> Callable[[dict[str, Any]], None]:
    """Adds 1 to one element of each; one that is not stored begins as a copy of the head."""

    def change(values: dict[str, Any]) -> None:
        for name in names:
            values[name] = values.get(name, values.get("lm_head.weight", values.get(BERT_BIAS))).clone()
            values[name].view(-1)[5] += 1

    return change


BERT_BIAS = "cls.predictions.decoder.bias"
ENCODER, DECODER = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
THIRD = [
    ("bart", ENCODER),
    ("bart", DECODER),
    ("marian", DECODER),
    ("marian", ENCODER),
    ("bart", "model.shared.weight"),
]


@pytest.mark.parametrize(("model_type", "name"), THIRD)
def test_a_third_table_that_differs_is_no_free_tie(model_type: str, name: str, tmp_path: Path) -> None:
    """An encoder's or decoder's own table would be replaced: no yes, no certificate, and no budget lets it pass."""
    build(tmp_path / "m", model_type, tied=True)
    ok("untie", tmp_path / "m", "-o", tmp_path / "apart")
    edit(tmp_path / "apart", moved(name))
    section = tieconv.analyze(tmp_path / "apart").section("Re-tying")
    assert section is not None and "a re-tie would replace it too" in section.sentence
    assert not any(section.detail["certified"].values()) and all(m.value is None for m in section.measures)
    refused("retie", tmp_path / "apart", "-o", tmp_path / "out")
    refused("retie --survivor embed --max-kl 99", tmp_path / "apart", "-o", tmp_path / "out")


@pytest.mark.parametrize("name", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
def test_a_third_table_ends_the_free_tie_of_a_rescaled_head(apart: Path, name: str, tmp_path: Path) -> None:
    """T5: the head is taken up, the encoder's table is not, and no budget lets it pass."""
    edit(apart, moved(name))
    assert retie_of(apart) == f"No: {name} differs from {EMBED}."
    refused("retie", apart, "-o", tmp_path / "out")


@pytest.mark.parametrize("name", ["cls.predictions.bias", BERT_BIAS])
def test_two_biases_that_differ_are_no_free_tie(name: str, tmp_path: Path) -> None:
    """BERT's bias has two names, which a tied model stores once: the command refuses and the answer says why."""
    build(tmp_path / "m", "bert", tied=True)
    ok("untie", tmp_path / "m", "-o", tmp_path / "apart")
    edit(tmp_path / "apart", moved(name))
    answer = f"No: {BERT_BIAS} differs from cls.predictions.bias, and a re-tie would merge them."
    assert retie_of(tmp_path / "apart") == answer
    assert BERT_BIAS in refused("retie", tmp_path / "apart", "-o", tmp_path / "out")


def test_the_command_comes_with_what_it_asks_for_first(model: Copy) -> None:
    """A lone file, and a directory in two formats: the yes stands, with the step that the refusal names."""
    folder = model("llama-duplicated")
    configure(folder, tie_word_embeddings=False)
    for path, step in ((folder / "model.safetensors", "give the model's directory instead of the file"),
                       (folder, "add --drop-other-formats")):  # fmt: skip
        if path == folder:
            torch.save(tensors(folder), folder / "pytorch_model.bin")
        with pytest.raises(RefusedError) as caught:
            tieconv.plan_retie(path)
        told = retie_of(path)
        assert told.startswith("Yes, nothing is lost") and f"Before that, {step}" in told
        assert caught.value.command_hint and caught.value.command_hint in told
    tieconv.plan_retie(folder, drop_other_formats=True)


@pytest.mark.parametrize(("name", "goes"), [("llama-duplicated", True), ("t5", False)])
def test_one_tensor_under_two_names_is_tied_by_the_flag_alone(model: Copy, name: str, goes: bool) -> None:
    """Shared storage and a flag that says untied: the answer on setting it is that of the command."""
    folder = model(name)
    values = {name: value for file in [folder / "model.safetensors"] for name, value in tensors(folder).items()}
    embed = EMBED if name == "t5" else "model.embed_tokens.weight"
    values[HEAD] = values[embed]
    for file in folder.glob("model.safetensors*"):
        file.unlink()
    torch.save(values, folder / "pytorch_model.bin")
    configure(folder, tie_word_embeddings=False)
    told = retie_of(folder)
    assert "has two names, and the config declares them untied" in told
    assert told.startswith("Yes, nothing is lost" if goes else "No: ")
    if goes:
        tieconv.plan_retie(folder)
    else:
        with pytest.raises(RefusedError):
            tieconv.plan_retie(folder)
    configure(folder, tie_word_embeddings=True)
    assert retie_of(folder) == "The model is tied. Nothing to re-tie."


def test_the_table_of_a_tied_model_is_found_under_its_shared_name(tmp_path: Path) -> None:
    """Marian stores the table that both ends read under a third name."""
    build(tmp_path, "marian", tied=True)
    assert tieconv.analyze(tmp_path).relation == "alias"
    assert retie_of(tmp_path) == "The model is tied. Nothing to re-tie."


CAPPED = [
    ("softmax-gauge", 1, "which the soft cap of the logits sees"),
    ("scalar", 2, "the soft cap of the logits sees"),
]


@pytest.mark.parametrize(("kind", "factor", "told"), CAPPED)
def test_a_soft_cap_sees_a_common_vector(tmp_path: Path, kind: str, factor: float, told: str) -> None:
    """Gemma 2: what the softmax would not see is not called free, and the reason is not a norm that is known."""
    build(tmp_path, "gemma2", tied=False)
    vector = torch.randn(32, generator=torch.manual_seed(0))
    with editing(tmp_path) as values:
        embed = values["model.embed_tokens.weight"]
        embed[0] = 1
        values[HEAD] = factor * embed + vector
    analysis = tieconv.analyze(tmp_path)
    relation = analysis.section("Relation")
    assert relation is not None and analysis.relation == kind
    assert told in relation.sentence + analysis.verdict
    assert "softmax cannot see" not in relation.sentence and "knows no norm before the head" not in analysis.verdict


def test_a_multiple_that_was_rounded_to_another_type_is_not_taken_up(apart: Path, tmp_path: Path) -> None:
    """T5 with a float32 table and a bfloat16 head: the table holds more than the head did, so the function changes."""

    def change(values: dict[str, Any]) -> None:
        values[EMBED] = torch.randn(values[EMBED].shape, generator=torch.manual_seed(0))
        values[HEAD] = (values[EMBED] / 4).bfloat16()

    edit(apart, lambda values: values.update({EMBED: values[HEAD] * 4}))
    assert retie_of(apart).startswith("Yes, nothing is lost")
    edit(apart, change)
    assert retie_of(apart).startswith("No: if tied")
    refused("retie", apart, "-o", tmp_path / "out")


def test_an_unknown_class_gets_no_certain_answer(tmp_path: Path) -> None:
    """Neither two tables nor one table of a class that tieconv does not know say what the class ties."""
    config = {**LLAMA, "architectures": ["FooForCausalLM"], "model_type": "foo"}
    for name, stored in (("two", llama(head=matrix())), ("one", llama())):
        text = ok("analyze", save(tmp_path / name, flagged(config, True), stored)).stdout
        assert "one tensor? Not known: " in text, name
        assert "How sure" not in text, name
        assert "This class has" not in text, name


def test_a_lost_head_is_no_tie(models: Path) -> None:
    """The config says untied, and the file has one table: the head is not known, so nothing is answered."""
    folder = models / "llama-headless-config"
    assert retie_of(folder) == f"Not known: lm_head.weight is not stored. Run: tieconv inspect {folder}."
    assert "How sure: certain" not in str(tieconv.analyze(folder))
