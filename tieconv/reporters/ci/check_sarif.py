"""The report of `tieconv check` as SARIF 2.1.0, for GitHub's code scanning and Jenkins' warnings plugin.

Names are escaped as in text output; the JSON format has the exact names. The log describes only the rules of its
results, each with the address of its documentation.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport
from tieconv.checks.evidence import Rule
from tieconv.checks.registry import RULES
from tieconv.reporters.ci import check_view as view
from tieconv.text import count
from tieconv.version import REPOSITORY, VERSION

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RESULTS = 25_000  # GitHub refuses a run with more, and shows the 5,000 worst.
_TENSORS = 100  # GitHub keeps no more locations of one result
_UNREADABLE = "unreadable-model"
_LEFT_OUT = "results-left-out"
_NOT_CHECKED = "models-not-checked"
_Pair = tuple[CheckedModel, CheckedFinding]


def render(report: CheckReport) -> str:
    """Return one log with one run, in ASCII."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report)]}
    return json.dumps(log, indent=2, ensure_ascii=True)


def _run(report: CheckReport) -> dict[str, object]:
    waived = [(model, entry) for model in report.models for entry in view.waived(model)]
    pairs = [*view.open_findings(report), *waived]
    seen: Counter[tuple[str, str]] = Counter()
    named = {entry.finding.rule for _, entry in pairs[:_RESULTS]}
    described = [rule for rule in RULES if rule.code in named]
    index = {rule.code: number for number, rule in enumerate(described)}
    return {
        "tool": {"driver": _driver(described)},
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(report, len(pairs) - _RESULTS)],
        "results": [_result(pair, seen, index) for pair in pairs[:_RESULTS]],
    }


def _driver(described: list[Rule]) -> dict[str, object]:
    return {
        "name": "tieconv",
        "version": VERSION,
        "semanticVersion": VERSION,
        "rules": [_rule(rule) for rule in described],
        "notifications": [
            _notification(_UNREADABLE, "tieconv could not read a model, so it did not check it."),
            _notification(_LEFT_OUT, "GitHub accepts fewer findings. The log omits those with the lowest level."),
            _notification(_NOT_CHECKED, "Models below a checked model were found and not checked."),
        ],
    }


def _notification(name: str, text: str) -> dict[str, object]:
    parts = ("shortDescription", "fullDescription", "help")
    return {"id": name, **{part: {"text": text} for part in parts}}


def _rule(rule: Rule) -> dict[str, object]:
    title, _, body = rule.documentation.partition("\n")
    anchor = f"{rule.code.lower()}-{rule.name}"
    section = re.search(r"^## What it does\n(.*?)(?=^## |\Z)", body, re.MULTILINE | re.DOTALL)
    return {
        "id": rule.code,
        "name": rule.name.title().replace("-", ""),
        "shortDescription": {"text": title},
        "fullDescription": {"text": view.line(" ".join((section[1] if section else title).split()))},
        **({} if "/OWNER/" in REPOSITORY else {"helpUri": f"{REPOSITORY}/blob/v{VERSION}/docs/rules.md#{anchor}"}),
        "help": {"text": body.strip(), "markdown": body.strip()},
        "defaultConfiguration": {"level": str(rule.level)},
        "properties": {
            "tags": ["tied-embeddings", rule.code[:3].lower()],
            "precision": "very-high",
            "problem.severity": "recommendation" if rule.level is Level.NOTE else str(rule.level),
        },
    }


def _result(pair: _Pair, seen: Counter[tuple[str, str]], index: dict[str, int]) -> dict[str, object]:
    model, entry = pair
    finding = entry.finding
    seen[model.source, entry.fingerprint] += 1
    occurrence = seen[model.source, entry.fingerprint]
    remedy = finding.remedy
    properties = {"next": view.command(remedy.command), "safe": remedy.safe} if remedy else {}
    text = view.line(finding.message)
    if finding.next_step and len(text) + len(finding.next_step) < view.LIMIT:
        text = f"{text.removesuffix('.')}. Next: {finding.next_step}"
    names = dict.fromkeys(view.line(name) for name in entry.finding.tensors if name)  # the schema allows each once
    named = [{"fullyQualifiedName": name, "kind": "tensor"} for name in list(names)[:_TENSORS]]
    waived = []
    if entry.waiver:
        why = _message(view.line(entry.waiver.sentence))
        waived.append({"kind": "external", "status": "accepted", "justification": why})
    # GitHub requires a line, also for a file without lines.
    physical = {"artifactLocation": _artifact(view.path_of(model.source, entry.file)), "region": {"startLine": 1}}
    return {
        "ruleId": view.line(finding.rule),
        **({"ruleIndex": index[finding.rule]} if finding.rule in index else {}),
        "level": str(finding.level),
        "message": {"text": _message(text)},
        "locations": [{"physicalLocation": physical, **({"logicalLocations": named} if named else {})}],
        # GitHub reads only the first of the two, and adds rule and path itself.
        "partialFingerprints": {
            "primaryLocationLineHash": f"{entry.fingerprint}:{occurrence}",
            "tieconv/v1": f"{entry.fingerprint}:{occurrence}",
        },
        "suppressions": waived,
        **({"properties": properties} if properties else {}),
    }


def _message(text: str) -> str:
    """Break up ``[text](target)``, which would be a link."""
    return text.replace("](", "] (")


def _artifact(path: str) -> dict[str, object]:
    return {"uri": view.uri(path), **({} if view.relative(path) is None else {"uriBaseId": "%SRCROOT%"})}


def _invocation(report: CheckReport, left: int) -> dict[str, object]:
    notices = [_unreadable(model) for model in report.models if model.failure]
    if left > 0:
        text = f"This log omits {count(left, 'finding')}. GitHub accepts at most {_RESULTS:,} in a run."
        notices.append({"level": "warning", "descriptor": {"id": _LEFT_OUT, "index": 1}, "message": {"text": text}})
    if report.not_checked:
        names = view.line(", ".join(report.not_checked))
        text = _message(f"{view.not_checked(report)}: {names}")
        notices.append({"level": "warning", "descriptor": {"id": _NOT_CHECKED, "index": 2}, "message": {"text": text}})
    notes = {} if report.settings is None else {"properties": {"settings": view.settings(report)}}
    return {
        "executionSuccessful": all(model.failure is None for model in report.models),
        "toolExecutionNotifications": notices,
        **notes,
    }


def _unreadable(model: CheckedModel) -> dict[str, object]:
    assert model.failure is not None
    hint = f"; hint: {view.line(model.failure.hint)}" if model.failure.hint else ""
    return {
        "level": "error",
        "descriptor": {"id": _UNREADABLE, "index": 0},
        "message": {"text": _message(f"{view.line(model.source)}: {view.line(model.failure.message)}{hint}")},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(model.source)}}],
    }
