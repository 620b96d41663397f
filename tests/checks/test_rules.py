"""Each rule has its documentation, its two fixtures, a page entry, and a remedy that works."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import tieconv as api
import tieconv.checks
from tests.checks.fixtures import asked, builder
from tests.checks.fixtures.model import LLAMA, VOCAB, WIDTH, llama, matrix, save
from tests.checks.remedy import run
from tests.loops import case
from tieconv.api.fixes import plan_action
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import is_plain
from tieconv.checks.evidence import Rule
from tieconv.checks.registry import RULES

SECTIONS = ("What it does", "Why it matters", "Example", "How to fix")
ROOM = Path(tieconv.checks.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def inspect(rule: Rule, kind: str, folder: Path) -> Inspection:
    build = builder(rule.code, kind)
    assert build is not None, f"{rule.code} has no {kind} fixture"
    return api.inspect(build(folder / "model"), consumers=asked(rule.code))


def bad(rule: Rule, folder: Path) -> tuple[Inspection, tuple[Finding, ...]]:
    """The bad fixture and what it gives; of a rule about loaders, what asking for one adds.

    That a model with code of its own is in no table is noted beside.
    """
    inspection = inspect(rule, "bad", folder)
    before = api.inspect(folder / "model").findings if asked(rule.code) else ()
    beside = {"TIE012"} if rule.code == "COD001" else set()
    added = (finding for finding in inspection.findings if finding not in before and finding.rule not in beside)
    return inspection, tuple(added)


def squeeze(text: str) -> str:
    return " ".join(text.split())


def test_the_documentation_of_each_rule() -> None:
    """What a rule does, why, an example and the fix are written down in this order, and docs/rules.md has it."""
    page = PAGE.read_text(encoding="utf-8")
    for rule in RULES:
        with case(rule.code):
            parts = re.split(r"^## (.+)\n", rule.documentation, flags=re.MULTILINE)
            assert tuple(parts[1::2]) == SECTIONS
            assert all(body.strip() for body in parts[2::2])
            assert re.fullmatch(r"[A-Z].*\.\n\n", parts[0]), "one sentence comes first"
            assert f"## {rule.code} {rule.name}\n" in page


def test_every_rule_is_registered_once() -> None:
    """Each rule of each module is in RULES exactly once: a module is one rule, or the rules of one topic."""
    modules = [importlib.import_module(f"tieconv.checks.{path.stem}") for path in ROOM.glob("*.py")]
    written = {value.code for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    assert sorted(written) == sorted(rule.code for rule in RULES)
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


@every_rule
def test_bad_fixture_gives_exactly_this_rule(rule: Rule, tmp_path: Path) -> None:
    """One fault is one finding, at the rule's usual level, with the message that the documentation quotes.

    The finding is one line that names its tensors. It ends with a full stop only where it has several sentences. No
    rule is run on a plain model, so the fixture must not look like one, unless a loader is asked for.
    """
    inspection, findings = bad(rule, tmp_path)
    assert [(finding.rule, finding.level) for finding in findings] == [(rule.code, rule.level)]
    (finding,) = findings
    assert squeeze(f"{finding.level} {finding.rule}: {finding.message}") in squeeze(rule.documentation)
    assert "\n" not in finding.message
    assert finding.message.endswith(".") == (". " in finding.message)
    assert all(name in finding.message for name in finding.tensors)
    assert inspection.consumers or not is_plain(inspection), "`is_plain` in tieconv/checks calls the bad fixture plain"


@every_rule
def test_good_fixture_gives_no_finding_of_this_rule(rule: Rule, tmp_path: Path) -> None:
    """The near miss is left alone."""
    assert rule.code not in [finding.rule for finding in inspect(rule, "good", tmp_path).findings]


@every_rule
def test_remedy_is_a_command_that_works(rule: Rule, tmp_path: Path) -> None:
    """Running the remedy leaves a model without errors and without this finding.

    `check --fix` takes a safe remedy as data: it has a plan for every verb that a rule names.
    """
    _, (finding,) = bad(rule, tmp_path)
    if finding.remedy is None:
        return
    if finding.remedy.safe and finding.remedy.action is not None:
        assert plan_action(finding.remedy.action).outcome()
    out = tmp_path / "out"
    run(finding.remedy.command, out)
    after = api.inspect(out, consumers=asked(rule.code))
    assert rule.code not in [later.rule for later in after.findings]
    assert Level.ERROR not in [later.level for later in after.findings]


def test_a_model_of_adapterhub_has_a_head_and_its_own_adapter(tmp_path: Path) -> None:
    """Its class ends in Model and has a head all the same, and its config lists the adapter in its weights."""
    layer = "model.layers.0.self_attn.q_proj.loras.mine"
    parts = {f"{layer}.lora_A": matrix(2, WIDTH), f"{layer}.lora_B": matrix(WIDTH, 2)}
    config = {**LLAMA, "architectures": ["LlamaAdapterModel"], "adapters": {"adapters": {"mine": "abc"}}}
    tensors = {**llama(), **parts, "heads.words.3.weight": matrix(VOCAB, WIDTH, seed=4)}
    inspection = api.inspect(save(tmp_path / "m", config, tensors))
    assert [finding.rule for finding in inspection.findings] == ["TIE012"]
    assert inspection.head.output_head and inspection.head.output_head.name == "heads.words.3.weight"
