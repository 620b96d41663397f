"""The face of the program: `tieconv` hands on what its modules define, when it is asked for."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import tieconv
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


def test_what_costs_or_destroys_is_asked_for() -> None:
    """No function downloads, replaces files or changes outputs by default."""
    costly = {"fetch", "force", "overwrite", "drop_other_formats", "hardlink", "run_model_code"}
    functions = [getattr(tieconv, name) for name in tieconv.__all__]
    defaults = {
        (function.__name__, name): parameter.default
        for function in filter(inspect.isfunction, functions)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in costly
    }
    assert {name for _, name in defaults} >= {"fetch", "force", "drop_other_formats"}
    assert set(defaults.values()) == {False}
