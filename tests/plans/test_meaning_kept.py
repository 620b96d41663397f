"""What a plan changes in each release of transformers: nothing in transformers 5, or a note names the parameter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from safetensors.numpy import load_file

import tieconv
import tieconv as api
from tests.checks.fixtures.model import (
    BART,
    BERT,
    EMBED,
    GEMMA3,
    HEAD,
    INNER_BIAS,
    LLAMA,
    OUTER_BIAS,
    T5,
    Array,
    bert,
    flagged,
    llama,
    matrix,
    save,
    vector,
    weights,
)
from tests.patience import examples
from tieconv.architectures import class_table
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import REVIEW_FIRST, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan import Plan
from tieconv.errors import RefusedError
from tieconv.loaders.load import TRANSFORMERS_5, load
from tieconv.loaders.loaded import Absence
from tieconv.planned import PlannedWrite
from tieconv.plans import build
from tieconv.plans.meaning import Note, Notes

FSMT = {"architectures": ["FSMTForConditionalGeneration"], "model_type": "fsmt"}
ROBERTA = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
NYSTROMFORMER = {"architectures": ["NystromformerForMaskedLM"], "model_type": "nystromformer"}
LUKE = {"architectures": ["LukeForMaskedLM"], "model_type": "luke"}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
ERNIE = {"architectures": ["ErnieForMaskedLM"], "model_type": "ernie"}
CONFIGS = (LLAMA, BERT, BART, T5, GEMMA3, FSMT, ROBERTA, NYSTROMFORMER, ERNIE, LUKE, GPT2)
TABLES = (None, matrix(), matrix(seed=1), matrix() * np.float32(0.5))
BIASES = (None, vector(), vector(seed=1), np.zeros(8, "<f4"))

Model = tuple[dict[str, object], dict[str, Array]]
T5_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HALVED: tuple[Model, str] = ((flagged(T5, False), dict.fromkeys(T5_TABLES, matrix())), "retie")
"""transformers 5 multiplies the output of a T5 with a true flag by a factor, here 0.5: retie is refused."""
BERT_WITH_ONE_BIAS = {"bert.embeddings.word_embeddings.weight": matrix(), "cls.predictions.bias": vector()}
NO_LONGER_ZERO: tuple[Model, str] = ((flagged(BERT, False), BERT_WITH_ONE_BIAS), "untie")
"""transformers 5 starts the bias of the decoder at zero, and untie stores values for it: a note names it."""

Make = Callable[[Path], PlannedWrite]
VERBS: dict[str, Make] = {
    "retie": api.plan_retie,
    "retie --from embed": lambda path: api.plan_retie(path, survivor="embed", force=True),
    "retie --from head": lambda path: api.plan_retie(path, survivor="head", force=True),
    "retie --from mean": lambda path: api.plan_retie(path, survivor="mean", force=True),
    "retie --bias zero": lambda path: api.plan_retie(path, bias="zero"),
    "retie --bias strip": lambda path: api.plan_retie(path, bias="strip"),
    "untie": api.plan_untie,
    "untie --keep-flag": lambda path: api.plan_untie(path, keep_flag=True),
    "untie --bias strip": lambda path: api.plan_untie(path, bias="strip"),
    "dedup": api.plan_dedup,
    "bias zero": lambda path: api.plan_bias("zero", path),
    "bias strip": lambda path: api.plan_bias("strip", path),
    "bias unify": lambda path: api.plan_bias("unify", path),
    "bias unify --from bias": lambda path: api.plan_bias("unify", path, survivor="bias"),
    "bias unify --from decoder": lambda path: api.plan_bias("unify", path, survivor="decoder"),
    "set-tie true": lambda path: api.plan_set_tie("true", path),
    "set-tie false": lambda path: api.plan_set_tie("false", path),
    "set-tie auto": lambda path: api.plan_set_tie("auto", path),
    "set-tie true --force": lambda path: api.plan_set_tie("true", path, force=True),
    "set-tie false --force": lambda path: api.plan_set_tie("false", path, force=True),
    "convert": lambda path: api.plan_convert("safetensors", path, max_shard_size=100),
    "reindex --add-format": lambda path: api.plan_reindex(path, add_format=True),
}


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A config under a flag, and some of the names that its class ties or has beside them."""
    config = flagged(draw(st.sampled_from(CONFIGS)), draw(st.sampled_from((None, True, False))))
    tensors: dict[str, Array] = {"model.norm.weight": vector(4, seed=9)}
    for name in names(config):
        values = draw(st.sampled_from(BIASES if name.endswith("bias") else TABLES))
        if values is not None:
            tensors[name] = values
    return config, tensors


