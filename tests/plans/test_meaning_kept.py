"""Every plan that is not refused keeps each parameter's values in transformers 5, or a note names the parameter.

Each plan is carried out, and the values are read from the files: nothing of what the planner computed is used again.
Without `judged`, the property fails on `HALVED` and `NO_LONGER_ZERO`: the last test switches it off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import tieconv
import tieconv as api
from tests.checks.fixtures.model import BART, BERT, EMBED, GEMMA3, HEAD, LLAMA, T5, Array, flagged, matrix, save, vector
from tests.patience import examples
from tieconv.checkpoint.finding import REVIEW_FIRST
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
