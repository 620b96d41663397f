"""What is stored, held against what is declared: tie groups, the effect line, and weight files that are not used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.checks.fixtures import FIXTURES
from tests.checks.fixtures.model import EMBED, HEAD, LLAMA, Array, flagged, llama, matrix, save, vector, weights
from tieconv.checkpoint.inspection import Depth

HEADS = {"absent": None, "copy": matrix(), "other": matrix(seed=1), "longer": matrix(9), "scaled": matrix() * 2}
EXPECTED = {
    (True, "absent"): (True, True, 0),
    (True, "copy"): (None, True, 128),
    (True, "other"): (None, False, 0),
    (True, "longer"): (None, False, 0),
    (True, "scaled"): (None, False, 0),
    (False, "absent"): (False, False, 0),
    (False, "copy"): (True, True, 128),
    (False, "other"): (True, True, 0),
    (False, "longer"): (True, True, 0),
    (False, "scaled"): (True, True, 0),
}
"""By the flag and the head: consistent from headers alone, from bytes, and the bytes stored twice."""


@pytest.mark.parametrize(("tied", "head"), EXPECTED)
def test_consistent(tied: bool, head: str, tmp_path: Path) -> None:
    """An untied group needs every name and no comparison; a tied one needs equal bytes, which headers cannot tell."""
    tensors = HEADS[head]
    path = save(tmp_path / "model", flagged(LLAMA, tied), llama(**({} if tensors is None else {"head": tensors})))
    shallow, deep = (api.inspect(path, depth=depth).word_tie for depth in (Depth.HEADER, Depth.CANDIDATES))
    assert shallow is not None and deep is not None
    assert (shallow.consistent, deep.consistent, deep.bytes_wasted) == EXPECTED[tied, head]
    assert shallow.bytes_wasted == 0
    assert [member.name for member in deep.members][1:] == [HEAD]


def test_an_adapter_leaves_the_tie_to_its_base_model(tmp_path: Path) -> None:
    """No flag of an adapter says that a model is tied, and nothing is known of it."""
    evidence = api.inspect(FIXTURES["PEF003 good"](tmp_path / "model"))
    assert (evidence.config.effective, evidence.config.known, evidence.ties) == (False, False, ())
    assert evidence.config.why == "Unknown: the base model decides whether the pair is tied."


T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 4}
QWEN2_VL = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "text_config": {"model_type": "qwen2_vl_text"},
}
MOLMO2 = {"architectures": ["Molmo2ForConditionalGeneration"], "model_type": "molmo2", "text_config": {}}

IN_4 = " Tied in transformers 4, which keeps one of the two."


def effect(folder: Path, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    """The sentence for a model with these files; the JSON has it too."""
    evidence = api.inspect(save(folder / "model", config, tensors))
    document = json.loads(json.dumps(evidence.to_dict()))
    assert document["config"]["effect"] == evidence.config.effect
    return evidence.config.effect


@pytest.mark.parametrize(("flag", "more"), [(False, ""), (True, IN_4), (None, IN_4)])
def test_a_head_of_its_own_in_a_class_that_always_ties(flag: bool | None, more: str, tmp_path: Path) -> None:
    """Flan-T5: first what the loaded model is, then why."""
    config = T5 if flag is None else T5 | {"tie_word_embeddings": flag}
    outcome = effect(tmp_path, config, {"shared.weight": matrix(), "lm_head.weight": matrix() + 1})
    assert outcome == (
        f"Untied{' in transformers 5' if more else ''}: lm_head.weight is stored and differs from the embedding.{more}"
    )


LLAMA_CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}


def test_a_head_that_differs_in_a_model_declared_tied(tmp_path: Path) -> None:
    """transformers 5 keeps both tables; the first line does not call that tied."""
    tensors = {"model.embed_tokens.weight": matrix(), "lm_head.weight": matrix() + 1}
    assert effect(tmp_path, LLAMA_CONFIG, tensors) == (
        f"Untied in transformers 5: lm_head.weight is stored and differs from the embedding.{IN_4}"
    )


def test_without_a_head_such_a_class_is_tied(tmp_path: Path) -> None:
    """A T5 with a false flag and one table is tied, as its class is."""
    config = T5 | {"tie_word_embeddings": False}
    assert effect(tmp_path, config, {"shared.weight": matrix()}).startswith(
        "Tied: T5ForConditionalGeneration always ties."
    )


def test_what_each_version_reads_is_one_statement(tmp_path: Path) -> None:
    """Qwen2-VL as transformers 5 saves it: the effect and TIE007 name the same levels and the same result."""
    config = QWEN2_VL | {"tie_word_embeddings": True}
    folder = save(tmp_path / "m", config, {"model.embed_tokens.weight": matrix()})
    inspection = api.inspect(folder)
    assert inspection.config.effect == (
        "Tied in transformers 5: tie_word_embeddings is true. "
        "Untied in transformers 4: text_config.tie_word_embeddings is absent."
    )
    message = next(finding.message for finding in inspection.findings if finding.rule == "TIE007")
    assert message.startswith(
        "transformers 5 reads tie_word_embeddings. transformers 4 reads text_config.tie_word_embeddings, "
        "which the config does not set. transformers 5 ties Qwen2VLForConditionalGeneration, "
        "but transformers 4 does not."
    )


def test_an_embedding_in_two_parts_is_stored(tmp_path: Path) -> None:
    """Molmo2 keeps the rows of its added tokens apart: both tensors are named, and neither is missing."""
    start = "model.transformer.wte."
    tensors = {f"{start}embedding": matrix(), f"{start}new_embedding": matrix(2), "lm_head.weight": matrix()}
    folder = save(tmp_path / "m", MOLMO2, tensors)
    head = api.inspect(folder).to_dict()["head"]
    assert isinstance(head, dict)
    assert [piece["name"] for piece in head["embedding_pieces"]] == [f"{start}embedding", f"{start}new_embedding"]
    (folder / "model.safetensors").unlink()
    lacking = save(tmp_path / "n", MOLMO2, {f"{start}embedding": matrix(), "lm_head.weight": matrix()})
    head = api.inspect(lacking).to_dict()["head"]
    assert isinstance(head, dict) and head["embedding_pieces"] == []


NORM = "model.norm.weight"


def inspect(folder: Path, tensors: dict[str, Array], depth: str = "candidates"):
    save(folder, flagged(LLAMA, True), llama())
    (folder / "consolidated.safetensors").write_bytes(weights(tensors))
    return api.inspect(folder, depth=depth)


@pytest.mark.parametrize(
    ("tensors", "depth", "differs", "level"),
    [
        ({EMBED: matrix()}, "candidates", {EMBED: False}, "note"),
        ({EMBED: matrix(seed=3)}, "candidates", {EMBED: True}, "warning"),
        ({EMBED: matrix(seed=3)}, "header", {EMBED: None}, "note"),
        ({EMBED: matrix(9)}, "header", {EMBED: True}, "warning"),
        ({EMBED: matrix().astype("<f2")}, "header", {EMBED: True}, "warning"),
        ({NORM: vector(4, seed=3)}, "candidates", {NORM: None}, "note"),
        ({NORM: vector(4, seed=3)}, "full", {NORM: True}, "warning"),
        ({"other": matrix()}, "full", {}, "note"),
    ],
    ids=range(8),
)
def test_same_names(
    tensors: dict[str, Array], depth: str, differs: dict[str, bool | None], level: str, tmp_path: Path
) -> None:
    """Another shape shows in the header; bytes are compared for tied names, and for all at full depth."""
    inspection = inspect(tmp_path / "model", tensors, depth)
    assert {shadow.name: shadow.differs for shadow in inspection.shadows} == differs
    assert [(finding.rule, str(finding.level)) for finding in inspection.findings] == [("IDX005", level)]


def test_unreadable_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama())
    (folder / "broken.safetensors").write_bytes(b"broken")
    inspection = api.inspect(folder)
    assert (inspection.shadows, [finding.rule for finding in inspection.findings]) == ((), ["IDX005"])
