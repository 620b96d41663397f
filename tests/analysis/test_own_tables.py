"""How alike the two tables of one untied model are, on tables whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.analysis.constructed import Array, embedding, orthogonal
from tests.cli.run import ok
from tieconv import analyze
from tieconv.analysis import alignment as own_tables
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


def test_the_command_line(tmp_path: Path) -> None:
    """The options reach the analysis: the section, and how many neighbours are searched."""
    model = str(untied(tmp_path, np.random.default_rng(5).standard_normal((1500, 16))))
    counts = {}
    for options in ("", "--neighbours sampled", "--neighbours exact"):
        sections = json.loads(ok(f"analyze --json {options}", model).stdout)["sections"]
        (section,) = (section for section in sections if section["title"] == "Similarity")
        counts[options] = next(m["n"] for m in section["measures"] if m["name"] == "knn E→U")
    assert counts == {"": 1500, "--neighbours sampled": 400, "--neighbours exact": 1500}
    assert "Similarity" not in ok("analyze --no-similarity", model).stdout
