"""What `tieconv check` says is said in every format, and each format is what its readers accept."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from junitparser import Failure, JUnitXml

import tieconv
from tests.reporters import readers
from tests.reporters.reports import entry, every_case, stored
from tests.schemas import validate
from tieconv.checkpoint.finding import REVIEW_FIRST, Level, Remedy
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport, Waiver
from tieconv.checkpoint.results.fleet import FleetReport
from tieconv.checks.registry import RULES
from tieconv.reporters.ci import check_json, check_sarif, formats as check
from tieconv.reporters.ci.check_view import path_of, relative, uri
from tieconv.reporters.html import fleet_page
from tieconv.reporters.text import fleet_text

ROOT = Path(__file__).parents[2]


def sarif(report: CheckReport) -> dict:
    log = json.loads(check.render("sarif", report))
    readers.sarif().validate(log)
    return log["runs"][0]


def test_every_format_has_its_module() -> None:
    """The names that the command offers are those that can be rendered, and no other."""
    assert all(check.render(name, every_case()) for name in check.FORMATS)
    with pytest.raises(ValueError, match="yaml"):
        check.render("yaml", every_case())


def test_text_groups_by_model_the_worst_first() -> None:
    """A reader sees what stops the release first, and each clean model in a line; the summary is for stderr."""
    text = check.render("text", every_case())
    heads = [line for line in text.splitlines() if re.match(r"\S.*: (ok|failed|could)", line)]
    assert heads == [
        "models/torn: could not be read",
        "models/bad: failed, 1 finding waived (baseline: known since 2024-05)",
        "hf://org/remote@v1: failed",
        "models/mild: ok",
        "models/clean: ok",
        "models/waived: ok, 1 finding waived (baseline: known since 2024-05)",
    ]
    assert "  hint: fetch it" in text
    lone = CheckReport(
        (CheckedModel("m", (entry(remedy=None), entry("STO001", Level.NOTE, remedy=None))),), Level.ERROR
    )
    assert check.render("text", lone).count("next:") == 1
    assert f"\n{' ' * 19}next: tieconv explain TIE001\n" in check.render("text", lone)


def test_a_finding_without_a_remedy_has_the_same_next_command_everywhere() -> None:
    """Every format that people read ends such a finding with `tieconv explain`; a note has none."""
    findings = (entry(remedy=None), entry("STO001", Level.NOTE, remedy=None))
    report = CheckReport((CheckedModel("m", findings),), Level.ERROR)
    texts = {name: check.render(name, report) for name in ("text", "github", "junit", "markdown")}
    texts["sarif"] = str(sarif(report)["results"])
    texts["fleet page"] = fleet_page.render(FleetReport("runs", report, 0, 0, 0.0, ()))
    for name, text in texts.items():
        assert "tieconv explain TIE001" in text and "explain STO001" not in text, name


def test_a_command_that_may_change_the_model_is_marked_everywhere() -> None:
    """The same phrase after the same command, in every format that people read; never after a safe command."""
    remedies = (
        Remedy("tieconv set-tie auto models/bad -o OUT", False),
        Remedy("tieconv dedup models/good -o OUT", True),
    )
    models = (CheckedModel(f"m{number}", (entry(remedy=remedy),)) for number, remedy in enumerate(remedies))
    report = CheckReport(tuple(models), Level.ERROR)
    fleet = FleetReport("runs", report, 0, 0, 0.0, ())
    texts = {name: check.render(name, report) for name in check.FORMATS if not name.startswith("json")}
    texts |= {"fleet text": fleet_text.render(fleet), "fleet page": fleet_page.render(fleet)}
    for name, text in texts.items():
        words = " ".join(re.sub(r"`|</?code>", "", html.unescape(text)).split())
        assert words.count(REVIEW_FIRST) == 1, name
        assert f"tieconv set-tie auto models/bad -o OUT {REVIEW_FIRST}" in words, name


def test_one_clean_model_is_one_short_line() -> None:
    """Nothing to say is said in few words."""
    assert check.render("text", CheckReport((CheckedModel("m"),), Level.ERROR)) == "m: ok"


def test_models_with_nothing_to_say_are_one_block() -> None:
    """A hundred clean models are a hundred lines, without blank ones between them."""
    clean = tuple(CheckedModel(f"m{place}") for place in range(3))
    text = check.render("text", CheckReport((*clean[:2], CheckedModel("bad", (entry(),)), clean[2]), Level.ERROR))
    assert text.split("\n\n")[1] == "m0: ok\nm1: ok\nm2: ok"


def test_text_is_wrapped_and_painted_on_a_terminal_only() -> None:
    """Piped text has one line a finding and no escape; a terminal gets both."""
    wide = check.render("text", every_case())
    narrow = check.render("text", every_case(), lambda text, style: f"\x1b[1m{text}\x1b[0m", 60)
    assert "\x1b" not in wide and "\x1b[1mfailed" in narrow
    assert max(len(re.sub(r"\x1b\[\dm", "", line)) for line in narrow.splitlines() if "next:" not in line) <= 60


@pytest.mark.parametrize(("fail_on", "failed"), [(Level.ERROR, 3), (Level.WARNING, 4), (Level.NOTE, 4)])
def test_failed_counts_models_at_the_level_and_unreadable_ones(fail_on: Level, failed: int) -> None:
    """`failed` of the JSON, the summary in Markdown and JUnit's suites agree on what fails."""
    report = replace(every_case(), fail_on=fail_on)
    document = json.loads(check.render("json", report))
    assert document["failed"] == failed == sum(model["failed"] for model in document["models"])
    assert len(re.findall(r"^\| `[^|]*\| ❌", check.render("markdown", report), re.MULTILINE)) == failed
    suites = JUnitXml.fromstring(check.render("junit", report).encode())
    assert sum(bool(suite.failures or suite.errors) for suite in suites) == failed


