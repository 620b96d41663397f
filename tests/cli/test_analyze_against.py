"""`tieconv analyze` with --against, --second and --html."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.run import ok, refused
from tests.reporters.test_analyze_html import harmless


@pytest.fixture
def trio(models: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A tied model, and two untied ones whose head is nearly its table and whose input table is not."""
    tied = tmp_path / "tied"
    shutil.copytree(models / "llama-tied", tied)
    table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"].float()
    made = []
    for seed in (1, 2):
        folder = tmp_path / f"untied{seed}"
        shutil.copytree(models / "llama-untied", folder)
        stored = load_file(folder / "model.safetensors")
        embedding, output = noise_like(table, seed), noise_like(table, seed + 10)
        stored["model.embed_tokens.weight"] = noise_like(table, 0) + 0.1 * embedding
        stored["lm_head.weight"] = table + 0.1 * output
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        made.append(folder)
    return tied, made[0], made[1]


def noise_like(table: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(table.shape, generator=torch.Generator().manual_seed(seed)) * table.std()


def sections(*words: object) -> dict[str, dict[str, object]]:
    document = json.loads(ok("analyze --json", *map(str, words)).stdout)
    return {section["title"]: section for section in document["sections"]}


def test_against(trio: tuple[Path, Path, Path]) -> None:
    """One more section: output-shaped, with floors; --second fills the ceilings in."""
    tied, untied, second = trio
    alone = sections(tied, "--against", untied)["Alignment"]
    assert alone["detail"]["shape"] == "output"  # type: ignore[index]
    both = sections(tied, "--against", untied, "--second", second)["Alignment"]
    for before, after in zip(alone["measures"], both["measures"][:1], strict=False):  # type: ignore[call-overload,index]
        assert before["ceiling"] is None and after["value"] == before["value"]
    measures = {entry["name"]: entry for entry in both["measures"]}  # type: ignore[attr-defined]
    assert measures["knn U→T"]["ceiling"] == measures["knn U→U'"]["value"] > 0.5
    assert "output-shaped" in ok("analyze", tied, "--against", untied).stdout


def test_refusals(trio: tuple[Path, Path, Path]) -> None:
    """--second alone, a tied reference, an untied subject, a reference that is not there."""
    tied, untied, second = trio
    assert "--against" in refused("analyze", tied, "--second", second)
    assert "stores one table, but a reference must be untied" in refused(
        "analyze", untied.parent / "tied", "--against", tied
    )
    assert "two tables" in refused("analyze", untied, "--against", second)
    assert refused("analyze", tied, "--against", tied / "none")


def test_a_reference_that_was_only_untied_has_one_role(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Two equal tables say nothing of roles: refused as a tied one is, also as the second."""
    tied, untied, _ = trio
    ok("untie", tied, "-o", tmp_path / "copy")
    for words in (("--against", tmp_path / "copy"), ("--against", untied, "--second", tmp_path / "copy")):
        assert "has two equal tables" in refused("analyze", tied, *words)


def test_the_second_reference_is_another_model(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The same directory, a copy of it, and one that shares a single table: the ceilings would be those of itself."""
    tied, untied, second = trio
    shutil.copytree(untied, tmp_path / "copy")
    shutil.copytree(second, tmp_path / "half")
    tensors = load_file(untied / "model.safetensors")
    half = load_file(second / "model.safetensors")
    half["lm_head.weight"] = tensors["lm_head.weight"]
    save_file(half, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    for reference in (untied, tmp_path / "copy", tmp_path / "half"):
        assert "another seed" in refused("analyze", tied, "--against", untied, "--second", reference)


def test_text_has_ceilings(trio: tuple[Path, Path, Path]) -> None:
    """The table for people has chance and, with --second, what is possible at all; without, the column is not there."""
    tied, untied, second = trio
    lines = ok("analyze", tied, "--against", untied, "--second", second).stdout.splitlines()
    (head,) = (line for line in lines[lines.index("Alignment") :] if line.split()[:2] == ["figure", "value"])
    assert head.split() == ["figure", "value", "floor", "ceiling", "n", "meaning"]
    measures = {m["name"]: m for m in sections(tied, "--against", untied, "--second", second)["Alignment"]["measures"]}
    (row,) = (line for line in lines if line.strip().startswith("rsa E→T"))
    assert f"{measures['rsa E→T']['ceiling']:.3g}" == row[head.index("ceiling") :].split()[0]
    bare = next(line for line in lines[lines.index("Rows") :] if line.split()[:2] == ["figure", "value"])
    assert "ceiling" not in bare
    letters = ["T:", "tied", "table", "of", f"{tied};", "E:"]
    assert any(line.split()[:6] == letters and "U': " in line for line in lines)


def test_html(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The page is written beside the result, with a map of each table, whose numbers --json has too."""
    page = tmp_path / "report.html"
    titles = sections(trio[1], "--html", page)
    text = page.read_text("utf-8")
    harmless(text)
    assert {"Map: input embedding", "Map: output embedding"} <= set(titles)
    for heading in ("Norm profile", "Where the two tables differ", "Map of tokens"):
        assert heading in text


def test_page_never_replaces_a_file_of_the_model(trio: tuple[Path, Path, Path]) -> None:
    """FILE may not be the model's own, and a directory that is not there is an error."""
    tied = trio[0]
    assert "is a file of the model" in refused("analyze", tied, "--html", tied / "config.json")
    assert "x.html cannot be written: no such file or directory" in refused(
        "analyze", tied, "--html", tied / "none" / "x.html"
    )


def test_tied_model_has_one_map(models: Path, tmp_path: Path) -> None:
    """One table, one map."""
    titles = sections(models / "llama-tied", "--html", tmp_path / "x.html")
    assert [title for title in titles if title.startswith("Map")] == ["Map: input embedding"]
