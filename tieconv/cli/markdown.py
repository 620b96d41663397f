"""Markdown for a terminal, by rich, which is imported when a text is rendered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

_INDENT = 4
_STYLES = {
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
        theme=Theme(_STYLES),
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
