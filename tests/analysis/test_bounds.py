"""Certificates: no perturbed model does more than they allow, and what of the config they rest on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fixtures import certificate_norms, certificates
from tests.analysis.attack import certificates as analysed, edit_json, edit_tensors
from tests.analysis.constructed import Rng, embedding, table
from tests.analysis.lm import MORE, PADDING, VOCABULARY, build, configure, inputs
from tests.lazy import torch
from tieconv.analysis.retie_cost import Bound, Change, bound, enclosing_ball, zero_mass
from tieconv.analysis.subject import KNOWN, Final, Subject, open_subject
from tieconv.checkpoint.inspection import Depth
from tieconv.formats import read_checkpoint
from tieconv.inspection import config_values, inspect_checkpoint
from tieconv.inspection.config_values import RELEASES, default_ids
from tieconv.inspection.token_ids import fed_ids
from tieconv.sources.local import locate, open_files

Array = npt.NDArray[Any]
QUICK, FULL = 40, 600


@dataclass(frozen=True)
class Trial:
    """The bound and the largest change that was found."""

    bound: Bound
    kl: float
    log_p: float


def _noise(u: Array, size: float, rng: Rng) -> Array:
    return u + size * u.std() * rng.standard_normal(u.shape)


def _near_gauge(u: Array, size: float, rng: Rng) -> Array:
    return u + rng.standard_normal(u.shape[1]) + 1e-3 * size * rng.standard_normal(u.shape)


def _few_rows(u: Array, size: float, rng: Rng) -> Array:
    changed = u.copy()
    changed[-max(len(u) // 50, 1) :] = size * rng.standard_normal(u.shape[1])
    return changed


def _scale(u: Array, size: float, rng: Rng) -> Array:
    return u * (1 + size)


def _one_direction(u: Array, size: float, rng: Rng) -> Array:
    return u + size * u.std() * rng.standard_normal((len(u), 1)) * rng.standard_normal(u.shape[1])


PERTURBATIONS: tuple[Callable[[Array, float, Rng], Array], ...] = (
    _noise,
    _near_gauge,
    _few_rows,
    _scale,
    _one_direction,
)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def trial(seed: int) -> Trial:
    """One random head, norm and perturbation; the worst of random and of adversarial hidden states."""
    rng = np.random.default_rng([seed, 99])
    width, rows = int(rng.integers(4, 40)), int(rng.integers(40, 300))
    u = embedding(rng, rows, width)
    u *= rng.uniform(0.5, 10) / u.std()
    e = PERTURBATIONS[seed % len(PERTURBATIONS)](u, 10 ** rng.uniform(-4, 0), rng)
    shift = rng.standard_normal(width) * rng.uniform(0, 1) if rng.random() < 0.5 else None
    cap = 20.0 if rng.random() < 0.3 else 0.0
    final = Final(np.exp(rng.normal(0, 0.5, width)), shift, float(np.exp(rng.normal(0, 0.5))), cap, "", "")
    head, embed = table(u, "F32"), table(e, "F32")
    return Trial(bound(Change(embed, head, final)), *_worst(head.values(0, rows), embed.values(0, rows), final, rng))


def _worst(u: Array, e: Array, final: Final, rng: Rng) -> tuple[float, float]:
    """The largest KL and change of a log-probability over hidden states of the norm's length."""
    seen = (e - u) * final.gains
    far = seen[np.linalg.norm(seen - seen.mean(0), axis=1).argsort()[-6:]]
    states = np.concatenate(
        [rng.standard_normal((64, u.shape[1])), far, -far, (far[:, None] - far[None]).reshape(-1, u.shape[1])]
    )
    lengths = np.linalg.norm(states, axis=1)
    states = states[lengths > 0] / lengths[lengths > 0][:, None] * np.sqrt(u.shape[1])
    hidden = final.scale * (states * final.gains + (0 if final.shift is None else final.shift))
    before, after = (log_softmax(_capped(hidden @ head.T, final.cap)) for head in (u, e))
    kl = (np.exp(before) * (before - after)).sum(1)
    return float(kl.max()), float(np.abs(before - after).max())


