"""`tieconv analyze` as a user meets it, also with --against, --second and --html."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.analysis.lm import build, write_text
from tests.cli.run import ok, refused, run
from tests.cli.stored import edit, editing, logits
from tests.lazy import load_file, save_file, torch
from tests.reporters.test_analyze_html import harmless
from tests.schemas import validate
from tieconv.install import install_command

ROOT = Path(__file__).parents[2]
FIXTURES = sorted(path.name for path in (ROOT / "fixtures" / "models").iterdir())


def document(*more: str | Path) -> dict[str, Any]:
    """The document, held to its schema."""
    report: dict[str, Any] = json.loads(ok("analyze --json", *more).stdout)
    validate(report, "analyze")
    return report


@pytest.mark.parametrize("name", FIXTURES)
def test_json_follows_its_schema(models: Path, name: str) -> None:
    """One JSON document, nothing on stderr, and the four sections in their order."""
    report = document(models / name)
    alike = ["Similarity"] if report["relation"] == "independent" else []
    assert [section["title"] for section in report["sections"]] == ["Relation", "Re-tying", "Rows", "Bias", *alike]
    assert ok("analyze --json", models / name).stderr == ""


@pytest.mark.parametrize("name", FIXTURES)
def test_text_is_plain(models: Path, name: str) -> None:
    """The text has a sentence for each section and no control character. The headline answers for re-tying."""
    text = ok("analyze", models / name).stdout
    assert text.replace("\n", "").isprintable()
    for title in ("Relation", "Rows", "Bias"):
        assert f"\n{title}\n  " in text


def test_another_spelling_of_exact(models: Path) -> None:
    """`--neighbours` chooses as `--exact` and `--sampled` do."""
    model = models / "llama-untied"
    for word, flag in (("exact", "--exact"), ("sampled", "--sampled")):
        assert ok(f"analyze --json --neighbours {word}", model).stdout == ok(f"analyze --json {flag}", model).stdout


@pytest.mark.parametrize(
    ("name", "relation", "verdict"),
    [
        ("llama-tied", "alias", "The model is tied"),
        ("llama-duplicated", "bit-equal", "Yes, nothing is lost. Run: tieconv retie"),
        ("llama-untied", "independent", "No: the tables are independent"),
        ("llama-diverged", "k-rows-differ", "The weights alone do not decide."),
    ],
)
def test_the_verdict_follows_the_relation(models: Path, name: str, relation: str, verdict: str) -> None:
    """Tied, equal, independent and nearly equal tables get the answer that fits."""
    report = document(models / name)
    assert report["relation"] == relation
    assert report["verdict"].startswith(verdict)


def test_one_storage_under_two_names_is_an_alias(model: Callable[[str], Path]) -> None:
    """A torch file whose head is a view of the embedding: one table, nothing to re-tie; a copy of it: two."""
    folder = model("llama-duplicated")
    values = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(values | {"lm_head.weight": values["model.embed_tokens.weight"]}, folder / "pytorch_model.bin")
    assert document(folder)["relation"] == "alias"
    torch.save(values, folder / "pytorch_model.bin")
    assert document(folder)["relation"] == "bit-equal"


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2"])
def test_a_folded_norm_can_be_unfolded(tmp_path: Path, model_type: str) -> None:
    """U = E·diag(g): with the norm's values of `detail.fold` and the embedding as head the logits are the same."""
    more = {"final_logit_softcapping": 8.0} if model_type == "gemma2" else {}
    build(tmp_path, model_type, tied=False, **more)
    gains = torch.exp(0.4 * torch.randn(32, generator=torch.manual_seed(5)))
    names = {"gpt2": ("transformer.wte.weight",)}.get(model_type, ("model.embed_tokens.weight",))
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values[names[0]] * gains
    before = logits(tmp_path)
    report = document(tmp_path)
    assert report["relation"] == "diagonal"
    assert report["verdict"].startswith("Yes, to within rounding, after you edit the model.")
    folded = report["sections"][1]["detail"]["fold"]
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values[names[0]].clone()
        values[folded["tensor"]] = torch.tensor(folded["values"], dtype=torch.float32)
        if "bias_tensor" in folded:
            values[folded["bias_tensor"]] = torch.tensor(folded["bias_values"], dtype=torch.float32)
    assert float((logits(tmp_path) - before).abs().max()) <= 2e-5 * float(before.abs().max())
    assert document(tmp_path)["relation"] == "bit-equal"


def test_tables_of_different_lengths_are_not_tied(tmp_path: Path) -> None:
    """Differing rows, a factor or nothing at all: with more rows on one side the answer is the shape."""
    build(tmp_path, tied=False)
    rng = torch.manual_seed(0)
    for change, relation in (
        (lambda table: table[:-8].clone(), "row-subset"),
        (lambda table: table[:-8] * 2, "scalar"),
        (lambda table: torch.cat([table[:-20], torch.randn(12, 32, generator=rng)]), "k-rows-differ"),
    ):
        with editing(tmp_path) as values:
            values["lm_head.weight"] = change(values["model.embed_tokens.weight"])
        report = document(tmp_path)
        assert report["relation"] == relation
        assert "one shape" in report["verdict"]


