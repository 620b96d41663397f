"""The report of `tieconv check` as JUnit XML.

Each model is a test suite, and each of its rules with findings is a test case.
Failures are listed first, and a model without findings has one passing case. A finding at or above `--fail-on` is a
failure. A lower one is output of a passing case, and a waived one skips its case. An unreadable model is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.checks.registry import TITLES
from tieconv.reporters.ci import check_view as view
from tieconv.text import count


def render(report: CheckReport) -> str:
    """Return one XML 1.0 document in UTF-8, without times, so that equal reports give equal documents."""
    root = ET.Element("testsuites", name="tieconv check")
    for model in report.models:
        suite = ET.SubElement(root, "testsuite", name=view.line(model.source))
        if report.settings is not None:
            properties = ET.SubElement(suite, "properties")
            ET.SubElement(properties, "property", name="settings", value=view.settings(report))
            if report.not_checked:
                listed = ", ".join(report.not_checked)
                ET.SubElement(properties, "property", name="not_checked", value=view.line(listed))
        suite.extend(_cases(model, report))
        _count(suite, suite)
    _count(root, root)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _count(element: ET.Element, within: ET.Element) -> None:
    element.set("tests", str(len(list(within.iter("testcase")))))
    for part, name in zip(("failure", "error", "skipped"), ("failures", "errors", "skipped"), strict=True):
        if element.tag == "testsuite" or part != "skipped":
            element.set(name, str(len(list(within.iter(part)))))


def _cases(model: CheckedModel, report: CheckReport) -> Iterator[ET.Element]:
    if model.failure:
        readable = _case(model, "readable")
        error = ET.SubElement(readable, "error", type="unreadable", message=view.line(model.failure.message))
        error.text = view.line(model.failure.hint)
        yield readable
        return
    codes = [*TITLES, *sorted({entry.finding.rule for entry in model.findings} - TITLES.keys())]
    cases = []
    for code in codes:
        entries = [entry for entry in model.findings if entry.finding.rule == code]
        if entries:
            case = _case(model, TITLES.get(code, view.line(code)))
            # Add at most one verdict to a case, because Ant's schema allows one.
            counting = [entry for entry in entries if entry.waiver is None]
            failing = [entry for entry in counting if report.counts(entry)]
            if failing:
                first = failing[0].finding
                verdict = ET.SubElement(case, "failure", type=str(first.level), message=view.line(first.message))
                verdict.text = _listed(counting)
            elif counting:
                ET.SubElement(case, "system-out").text = _listed(counting)
            else:
                reasons = dict.fromkeys(f"waived by {entry.waiver.sentence}" for entry in entries if entry.waiver)
                ET.SubElement(case, "skipped", message=view.line("; ".join(reasons)))
            cases.append(case)
    yield from sorted(cases, key=lambda case: case.find("failure") is None)
    yield _case(model, f"{count(len(report.rules or TITLES), 'rule')} applied")


def _case(model: CheckedModel, name: str) -> ET.Element:
    # Jenkins reads the text before the last dot as a package.
    return ET.Element("testcase", classname=f"tieconv.{view.line(model.source).replace('.', '_')}", name=name, time="0")


def _listed(entries: list[CheckedFinding]) -> str:
    return "\n".join(text for entry in entries for text in _lines(entry))


def _lines(entry: CheckedFinding) -> Iterator[str]:
    where = f"{view.line(entry.file)}: " if entry.file else ""
    yield f"{entry.finding.level} {where}{view.line(entry.finding.message)}"
    if step := entry.finding.next_step:
        yield f"next: {step}"
