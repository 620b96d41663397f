"""How alike the two tables of one untied model are, on tables whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.analysis.constructed import Array, embedding, orthogonal
from tests.cli.run import ok
from tieconv import analyze
from tieconv.analysis import alignment as own_tables
from tieconv.analysis import alignment_measures, relation_maps
from tieconv.checkpoint.results.analysis import Measure

MEASURES = ("identity", "procrustes", "least squares", "cka", "knn", "rsa", "norms")
V, D = 900, 24


def untied(folder: Path, head: Array, embed: Array | None = None, words: int | None = None) -> Path:
    """Write an untied Llama of two tables and its last norm, with a vocabulary of ``words`` if it is given."""
    embed = np.random.default_rng(0).standard_normal(head.shape) if embed is None else embed
    tables = {"model.embed_tokens.weight": embed, "lm_head.weight": head, "model.norm.weight": np.ones(head.shape[1])}
    save_file({name: t.astype("f4") for name, t in tables.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    if words is not None:
        (folder / "vocab.json").write_text(json.dumps({f"w{row}": row for row in range(words)}))
    return folder


def measured(model: Path, **options: object) -> dict[str, Measure]:
    section = analyze(model, **options).section("Similarity")  # type: ignore[arg-type]
    return {} if section is None else {measure.name: measure for measure in section.measures}


def test_unrelated_tables_are_at_every_floor(tmp_path: Path) -> None:
    """Each measure is there with its permutation floor, and the sentence claims no likeness."""
    found = measured(untied(tmp_path, np.random.default_rng(1).standard_normal((V, D))))
    assert list(found) == [f"{name} E→U" for name in MEASURES]
    for name, measure in found.items():
        assert measure.value is not None and measure.floor is not None
        assert measure.value == pytest.approx(measure.floor, abs=0.12 if "norms" in name else 0.03), name
    assert found["procrustes E→U"].floor == pytest.approx(8 / (3 * np.pi) * np.sqrt(D / V), rel=0.1)
    section = analyze(tmp_path).section("Similarity")
    assert section is not None and section.sentence.startswith("The two tables agree no more than chance.")


def test_a_rotated_copy_is_recognised(tmp_path: Path) -> None:
    """A rotation with little noise keeps all but the identity cosine, and the sentence names what agrees."""
    rng = np.random.default_rng(2)
    e = embedding(rng, V, D)
    model = untied(tmp_path, (e + 0.02 * e.std() * rng.standard_normal(e.shape)) @ orthogonal(rng, D), e)
    found = measured(model)
    for name in MEASURES[1:]:
        assert found[f"{name} E→U"].value > 0.7 > found[f"{name} E→U"].floor, name  # type: ignore[operator]
    section = analyze(model).section("Similarity")
    assert section is not None
    for words in ("best rotation", "best linear map", "CKA", "nearest tokens", "RSA", "row lengths"):
        assert words in section.sentence


def test_rows_without_a_token_do_not_count(tmp_path: Path) -> None:
    """Padding rows that are equal in both tables do not make them alike."""
    rng = np.random.default_rng(3)
    e, u = rng.standard_normal((2, V, D))
    u[600:] = e[600:] + 0.01 * rng.standard_normal((V - 600, D))
    found = measured(untied(tmp_path, u, e, words=600))
    assert found["norms E→U"].n == 600
    assert found["knn E→U"].value < 0.1  # type: ignore[operator]


def test_when_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for tables that the relation explains, nor for long ones, unless asked for; never for one table."""
    rng = np.random.default_rng(4)
    e, u = rng.standard_normal((2, V, D))
    (tmp_path / "scaled").mkdir()
    scaled, apart = untied(tmp_path / "scaled", 2 * e, e), untied(tmp_path, u, e)
    assert not measured(scaled) and measured(scaled, similarity=True)
    assert measured(apart) and not measured(apart, similarity=False)
    monkeypatch.setattr(own_tables, "WORK", V * D**2 - 1)
    assert not measured(apart) and measured(apart, similarity=True)
    tied = Path(__file__).parents[2] / "fixtures" / "models" / "llama-tied"
    assert not measured(tied, similarity=True)


def printed(model: str, options: str = "") -> dict[str, dict[str, Any]]:
    """The figures of the relation and the similarity, by name."""
    sections = json.loads(ok(f"analyze --json {options}", model).stdout)["sections"]
    named = (section for section in sections if section["title"] in ("Relation", "Similarity"))
    return {measure["name"]: measure for section in named for measure in section["measures"]}


def test_exact_figures_are_those_of_numpy(tmp_path: Path) -> None:
    """--exact measures all tokens, also of a long table; --sampled does not, and says so with an interval."""
    rng = np.random.default_rng(5)
    e = rng.standard_normal((1500, 16)) * np.exp(rng.normal(0, 0.3, (1500, 1)))
    e, u = (part.astype("f4").astype("f8") for part in (e, e + 0.5 * rng.standard_normal(e.shape) + 1))
    model = str(untied(tmp_path, u, e))
    a, b = e - e.mean(0), u - u.mean(0)
    left, _, right = np.linalg.svd(a.T @ b)
    fitted = a @ np.linalg.lstsq(a, b, rcond=None)[0]
    r2 = 1 - np.square(b - fitted).sum() / np.square(b).sum()
    near = [np.argsort(-cosine(part, part[:, None]), axis=1)[:, 1:11] for part in (e, u)]
    expected = {
        "R²": r2,
        "adjusted R²": 1 - (1 - r2) * 1499 / 1483,
        "identity E→U": cosine(a, b).mean(),
        "procrustes E→U": cosine(a @ left @ right, b).mean(),
        "least squares E→U": cosine(fitted, b).mean(),
        "cka E→U": np.square(a.T @ b).sum() / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b),
        "knn E→U": np.mean([len(set(x) & set(y)) / 10 for x, y in zip(*near, strict=True)]),
        "norms E→U": np.corrcoef(np.linalg.norm(e, axis=1), np.linalg.norm(u, axis=1))[0, 1],
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (alignment_measures, relation_maps):
            patch.setattr(module, "EXACT", 1000)
        exact, default = printed(model, "--exact"), printed(model)
    assert {name: exact[name]["value"] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert all(exact[name]["n"] == 1500 and "interval" not in exact[name]["says"] for name in expected)
    assert {name: default[name] for name in expected} == {name: printed(model, "--sampled")[name] for name in expected}
    sampled = {name for name in expected if "95 % interval" in default[name]["says"]}
    assert sampled == set(expected) - {"R²", "norms E→U"}
    assert "Similarity" not in ok("analyze --no-similarity", model).stdout


def cosine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
