"""Readers of the formats: the SARIF schema, GitHub's runner, JUnit's consumers and a Markdown parser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET


@cache
def sarif() -> Any:
    """The validator of SARIF 2.1.0."""
    import jsonschema

    path = Path(__file__).parent / "data" / "sarif-schema-2.1.0.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


@dataclass
class Command:
    """A workflow command as GitHub's runner takes it."""

    name: str
    properties: dict[str, str]
    message: str


def command(line: str) -> Command | None:
    """`::name key=value,key=value::message`, leading white space aside; ``None`` for a line of the log."""
    line = line.lstrip()
    if not line.startswith("::") or "::" not in line[2:]:
        return None
    head, _, message = line[2:].partition("::")
    name, _, listed = head.partition(" ")
    properties = {}
    for pair in filter(None, listed.split(",")):
        key, equals, value = pair.strip().partition("=")
        assert equals and key not in properties, line
        properties[key] = _plain(value, {"%3A": ":", "%2C": ","})
    return Command(name, properties, _plain(message, {}))


def _plain(text: str, more: dict[str, str]) -> str:
    for escape, character in ({"%0D": "\r", "%0A": "\n"} | more | {"%25": "%"}).items():
        text = text.replace(escape, character)
    return text


def is_order(line: str) -> bool:
    """Whether a CI runner would obey a line: GitHub's two forms, and Azure's."""
    return command(line) is not None or "##[" in line or "##vso[" in line


_ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
    "system-out": set(),
}
_CHILDREN = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": set(list(_ATTRIBUTES)[3:])}


def strict_junit(text: str) -> ET.Element:
    """What the schemas of Ant and of Jenkins' xUnit plugin both accept: elements, attributes, one verdict a case."""
    # XML 1.0, 2.2: the characters that a document may hold.
    assert re.fullmatch(r"[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*", text)
    root = ET.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) == _ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= _CHILDREN.get(element.tag, set())
        if element.tag == "testcase":
            assert len(element) <= 1
        for name, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
            if name in element.attrib:
                assert element.get(name) == str(sum(1 for _ in element.iter(tag)))
    return root


@dataclass
class Page:
    """Markdown as a reader sees it: the cells of its tables, and whatever no report should hold."""

    tables: list[list[list[str]]] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    opened: int = 0
    strays: list[str] = field(default_factory=list)


_OPENING = re.compile(r"<details( open)?><summary><code>([^<>]*)</code>: [^<>@]*</summary>\n")
_BLOCKS = {"heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td"}


def page(text: str) -> Page:
    """``text`` through a parser of GitHub-flavoured Markdown with HTML and bare links switched on."""
    from markdown_it import MarkdownIt

    found = Page()
    for token in MarkdownIt("gfm-like").parse(text):
        block = re.sub("_(open|close)$", "", token.type)
        if token.type == "table_open":
            found.tables.append([])
        elif token.type == "tr_open":
            found.tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            found.tables[-1][-1].append("")
            into = found.tables[-1][-1]
        elif token.type in ("paragraph_open", "heading_open"):
            found.paragraphs.append("")
            into = found.paragraphs
        elif token.type == "inline":
            into[-1] = _inline(token, found)
        elif token.type == "html_block":
            _html(token.content, found)
        elif block not in _BLOCKS:
            found.strays.append(token.type)
    return found


def _html(content: str, found: Page) -> None:
    opening = _OPENING.fullmatch(content)
    if opening:
        found.opened += bool(opening[1])
        found.summaries.append(opening[2])
    elif content.strip() != "</details>":
        found.strays.append(content)


def _inline(token: object, found: Page) -> str:
    parts = []
    for child in token.children:  # type: ignore[attr-defined]
        if child.type in ("text", "text_special"):
            if "@" in child.content:
                found.strays.append(child.content)  # GitHub may find a mention or an address in it
            parts.append(child.content)
        elif child.type == "code_inline":
            parts.append(child.content)
        elif (child.type == "html_inline" and child.content == "<br>") or child.type == "softbreak":
            parts.append("\n")
        elif not (child.type in ("strong_open", "strong_close") and child.markup == "**"):
            found.strays.append(f"{child.type} {child.content}")
    return "".join(parts)
