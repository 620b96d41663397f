"""Hints of exceptions: in Python's terms for a caller of the API, as commands for the command line."""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from pathlib import Path

import click
import pytest

import tieconv
from tests import product
from tests.cli.run import run
from tieconv import python_terms
from tieconv.cli import main
from tieconv.planned import PlannedWrite
from tieconv.python_terms import in_python

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "fixtures" / "models"
COMMANDS = {name: main.get_command(click.Context(main), name) for name in main.list_commands(click.Context(main))}
EVIL = "it's $HOME \x1b"

SPOKEN = {
    "compare the two copies: tieconv inspect m/x --json; or choose the values to keep: tieconv retie 'm x' "
    "--from embed --force (or --from head)": "compare the two copies: tieconv.inspect('m/x'); "
    "or choose the values to keep: tieconv.plan_retie('m x', survivor='embed', force=True) (or survivor='head')",
    "choose: tieconv retie X --from embed|head --force": "choose: tieconv.plan_retie(X, survivor='embed', force=True) "
    "(or survivor='head')",
    "add --drop-other-formats to leave out the other": "add drop_other_formats=True to leave out the other",
    "give another -o, or --overwrite": "give another out, or overwrite=True",
    "see: --fold-norm in place of --from and --max-kl": "see: fold_norm=True in place of survivor and max_kl",
    "keep it: --bias keep": "keep it: bias='keep'",
    "run it on a GPU (--provider cuda), or in fp32": "run it on a GPU (provider='cuda'), or in fp32",
    "add --text FILE": "add text=FILE",
    "give --rows N": "give rows=N",
    "leave the branch out, or add --no-pr": "leave the branch out, or add pull_request=False",
    "convert it: tieconv convert MODEL --to safetensors -o OUT": "convert it: tieconv.plan_convert(path=MODEL, "
    "to='safetensors').execute(OUT)",
    "tieconv set-tie false . -o ../OUT": "tieconv.plan_set_tie('false', '.').execute('../OUT')",
    "tieconv bias unify m --from bias": "tieconv.plan_bias('unify', 'm', survivor='bias')",
    "tieconv dedup m/model.onnx -o OUT": "tieconv.plan_graph_dedup('m/model.onnx').execute(OUT)",
    "run tieconv dedup on what it writes": "run tieconv.plan_dedup on what it writes",
    "tieconv inspect --depth full compares every byte": "tieconv.inspect(depth='full') compares every byte",
    "compare the shards: tieconv diff A/S.safetensors B/S.safetensors": "compare the shards: "
    "tieconv.diff('A/S.safetensors', 'B/S.safetensors')",
    # What Python has no counterpart of stays a command, and other programs' options stay theirs.
    "look below it with: tieconv check --recursive x": "look below it with: tieconv check --recursive x",
    "repair it first: tieconv explain TIE001": "repair it first: tieconv explain TIE001",
    "hf download a/b --local-dir DIR": "hf download a/b --local-dir DIR",
    "start it with its GPU (--gpus all)": "start it with its GPU (--gpus all)",
    "": "",
}


@pytest.mark.parametrize("command", SPOKEN)
def test_a_hint_in_both_languages(command: str) -> None:
    """Each command becomes the call that does the same."""
    assert in_python(command) == SPOKEN[command]


def calls(text: str) -> list[ast.Call]:
    """The calls of `tieconv` in a hint, outermost first."""
    found = re.findall(r"tieconv\.\w+\([^)]*\)(?:\.execute\([^)]*\))?", text)
    return [node for call in found for node in [ast.parse(call, mode="eval").body] if isinstance(node, ast.Call)]


def bind(call: ast.Call) -> None:
    """Raise where the function or `execute` takes no such arguments."""
    assert isinstance(call.func, ast.Attribute)
    if isinstance(call.func.value, ast.Call):
        bind(call.func.value)
        assert {str(word.arg) for word in call.keywords} <= set(python_terms.OF_WRITING)
        return
    named = {str(word.arg): None for word in call.keywords}
    inspect.signature(getattr(tieconv, call.func.attr)).bind_partial(*call.args, **named)


