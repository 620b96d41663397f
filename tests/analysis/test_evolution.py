"""The figures of revisions: their values, their floors, and which revisions a list names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tieconv import RefusedError, SettingsError, UnreadableError, analyze_revisions
from tieconv.analysis.evolution import revisions, row_change
from tieconv.analysis.tables import Table, open_table
from tieconv.checkpoint.results.analysis import Evolution
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.sources.local import FileSet

ROWS, WIDTH = 400, 16


def checkpoint(folder: Path, embed: np.ndarray, head: np.ndarray | None = None) -> None:
    folder.mkdir(parents=True)
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": np.ones(embed.shape[1], "f4")}
    if head is not None:
        tensors["lm_head.weight"] = head
    save_file({name: tensor.astype("f4") for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": head is None}
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(embed)}))


def noise(seed: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH))


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Three revisions: E turns slowly, U fast and gets longer."""
    for number, turn in enumerate((0.0, 0.3, 0.6)):
        head = np.cos(2 * turn) * noise(2) + np.sin(2 * turn) * noise(3)
        checkpoint(
            tmp_path / f"step{number * 1000}", np.cos(turn) * noise(0) + np.sin(turn) * noise(1), (1 + number) * head
        )
    return tmp_path


def values(evolution: Evolution, number: int) -> dict[str, float | None]:
    return {measure.name: measure.value for measure in evolution.revisions[number].measures}


def test_cosines_are_those_of_numpy(steps: Path) -> None:
    """Mean cosine with the first and the previous revision, standard error, floor and mean norm, all recomputed."""
    evolution = analyze_revisions(steps, "step0,step1000,step2000")
    stored = {}
    for number in range(3):
        from safetensors.numpy import load_file

        stored[number] = load_file(steps / f"step{number * 1000}" / "model.safetensors")
    for role, name in (("E", "model.embed_tokens.weight"), ("U", "lm_head.weight")):
        last, first, before = (stored[number][name].astype("f8") for number in (2, 0, 1))
        for since, earlier in (("first", first), ("previous", before)):
            units = [table / np.linalg.norm(table, axis=1, keepdims=True) for table in (last, earlier)]
            every = units[0] @ units[1].T
            own = np.diag(every)
            measure = evolution.revisions[2].measure(f"cosine {role} to {since}")
            assert measure is not None and measure.value == pytest.approx(own.mean(), abs=1e-6)
            others = (every.sum() - own.sum()) / (ROWS * (ROWS - 1))
            assert measure.floor == pytest.approx(others, abs=1e-6)
            error = evolution.revisions[2].errors[f"cosine {role} to {since}"]
            assert error == pytest.approx(own.std() / np.sqrt(ROWS), rel=1e-4)
        norm = evolution.revisions[2].measure(f"mean norm {role}")
        assert norm is not None and norm.value == pytest.approx(np.linalg.norm(last, axis=1).mean(), rel=1e-6)
    assert "The head moved further." in evolution.headline.answer


def test_agreement_is_that_of_analyze(steps: Path) -> None:
    """The measures of E and U are those of `analyze --similarity`."""
    from tieconv import analyze

    evolution = analyze_revisions(steps, ["step0", "step2000"])
    alone = analyze(steps / "step2000", similarity=True).section("Similarity")
    assert alone is not None and len(alone.measures) == 7
    for measure in alone.measures:
        assert evolution.revisions[1].measure(measure.name) == measure


def test_rows_without_a_token_do_not_count(steps: Path) -> None:
    """The tokenizer of the first revision says which rows have a token."""
    vocabulary = {f"w{row}": row for row in range(ROWS - 100)}
    (steps / "step0" / "vocab.json").write_text(json.dumps(vocabulary))
    evolution = analyze_revisions(steps, "step0 step1000")
    assert {measure.n for measure in evolution.revisions[1].measures} >= {ROWS - 100}
    assert ROWS not in {measure.n for measure in evolution.revisions[1].measures}


def test_a_tied_run_beside_an_untied_model(steps: Path) -> None:
    """A tied table has figures of T, and with --against its agreement with both tables of the untied model."""
    checkpoint(steps / "tied" / "step1", noise(2))
    checkpoint(steps / "tied" / "step2", np.cos(0.2) * noise(2) + np.sin(0.2) * noise(5))
    evolution = analyze_revisions(steps / "tied", "step1,step2", against=steps / "step0")
    last = values(evolution, 1)
    assert last["cosine T to first"] == pytest.approx(np.cos(0.2), abs=0.02)
    assert last["rsa U→T"] > 0.9 > 0.1 > abs(last["rsa E→T"])  # type: ignore[operator, arg-type]
    assert not any(name.endswith("E→U") for name in last)


def test_a_resized_table_has_no_cosine(steps: Path) -> None:
    """Tables of two shapes are not compared, and the figure says why."""
    checkpoint(steps / "step3000", noise(0, 500), noise(2, 500))
    evolution = analyze_revisions(steps, "step0,step3000")
    measure = evolution.revisions[1].measure("cosine E to first")
    assert measure is not None and measure.value is None and "no such table of this shape" in measure.says
    assert values(evolution, 1)["procrustes E→U"] is not None