def _capped(logits: Array, cap: float) -> Array:
    return cap * np.tanh(logits / cap) if cap else logits


def check(trials: int) -> list[Trial]:
    found = [trial(seed) for seed in range(trials)]
    for seed, case in enumerate(found):
        # Log-probabilities of float64 are themselves only good to some 1e-12.
        assert case.kl <= case.bound.kl + 1e-11, seed
        assert case.log_p <= case.bound.log_p + 1e-10, seed
    return found


def test_no_bound_is_violated() -> None:
    """Over the quick sample, with soft caps, shifts and multipliers; and the bound is not idle: it is nearly met."""
    found = check(QUICK)
    assert max(case.log_p / case.bound.log_p for case in found if case.bound.log_p > 1e-6) > 0.5


@pytest.mark.slow
def test_no_bound_is_violated_at_full_length() -> None:
    """Over 600 perturbed heads."""
    found = check(FULL)
    assert max(case.log_p / case.bound.log_p for case in found if case.bound.log_p > 1e-6) > 0.9


@pytest.mark.parametrize(
    ("shift", "scale", "cap"), [(0.0, 1.0, 0.0), (0.0, 3.0, 0.0), (2.0, 1.0, 0.0), (2.0, 1.0, 1e4)]
)
def test_the_bound_of_the_divergence_is_met(shift: float, scale: float, cap: float) -> None:
    """Two equal rows that move apart: no smaller bound holds."""
    embed, head = np.array([[0.01, 0, 0, 0], [-0.01, 0, 0, 0]]), np.zeros((2, 4))
    final = Final(np.ones(4), np.array([shift, 0, 0, 0]), scale, cap, "", "")
    found = bound(Change(table(embed, "F64"), table(head, "F64"), final))
    kl, _ = _worst(head, embed, final, np.random.default_rng(0))
    assert 0.99 < kl / found.kl < 1
    assert found.estimate == pytest.approx((scale * 0.01) ** 2 / 2)


def test_the_gauge_costs_nothing() -> None:
    """One vector added to every row is bounded by rounding, though cosine and distance are far off."""
    rng = np.random.default_rng(0)
    u = embedding(rng, 300, 16)
    final = Final(np.ones(16), None, 1.0, 0.0, "", "")
    shifted = table(u + rng.standard_normal(16) * 10 * u.std(), "F64")
    assert bound(Change(shifted, table(u, "F64"), final)).kl < 1e-20


def test_a_cap_ends_the_gauge() -> None:
    """Under a soft cap the same vector is bounded by its length, since it does change the probabilities."""
    rng = np.random.default_rng(0)
    u = embedding(rng, 300, 16)
    final = Final(np.ones(16), None, 1.0, 30.0, "", "")
    shifted = table(u + rng.standard_normal(16) * 10 * u.std(), "F64")
    assert bound(Change(shifted, table(u, "F64"), final)).kl > 1e-3


def test_the_estimate_is_right_for_rounding() -> None:
    """Rounding the head to bfloat16 moves the mean KL by the estimate, to a factor of 1.5."""
    rng = np.random.default_rng(1)
    u = rng.standard_normal((2000, 64)) * 0.05
    head, rounded = table(u, "F32"), table(u, "BF16")
    final = Final(np.ones(64), None, 1.0, 0.0, "", "")
    found = bound(Change(rounded, head, final))
    states = rng.standard_normal((500, 64))
    states *= 8 / np.linalg.norm(states, axis=1, keepdims=True)
    before, after = (log_softmax(states @ part.values(0, 2000).T) for part in (head, rounded))
    measured = float((np.exp(before) * (before - after)).sum(1).mean())
    assert measured / 1.5 < found.estimate < measured * 1.5
    assert measured < found.kl


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_what_is_not_finite_is_not_bounded(bad: float, cap: float) -> None:
    """One NaN or infinity anywhere, and nothing is certified."""
    values = np.random.default_rng(4).standard_normal((200, 8))
    broken = values.copy()
    broken[150, 3] = bad
    for shift in (None, np.ones(8)):
        final = Final(np.ones(8), shift, 1.0, cap, "", "")
        found = bound(Change(table(broken, "F32"), table(values, "F32"), final))
        assert found.kl == found.log_p == np.inf


