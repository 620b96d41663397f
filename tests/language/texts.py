"""The texts of the project, and their rules: words that are gone, and how long a sentence may be."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md")
ANSWERS = "tests/checks/branches/expected.json"
"""The finding of every branch of every rule: sentences that the code makes of parts are whole here."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORDS = re.compile(r"[a-z]{2,}")
_ENDS = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)(?:(?<=[.!?])|(?<=[.!?][\"')*])|(?<=[.!?][*][*]))\s+")
"""A full stop ends a sentence before a lowercase name too: `transformers` begins many."""
_NOT_PROSE = re.compile(r"^\s*<|[{};]\s*\n|^\(\?|\\[bds]|^[\w.,|=:/*-]+$|^(?:[\w-]+:\s*)*[\w#.%()-]+;")


@dataclass(frozen=True)
class Text:
    """One passage. ``kind`` is message, docstring, comment or page; ``file`` is relative to the root."""

    kind: str
    file: str
    line: int
    words: str


@cache
def all_texts() -> tuple[Text, ...]:
    """Return every text of the project. They are read once."""
    return tuple(_all_texts())


def _all_texts() -> Iterator[Text]:
    for path in sorted((ROOT / "tieconv").rglob("*.py")):
        yield from code_texts(path.read_text(), path.relative_to(ROOT).as_posix())
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield from page_texts(path.read_text(), path.relative_to(ROOT).as_posix())

    yield from answer_texts(json.loads((ROOT / ANSWERS).read_text()), ANSWERS)


def answer_texts(answers: object, file: str) -> Iterator[Text]:
    """Yield each message of a document of findings, once."""
    messages = set(_values(answers, "message"))
    yield from (Text("message", file, 1, message) for message in sorted(messages))


def _values(document: object, key: str) -> Iterator[str]:
    if isinstance(document, dict):
        yield from (value for name, value in document.items() if name == key and isinstance(value, str))
    children = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for child in children:
        yield from _values(child, key)


def code_texts(source: str, file: str) -> Iterator[Text]:
    """Yield the docstrings, the messages and the comments of a module."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            constant = node.body[0].value
            docstrings.add(id(constant))
            yield from _paragraphs("docstring", file, constant.lineno, ast.get_docstring(node) or "")
        elif isinstance(node, ast.Expr) and _is_text(node.value, docstrings):
            docstrings.add(id(node.value))
            yield from _paragraphs("docstring", file, node.lineno, node.value.value)
    yield from _messages(tree, file, docstrings)
    yield from _comments(source, file)


def _is_text(node: ast.expr, seen: set[int]) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen


def _messages(tree: ast.AST, file: str, docstrings: set[int]) -> Iterator[Text]:
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = "".join(part.value if isinstance(part, ast.Constant) else "`x`" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            words = node.value
        else:
            continue
        if len(_WORDS.findall(words)) >= 3 and words.count(" ") >= 2 and not _NOT_PROSE.search(words):
            yield from _paragraphs("message", file, node.lineno, words)


def _comments(source: str, file: str) -> Iterator[Text]:
    """Yield each run of comment lines as one text, and each comment after code as another."""
    run: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"# (noqa|type:|pragma|fmt:)", token.string):
            continue
        after_code = bool(token.line[: token.start[1]].strip())
        if run and (after_code or token.start[0] != last + 1):
            yield Text("comment", file, first, " ".join(run))
            run = []
        first = first if run else token.start[0]
        last = 0 if after_code else token.start[0]
        run.append(re.sub(r"\s*# noqa.*", "", token.string.lstrip("# ")))
    if run:
        yield Text("comment", file, first, " ".join(run))


def page_texts(source: str, file: str) -> Iterator[Text]:
    """Yield the paragraphs, list items, headings and table cells of a page.

    Code blocks, comments and the directives of mkdocstrings are left out.
    """
    for left_out in (r"(?s:<!--.*?-->)", r"(?m:^::: .*(?:\n +.*)*)"):
        source = re.sub(left_out, lambda match: "\n" * match[0].count("\n"), source)
    block: list[str] = []
    start, fenced = 1, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        fence = re.match(r"\s*(```|~~~)", line)
        alone = fence or fenced or not line.strip() or re.match(r"\s*(#|\||[-*+] |\d+\. |!!!|\?\?\?|<|---|===|>)", line)
        if alone and block:
            yield from _paragraphs("page", file, start, "\n".join(block))
            block = []
        if fence:
            fenced = not fenced
        elif fenced or not line.strip() or re.match(r"\s*(\|[\s:|-]+\|$|<|---)", line):
            continue
        elif line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield from _paragraphs("page", file, number, cell)
        else:
            start = start if block else number
            block.append(re.sub(r"^\s*(#+|[-*+]|\d+\.|>|!!! \w+|\?\?\? \w+)\s+", "", line))


def _paragraphs(kind: str, file: str, line: int, text: str) -> Iterator[Text]:
    for match in re.finditer(r"(?:.+\n?)+", text):
        words = match[0].strip()
        if len(_WORDS.findall(words)) >= 2:
            yield Text(kind, file, line + text.count("\n", 0, match.start()), words)


def sentences(words: str) -> Iterator[str]:
    """Yield the sentences; code, a list of code, a link and an address count as one word each."""
    words = re.sub(r"``[^`]+``|`[^`]+`", "`x`", words)
    words = re.sub(r"`x`(,\s+`x`)+", "`x`", words)
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", words)
    words = re.sub(r"https?://\S+", "`x`", words)
    for line in re.split(r"\n\s*(?=[-*] |\d+\. )|\n\s*\n", words):
        yield from _ENDS.split(" ".join(line.split()))


LONGEST = 20
"""Words in a sentence."""

_DATA = tomllib.loads((Path(__file__).parent / "words.toml").read_text())
GONE = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in _DATA["gone"].items()}
ALLOWED = {entry["text"]: entry["reason"] for entry in _DATA.get("allowed", [])}


def broken(text: Text) -> Iterator[str]:
    """Yield what is wrong with a text."""
    for sentence in sentences(text.words):
        if any(allowed in sentence for allowed in ALLOWED):
            continue
        for pattern, instead in GONE.items():
            match = pattern.search(re.sub(r"`[^`]*`", "`x`", sentence))
            if match:
                yield f'"{match[0]}": {instead}'
        length = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if length > LONGEST:
            yield f"{length} words in a sentence: {sentence[:70]}…"