def names(config: dict[str, object]) -> list[str]:
    """The names of the class, as a file without tensors would hold them."""
    with tempfile.TemporaryDirectory() as folder:
        inspection = tieconv.inspect(save(Path(folder) / "m", config, {"x": vector(4)}))
    return [*load(inspection, TRANSFORMERS_5).names]


def parameters(folder: Path) -> tuple[dict[str, Array | None], dict[str, str | None]] | None:
    """What transformers 5 gives each parameter, ``None`` for no values, and from which tensor; ``None``: it refuses."""
    inspection = tieconv.inspect(folder, depth="full")
    loaded = load(inspection, TRANSFORMERS_5)
    if loaded.refused() is not None:
        return None
    stored: dict[str, Array] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    values: dict[str, Array | None] = {}
    for name, held in loaded.names.items():
        parameter = loaded.parameters[held]
        if parameter.stored is not None:
            values[name] = stored[parameter.stored] * np.float32(parameter.factor)
        else:
            values[name] = np.zeros(8, "<f4") if parameter.absence is Absence.ZERO else None
    return values, {name: loaded.source(held) for name, held in loaded.names.items()}


def same(before: Array, after: Array | None) -> bool:
    """Whether the values are equal; a bias may be one row."""
    return after is not None and before.size == after.size and np.array_equal(before.ravel(), after.ravel())


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from(sorted(VERBS)))
@example(*HALVED)
@example(*NO_LONGER_ZERO)
def test_no_values_are_lost_without_a_message(model: Model, verb: str) -> None:
    """Whatever is stored under whatever flag, in every verb."""
    check(model, verb)


def check(model: Model, verb: str) -> None:
    """Carry the verb's plan out, and demand a note for each parameter whose values change."""
    config, tensors = model
    with tempfile.TemporaryDirectory() as scratch:
        folder = save(Path(scratch) / "model", config, tensors)
        before = parameters(folder)
        try:
            planned = VERBS[verb](folder)
        except RefusedError as error:
            assert error.hint
            return
        planned.execute(Path(scratch) / "out")
        after = parameters(Path(scratch) / "out")
        notes = [note for note in planned.plan.notes if REVIEW_FIRST in note or verb.startswith("bias unify --from")]
        if before is None:
            return
        if after is None:
            assert any("transformers 5 refuses the result" in note for note in notes) and "--force" in verb
            return
        output_biases = tieconv.inspect(folder).family.output_biases
        for name, values in before[0].items():
            source = before[1][name]
            if values is None or name in output_biases[:-1] or same(values, after[0][name]):
                continue
            equal = [other for other, tensor in tensors.items() if source and np.array_equal(tensor, tensors[source])]
            named = (name, name.partition(".")[2], source, *equal)
            assert any(one and one in note for note in notes for one in named), (name, planned.plan.notes)


def test_the_oracle_sees_a_loss(tmp_path: Path) -> None:
    """A head that is dropped from an untied model has no values; one that is kept has them."""
    head = {"model.embed_tokens.weight": matrix(), "lm_head.weight": matrix(seed=1)}
    kept = parameters(save(tmp_path / "a", flagged(LLAMA, False), head))
    lost = parameters(save(tmp_path / "b", flagged(LLAMA, False), {"model.embed_tokens.weight": matrix()}))
    assert kept is not None and kept[0]["lm_head.weight"] is not None
    assert lost is not None and lost[0]["lm_head.weight"] is None