def test_every_row_is_in_the_ball() -> None:
    """No row lies outside, and the ball is no larger than the one around the mean."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        rows = rng.standard_normal((500, 8)) ** 3
        centre, radius = enclosing_ball(lambda rows=rows: iter((rows[:200], rows[200:])), 8)  # type: ignore[misc]
        assert np.linalg.norm(rows - centre, axis=1).max() <= radius
        assert radius <= np.linalg.norm(rows - rows.mean(0), axis=1).max() * (1 + 1e-8)


def test_rows_of_zeros_take_the_share_of_their_logit() -> None:
    """Where every logit is 0 the zero rows take their share of the rows; where others are high they take less."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((400, 16)) * 1e-6
    zero = np.zeros(400, bool)
    zero[-40:] = True
    values[zero] = 0
    final = Final(np.ones(16), None, 1.0, 0.0, "", "")
    assert zero_mass(table(values, "F32"), final, None, zero)[0] == pytest.approx(0.1, abs=1e-3)
    assert zero_mass(table(values * 1e6, "F32"), final, None, zero)[0] < 0.05


CLASSES = ("llama", "gemma2", "gpt2", "gpt_neox", "phi", "cohere", "granite", "olmo", "bloom", "qwen3",
           "opt", "bert", "distilbert", "electra", "bart", "m2m_100")  # fmt: skip


def violations(folder: Path, model_type: str, trials: int) -> tuple[int, int]:
    """(violations, trials whose KL was above float32's own noise) over perturbed heads of one random model."""
    model = build(folder, model_type, tied=False, **MORE.get(model_type, {}))
    with open_files(folder) as files:
        subject = opened(folder, files)
        assert subject.final is not None
        stored, final = subject.output.values(0, VOCABULARY), subject.final
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, VOCABULARY, (4, 40)))
    bad = counted = 0
    for seed in range(trials):
        rng = np.random.default_rng([seed, len(model_type)])
        changed = PERTURBATIONS[seed % len(PERTURBATIONS)](stored, 10 ** rng.uniform(-2, 0), rng)
        told = bound(Change(table(changed, "F32"), table(stored, "F32"), final))
        before, after = (_log_p(model, head, ids) for head in (stored, changed))
        kl = float((before.exp() * (before - after)).sum(-1).max())
        log_p = float((before - after).abs().max())
        bad += kl > told.kl + 1e-5 or log_p > told.log_p + 1e-4
        counted += kl > 1e-5
    return bad, counted


def _log_p(model: torch.nn.Module, head: np.ndarray, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(torch.from_numpy(head))  # type: ignore[operator]
        logits = model(**inputs(model, ids)).logits
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model_type", CLASSES)
def test_no_model_exceeds_its_bound(model_type: str, tmp_path: Path) -> None:
    """A quick sample of every class, in which something did move."""
    bad, counted = violations(tmp_path, model_type, 5)
    assert bad == 0 and counted >= 3


@pytest.mark.slow
def test_no_model_exceeds_its_bound_at_full_length(tmp_path: Path) -> None:
    """Over 960 perturbed models of sixteen classes."""
    found = [violations(tmp_path / model_type, model_type, 60) for model_type in CLASSES]
    assert sum(bad for bad, _ in found) == 0
    assert sum(counted for _, counted in found) >= 720


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
    changed = json.loads(json.dumps(config_values.table("4.48")))
    changed["norms"]["granite"]["defaults"]["logits_scaling"] = 8.0
    real = config_values.table
    monkeypatch.setattr(config_values, "table", lambda release: changed if release == "4.48" else real(release))
    assert certified(tmp_path) is not None
    leave_out(tmp_path, "logits_scaling")
    assert certified(tmp_path) is None
    defaults = "8.0 in transformers 4.48, 1.0 in transformers 4.57, 1.0 in transformers 5.23"
    withheld = f"the config has no logits_scaling, and its default differs: {defaults}"
    assert analysed(tmp_path).subject.withheld == withheld


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
        measured = config_values.table(release)
        assert measured["transformers"].startswith(release + ".")
        assert set(measured["norms"]) <= set(KNOWN)
    assert set(config_values.table("5.23")["norms"]) == set(KNOWN)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "opt"])
