"""Hints of exceptions: in Python's terms for a caller of the API, as commands for the command line."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import traceback
from pathlib import Path

import click
import pytest

import tieconv
from tests import product
from tests.cli.run import run
from tieconv.cli import main
from tieconv.planned import PlannedWrite
from tieconv.text import ANOTHER_OUT, FILE, MODEL, OUT, Hint, call, option

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "fixtures" / "models"
COMMANDS = {name: main.get_command(click.Context(main), name) for name in main.list_commands(click.Context(main))}
ALONE = r"tieconv (check --recursive|fleet (check|export)|explain|rules).*"
"""Commands that a hint may spell out: without a function, or with an option that the function lacks."""
OPTIONS = {name for command in COMMANDS.values() for one in command.params for name in one.opts if name[:2] == "--"} - {
    "--traceback", "--write-baseline", "--jobs",
}  # fmt: skip
"""Options that are keywords in Python; three are the command line's alone."""
OF_EXECUTE = ("out", "in_place", "overwrite", "hardlink")
EVIL = "it's $HOME \x1b"

SPOKEN = {
    Hint("compare the two copies: ", call("inspect", "m/x", json=True), "; or keep: ",
         call("retie", "m x", survivor="embed", force=True), " (or ", option(survivor="head"), ")"):
    ("compare the two copies: tieconv inspect m/x --json; or keep: tieconv retie 'm x' --from embed --force "
     "(or --from head)", "compare the two copies: tieconv.inspect('m/x'); "
     "or keep: tieconv.plan_retie('m x', survivor='embed', force=True) (or survivor='head')"),
    Hint("see: ", option(fold_norm=True), " in place of ", option("survivor"), " and ", option("max_kl")):
    ("see: --fold-norm in place of --from and --max-kl", "see: fold_norm=True in place of survivor and max_kl"),
    Hint(ANOTHER_OUT, ", or ", option(overwrite=True)):
    ("give another -o, or --overwrite", "give another out, or overwrite=True"),
    Hint("add ", option(text=FILE), ", ", option(rows=Hint("N")), " or ", option(length=8)):
    ("add --text FILE, --rows N or --length 8", "add text=FILE, rows=N or length=8"),
    Hint("add ", option(pull_request=False), " or ", option(parity=False)):
    ("add --no-pr or --no-parity", "add pull_request=False or parity=False"),
    call("convert", MODEL, to="safetensors", out=OUT):
    ("tieconv convert MODEL --to safetensors -o OUT",
     "tieconv.plan_convert(path=MODEL, to='safetensors').execute(OUT)"),
    call("dedup", "m", in_place=True): ("tieconv dedup m --in-place", "tieconv.plan_dedup('m').execute(in_place=True)"),
    call("set-tie false", ".", out=Hint("../OUT", python="'../OUT'")):
    ("tieconv set-tie false . -o ../OUT", "tieconv.plan_set_tie('false', '.').execute('../OUT')"),
    call("bias unify", "-m", survivor="bias"):
    ("tieconv bias unify ./-m --from bias", "tieconv.plan_bias('unify', '-m', survivor='bias')"),
    call("dedup", "m/model.onnx", out=OUT):
    ("tieconv dedup m/model.onnx -o OUT", "tieconv.plan_graph_dedup('m/model.onnx').execute(OUT)"),
    call("dedup", "m", head_form="gemm"):
    ("tieconv dedup m --head-form gemm", "tieconv.plan_graph_dedup('m', head_form='gemm')"),
    Hint("run ", call("dedup"), " on what it writes"):
    ("run tieconv dedup on what it writes", "run tieconv.plan_dedup on what it writes"),
    call("diff", "A", "B"): ("tieconv diff A B", "tieconv.diff('A', 'B')"),
    call("push", "d", "hf://a/b"): ("tieconv push d hf://a/b", "tieconv.plan_push('d', 'hf://a/b')"),
    call("inspect", "m", consumers=Hint("", python="'all'")):
    ("tieconv inspect m --consumers", "tieconv.inspect('m', consumers='all')"),
    Hint(): ("", ""),
}  # fmt: skip


def test_a_hint_in_both_languages() -> None:
    """Each command is also the call that does the same, and each call fits its function."""
    for hint, (shell, python) in SPOKEN.items():
        assert (str(hint), hint.python) == (shell, python)
        for spoken in calls(python):
            bind(spoken)
        copied = pickle.loads(pickle.dumps(hint))
        assert (copied, copied.python) == (hint, hint.python)


def calls(text: str) -> list[ast.Call]:
    """The calls of `tieconv` in a hint, outermost first."""
    found = re.findall(r"tieconv\.\w+\([^)]*\)(?:\.execute\([^)]*\))?", text)
    return [node for call in found for node in [ast.parse(call, mode="eval").body] if isinstance(node, ast.Call)]


def bind(call: ast.Call) -> None:
    """Raise where the function or `execute` takes no such arguments."""
    assert isinstance(call.func, ast.Attribute)
    if isinstance(call.func.value, ast.Call):
        bind(call.func.value)
        assert {str(word.arg) for word in call.keywords} <= set(OF_EXECUTE)
        return
    named = {str(word.arg): None for word in call.keywords}
    inspect.signature(getattr(tieconv, call.func.attr)).bind_partial(*call.args, **named)


HINTED = re.compile(r"\w*Error|refuse|Loss|Failure")
OURS = re.compile(rf"tieconv (?:{'|'.join(COMMANDS)})\b|(?<![\w-])(?:{'|'.join(OPTIONS)}|-o)(?![\w-])")


def test_no_hint_has_a_command_in_its_prose() -> None:
    """A command in prose stays one in Python. So it is a `call`, in no f-string, with keywords of its function."""
    for path, tree in product.trees().items():
        if path.relative_to(ROOT / "tieconv").parts[0] in ("cli", "reporters"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Call):
                assert getattr(node.value.func, "id", "") not in ("call", "again"), (path, node.lineno)
            elif isinstance(node, ast.Call) and len(node.args) > 1 and HINTED.fullmatch(ast.unparse(node.func)):
                texts = [part.value for part in ast.walk(node.args[1]) if isinstance(part, ast.Constant)]
                assert not [text for text in texts if OURS.search(re.sub(ALONE, "", str(text)))], (path, node.lineno)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("call", "again"):
                words = [part.value for part in node.args if isinstance(part, ast.Constant)]
                function = (
                    getattr(tieconv, call(str(words[0])).python.partition("(")[0].removeprefix("tieconv."))
                    if words
                    else None
                )
                named = {str(word.arg) for word in node.keywords} - {"json", *OF_EXECUTE, "None"}
                assert function is None or named <= set(inspect.signature(function).parameters), (path, node.lineno)


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


def test_a_graph_that_a_function_refuses(tmp_path: Path) -> None:
    """Python has separate functions for graphs; the commands have one name for both."""
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(tieconv.TieconvError) as caught:
        tieconv.plan_retie(tmp_path)
    assert "plan_graph_dedup and plan_graph_untie read graphs" in caught.value.hint
