"""Each how-to guide does what it shows: its commands are run, and their outputs compared."""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

pytestmark = pytest.mark.needs("torch", "transformers", "onnxruntime", "peft")  # what the guides import

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from pages import guides  # noqa: E402

from tieconv.cli import main  # noqa: E402

PAGES = guides.pages()
NOT_RUN = {"sh", "sql", "text", "yaml", "groovy", "toml"}
"""Languages of blocks that are not run here; other tests parse recipes."""
INDEX = (guides.GUIDES / "index.md").read_text(encoding="utf-8")


def by_name(path: Path) -> str:
    return path.stem


def _with_speed() -> Iterator[object]:
    """Each page; those that run Python programs, nearly all with torch, or export a graph are slow tests."""
    for path in PAGES:
        commands = guides.commands(path.read_text(encoding="utf-8"))
        slow = any(re.match(r"python |tieconv (export|parity) |.*&& python ", command) for command in commands)
        yield pytest.param(path, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("path", list(_with_speed()), ids=by_name)
def test_a_guide_shows_what_its_commands_print(path: Path) -> None:
    """Every console block, run in an empty directory; `python docs/generate.py PAGE` writes the page anew."""
    text = path.read_text(encoding="utf-8")
    now = guides.page(path)
    differences = difflib.unified_diff(text.splitlines(), now.splitlines(), "page", "now", "", "", 1, "")
    assert now == text, "\n".join(differences)
    assert guides.commands(text)


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_a_guide_starts_with_the_fault_and_the_command(path: Path) -> None:
    """A heading, then at most six lines of text before or with the first command."""
    heading, text = path.read_text(encoding="utf-8").split("\n", 1)
    assert heading.startswith("# ")
    start = text[: text.index("tieconv ")]
    assert start.count("\n") <= 8, start


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_every_block_is_run_or_says_that_it_is_not(path: Path) -> None:
    """A block is a console block, a file with a title, or of a language that is not run here."""
    fences = re.findall(r"^ *```(\w*)(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for language, rest in fences[::2]:
        assert language == "console" or rest.startswith(' title="') or language in NOT_RUN, (language, rest)
    assert not re.search(r"^ +```console", path.read_text(encoding="utf-8"), re.MULTILINE), "indented: it is not run"


def _shown(path: Path) -> list[str]:
    """Return each `tieconv` command of a page's shell blocks, as far as the first operator of the shell."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\s*(tieconv [^#\n|&>;]+)", "\n".join(blocks), re.MULTILINE)
    return [command.strip() for command in commands]


SHOWN = [command for path in PAGES for command in _shown(path)]


@pytest.mark.parametrize("command", sorted(set(SHOWN)))
def test_commands_that_are_not_run_exist(command: str) -> None:
    """Each option of a command in a shell block is one that the command takes."""
    _, name, *arguments = shlex.split(command)
    assert isinstance(main, click.Group)
    chosen = main.get_command(click.Context(main), name)
    assert chosen is not None, command
    chosen.make_parser(click.Context(chosen, **main.context_settings)).parse_args(arguments)


def test_the_index_links_every_guide() -> None:
    """`guides/index.md` leads to each page."""
    assert all(f"({path.name})" in INDEX for path in PAGES)
    assert len(PAGES) == 17


def test_a_changed_output_is_seen(tmp_path: Path) -> None:
    """A page whose block shows another output than the command prints comes out different."""
    page = tmp_path / "guide.md"
    page.write_text("# Guide\n\n```console\n$ tieconv --version\ntieconv, version 0.0.0\n$ (exit 3)\n$ echo $?\n```\n")
    shown = guides.page(page)
    assert "0.0.0" not in shown and shown.endswith("$ (exit 3)\n$ echo $?\n3\n```\n")


def test_the_text_of_accelerate_is_its_own() -> None:
    """The guide to FSDP2 quotes the installed version, which cannot be made to print it without several processes."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: its text is not compared")
    from accelerate import accelerator

    page = (guides.GUIDES / "fsdp-deepspeed-keyerror.md").read_text(encoding="utf-8")
    quoted = re.search(r"\| Accelerate ([\d.]+) \| `(.*?) \(missing: \['lm_head.weight'\]\)\. (.*?)` \|", page)
    assert quoted is not None and quoted[1] == accelerate.__version__
    source = inspect.getsource(accelerator)
    assert quoted[2] in source and quoted[3] in source