def test_the_table_is_what_this_release_measures(model_type: str) -> None:
    """The committed record of a few types is measured again; `fixtures/certificates.py --check` compares all."""
    config = certificates.default_config(model_type)
    norms, aliases = certificate_norms.table({model_type: config})
    assert norms[model_type] == config_values.table("5.23")["norms"][model_type]
    assert aliases.get(model_type, {}) == config_values.table("5.23")["aliases"].get(model_type, {})
    assert certificates.ids(config) == config_values.table("5.23")["ids"][model_type]


def test_a_key_in_another_spelling_gives_no_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another name of a key does depends on the release."""
    model(tmp_path, "gemma2")
    edit_json(tmp_path / "config.json", lambda config: config.update(cap=4.0))
    assert certified(tmp_path) is not None
    real = config_values.norms
    spelled = {"cap": "final_logit_softcapping"}
    monkeypatch.setattr(config_values, "norms", lambda kind: ((one, two, spelled) for one, two, _ in real(kind)))
    assert certified(tmp_path) is None


def opened(folder: Path, files: Any) -> Subject:
    checkpoint = read_checkpoint(locate(str(folder)), files)
    return open_subject(inspect_checkpoint(checkpoint, files, Depth.HEADER), files)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("model_type", sorted(KNOWN))
def test_logits_follow_from_the_last_norm(model_type: str, tmp_path: Path) -> None:
    """cap(s · U (γ ⊙ x̂ + β) + b) with ‖x̂‖ ≤ √d gives the model's logits, x̂ being solved from what the norm gives."""
    model = build(tmp_path, model_type, tied=False, **MORE.get(model_type, {}))
    heard: list[torch.Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    with torch.no_grad():
        ids = torch.arange(3, 40)[None]
        logits = model(**inputs(model, ids)).logits[0].double().numpy()
    with open_files(tmp_path) as files:
        subject = opened(tmp_path, files)
        final = subject.final
        assert final is not None and subject.output.rows == VOCABULARY
        table = subject.output.values(0, VOCABULARY)
    hidden = heard[0][0].double().numpy()
    shift = np.zeros(hidden.shape[1]) if final.shift is None else final.shift
    states = (hidden - shift) / final.gains
    assert np.linalg.norm(states, axis=1).max() <= np.sqrt(states.shape[1]) * (1 + 1e-5)
    told = final.scale * (states * final.gains + shift) @ table.T
    told = final.cap * np.tanh(told / final.cap) if final.capped else told
    told = told if subject.bias is None else told + subject.bias
    assert np.abs(told - logits).max() <= 1e-4 * max(np.abs(logits).max(), 1)


def test_a_class_of_another_name_is_not_bounded(tmp_path: Path) -> None:
    """Code of the model's own may put anything before the head, whatever model_type it goes by."""
    build(tmp_path, tied=False)
    configure(tmp_path, architectures=["HouseLlamaForCausalLM"])
    with open_files(tmp_path) as files:
        assert opened(tmp_path, files).final is None


def test_unknown_classes_are_not_bounded(models: Path) -> None:
    """A class whose way from the norm to the logits is not listed has no certificate."""
    with open_files(models / "t5") as files:
        assert opened(models / "t5", files).final is None
