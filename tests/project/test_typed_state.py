"""What a value holds has a type of its own, and the data beside a module is read in one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import product
from tieconv.package_data import data_text

ROOT = Path(__file__).parents[2]
UNTYPED = re.compile(r"\bAny\b|\b(?:Mutable)?(?:Mapping|[dD]ict)\[str, object\]")
"""Annotations that say nothing of what is inside."""
MODULE = "an object of a library that is not imported where the type is read"
JSON = "a JSON document of the model, whose keys its author chose"
LINE = "a function that makes or reads a JSON line, whose schema says what is inside"
ALLOWED = {
    ("tieconv/inspection/token_ids.py", "TokenizerFiles", "documents"): JSON,
    ("tieconv/checkpoint/model_files.py", "Document", "value"): JSON,
    ("tieconv/checkpoint/results/analysis.py", "Section", "detail"): "JSON that no code reads; the docs list its keys",
    ("tieconv/demo/train.py", "Trained", "model"): MODULE,
    ("tieconv/gate/fleet_runs.py", "LineFormat", "entry"): LINE,
    ("tieconv/gate/fleet_runs.py", "LineFormat", "parse"): LINE,
    (
        "tieconv/gate/settings.py",
        "_Table",
        "values",
    ): "a table of a TOML file, whose keys are read and checked one by one",
    ("tieconv/loaders/mlx_lm.py", "TextModel", "config"): JSON,
    ("tieconv/loaders/mlx_lm.py", "TextModel", "whole"): JSON,
    ("tieconv/onnx/export/layouts.py", "Model", "values"): JSON,
    ("tieconv/onnx/export/layouts.py", "Model", "config"): MODULE,
    ("tieconv/onnx/export/layouts.py", "Model", "generation"): JSON,
    ("tieconv/onnx/parity/graph_file.py", "Initializer", "tensor"): MODULE,
    ("tieconv/onnx/parity/graph_file.py", "Graph", "model"): MODULE,
    ("tieconv/onnx/parity/measured_pair.py", "Subject", "config"): MODULE,
    ("tieconv/onnx/parity/passes.py", "Work", "config"): MODULE,
    ("tieconv/onnx/parity/lookups.py", "FirstNodes", "model"): MODULE,
    ("tieconv/onnx/parity/weight_identity.py", "Fold", "apply"): MODULE,
    ("tieconv/onnx/parity/weight_identity.py", "Weight", "bits"): MODULE,
    ("tieconv/onnx/parity/weight_identity.py", "View", "lines"): MODULE,
    ("tieconv/onnx/parity/weight_identity.py", "_Shelf", "hashes"): MODULE,
    ("tieconv/onnx/parity/weight_identity.py", "_Shelf", "_sorted"): MODULE,
    ("tieconv/onnx/ort_session.py", "Session", "inner"): MODULE,
    ("tieconv/onnx/ort_session.py", "Session", "ort"): MODULE,
    ("tieconv/onnx/ort_session.py", "Choice", "providers"): "what ONNX Runtime takes: names, or pairs with options",
    ("tieconv/plans/verbs/reindex.py", "_Carried", "value"): JSON,
    ("tieconv/plans/verbs/reindex.py", "_Carried", "metadata"): JSON,
    ("tieconv/reference/model.py", "Batch", "ids"): MODULE,
    ("tieconv/reference/model.py", "Batch", "mask"): MODULE,
    ("tieconv/reference/model.py", "Batch", "decoder_ids"): MODULE,
    ("tieconv/reference/model.py", "Batch", "types"): MODULE,
    ("tieconv/reference/model.py", "Batch", "decoder_mask"): MODULE,
    ("tieconv/reference/model.py", "Batch", "given_positions"): MODULE,
    ("tieconv/reference/model.py", "Batch", "embeds"): MODULE,
    ("tieconv/reference/model.py", "Features", "values"): MODULE,
    ("tieconv/reference/model.py", "Batch", "blocks"): MODULE,
    ("tieconv/reference/model.py", "Reference", "model"): MODULE,
    ("tieconv/reference/windows.py", "Apart", "embed"): MODULE,
    ("tieconv/reference/windows.py", "Apart", "head"): MODULE,
    ("tieconv/reference/windows.py", "Apart", "windows"): MODULE,
    ("tieconv/reference/windows.py", "Apart", "counts"): MODULE,
    ("tieconv/reference/windows.py", "Fed", "places"): MODULE,
    ("tieconv/reference/windows.py", "Fed", "targets"): MODULE,
}
"""Fields whose value has no type that could be said, and why."""


def untyped_fields(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each class of a module with a field whose annotation is `UNTYPED`, and that field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and UNTYPED.search(ast.unparse(field.annotation)):
                    yield node.name, ast.unparse(field.target)


def _all() -> Iterator[tuple[str, str, str]]:
    for path, tree in product.trees().items():
        module = path.relative_to(ROOT).as_posix()
        fields = untyped_fields(tree)
        yield from ((module, owner, name) for owner, name in fields)


@pytest.mark.parametrize(
    "annotation",
    [
        "Any",
        "dict[str, Any]",
        "Mapping[str, object]",
        "dict[str, object] | None",
        "list[Any]",
        "'Mapping[str, object]'",
    ],
)
def test_an_untyped_field_is_seen(annotation: str) -> None:
    """However deep in the annotation it stands."""
    assert list(untyped_fields(ast.parse(f"class A:\n    detail: {annotation}\n"))) == [("A", "detail")]


def test_a_typed_field_is_passed() -> None:
    """An object is one value; a mapping of numbers says what it holds."""
    assert not list(untyped_fields(ast.parse("class A:\n    before: object\n    counts: Mapping[str, int]\n")))


def test_no_field_is_a_dictionary_of_anything() -> None:
    """A state is a record with the fields that it has."""
    assert set(_all()) - set(ALLOWED) == set()


def test_every_exception_exists() -> None:
    """`ALLOWED` lists nothing that is gone."""
    assert set(ALLOWED) - set(_all()) == set()


REPOSITORY = Path(__file__).parents[2] / "tieconv"
READERS = (
    "architectures.class_table", "architectures.guess", "formats.other_tools", "gate.settings",
    "inspection.config_values", "loaders.release_tables", "reporters.html.__init__", "reporters.html.fleet_page",
    "reporters.html.parity_page",
)  # fmt: skip


def test_one_function_reads_it() -> None:
    """No other module asks an import loader for a file; these name theirs."""
    sources = {
        path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8") for path in REPOSITORY.rglob("*.py")
    }
    assert [name for name, text in sources.items() if ".get_data(" in text] == ["package_data.py"]
    users = [name for name, text in sources.items() if "data_text(__name__" in text]
    assert sorted(users) == [f"{reader.replace('.', '/')}.py" for reader in READERS]


def test_it_is_the_file_beside_the_module() -> None:
    """The text is that of the file on disk."""
    import tieconv.formats.other_tools as module

    expected = (REPOSITORY / "formats" / "data" / "other_tools.json").read_text(encoding="utf-8")
    assert data_text(module.__name__, "other_tools.json") == expected


def test_it_is_read_from_a_zip(tmp_path: Path) -> None:
    """A package that was never unpacked knows a class and a loader."""
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in REPOSITORY.rglob("*"):
            if path.suffix in (".py", ".json", ".css"):
                archive.write(path, path.relative_to(REPOSITORY.parent))
    program = (
        "from tieconv.architectures import find, guess; from tieconv.formats import other_tools\n"
        "from tieconv.loaders import release_tables; import tieconv\n"
        "print(find({'architectures': ['LlamaForCausalLM']}).input_embedding)\n"
        "print(release_tables.kind('vllm-0.28', 'GPT2LMHeadModel'), bool(guess.pairs()), tieconv.__file__)\n"
        "print(other_tools.by_name('model.h5') is not None)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(packed)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    first, second, third = run.stdout.splitlines()
    assert (first, third) == ("model.embed_tokens.weight", "True")
    assert second.startswith("ties True ") and "packed.zip" in second
