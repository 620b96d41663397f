"""The face of the program: `tieconv` hands on what its modules define, when it is asked for."""

import ast
import importlib
import inspect
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieconv
import tieconv.cli
from fixtures.cases import CASES
from tests.cli.run import ok
from tieconv import api


def typed(face: Path) -> dict[str, str]:
    """The names that type checkers see in a face, and the module of each."""
    nodes = [node for node in ast.walk(ast.parse(face.read_text())) if isinstance(node, ast.ImportFrom)]
    return {name.name: node.module for node in nodes if node.module and node.level == 0 for name in node.names}


def test_the_face_shows_what_it_hands_on() -> None:
    """A type checker and an interpreter find the same thing under each name, and nothing is left out."""
    seen = typed(Path(tieconv.__file__))
    shown = set(seen) - {"TYPE_CHECKING", "import_module", "VERSION", "annotations"}
    assert shown == set(tieconv.__all__) - {"__version__"}
    for name in shown:
        assert getattr(tieconv, name) is getattr(importlib.import_module(seen[name]), name)


def test_no_name_is_a_module_too() -> None:
    """Importing a module sets an attribute of its package, which would hide a function of the same name."""
    beside = Path(tieconv.__file__).parent
    modules = {path.stem for path in beside.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not set(typed(Path(tieconv.__file__))) & modules


def test_a_name_that_is_none() -> None:
    """An unknown name is an `AttributeError`, so `hasattr` and `from` work."""
    assert not hasattr(api, "plan_nothing") and not hasattr(tieconv, "plan_nothing")


def test_a_subject_is_loaded_alone(models: Path) -> None:
    """`inspect` loads neither a planner nor the gate nor the Hub."""
    code = f"import sys, tieconv; tieconv.inspect({str(models / 'llama-tied')!r}); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("tieconv.api.")] == ["tieconv.api.evidence"]
    assert not {"tieconv.plans", "tieconv.planned", "tieconv.gate", "tieconv.execute"} & set(loaded)


def test_help_starts_with_what_one_needs() -> None:
    """`help(tieconv)` names the first functions before the packages."""
    first = pydoc.plain(pydoc.render_doc(tieconv)).partition("PACKAGE CONTENTS")[0]
    assert [name for name in tieconv.__all__ if f"    {name}(" in first] == [
        "check", "diff", "inspect", "plan_retie", "plan_untie",
    ]  # fmt: skip


def test_the_first_line_of_the_command_is_an_attribute(tmp_path: Path) -> None:
    """`headline` says what is loaded, where `config.verdict` is what the config says."""
    inspection = tieconv.inspect(CASES["C01"].build(tmp_path / "model"))
    assert inspection.headline == ok("inspect", tmp_path / "model").stdout.partition("\n")[0]
    assert inspection.headline.startswith("Untied in transformers 5: ") and inspection.config.verdict == "tied"


def test_a_message_is_explained() -> None:
    """By the message, or by the words of a symptom; an unknown one has no case."""
    assert [*tieconv.explain("KeyError: 'lm_head.weight'")] == ["C04", "C61"]
    assert tieconv.explain("NaN logits")["C53"]["rules"] == ["NUM001 (nan-in-tie)"]
    assert tieconv.explain("CUDA out of memory") == {}


def test_what_costs_or_destroys_is_asked_for() -> None:
    """No function downloads, replaces files, changes outputs or starts processes by default."""
    functions = [getattr(tieconv, name) for name in tieconv.__all__]
    defaults = {
        (function.__name__, name): parameter.default
        for function in filter(inspect.isfunction, functions)
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, int)
    }
    assert {name for _, name in defaults} >= {"fetch", "force", "drop_other_formats", "overwrite", "fold_norm"}
    assert {key: default for key, default in defaults.items() if default} == {
        ("check", "jobs"): 1, ("plan_export", "parity"): True, ("plan_push", "pull_request"): True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "safe", "left"),
    [(["", "a"], False, ["a"]), ([os.getcwd(), "a"], False, ["a"]), (["a", ""], False, ["a", ""]),
     (["", "a"], True, ["", "a"]), ([], False, [])],
)  # fmt: skip
def test_the_current_directory_is_no_package(
    path: list[str], safe: bool, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint may have a json.py, which `python -m tieconv` must not run."""
    code = compile(Path(tieconv.__file__).with_name("__main__.py").read_text(), "__main__.py", "exec")
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=safe))
    ran: list[str] = []
    before = [*path]
    monkeypatch.setattr("tieconv.cli.main", lambda prog_name: ran.append(prog_name))
    exec(code, {"__name__": "imported"})
    assert (sys.path, ran) == (before, [])
    exec(code, {"__name__": "__main__"})
    assert (sys.path, ran) == (left, ["tieconv"])


def test_several_loaders_and_values_of_another_type(models: Path) -> None:
    """`consumers` is a string or a list, as in the settings; a wrong value is named, and 0 is not a size."""
    listed = tieconv.inspect(models / "t5", consumers=["vllm", "transformers==5.x"])
    assert listed == tieconv.inspect(models / "t5", consumers="vllm,transformers==5.x") and listed.consumers
    assert not tieconv.inspect(models / "t5", consumers=[]).consumers
    assert tieconv.check(models / "t5", consumers=["vllm"]) == tieconv.check(models / "t5", consumers="vllm")
    calls: dict[str, Callable[[], object]] = {
        "consumers is a string or a list of strings, and holds 5": lambda: tieconv.inspect(
            models / "t5", consumers=[5]
        ),  # type: ignore[list-item]
        "consumers is a .* holds None": lambda: tieconv.check(models / "t5", consumers=["vllm", None]),  # type: ignore[list-item]
        "select is a .* holds 5": lambda: tieconv.check(models / "t5", select=5),  # type: ignore[arg-type]
    }
    for sentence, call in calls.items():
        with pytest.raises(TypeError, match=sentence):
            call()
    for size, sentence in ((0, "the size 0 is too small"), ("0", "too small"), (-1, "-1 is not a size")):
        with pytest.raises(ValueError, match=sentence):
            tieconv.plan_convert("torch", models / "t5", max_shard_size=size)
    tieconv.plan_convert("torch", models / "t5", max_shard_size=1000)


def test_a_model_that_is_no_path_is_a_type_error(models: Path) -> None:
    """As Python's own functions on paths. It was an `UnreadableError` about a file named None."""
    calls: tuple[Callable[[Any], object], ...] = (
        tieconv.inspect, tieconv.analyze, tieconv.plan_export, tieconv.plan_push,
        lambda value: tieconv.diff(models / "t5", value), lambda value: tieconv.check([value]),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError):
            call(None)


def test_a_wrong_choice_lists_the_right_ones(models: Path) -> None:
    """Of every argument that takes one of a few words."""
    calls: dict[str, Callable[[], object]] = {
        "depth 'ful' is not one of header, candidates, full": lambda: tieconv.inspect(models / "t5", depth="ful"),
        "survivor 'foo' is not one of embed, head, mean": lambda: tieconv.plan_retie(models / "t5", survivor="foo"),
        "bias 'zer' is not one of keep, zero, strip": lambda: tieconv.plan_untie(models / "t5", bias="zer"),
        "format 'tied' is not one of safetensors, torch": lambda: tieconv.plan_convert("tied", models / "t5"),
        "flag 'yes' is not one of true, false, auto": lambda: tieconv.plan_set_tie("yes", models / "t5"),
        "fill 'ones' is not one of zeros, mean": lambda: tieconv.plan_resize(models / "t5", to="rows", fill="ones"),
        "neighbours 'some' is not one of auto, exact, sampled": lambda: tieconv.analyze(
            models / "t5", neighbours="some"
        ),  # type: ignore[arg-type]
        "action 'drop' is not one of zero, strip, unify, resize": lambda: tieconv.plan_bias("drop", models / "t5"),
        "level 'warn' is not one of error, warning, note": lambda: tieconv.check(models / "t5", fail_on="warn"),
    }
    for sentence, call in calls.items():
        with pytest.raises(ValueError, match=f"^{sentence}"):
            call()
