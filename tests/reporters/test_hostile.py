"""Nothing that a file can be named breaks out of a format."""

from __future__ import annotations

import html
import json
import posixpath
import re
from urllib.parse import unquote_to_bytes

from hypothesis import HealthCheck, given, settings

from tests.patience import examples
from tests.reporters import readers
from tests.reporters.reports import BAITS, entry, reports
from tests.schemas import validate
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckedModel, CheckReport, Failure, Waiver
from tieconv.reporters.ci import check_json, check_view as view, formats as check
from tieconv.reporters.ci.check_view import path_of

few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
_URI = re.compile(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})*|(?:file|hf)://(?:[A-Za-z0-9._~/@-]|%[0-9A-F]{2})*")


def baited() -> CheckReport:
    """Every bait in every place, alone and in the middle of a sentence."""
    models = []
    for bait in BAITS:
        for text in (bait, f"a {bait} b", bait * 3):
            found = entry(message=text, tensors=(text,), file=text)
            waived = entry(message=text, file=text, waiver=Waiver("baseline", text))
            models += [CheckedModel(text, (found, waived)), CheckedModel(text, (), Failure(text, text))]
    return CheckReport(tuple(models), Level.ERROR)


def safe(text: str) -> None:
    """Printable in a terminal and a log, and no line of it is an order."""
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
        assert not readers.is_order(line), line


@few
@given(reports)
def test_text(report: CheckReport) -> None:
    """No control character, no order to a runner, and each model begins exactly one line."""
    safe(check.render("text", report))
    safe(re.sub(r"\n +", " ", check.render("text", report, width=50)))
    heads = re.findall(r"^\S.*", check.render("text", report), re.MULTILINE)
    indented = sum(view.line(model.output or model.source).startswith(" ") for model in report.models)
    assert len(heads) == len(report.models) - indented


@few
@given(reports)
def test_json(report: CheckReport) -> None:
    """ASCII, valid, and names come back character for character."""
    text = check.render("json", report)
    assert text.isascii() and not any(readers.is_order(line) for line in text.split("\n"))
    validate(json.loads(text), "check")
    assert check_json.read(text) == report


@few
@given(reports)
def test_sarif(report: CheckReport) -> None:
    """Valid by the OASIS schema, printable throughout, no link in a message, and each URI names its file."""
    text = check.render("sarif", report)
    assert text.isascii() and not any(readers.is_order(line) for line in text.split("\n"))
    run = (log := json.loads(text))["runs"][0]
    run["tool"]["driver"]["rules"] = run["tool"]["driver"]["rules"][:1]  # the same each time
    readers.sarif().validate(log)
    for result in run["results"]:
        assert result["message"]["text"].isprintable() and "](" not in result["message"]["text"]
        assert _URI.fullmatch(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
        assert all(
            tensor["fullyQualifiedName"].isprintable() for tensor in result["locations"][0].get("logicalLocations", [])
        )
    for notice in run["invocations"][0]["toolExecutionNotifications"]:
        assert notice["message"]["text"].isprintable() and "](" not in notice["message"]["text"]


def test_sarif_addresses_come_back() -> None:
    """Decoding a URI gives the bytes of the file's name."""
    for bait in BAITS:
        name = f"m/x{bait}y"
        run = json.loads(check.render("sarif", CheckReport((CheckedModel(name, (entry(),)),), Level.ERROR)))["runs"][0]
        found = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        raw = re.sub(
            r"(?<=/)\./|//+", "/", path_of(name, "model.safetensors").encode("utf-8", "surrogatepass").decode("latin-1")
        )
        if "\udcff" not in bait and ".." not in bait:
            assert unquote_to_bytes(found).decode("latin-1") == raw


@few
@given(reports)
def test_github(report: CheckReport) -> None:
    """Every order in the output is an annotation of ours, with its own properties and at most ten of a kind."""
    lines = check.render("github", report).split("\n")
    commands = [readers.command(line) for line in lines]
    for line, command in zip(lines, commands, strict=True):
        assert line.isprintable() and "##[" not in line and "##vso[" not in line
        if command is None:
            continue
        assert command.name in ("error", "warning", "notice")
        assert {"title"} <= set(command.properties) <= {"title", "file"}
        assert command.message.isprintable() and len(command.properties["title"]) <= 255
    expected = sum(1 for model in report.models for _ in model.open) + sum(bool(m.failure) for m in report.models)
    assert sum(command is not None for command in commands) == expected
    assert all(readers.command(line) for line in lines[:-1]) and commands[-1] is None


@few
@given(reports)
def test_junit(report: CheckReport) -> None:
    """Well-formed XML 1.0 that the strict reader accepts, and texts come back as they were shown."""
    root = readers.strict_junit(check.render("junit", report))
    assert [suite.get("name") for suite in root] == [view.line(model.source) for model in report.models]
    failures = [model.failure for model in report.models if model.failure]
    assert [found.get("message") for found in root.iter("error")] == [view.line(f.message) for f in failures]


def _expected(text: str) -> str:
    return view.line(text).replace("@", "\\x40") if "@" in text else view.line(text)


@few
@given(reports)
def test_markdown(report: CheckReport) -> None:
    """No tag, link, mention, further row or further cell; the names can be read."""
    page = readers.page(check.render("markdown", report))
    assert page.strays == []
    listed = [model for model in view.worst_first(report.models) if model.findings or model.failure or model.fixes]
    assert [html.unescape(found) for found in page.summaries] == [view.line(model.source) for model in listed]
    rows = list(page.tables)
    if report.models:
        overview = rows.pop(0)
        assert len(overview) == len(report.models) + 1 and {len(row) for row in overview} == {6}
    with_findings = [model for model in listed if model.findings]
    assert [len(table) - 1 for table in rows] == [len(model.findings) for model in with_findings]
    assert {len(row) for table in rows for row in table} <= {4}


def test_markdown_shows_the_names_themselves() -> None:
    """What stands in a cell is the name, character for character, but for `@` outside of code."""
    for bait in BAITS:
        for text in (f"a{bait}b", bait * 2):
            page = readers.page(
                check.render("markdown", CheckReport((CheckedModel("m", (entry(file=text),)),), Level.NOTE))
            )
            assert page.tables[1][1][2].replace("\\x40", "@").strip() == view.line(text).strip()


def test_each_bait_in_each_place() -> None:
    """The baits alone and in sentences, without chance: every format holds."""
    report = baited()
    safe(check.render("text", report))
    assert check_json.read(check.render("json", report)) == report
    readers.strict_junit(check.render("junit", report))
    assert readers.page(check.render("markdown", report)).strays == []
    lines = check.render("github", report).split("\n")
    assert all(line.isprintable() and "##[" not in line for line in lines)
    assert sum(readers.command(line) is not None for line in lines) == 10
    log = json.loads(check.render("sarif", report))
    readers.sarif().validate(log)


def test_github_messages_and_paths_come_back() -> None:
    """The runner undoes the escapes: what it shows is the message, and the file is the one that was meant."""
    for bait in (*BAITS, "50%", "%25", "a,b:c=d"):
        found = entry(message=bait, file=f"x{bait}y", remedy=None)
        line = check.render("github", CheckReport((CheckedModel("m", (found,)),), Level.ERROR)).split("\n")[0]
        command = readers.command(line)
        message = f"{view.line(bait).removesuffix('.')}. Next: tieconv explain TIE001"
        assert command is not None and command.message == message
        assert command.properties["title"] == f"TIE001 in {view.line(f'm/x{bait}y')}"
        assert command.properties.get("file") in (None, posixpath.normpath(f"m/x{bait}y"))
