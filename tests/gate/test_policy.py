"""Waivers: what is ignored, per model or by the baseline does not count, and what they hold in vain is told."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport, Failure
from tieconv.gate import policy as baselines
from tieconv.gate.policy import Entry, Policy
from tieconv.gate.settings import ModelIgnore, Selection, Settings

A, B = "/repo/models/a", "/repo/models/b"
PATH = "/repo/ci/debt.json"


def checked_finding(rule: str, *tensors: str, message: str = "m", file: str = "model.safetensors") -> CheckedFinding:
    return CheckedFinding(Finding(rule, Level.ERROR, message, tensors), file)


def policy(**changes) -> Policy:
    made = Policy(Selection(), Settings(path="/repo/tieconv.toml"), Level.WARNING, Depth.CANDIDATES)
    return replace(made, **changes)


def waivers(model: CheckedModel) -> list[str | None]:
    return [entry.waiver and entry.waiver.by for entry in model.findings]


FINDINGS = st.lists(
    st.builds(
        checked_finding,
        st.sampled_from(["TIE001", "TIE002", "STO001"]),
        st.sampled_from(["x", "y"]),
        message=st.text(max_size=5),
    ),
    max_size=6,
)


@given(FINDINGS, FINDINGS, st.randoms())
def test_a_baseline_covers_what_was_there_and_nothing_else(now, later, random) -> None:
    """Written and read back it waives the same findings, whatever their messages say; each entry covers one."""
    models = {A: CheckedModel("a", tuple(now))}
    text = policy().debt(models, PATH, None)
    known = policy(baseline=baselines.parse_baseline(text, PATH))
    again = [replace(entry, finding=replace(entry.finding, message="new figures")) for entry in now]
    random.shuffle(again)
    judged = known.judge(CheckedModel("a", tuple(again)), A)
    assert waivers(judged) == ["baseline"] * len(now)
    assert list(known.notes({A: judged})) == []
    more = known.judge(CheckedModel("a", (*again, *later)), A)
    assert len(list(more.open)) == len(later)
    assert known.judge(CheckedModel("b", tuple(now)), B).findings == tuple(now)  # another model


@given(FINDINGS)
def test_writing_a_baseline_is_stable(now) -> None:
    """The same findings give the same bytes, in whatever order they came."""
    first = policy().debt({A: CheckedModel("a", tuple(now))}, PATH, None)
    second = policy().debt({A: CheckedModel("a", tuple(reversed(now)))}, PATH, None)
    assert first == second
    assert policy().debt({A: CheckedModel("a", tuple(now))}, PATH, baselines.parse_baseline(first, PATH)) == first


def test_fixed_entries_are_told() -> None:
    """Only of models that were read, rules that ran, and where as much was read as then."""
    entries = (Entry("../models/a", "TIE001", "f", ()), Entry("../models/a", "STO001", "f", ()))
    known = baselines.Baseline(PATH, Depth.CANDIDATES, entries)
    clean, unread = {A: CheckedModel("a")}, {A: CheckedModel("a", failure=Failure("m", "h"))}
    (note,) = policy(baseline=known).notes(clean)
    assert note == f"2 entries of the baseline are fixed: update the baseline with --write-baseline {PATH}"
    (note,) = policy(baseline=known, selection=Selection(("TIE",))).notes(clean)
    assert note.startswith("1 entry of the baseline is fixed")
    assert list(policy(baseline=known).notes(unread)) == []
    assert list(policy(baseline=known).notes({B: CheckedModel("b")})) == []
    assert list(policy(baseline=known, depth=Depth.HEADER).notes(clean)) == []


def test_rewriting_keeps_what_nobody_looked_at() -> None:
    """Other models, rules that did not run, and entries that a deeper look found stay; fixed ones go."""
    entries = tuple(Entry(f"../models/{name}", rule, "f", ()) for name in "ab" for rule in ("STO001", "TIE001"))
    old = baselines.Baseline(PATH, Depth.CANDIDATES, entries)

    def after(**changes) -> list[tuple[str, str]]:
        text = policy(**changes).debt({A: CheckedModel("a")}, PATH, old)
        return [(entry.model[-1], entry.rule) for entry in baselines.parse_baseline(text, PATH).entries]

    assert after() == [("b", "STO001"), ("b", "TIE001")]
    assert after(selection=Selection(("TIE",))) == [("a", "STO001"), ("b", "STO001"), ("b", "TIE001")]
    assert after(depth=Depth.HEADER) == [(name, rule) for name in "ab" for rule in ("STO001", "TIE001")]


def test_a_waiver_tells_why() -> None:
    """An ignored rule, then an ignore of the model with its reason; what is not selected is not in the report."""
    ignores = (ModelIgnore("models/a", ("TIE002",), "kept for vLLM"),)
    judge = policy(
        settings=Settings("/repo/tieconv.toml", per_model=ignores), selection=Selection(("TIE",), ("TIE001",))
    )
    model = judge.judge(
        CheckedModel(
            "a",
            (
                checked_finding("TIE001"),
                checked_finding("TIE002"),
                checked_finding("TIE003"),
                checked_finding("STO001"),
            ),
        ),
        A,
    )
    assert waivers(model) == ["ignore", "model", None]
    assert [entry.waiver.reason for entry in model.findings[:2]] == ["TIE001 is ignored", "kept for vLLM"]
    assert waivers(judge.judge(CheckedModel("b", (checked_finding("TIE002"),)), B)) == [None]


def test_an_unused_ignore_is_told() -> None:
    """Where a model that it names was checked and no finding met it; not at header depth, where none could."""
    ignores = (ModelIgnore("models/*", ("TIE002", "STO"), "r"), ModelIgnore("other/*", ("TIE",), "r"))
    judge = policy(settings=Settings("/repo/tieconv.toml", per_model=ignores))
    models = {A: judge.judge(CheckedModel("a", (checked_finding("TIE002"),)), A), B: CheckedModel("b")}
    (note,) = judge.notes(models)
    assert "/repo/tieconv.toml: ignoring STO for models/* has no effect" in note
    assert list(replace(judge, depth=Depth.HEADER).notes(models)) == []
    assert list(replace(judge, selection=Selection(("TIE",))).notes(models)) == []


def test_an_entry_for_no_checked_model_is_told() -> None:
    """Where every model of the directory that would hold it was checked; not for a run over some of its models."""
    names = ("models/a", "models/typo", "models/[x]*", "other/typo", "*/typo")
    settings = Settings("/repo/tieconv.toml", per_model=tuple(ModelIgnore(name, ("TIE",), "r") for name in names))
    models = {A: CheckedModel("a", (checked_finding("TIE002"),)), B: CheckedModel("b", failure=Failure("m", "h"))}
    start = "/repo/tieconv.toml: no checked model matches "
    searched = policy(settings=settings, searched=("/repo/models",))
    assert list(searched.notes(models)) == [f"{start}models/typo", f"{start}models/[x]*"]
    everywhere = list(replace(searched, searched=("/repo",)).notes(models))
    assert everywhere == [start + name for name in names[1:]]
    assert list(policy(settings=settings).notes(models)) == []


def test_the_exit_code() -> None:
    """2 for a model that could not be read, else 1 for an open finding at or above the level, else 0."""
    note = CheckedFinding(Finding("TIE004", Level.NOTE, "m"), "f")
    waived = policy(selection=Selection(ignore=("TIE001",))).judge(CheckedModel("a", (checked_finding("TIE001"),)), A)
    unread = CheckedModel("c", failure=Failure("m", "h"))

    def code(*models: CheckedModel, level: Level = Level.WARNING) -> int:
        return CheckReport(models, level).exit_code

    assert code(CheckedModel("a"), CheckedModel("a", (note,)), waived) == 0
    assert code(CheckedModel("a", (note,)), level=Level.NOTE) == 1
    assert code(CheckedModel("a", (checked_finding("TIE001"),)), level=Level.ERROR) == 1
    assert code(unread, CheckedModel("a", (checked_finding("TIE001"),))) == 2
