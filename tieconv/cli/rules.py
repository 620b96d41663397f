"""`tieconv rules`, `explain` and `completion`: what people read about the rules."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import click
from click.shell_completion import get_completion_class

from tieconv.api.check import cases_by_words, find_cases, find_rule, select_rules, without_ellipsis
from tieconv.cli.options import common_options, complete_rules, json_option, rules_option
from tieconv.cli.screen import document, echo, has_colour, paint, width
from tieconv.install import documentation
from tieconv.text import count, in_words, shown

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown


# Markdown for a terminal, by rich, which is imported when a text is rendered.

_INDENT = 4
_MARKDOWN_STYLES = {
    "markdown.code": "cyan",
    "markdown.item.bullet": "none",
    "markdown.item.number": "none",
    "markdown.link": "underline",
    "markdown.link_url": "underline",
}
"""Styles that read well on a light and on a dark terminal; rich's own paint a background."""


def rendered(text: str, columns: int, *, colour: bool) -> str:
    """Return ``text`` with its paragraphs, lists and code blocks filled to ``columns``, styled where ``colour``.

    Without colour inline code keeps its backticks.
    """
    from rich.console import Console
    from rich.theme import Theme

    console = Console(
        file=StringIO(),
        width=columns,
        force_terminal=colour,
        force_jupyter=False,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        theme=Theme(_MARKDOWN_STYLES),
    )
    with console.capture() as captured:
        console.print(_document(text, colour=colour))
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").split("\n"))


def _document(text: str, *, colour: bool) -> Markdown:
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.padding import Padding
    from rich.text import Text

    class Title(Heading):
        """A heading at the left margin, in bold; rich centres and underlines it."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(self.text.plain, style="bold")

    class Quoted(CodeBlock):
        """A block of code behind an indent, filled like prose and without a background."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Padding(Text(str(self.text).rstrip()), (0, 0, 0, _INDENT))

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "heading_open": Title, "code_block": Quoted, "fence": Quoted}

    page = Page(text, hyperlinks=False)
    for token in page.parsed:
        if token.children:
            token.children = [*_inline(token.children, colour=colour)]
    return page


def _inline(tokens: Iterable[Token], *, colour: bool) -> Iterator[Token]:
    """Yield the parts of a line. A link within the documentation keeps its text alone: no terminal can follow it."""
    inside = False
    for token in tokens:
        if token.type == "link_open":
            inside = "://" not in str(token.attrs.get("href"))
        if not (inside and token.type in ("link_open", "link_close")):
            yield token
        if token.type == "code_inline" and not colour:
            token.content = f"`{token.content}`"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    Save it where your shell looks for completions. For bash that is
    ~/.local/share/bash-completion/completions/tieconv.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are the shells that Click knows
    root = ctx.find_root().command
    script = kind(root, {}, "tieconv", "_TIECONV_COMPLETE").source()
    # Click's script cuts a completion at each comma; values and help texts hold commas.
    echo(script.replace('string split ","', 'string split --max 1 ","'))


@click.command("rules", short_help="List the rules: code, level, name and summary.")
@click.argument("words", nargs=-1, metavar="[RULES]...", shell_complete=complete_rules)
@rules_option("--select", "Same as RULES.")
@json_option
@common_options
def rules_command(words: tuple[str, ...], select: tuple[str, ...], as_json: bool) -> None:
    """List the rules: code, usual level, name and summary.

    RULES are codes or their first letters, such as TIE001 or TIE. The default is all rules. `tieconv explain RULE`
    explains one.
    """
    chosen = select_rules(words, select)
    if as_json:
        keys = ("code", "name", "level", "summary", "documentation")
        listed = [{key: str(getattr(rule, key)) for key in keys} for rule in chosen]
        document(json.dumps({"schema": "tieconv.rules/1", "rules": listed}, indent=2))
        return
    from tieconv.reporters.text import LEVEL_STYLES, wrapped

    longest = max(len(rule.name) for rule in chosen)
    for rule in chosen:
        level = str(rule.level)
        lead = f"{rule.code}  {level.ljust(7)}  {rule.name.ljust(longest)}  "
        first, *rest = wrapped(rule.summary, lead, width())
        echo(first.replace(level, paint(level, LEVEL_STYLES[level]), 1))
        for line in rest:
            echo(line)