@pytest.mark.parametrize(
    ("model", "verb", "changed"),
    [
        pytest.param(*HALVED, "lm_head.weight", id="HALVED"),
        pytest.param(*NO_LONGER_ZERO, "cls.predictions.decoder.bias", id="NO_LONGER_ZERO"),
    ],
)
def test_the_property_fails_without_the_judge(
    model: Model, verb: str, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan with the notes of its planner alone, and no refusal of the loaders, changes values and does not say so."""

    def unjudged(plan: Plan, before: Inspection, after: Inspection, notes: Notes, **_: object) -> Plan:
        return replace(plan, notes=tuple(note.text if isinstance(note, Note) else note for note in notes))

    check(model, verb)
    monkeypatch.setattr(build, "judged", unjudged)
    with pytest.raises(AssertionError, match=f"^\\('{changed}', "):
        check(model, verb)


@pytest.mark.parametrize(
    ("verb", "head", "tied"), [("untie", (), False), ("untie", (HEAD,), False), ("retie", (HEAD,), True)]
)
def test_a_file_without_a_config(verb: str, head: tuple[str, ...], tied: bool, tmp_path: Path) -> None:
    """The note says what a program may refuse. Only a head that stays stored is the same in every program."""
    file = save(tmp_path, None, dict.fromkeys((EMBED, *head), matrix())) / "model.safetensors"
    (note,) = getattr(api, f"plan_{verb}")(file, embed=EMBED, head=HEAD).plan.notes
    which = "does not tie" if tied else "ties"
    start = f"no config.json: a program that {which} its head may refuse the file (transformers: tie_word_embeddings "
    assert note == f"{start}{str(tied).lower()})" + ("" if head and not tied else f" {REVIEW_FIRST}")


FSMT_CONFIG = {"architectures": ["FSMTForConditionalGeneration"], "model_type": "fsmt", "tie_word_embeddings": True}
NEWER = {**LLAMA, "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe"}
DECODER, ENCODER = "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"
OUTPUT = "model.decoder.output_projection.weight"


def test_a_plan_that_keeps_every_value_says_nothing(tmp_path: Path) -> None:
    """Untying, re-tying and dedup of equal tables are the same function in both releases."""
    tied = save(tmp_path / "tied", flagged(LLAMA, True), llama())
    both = save(tmp_path / "both", flagged(LLAMA, True), {**llama(), HEAD: llama()[EMBED]})
    for planned in (api.plan_untie(tied), api.plan_retie(both), api.plan_dedup(both)):
        assert planned.plan.notes == ()


def test_values_for_what_was_random_are_no_loss(tmp_path: Path) -> None:
    """A head that was not stored had none to lose: the note about it is the only one."""
    model = save(tmp_path / "m", flagged(LLAMA, False), llama())
    (note,) = api.plan_retie(model).plan.notes
    assert note.startswith(
        f"transformers 4 and 5 load {HEAD} with random numbers now and with the values of {EMBED} after"
    )


def test_a_head_that_begins_to_count_in_transformers_4(tmp_path: Path) -> None:
    """Luke's flag ties its head in transformers 4 alone."""
    config = {"architectures": ["LukeForMaskedLM"], "model_type": "luke", "tie_word_embeddings": True}
    table = "luke.embeddings.word_embeddings.weight"
    tensors = {table: matrix(), "lm_head.decoder.weight": matrix(seed=1)}
    (note,) = api.plan_set_tie("false", save(tmp_path / "m", config, tensors)).plan.notes
    now = f"transformers 4 loads lm_head.decoder.weight with the values of {table} now"
    assert note == f"{now} and with its own values afterwards {REVIEW_FIRST}"


def test_dedup_keeps_the_table_that_transformers_4_takes(tmp_path: Path) -> None:
    """FSMT_CONFIG's tied tables are the encoder's there; without it the model has no values."""
    tensors = dict.fromkeys((DECODER, ENCODER, OUTPUT), matrix())
    notes = api.plan_dedup(save(tmp_path / "m", FSMT_CONFIG, tensors)).plan.notes
    assert any(f"kept: {ENCODER}, transformers 4 takes the tied values from {ENCODER} alone" in note for note in notes)


def test_a_result_that_a_release_refuses(tmp_path: Path) -> None:
    """DBRX's config refuses a true flag in transformers 5: the plan that writes it says so."""
    config = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "tie_word_embeddings": False}
    tensors = dict.fromkeys(("transformer.wte.weight", "lm_head.weight"), matrix())
    notes = api.plan_set_tie("true", save(tmp_path / "m", config, tensors), force=True).plan.notes
    sentence = "transformers 5 refuses the result: the dbrx config of transformers 5 refuses"
    assert any(sentence in note for note in notes)


def test_a_bias_that_transformers_5_did_not_read(tmp_path: Path) -> None:
    """The outer name alone, untied: transformers 5 starts the inner one at zero until the plan stores it."""
    tensors = bert(head=matrix(seed=1), outer=vector()) | {"bert.x.weight": vector(4)}
    notes = api.plan_untie(save(tmp_path / "m", flagged(BERT, False), tensors)).plan.notes
    (note,) = notes
    start = f"transformers 5 loads {INNER_BIAS} with zeros now and "
    assert note == f"{start}with the values of {OUTER_BIAS} afterwards {REVIEW_FIRST}"