def test_a_tied_head_with_the_first_rows_of_the_embedding_is_dropped(tmp_path: Path) -> None:
    """The command of the verdict works, and no value is lost."""
    build(tmp_path / "m", tied=True)
    with editing(tmp_path / "m") as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"][:-8].clone()
    verdict = document(tmp_path / "m")["verdict"]
    assert verdict.startswith("Yes, nothing is lost. The embedding stores all rows of the head.")
    assert "--from embed --force -o OUT" in verdict
    ok("retie --from embed --force", tmp_path / "m", "-o", tmp_path / "out")


def test_nan_and_infinity_are_told(model: Callable[[str], Path]) -> None:
    """Rows that are not finite are counted, nothing is certified, and nothing is warned of."""
    folder = model("llama-diverged")
    with editing(folder) as values:
        values["lm_head.weight"][5, 3], values["lm_head.weight"][7, 1] = torch.nan, torch.inf
    result = ok("analyze --json", folder)
    assert result.stderr == ""
    measures = {m["name"]: m for section in json.loads(result.stdout)["sections"] for m in section["measures"]}
    assert measures["rows with NaN or infinity"]["value"] == 2
    assert measures["KL bound, embed survives"]["value"] is None
    assert "2 rows of lm_head.weight hold NaN or infinity" in ok("analyze", folder).stdout


def test_a_text_adds_what_was_measured(tmp_path: Path) -> None:
    """With --text the sections carry measured figures, and the gradients have one of their own."""
    build(tmp_path / "model", tied=True)
    report = document(tmp_path / "model", "--text", write_text(tmp_path / "text.txt"))
    assert [section["title"] for section in report["sections"]][-1] == "Gradients"
    names = [measure["name"] for section in report["sections"] for measure in section["measures"]]
    assert "R², implicit bias U·mean(h) from log p" in names and "share of the output end" in names


def test_without_text_no_framework_is_loaded(models: Path) -> None:
    """The weights-only analysis imports numpy and no torch."""
    code = (
        "import sys\nfrom tieconv.cli import main\n"
        f"try: main(['analyze', {str(models / 'llama-untied')!r}])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_without_torch_a_text_is_refused_with_the_way_out(models: Path, tmp_path: Path) -> None:
    """Where torch is missing the error says what to install."""
    (tmp_path / "text.txt").write_text("w1 " * 2000)
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom tieconv.cli import main\n"
        f"main(['analyze', {str(models / 'llama-untied')!r}, '--text', {str(tmp_path / 'text.txt')!r}])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert install_command("torch") in result.stderr and "Traceback" not in result.stderr


def test_what_cannot_be_analysed_is_refused(model: Callable[[str], Path], tmp_path: Path) -> None:
    """Codes of a quantised table, a model of which no embedding is known, a text that is not there."""
    folder = model("llama-untied")
    edit(folder, lambda values: values.update({"lm_head.weight": values["lm_head.weight"].to(torch.int8)}))
    assert "I8" in refused("analyze", folder)
    assert "cannot be read" in refused("analyze", folder.parent / "llama-untied", "--text", tmp_path / "none.txt")
    headless = model("llama-tied")
    edit(headless, lambda values: values.pop("model.embed_tokens.weight"))
    assert run("analyze", headless).exit_code == 2


def test_named_tensors_are_analysed(model: Callable[[str], Path]) -> None:
    """--embed and --head name the pair of a class that nobody knows."""
    folder = model("llama-untied")
    edit(folder, lambda values: values.update({"x": values["lm_head.weight"].clone()}))
    report = document(folder, "--embed", "x", "--head", "lm_head.weight")
    assert report["relation"] == "bit-equal"


def test_a_verb_of_the_package(models: Path) -> None:
    """`tieconv.analyze` returns the record that prints as the document."""
    analysis = tieconv.analyze(models / "llama-duplicated")
    assert json.loads(str(analysis)) == document(models / "llama-duplicated")


def test_a_directory_is_no_text(models: Path, tmp_path: Path) -> None:
    """Named by its path, whatever the system says of it."""
    message = refused(f"analyze --text {tmp_path}", models / FIXTURES[0])
    assert f"{tmp_path} cannot be read: is a directory" in message


@pytest.mark.parametrize("budget", ["nan", "inf"])
def test_a_budget_is_a_number(models: Path, tmp_path: Path, budget: str) -> None:
    """No budget at all is --force; a NaN compares as nothing, so neither is taken."""
    result = run("retie --from embed --max-kl", budget, models / "llama-diverged", "-o", tmp_path / "out")
    assert result.exit_code == 2 and "--max-kl needs a finite number of nats" in result.stderr
    with pytest.raises(ValueError, match="number of nats"):
        tieconv.plan_retie(models / "llama-diverged", survivor="embed", max_kl=float(budget))


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


def test_refusals_of_references(trio: tuple[Path, Path, Path]) -> None:
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


def test_a_page_with_maps(trio: tuple[Path, Path, Path], tmp_path: Path) -> None:
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