@pytest.mark.parametrize("hint", SPOKEN.values())
def test_a_call_of_a_hint_fits_the_function(hint: str) -> None:
    """Every call that a hint shows parses, and its function takes these arguments."""
    for call in calls(hint):
        bind(call)


def options(command: click.Command) -> set[str]:
    return {
        name for one in command.params if isinstance(one, click.Option) for name in (*one.opts, *one.secondary_opts)
    }


@pytest.mark.parametrize("verb", python_terms.FUNCTIONS)
def test_each_option_of_a_command_is_a_keyword_of_its_function(verb: str) -> None:
    """What is translated for one command is a keyword there: of the function, or of `execute`."""
    command = COMMANDS[verb]
    commands = [*command.commands.values()] if isinstance(command, click.Group) else [command]
    signature = set(inspect.signature(getattr(tieconv, python_terms.FUNCTIONS[verb])).parameters)
    if verb == "dedup":
        signature |= set(inspect.signature(tieconv.plan_graph_dedup).parameters)
    for name in {name for one in commands for name in options(one)} & {*python_terms.FLAGS, *python_terms.VALUES}:
        keyword = python_terms.keyword(name)
        assert keyword in signature or keyword in python_terms.OF_WRITING, (verb, name)


def test_each_option_that_a_hint_may_name_is_translated() -> None:
    """An option of ours in a text below the command line is in the table, or is the command line's alone."""
    alone = {"--json", "--traceback", "--recursive", "--write-baseline", "--fix", "--html", "--verbose", "--help"}
    known = {*python_terms.FLAGS, *python_terms.VALUES, *alone}
    ours = {name for command in COMMANDS.values() for name in options(command) if name.startswith("--")}
    for path, tree in product.trees().items():
        if path.relative_to(ROOT / "tieconv").parts[0] in ("cli", "reporters"):
            continue
        texts = [node.value for node in ast.walk(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
        named = {word for text in texts for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
        assert named & ours <= known, path


def test_an_exception_carries_the_hint() -> None:
    """The attribute, and the traceback that a notebook or a log shows; the command line prints the command."""
    model = str(MODELS / "llama-diverged")
    with pytest.raises(tieconv.RefusedError) as caught:
        tieconv.plan_retie(model)
    error = caught.value
    call = f"tieconv.plan_retie('{model}', survivor='embed', force=True) (or survivor='head')"
    assert call in error.hint and "--" not in error.hint
    assert f"hint: {error.hint}" in "".join(traceback.format_exception(error))
    printed = run("retie", model).stderr
    assert f"hint: {error.command_hint}\n" in printed and "tieconv retie" in printed and "survivor=" not in printed


def test_a_plan_that_is_executed_hints_in_python(tmp_path: Path) -> None:
    """Errors of `execute` as of the functions; what the hint says works."""
    planned: PlannedWrite = tieconv.plan_retie(MODELS / "llama-duplicated")
    planned.execute(tmp_path / "out")
    with pytest.raises(tieconv.DestinationError) as caught:
        planned.execute(tmp_path / "out")
    assert caught.value.hint == "give another out, or overwrite=True"
    assert planned.execute(tmp_path / "out", overwrite=True).executed


def test_any_name_in_a_hint_is_a_string_of_python(tmp_path: Path) -> None:
    """A directory with quotes, spaces and an escape: the call parses, and binds."""
    folder = tmp_path / EVIL
    folder.symlink_to(MODELS / "llama-diverged")
    with pytest.raises(tieconv.RefusedError) as caught:
        tieconv.plan_retie(folder)
    assert caught.value.hint.isprintable() and "tieconv.plan_retie(" in caught.value.hint


def test_without_a_hint_nothing_is_added() -> None:
    """No empty note."""
    error = tieconv.TieconvError("a file is gone")
    assert error.hint == error.command_hint == "" and not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    "hint", ["give the model's directory instead of the file", "the models' files, the config's too", 'a " alone']
)
def test_an_apostrophe_is_no_quotation(hint: str) -> None:
    """Every character of a sentence stays."""
    assert python_terms.in_python(hint) == hint