@pytest.mark.parametrize(
    ("config", "names", "told"),
    [
        (BERT, (OUTER_BIAS, INNER_BIAS), "which transformers 4 reads"),
        (ROBERTA, ("lm_head.bias", "lm_head.decoder.bias"), "which no version of transformers reads"),
    ],
    ids=["bert", "roberta"],
)
def test_who_read_the_bias_that_is_lost(
    config: dict[str, object], names: tuple[str, str], told: str, tmp_path: Path
) -> None:
    """BERT's outer bias is read by transformers 4; RoBERTa's is overwritten by the inner one in both."""
    prefix = str(config["model_type"])
    tensors = {name: vector(seed=seed) for seed, name in enumerate(names)} | {f"{prefix}.x.weight": vector(4)}
    model = save(tmp_path / "m", flagged(config, True), tensors)
    plan = api.plan_bias("unify", model, survivor="decoder").plan
    assert plan.notes[0].startswith(f"bias unify discards the values of {names[0]}, {told}")
    assert (REVIEW_FIRST in plan.notes[0]) is ("no version" not in told)


def test_transformers_4_is_told_of_where_it_has_the_class(tmp_path: Path) -> None:
    """A note says that transformers 4 ignores a differing head, only if transformers 4 has the class."""
    for config, ends in (
        (LLAMA, "transformers 5 uses it. With the new config, transformers 4 uses it too"),
        (NEWER, "transformers 5 uses it"),
    ):
        tensors = {**llama(), HEAD: matrix(seed=3)}
        model = save(tmp_path / str(config["model_type"]), flagged(config, True), tensors)
        (note,) = api.plan_untie(model).plan.notes
        assert note.endswith(ends)
    (note, *_) = api.plan_untie(tmp_path / str(LLAMA["model_type"]), keep_flag=True).plan.notes
    assert note.endswith("transformers 5 uses it. transformers 4.57 ignores it")
    turned = save(tmp_path / "turned", flagged(LLAMA, True), {**llama(), HEAD: llama()[EMBED].T.copy()})
    (note,) = api.plan_set_tie("false", turned).plan.notes
    assert note.endswith("(it is the transpose). It stays as stored, and transformers refuses its shape")
    effect = f"Not loaded: {HEAD} has another shape than the embedding, which transformers refuses."
    assert api.inspect(turned).config.effect == effect


def test_dedup_keeps_what_transformers_4_48_does_not_restore(tmp_path: Path) -> None:
    """LongT5's halves, untied: 4.57 takes them from the shared table, 4.48 starts them with random numbers."""
    config = {"architectures": ["LongT5ForConditionalGeneration"], "model_type": "longt5", "tie_word_embeddings": False}
    halves = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = dict.fromkeys(("shared.weight", *halves), matrix()) | {"lm_head.weight": matrix(seed=1)}
    plan = api.plan_dedup(save(tmp_path / "m", config, tensors)).plan
    assert not plan.weights and all(
        any(f"kept: {name}, transformers 4" in note for note in plan.notes) for name in halves
    )


def test_dedup_drops_what_every_release_restores(tmp_path: Path) -> None:
    """T5's halves are given one table whatever the flag says."""
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "tie_word_embeddings": False}
    halves = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = dict.fromkeys(("shared.weight", *halves), matrix()) | {"lm_head.weight": matrix(seed=1)}
    plan = api.plan_dedup(save(tmp_path / "m", config, tensors)).plan
    assert [tensor.name for file in plan.weights for tensor in file.tensors] == ["shared.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("name", "loader"), [("Nystromformer", "transformers 5"), ("Ernie", "transformers 4")], ids=["in 5", "in 4 alone"]
)
def test_a_bias_that_only_saves_bytes_comes_back_in_every_release(name: str, loader: str, tmp_path: Path) -> None:
    """A class whose absent bias has no values keeps its zero bias, whichever release that is."""
    config = {"architectures": [f"{name}ForMaskedLM"], "model_type": name.lower(), "tie_word_embeddings": True}
    tensors = {f"{name.lower()}.embeddings.word_embeddings.weight": matrix(), OUTER_BIAS: np.zeros(8, "<f4")}
    with pytest.raises(RefusedError, match=f"{loader} loads .* would load it without values afterwards") as caught:
        api.plan_bias("strip", save(tmp_path / "m", config, tensors))
    assert caught.value.code == "meaning.lost"