_WIDEST = 100
"""Columns beyond which a line of prose is hard to read."""


class _TextCommand(click.Command):
    """A command whose arguments may start with a dash and a space, as rows and notes of a log do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as Click does, without the dashes before a text."""
        return super().parse_args(ctx, [re.sub(r"^\s*-+\s+(?=\S)", "", word) for word in args])


@click.command("explain", cls=_TextCommand, short_help="Explain a rule, or the message of another program.")
@click.argument("words", metavar="RULE|MESSAGE", nargs=-1, shell_complete=complete_rules)
@common_options
@click.pass_context
def explain_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain RULE, a code or a name: what it reports, why it matters, an example, and how to fix it.

    MESSAGE is what another program printed, best in quotes. Then the known causes are listed, with the rules that find
    them and a guide. A terminal shows the text rendered; a pipe gets its Markdown.

    `tieconv explain - < LOG` reads a log, and explains the lines that it knows.
    """
    asked = " ".join(words)
    if sys.stdin and (words == ("-",) or not (words or sys.stdin.isatty())):
        asked, known = _explain_log(TextIOWrapper(sys.stdin.buffer, "utf-8", "replace"))
        if known:
            return
    if not asked:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    if cases := find_cases(asked):
        _print_cases(asked, cases)
        _print_next(cases)
        return
    if " " in asked and (cases := cases_by_words(asked)):
        echo("No known message matches. These cases have symptoms or messages with such words:\n")
        _list_cases(cases)
        _print_next(cases)
        return
    known_rule = find_rule(asked)
    echo(f"{paint(f'{known_rule.code} {known_rule.name}', 'heading')} (usually: {known_rule.level})\n")
    text = known_rule.documentation.strip()
    columns, colour = width(), has_colour()
    if columns or colour:
        text = rendered(text, min(columns or _WIDEST, _WIDEST), colour=colour)
    echo(text)


def _print_cases(message: str, cases: Mapping[str, Mapping[str, Any]]) -> None:
    if without_ellipsis(message):
        echo("The message is cut off. This lists each one that it may be.")
    if len(cases) > 1:
        echo(f"{count(len(cases), 'cause')} can lead to this message. The files show which one it is.\n")
    _list_cases(cases)


def _list_cases(cases: Mapping[str, Mapping[str, Any]]) -> None:
    for name, case in cases.items():
        echo(f"{paint(name, 'heading')} {case['symptom']}")
        texts = {"Fix": case["fix"], "Rules": in_words(case["rules"], 9) if case["rules"] else case["without_rule"]}
        texts["Guide"] = f"{case['title']} ({documentation(case['guide'])})"
        for label, text in texts.items():
            if text:
                echo(f"    {label}: {text}")


def _print_next(cases: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the command that shows which case it is, or that no rule reports one."""
    if any(case["rules"] for case in cases.values()):
        echo("\nRun: tieconv inspect MODEL")
    else:
        echo("\nNo rule reports this, so tieconv inspect may find nothing. Follow the fix or the guide.")


def _explain_log(log: TextIO) -> tuple[str, bool]:
    """Explain each line of ``log`` whose cases no line before it had.

    Return the last two lines, and whether any is known.
    """
    explained: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    before = line = ""
    while text := log.readline(_LONGEST_LINE):
        if not text.strip():
            continue
        before, line = line, text.strip()
        # A program may wrap its message.
        cases = find_cases(line, parts=False) or find_cases(f"{before}\n{line}", parts=False)
        if cases and (*cases,) not in explained:
            echo(f"{'' if not explained else chr(10)}> {shown(line)}\n")
            _print_cases(line, cases)
            explained[(*cases,)] = cases
    if explained:
        _print_next({name: case for cases in explained.values() for name, case in cases.items()})
    return f"{before}\n{line}".strip(), bool(explained)


_LONGEST_LINE = 100_000