def table(rows: np.ndarray, folder: Path, name: str) -> Table:
    save_file({"t": rows.astype("f4")}, folder / name)
    record = TensorRecord("t", "F32", rows.shape, ByteRange(name, (folder / name).stat().st_size - rows.size * 4, 0))
    start = record.range.start
    return open_table(
        FileSet(folder), TensorRecord("t", "F32", rows.shape, ByteRange(name, start, start + rows.size * 4))
    )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_rows_without_a_direction_do_not_count(tmp_path: Path, scale: float) -> None:
    """Zeros, NaN and infinity are left out; very short and long rows count."""
    first, second = noise(0, 20) * scale, noise(0, 20) / scale
    first[3], first[4], second[5] = 0, np.nan, np.inf
    change = row_change(table(first, tmp_path, "a"), table(second, tmp_path, "b"), None)
    assert change is not None
    cosine, floor, _, rows = change
    assert rows == 17 and cosine == pytest.approx(1, abs=1e-6) and abs(floor) < 0.2


def test_a_killed_run_continues(steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends after the first revision, and in the middle of a line, is continued and has the same figures."""
    whole = analyze_revisions(steps, "step0,step1000,step2000")
    resume = tmp_path / "run.jsonl"
    analyze_revisions(steps, "step0,step1000", resume=resume)
    first, second = resume.read_text().splitlines(keepends=True)
    resume.write_text(first + second[:50])
    again = analyze_revisions(steps, "step0,step1000,step2000", resume=resume)
    assert [revision.reused for revision in again.revisions] == [True, False, False]
    assert [revision.measures for revision in again.revisions] == [revision.measures for revision in whole.revisions]
    assert len(resume.read_text().splitlines()) == 3
    assert all(revision.reused for revision in analyze_revisions(steps, "step0,step1000", resume=resume).revisions)


def test_a_changed_revision_is_measured_again(steps: Path, tmp_path: Path) -> None:
    """So are the revisions that are compared with it; other options measure everything again."""
    resume, names = tmp_path / "run.jsonl", "step0,step1000,step2000"
    analyze_revisions(steps, names, resume=resume)
    weights = steps / "step1000" / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    reused = [revision.reused for revision in analyze_revisions(steps, names, resume=resume).revisions]
    assert reused == [True, False, False]
    every = analyze_revisions(steps, names, resume=resume, exact=False).revisions
    assert not any(revision.reused for revision in every)


def test_a_file_of_something_else_is_refused(steps: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\nsecond line\n")
    with pytest.raises(SettingsError, match="line 1 cannot be read"):
        analyze_revisions(steps, "step0,step1000", resume=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "my notes\nsecond line\n"


@pytest.mark.parametrize(
    ("model", "listed", "sources", "steps"),
    [
        ("run", "b/step20, a/step3", ("run/a/step3", "run/b/step20"), (3, 20)),
        ("run", "checkpoint-10\ncheckpoint-9", ("run/checkpoint-9", "run/checkpoint-10"), (9, 10)),
        ("run", "main,best", ("run/main", "run/best"), (None, None)),
        ("run", "main,step5", ("run/main", "run/step5"), (None, None)),
        ("run", "/x/step2,hf://o/n@step1", ("hf://o/n@step1", "/x/step2"), (1, 2)),
        ("hf://o/n", "step30-t20B,step0-t0B", ("hf://o/n@step0-t0B", "hf://o/n@step30-t20B"), (0, 30)),
        ("hf://o/n", "a/b,c", ("hf://o/n@a%2Fb", "hf://o/n@c"), (None, None)),
        ("s3://b/run/", "step2,step1", ("s3://b/run/step1", "s3://b/run/step2"), (1, 2)),
        ("run", "7B-step2,7B-step1", ("run/7B-step1", "run/7B-step2"), (1, 2)),
    ],
)  # fmt: skip
def test_lists_of_revisions(model: str, listed: str, sources: tuple[str, ...], steps: tuple[int | None, ...]) -> None:
    """Names are revisions, directories or models, and are sorted by their steps if each has one."""
    found = revisions(model, listed)
    assert tuple(revision.source for revision in found) == sources
    assert tuple(revision.step for revision in found) == steps


@pytest.mark.parametrize(
    ("model", "listed", "says"),
    [
        ("run", "step1", "two names or more"),
        ("run", "", "two names or more"),
        ("run", "a,b,a", "twice"),
        ("hf://o/n@main", "a,b", "already names the revision"),
    ],
)
def test_lists_that_are_refused(model: str, listed: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        revisions(model, listed)


def test_a_revision_that_cannot_be_read(steps: Path) -> None:
    with pytest.raises(UnreadableError, match="step7"):
        analyze_revisions(steps, "step0,step7")