def test_json_is_what_its_schema_says_and_reads_back() -> None:
    """A stored report is the report: other formats can be made from it without the weights."""
    text = check.render("json", every_case())
    validate(json.loads(text), "check")
    assert check_json.read(text) == every_case()
    schema = json.loads((ROOT / "tieconv/reporters/schemas/check.schema.json").read_text())
    assert set(schema["$defs"]["finding"]["required"]) == set(json.loads(text)["models"][1]["findings"][0])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "tieconv.inspect/1"}', '{"schema": "tieconv.check/1", "models": 3}', "\ud800"]
)
def test_another_document_is_refused(text: str) -> None:
    """Reading back raises ValueError whatever it is given."""
    with pytest.raises(ValueError):
        check_json.read(text)


def test_a_stored_report_becomes_another_format() -> None:
    """`python -m tieconv.reporters.ci.formats FORMAT < report.json` prints what `--format FORMAT` would have."""
    stored_json = check.render("json", every_case()).encode()
    for name in check.FORMATS:
        call = [sys.executable, "-m", "tieconv.reporters.ci.formats", name]
        done = subprocess.run(call, input=stored_json, capture_output=True, check=True)
        assert done.stdout.decode() == check.render(name, every_case()) + "\n"
    bad = subprocess.run([*call[:-1], "junit"], input=b"{}", capture_output=True)
    assert (bad.returncode, bad.stdout) == (2, b"") and bad.stderr.startswith(b"error: ")
    assert subprocess.run([*call[:-1], "yaml"], input=b"{}", capture_output=True).returncode == 2


