"""A certificate rests on what the class reads from its config: given, or a default that every release shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures import certificate_norms, certificates
from tests.analysis.attack import certificates as analysed
from tests.analysis.attack import edit_json, edit_tensors
from tests.analysis.lm import MORE, PADDING, VOCABULARY, build
from tieconv.analysis.subject import KNOWN
from tieconv.inspection import config_values
from tieconv.inspection import config_values as measured_releases
from tieconv.inspection.config_values import RELEASES, default_ids, table
from tieconv.inspection.token_ids import fed_ids


def model(folder: Path, model_type: str = "llama", **more: Any) -> None:
    """A model whose head differs a little from its embedding."""
    build(folder, model_type, tied=False, **MORE.get(model_type, {}), **more)
    subject = analysed(folder).subject
    assert subject.head is not None
    embed, head = subject.embed.record.name, subject.head.record.name

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[head] = tensors[embed] * (1 + 1e-3 * torch.randn_like(tensors[embed]))

    edit_tensors(folder, edit)


def leave_out(folder: Path, key: str) -> None:
    edit_json(folder / "config.json", lambda config: config.pop(key, None))


def certified(folder: Path) -> float | None:
    costs = analysed(folder).costs
    assert costs is not None
    return costs.certified.get("embed")


def test_a_cap_that_the_config_leaves_out_is_the_default_of_the_class(tmp_path: Path) -> None:
    """Gemma 2 without the key caps its logits at 30: one vector on every row is then no gauge."""
    build(tmp_path, "gemma2", tied=False, final_logit_softcapping=30.0)
    head = "lm_head.weight"

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[head] = tensors["model.embed_tokens.weight"] + 3 * torch.randn(32)

    edit_tensors(tmp_path, edit)
    given = certified(tmp_path)
    leave_out(tmp_path, "final_logit_softcapping")
    final = analysed(tmp_path).subject.final
    assert final is not None and final.cap == 30.0
    assert given is not None and given > 1 and certified(tmp_path) == given
    edit_json(tmp_path / "config.json", lambda config: config.update(final_logit_softcapping=None))
    bound = certified(tmp_path)
    assert bound is not None and bound < 1e-6  # without a cap the softmax does not see the vector


@pytest.mark.parametrize(
    ("model_type", "key"), [("granite", "logits_scaling"), ("cohere", "logit_scale"), ("opt", "do_layer_norm_before")]
)
def test_other_keys_that_the_config_leaves_out(model_type: str, key: str, tmp_path: Path) -> None:
    """A factor takes the default of the class; a switch stays where it is."""
    model(tmp_path, model_type)
    leave_out(tmp_path, key)
    assert certified(tmp_path) is not None
    final = analysed(tmp_path).subject.final
    assert final is not None
    assert final.scale == {"granite": 1.0, "cohere": 0.0625, "opt": 1.0}[model_type]


def test_releases_that_disagree_give_no_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that moved between releases is named with both values, and given values are not concerned."""
    model(tmp_path, "granite")
    changed = json.loads(json.dumps(table("4.48")))
    changed["norms"]["granite"]["defaults"]["logits_scaling"] = 8.0
    real = table
    monkeypatch.setattr(measured_releases, "table", lambda release: changed if release == "4.48" else real(release))
    assert certified(tmp_path) is not None
    leave_out(tmp_path, "logits_scaling")
    assert certified(tmp_path) is None
    withheld = analysed(tmp_path).subject.withheld
    assert withheld == (
        "the config has no logits_scaling, and its default differs: 8.0 in transformers 4.48, "
        "1.0 in transformers 4.57, 1.0 in transformers 5.23"
    )


@pytest.mark.parametrize(
    ("model_type", "values", "why"),
    [
        ("llama", {"auto_map": {"AutoModelForCausalLM": "modeling.House"}}, "auto_map"),
        ("llama", {"text_config": {"auto_map": {}}}, "auto_map"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("llama", {"rms_norm_eps": -0.5}, "rms_norm_eps"),
        ("llama", {"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ("llama", {"architectures": ["Gemma2ForCausalLM"]}, "this class was not measured"),
        ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": -5.0}, "final_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": "30"}, "final_logit_softcapping"),
        ("gemma2", {"final_logit_softcapping": True}, "final_logit_softcapping"),
        ("granite", {"logits_scaling": 0}, "logits_scaling"),
        ("granite", {"logits_scaling": None}, "logits_scaling"),
        ("cohere", {"logit_scale": float("inf")}, "logit_scale"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
    ],
)
def test_no_certificate(model_type: str, values: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Code of the model's own, another class, and values that no class was measured with."""
    model(tmp_path, model_type)
    assert certified(tmp_path) is not None
    edit_json(tmp_path / "config.json", lambda config: config.update(values))
    assert certified(tmp_path) is None
    assert why in analysed(tmp_path).subject.withheld


def test_no_certificate_beside_an_adapter(tmp_path: Path) -> None:
    """transformers adds the adapter of the directory to the model that it loads."""
    model(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert certified(tmp_path) is None


def test_ids_that_the_model_reads_by_default_are_read(tmp_path: Path) -> None:
    """BART starts its decoder with id 2 where the config does not say so."""
    assert 2 in default_ids("bart") and 2 in fed_ids({"model_type": "bart"}, {}, 3)
    assert fed_ids({}, {"forced_decoder_ids": [[1, 157]]}, 158) >= {157}
    assert fed_ids({}, {"lang_to_id": {"<|en|>": 158, "<|fr|>": 159}}, 159) == {158}
    build(tmp_path, tied=False)
    row = VOCABULARY - PADDING

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["lm_head.weight"][row] += 1

    edit_tensors(tmp_path, edit)

    def head() -> float | None:
        costs = analysed(tmp_path).costs
        assert costs is not None
        return costs.certified["head"]

    assert head() == 0
    edit_json(tmp_path / "generation_config.json", lambda values: values.update(decoder_start_token_id=row))
    assert head() is None
    (tmp_path / "generation_config.json").write_text("{")
    assert head() is None
    (tmp_path / "generation_config.json").unlink()
    assert head() == 0
    edit_json(tmp_path / "config.json", lambda config: config.update(auto_map={"AutoModel": "x.Y"}))
    assert head() is None


def test_the_tables_are_those_of_their_releases() -> None:
    """Each names the release that it was measured with, and has every class that an analysis knows."""
    for release in RELEASES:
        measured = table(release)
        assert measured["transformers"].startswith(release + ".")
        assert set(measured["norms"]) <= set(KNOWN)
    assert set(table("5.23")["norms"]) == set(KNOWN)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "opt"])
def test_the_table_is_what_this_release_measures(model_type: str) -> None:
    """The committed record of a few types is measured again; `fixtures/certificates.py --check` compares all."""
    config = certificates.default_config(model_type)
    norms, aliases = certificate_norms.table({model_type: config})
    assert norms[model_type] == table("5.23")["norms"][model_type]
    assert aliases.get(model_type, {}) == table("5.23")["aliases"].get(model_type, {})
    assert certificates.ids(config) == table("5.23")["ids"][model_type]


def test_a_key_in_another_spelling_gives_no_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another name of a key does depends on the release."""
    model(tmp_path, "gemma2")
    edit_json(tmp_path / "config.json", lambda config: config.update(cap=4.0))
    assert certified(tmp_path) is not None
    real = config_values.norms
    spelled = {"cap": "final_logit_softcapping"}
    monkeypatch.setattr(config_values, "norms", lambda kind: ((one, two, spelled) for one, two, _ in real(kind)))
    assert certified(tmp_path) is None