def test_a_rescaled_head_is_a_refusal(tmp_path: Path) -> None:
    """transformers 5 ties T5's absent head under a false flag and does not scale it: under a true one it does."""
    config = flagged({**T5, "d_model": 4}, False)
    model = save(tmp_path / "m", config, {"shared.weight": matrix(), "encoder.embed_tokens.weight": matrix()})
    with pytest.raises(RefusedError, match=r"now and would load it with the values of shared.weight times 0.5 after"):
        api.plan_retie(model)


def test_a_result_that_transformers_5_refuses_is_refused(tmp_path: Path) -> None:
    """Without --force nobody asked for a config that transformers 5 refuses."""
    config = {"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "tie_word_embeddings": False}
    tensors = dict.fromkeys(("transformer.wte.weight", "lm_head.weight"), matrix())
    with pytest.raises(RefusedError) as caught:
        api.plan_set_tie("true", save(tmp_path / "m", config, tensors))
    assert caught.value.hint


def test_a_conversion_says_only_what_its_order_changes(tmp_path: Path) -> None:
    """Marian's untied tables are one in transformers 4, which keeps the last: the same format in one file keeps it."""
    config = {"architectures": ["MarianMTModel"], "model_type": "marian", "tie_word_embeddings": False}
    names = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    tensors = {name: matrix(seed=seed) for seed, name in enumerate(names)} | {HEAD: matrix(seed=5)}
    model = save(tmp_path / "m", {**config, "share_encoder_decoder_embeddings": True}, tensors)
    assert not any(
        "keeps only the one that it reads last" in note for note in api.plan_convert("safetensors", model).plan.notes
    )
    notes = api.plan_convert("torch", model).plan.notes
    assert any("keeps only the one that it reads last" in note and REVIEW_FIRST in note for note in notes)


def test_a_head_that_holds_the_factor_is_dropped(tmp_path: Path) -> None:
    """T5's untied head is the table times d_model**-0.5, which the tied model applies: every value stays."""
    tensors = {"shared.weight": matrix(), HEAD: matrix() * np.float32(0.5)}
    model = save(tmp_path / "m", flagged({**T5, "d_model": 4}, False), tensors)
    planned = api.plan_retie(model)
    assert not any(f"loads {HEAD}" in note or f"load {HEAD}" in note for note in planned.plan.notes)
    assert planned.execute(tmp_path / "out").verified


MARKED = (
    "BltForCausalLM LongT5ForConditionalGeneration MT5ForConditionalGeneration OpenAIGPTDoubleHeadsModel "
    "T5ForConditionalGeneration UMT5ForConditionalGeneration UdopForConditionalGeneration ViltForMaskedLM"
)
"""Classes that always tie the head, or whose canonical name is that of the head."""


@pytest.mark.parametrize("architecture", MARKED.split())
def test_a_copy_that_was_asked_for_is_marked(architecture: str, tmp_path: Path) -> None:
    """A class that always ties, or whose canonical name is the head: `check` calls the copy wanted."""
    family = class_table.load(architecture)
    assert family is not None
    tensors = {group.canonical: matrix() for group in family.groups if group.role is Role.WORD_EMBEDDING}
    folder = save(
        tmp_path / "m", flagged({"architectures": [architecture], "model_type": family.model_type}, True), tensors
    )
    (folder / "model.safetensors").write_bytes(weights(tensors, {"format": "pt"}))
    api.plan_untie(folder, keep_flag=True).execute(tmp_path / "out")
    findings = [finding for finding in api.inspect(tmp_path / "out").findings if finding.rule == "TIE002"]
    assert [(finding.level, finding.remedy) for finding in findings] == [(Level.NOTE, None)]


@pytest.mark.parametrize("plan", [api.plan_retie, api.plan_untie, lambda path: api.plan_set_tie("true", path)])
def test_the_first_line_names_a_head_that_was_random(plan: Callable[[Path], PlannedWrite], tmp_path: Path) -> None:
    """Nothing is lost, so no option is needed. The outputs change, as the user asked."""
    model = save(tmp_path / "m", flagged(LLAMA, False), llama())
    assert plan(model).plan.summary.endswith(f", {HEAD} no longer random")
    stored = save(tmp_path / "stored", flagged(LLAMA, False), {**llama(), HEAD: matrix()})
    assert "random" not in plan(stored).plan.summary


def test_a_t5_without_a_head_is_not_told_to_retie(tmp_path: Path) -> None:
    """`retie` refuses it, because a true flag scales its logits."""
    (finding,) = api.inspect(save(tmp_path / "m", flagged(T5, False), {"shared.weight": matrix()})).findings
    assert finding.message.endswith("If the model is tied to shared.weight, run untie to store a copy.")