def test_sarif_is_valid_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OASIS schema holds; every rule is described; every finding points to a file by a stable fingerprint."""
    monkeypatch.setattr(check_sarif, "REPOSITORY", "https://github.com/some/tieconv")
    run = sarif(every_case())
    driver = run["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == sorted(
        {result["ruleId"] for result in run["results"]}, key=[rule.code for rule in RULES].index
    )
    for rule in driver["rules"]:
        assert "## How to fix" in rule["help"]["markdown"] and rule["helpUri"].startswith("https://")
        assert len(rule["fullDescription"]["text"]) <= 1000 and not re.search(r"\(C\d", rule["help"]["text"])
    assert len(run["results"]) == 8
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    levels = [result["level"] for result in run["results"] if not result["suppressions"]]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)


def test_sarif_says_what_was_waived_and_what_could_not_be_read() -> None:
    """A waived finding is suppressed with its reason; an unreadable model is a notification of a run that failed."""
    run = sarif(every_case())
    waived = [result for result in run["results"] if result["suppressions"]]
    assert [result["suppressions"][0]["justification"] for result in waived] == ["baseline: known since 2024-05"] * 2
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notice,) = invocation["toolExecutionNotifications"]
    assert "header is cut off" in notice["message"]["text"] and "fetch it" in notice["message"]["text"]
    assert notice["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/torn"


def test_sarif_stays_within_what_github_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """25,000 results at most, a notification counts the others; texts of at most 1,000 characters."""
    assert check_sarif._RESULTS == 25_000
    monkeypatch.setattr(check_sarif, "_RESULTS", 25)
    mild = (entry(level=Level.NOTE, message="x" * 5000),) * 26
    log = json.loads(check.render("sarif", CheckReport((CheckedModel("m", (*mild, entry())),), Level.ERROR)))
    run = log["runs"][0]
    assert len(run["results"]) == 25 and run["results"][0]["level"] == "error"
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert "This log omits 2 findings" in notice["message"]["text"]
    described = run["tool"]["driver"]["notifications"][notice["descriptor"]["index"]]
    assert described["id"] == notice["descriptor"]["id"] == "results-left-out"
    assert max(len(result["message"]["text"]) for result in run["results"]) <= 1000


def test_fingerprints_hold_still() -> None:
    """A new figure in the message, another order of tensors or another place of the model is the same finding."""
    one = entry(message="differs by at most 0.5", tensors=("a", "b"))
    same = entry(message="differs by at most 0.7", tensors=("b", "a"), level=Level.WARNING, remedy=None)
    other = [entry("TIE002", tensors=("a", "b")), entry(tensors=("a", "c")), entry(tensors=("a", "b"), file="x")]
    prints = [
        [result["partialFingerprints"] for result in sarif(CheckReport((model,), Level.ERROR))["results"]]
        for model in (CheckedModel("here", (one,)), CheckedModel("/there/x", (same,)), CheckedModel("here", (*other,)))
    ]
    assert prints[0] == prints[1]
    assert len({json.dumps(found) for found in [*prints[0], *prints[2]]}) == 4


def test_the_same_finding_twice_has_two_fingerprints() -> None:
    """GitHub would show two results with one fingerprint in one file as one."""
    results = sarif(CheckReport((CheckedModel("m", (entry(), entry())),), Level.ERROR))["results"]
    first, second = (result["partialFingerprints"]["primaryLocationLineHash"] for result in results)
    assert (first[-2:], second[-2:]) == (":1", ":2") and first[:-2] == second[:-2]


def test_a_tensor_is_one_location_however_often_it_is_named() -> None:
    """The schema wants locations that differ, and no more of them than GitHub keeps."""
    (result,) = sarif(CheckReport((CheckedModel("m", (entry(tensors=("a", "b", "a", "")),)),), Level.ERROR))["results"]
    assert [found["fullyQualifiedName"] for found in result["locations"][0]["logicalLocations"]] == ["a", "b"]


def test_sarif_describes_the_rules_of_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer shows each described rule, so only those with a result are there. Each address is a heading."""
    monkeypatch.setattr(check_sarif, "REPOSITORY", "https://github.com/some/tieconv")
    report = CheckReport((CheckedModel("m", (entry("TIE002"),)),), Level.ERROR, (), ("TIE001", "TIE002"))
    driver = sarif(report)["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == ["TIE002"]
    (result,) = sarif(report)["results"]
    assert result["ruleIndex"] == 0
    assert len(check.render("sarif", report)) <= 20_000
    page = (ROOT / "docs" / "rules.md").read_text()
    for rule in driver["rules"]:
        address, _, heading = rule["helpUri"].partition("#")
        assert address.endswith(f"/blob/v{tieconv.__version__}/docs/rules.md")
        assert f"\n### {heading.replace('-', ' ', 1)}\n".lower() in page.lower()


def test_rules_that_no_registry_knows_are_rendered() -> None:
    """A stored report of a later version can be read: its rules have no description here."""
    report = CheckReport((CheckedModel("m", (entry("NEW001"),)),), Level.ERROR, (), ("TIE001",))
    (result,) = sarif(report)["results"]
    assert result["ruleId"] == "NEW001" and "ruleIndex" not in result
    names = [case.get("name") for case in ET.fromstring(check.render("junit", report)).iter("testcase")]
    assert names == ["NEW001", "1 rule applied"]


def test_github_annotations_say_what_was_found_and_where() -> None:
    """Each open finding is one annotation with the file's path in the repository; what is waived is none."""
    commands = [readers.command(line) for line in check.render("github", every_case()).splitlines()]
    shown = [command for command in commands if command]
    assert [command.name for command in shown] == ["error"] * 4 + ["warning"] * 2 + ["notice"]
    assert shown[0].properties == {"title": "models/torn could not be read"}
    assert shown[1].properties["file"] == "models/bad/model.safetensors"
    assert "file" not in shown[3].properties and "hf://org/remote@v1/model.safetensors" in shown[3].properties["title"]
    assert shown[1].message.endswith("Next: tieconv set-tie false models/a -o OUT")
    assert commands[-1] is None


def test_github_shows_ten_of_a_kind_so_the_tenth_says_how_many_more() -> None:
    """GitHub drops the eleventh in silence: the tenth tells, and the log has the rest."""
    many = tuple(entry(message=f"number {place}") for place in range(25))
    lines = check.render("github", CheckReport((CheckedModel("m", many[:10]),), Level.ERROR)).splitlines()
    assert sum(readers.command(line) is not None for line in lines) == len(lines) - 1 == 10
    lines = check.render("github", CheckReport((CheckedModel("m", many),), Level.ERROR)).splitlines()
    shown = [found for found in map(readers.command, lines) if found]
    assert len(shown) == 10 and shown[-1].message == "the log of this step lists 16 more errors"
    assert all(any(f"number {place}." in line for line in lines) for place in range(25))


def test_junit_is_what_jenkins_and_gitlab_read() -> None:
    """A suite a model, a case a rule; failures, errors and skips where they belong, and the counts are right."""
    text = check.render("junit", every_case())
    readers.strict_junit(text)
    suites = {suite.name: suite for suite in JUnitXml.fromstring(text.encode())}
    figures = {name: (suite.failures, suite.errors, suite.skipped) for name, suite in suites.items()}
    assert figures == {
        "models/clean": (0, 0, 0),
        "models/mild": (0, 0, 0),
        "models/bad": (2, 0, 1),
        "models/waived": (0, 0, 1),
        "hf://org/remote@v1": (1, 0, 0),
        "models/torn": (0, 1, 0),
    }
    assert suites["models/clean"].tests == suites["models/torn"].tests == 1
    assert [case.name for case in suites["models/clean"]] == [f"{len(RULES)} rules applied"]
    verdicts = [bool(case.result) and isinstance(case.result[0], Failure) for case in suites["models/bad"]]
    assert verdicts == sorted(verdicts, reverse=True) and verdicts[:2] == [True, True]
    mild = next(case for case in suites["models/mild"] if case.name == "TIE002 redundant-copy")
    assert mild.is_passed and "byte-identical copy" in mild.system_out


def test_markdown_is_two_tables_that_render() -> None:
    """What a job summary shows: a row a model, and a table of findings for each model that has some."""
    page = readers.page(check.render("markdown", every_case()))
    assert page.tables[0][0] == ["model", "result", "errors", "warnings", "notes", "waived"]
    assert page.tables[0][2] == ["models/bad", "❌ failed", "2", "1", "0", "1"]
    assert [len(table) - 1 for table in page.tables] == [6, 4, 1, 2, 1]
    assert page.tables[1][1][3].startswith("lm_head.weight differs from model.embed_tokens.weight")
    assert page.opened == 3 and page.strays == []


def test_markdown_fits_into_a_job_summary() -> None:
    """At most 1 MiB, and what is left out is counted."""
    many = tuple(entry(message="| " * 400) for _ in range(300))
    for models in ((CheckedModel("m", many),), tuple(CheckedModel(f"m{i}", many[:20]) for i in range(90))):
        text = check.render("markdown", CheckReport(models, Level.ERROR))
        assert len(text.encode()) < 1 << 20
        assert re.search(r"… and [\d,]+ more (finding|model)s", text)
        assert readers.page(text).strays == []


@pytest.mark.parametrize(
    ("source", "file", "path"),
    [
        (".", "config.json", "config.json"),
        ("models/a", "config.json", "models/a/config.json"),
        ("models/a/", "x/y.bin", "models/a/x/y.bin"),
        ("models/a/model.safetensors", "config.json", "models/a/config.json"),
        ("models/a/model.safetensors", "model.safetensors", "models/a/model.safetensors"),
        ("model.safetensors.index.json", "model-1.safetensors", "model-1.safetensors"),
        ("models/a", "", "models/a"),
        ("hf://org/name@v1.bin", "config.json", "hf://org/name@v1.bin/config.json"),
    ],
)
def test_a_finding_is_placed_in_its_file(source: str, file: str, path: str) -> None:
    """The path is one that can be opened from where the command ran."""
    assert path_of(source, file) == path


def test_paths_are_those_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute paths and those of a step in a subfolder are given from the repository's root, others as `file:`."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert (relative("a/../b"), relative("../b"), relative("hf://a/b")) == ("b", None, None)
    assert uri(str(tmp_path / "sub" / "ä b%#?.bin")) == "%C3%A4%20b%25%23%3F.bin"
    assert uri("../b") == f"file://{tmp_path}/b" and uri("hf://org/a@v 1/x") == "hf://org/a@v%201/x"
    (tmp_path / ".git").mkdir()
    assert (relative("a/../b"), relative("../b"), relative("../../b"), uri("b")) == ("sub/b", "b", None, "sub/b")
    (tmp_path / ".git").rmdir()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert (relative("b"), relative("../b"), uri("b")) == ("sub/b", "b", "sub/b")


def test_real_findings_in_every_format(models: Path) -> None:
    """The committed models: the diverged one fails, with the rule's own words, everywhere."""
    report = stored(models / "llama-tied", models / "llama-diverged", models / "llama-duplicated")
    for name in check.FORMATS:
        text = unquote(check.render(name, report)).replace("`", "")
        assert "TIE001" in text and "model.embed_tokens.weight" in text, name
    assert json.loads(check.render("json", report))["failed"] == 1


def test_waivers_are_named() -> None:
    """Each format that lists a waived finding says by what and why."""
    waived = entry(waiver=Waiver("model", "see the release notes"))
    report = CheckReport((CheckedModel("m", (waived,)),), Level.ERROR)
    assert isinstance(waived, CheckedFinding)
    for name in ("json", "sarif", "junit", "markdown"):
        assert "see the release notes" in check.render(name, report) and "model" in check.render(name, report)
    assert check.render("text", report) == f"m: ok, 1 finding waived ({waived.finding.rule}: see the release notes)"
    assert "1 waived" in check.render("github", report)
