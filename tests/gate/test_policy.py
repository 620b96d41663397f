"""What counts: settings, selectors, per-model patterns, waivers and the baseline."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import tieconv
from tests.cli.run import refused
from tests.patience import prompt
from tests.refusals import failure_of
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Failure, Waiver
from tieconv.checks.registry import RULES
from tieconv.errors import SettingsError
from tieconv.gate import policy as baselines
from tieconv.gate.model_sources import parse_age
from tieconv.gate.policy import Entry, Policy
from tieconv.gate.settings import ALL, ModelIgnore, Selection, Settings, find_rule, matches, parse_settings, selectors

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
    for by, text in (("baseline", first), ("ignore", policy().debt({}, PATH, None))):
        waived = tuple(replace(entry, waiver=Waiver(by, "r")) for entry in now)
        assert policy().debt({A: CheckedModel("a", waived)}, PATH, None) == text


def test_tensors_that_were_not_compared_are_named() -> None:
    """Three of one model, and how many models have more."""
    first = CheckedModel("a", unread=("one", "two", "three", "four"))
    note = "one, two, three of a: not compared; tieconv inspect says why"
    assert list(policy().notes({A: first})) == [note]
    more = note.replace("of a:", "of a and of 1 more model:")
    assert list(policy().notes({A: first, B: CheckedModel("b", unread=("x",))})) == [more]


def test_ages() -> None:
    """Minutes, hours, days and weeks before now."""
    now = time.time()
    for text, seconds in (("5m", 300), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)):
        assert now - seconds <= parse_age(text) < now - seconds + 60, text


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
    """Other models, rules that did not run, and entries that a deeper look found stay; fixed ones go.

    The file has the depth of the deeper look.
    """
    entries = tuple(Entry(f"../models/{name}", rule, "f", ()) for name in "ab" for rule in ("STO001", "TIE001"))
    old = baselines.Baseline(PATH, Depth.CANDIDATES, entries)

    def after(**changes) -> list[tuple[str, str]]:
        baseline = baselines.parse_baseline(policy(**changes).debt({A: CheckedModel("a")}, PATH, old), PATH)
        assert baseline.depth is max(Depth.CANDIDATES, changes.get("depth", Depth.CANDIDATES), key=[*Depth].index)
        return [(entry.model[-1], entry.rule) for entry in baseline.entries]

    assert after() == [("b", "STO001"), ("b", "TIE001")]
    assert after(selection=Selection(("TIE",))) == [("a", "STO001"), ("b", "STO001"), ("b", "TIE001")]
    assert after(depth=Depth.HEADER) == [(name, rule) for name in "ab" for rule in ("STO001", "TIE001")]
    assert after(depth=Depth.FULL) == after()


def test_a_waiver_tells_why() -> None:
    """An ignored rule, then an ignore of the model with its reason; what is not selected is not in the report."""
    ignores = (ModelIgnore("models/a", ("TIE002",), "kept for vLLM"),)
    settings = Settings("/repo/tieconv.toml", per_model=ignores)
    judge = policy(settings=settings, selection=Selection(("TIE",), ("TIE001",)))
    findings = tuple(map(checked_finding, ("TIE001", "TIE002", "TIE003", "STO001")))
    model = judge.judge(CheckedModel("a", findings), A)
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


FULL = """
select = ["TIE", "STO001"]
ignore = ["TIE004"]
fail-on = "error"
for = "vllm"
depth = "header"
baseline = "debt.json"

[[per-model]]
model = "models/*"
ignore = ["TIE002"]
reason = "kept for vLLM 0.4"
"""


def test_every_key() -> None:
    """All settings, as they are meant."""
    assert parse_settings(FULL, "/repo/tieconv.toml") == Settings(
        path="/repo/tieconv.toml", select=("TIE", "STO001"), ignore=("TIE004",), fail_on=Level.ERROR, consumers="vllm",
        depth=Depth.HEADER, baseline="debt.json",
        per_model=(ModelIgnore("models/*", ("TIE002",), "kept for vLLM 0.4"),),
    )  # fmt: skip
    listed = parse_settings('for = ["vllm", "mlx-lm>=0.32"]', "/repo/tieconv.toml")
    assert listed is not None and listed.consumers == "vllm,mlx-lm>=0.32"


def test_the_section_of_a_pyproject() -> None:
    """The same keys under [tool.tieconv]; a pyproject.toml without it has no settings."""
    text = '[project]\nname = "x"\n[tool.tieconv]\nfail-on = "note"\n'
    assert parse_settings(text, "/r/pyproject.toml") == Settings(path="/r/pyproject.toml", fail_on=Level.NOTE)
    assert parse_settings("[tool.ruff]\n", "/r/pyproject.toml") is None
    assert parse_settings("tool = 3\n", "/r/pyproject.toml") is None


LISTS_OF_NONE = "[]", '["vllm", " "]', "[1]"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('selct = ["TIE"]', "unknown setting selct", "did you mean select?"),
        ('[tool.tieconv]\nselect = ["TIE"]', "unknown setting tool", "leave [tool.tieconv] out"),
        ('[check]\nselect = ["TIE"]', "unknown setting check", "without the table [check]: settings are top-level"),
        ('zzz = ["TIE"]', "unknown setting zzz", "the settings are select"),
        ('select = "TIE"', "select must be a list of rules", ""),
        ("select = [1]", "select must be a list of rules", ""),
        ('ignore = ["TIE099"]', "ignore: TIE099 is not a rule", "did you mean"),
        ('fail-on = "fatal"', "fail-on must be one of error, warning, note", ""),
        ("fail-on = 1", "fail-on must be a string", ""),
        ('depth = "deep"', "depth must be one of header, candidates, full", ""),
        ("for = 1", "for must be a string", ""),
        *((f"for = {value}", "for must be a string or a list of strings", "") for value in LISTS_OF_NONE),
        ('baseline = ""', "baseline must be a string that is not empty", ""),
        ("per-model = 3", "per-model must be tables", ""),
        ('[[per-model]]\nignore = ["TIE"]\nreason = "r"', "per-model[1].model is missing", ""),
        ('[[per-model]]\nmodel = "a"\nreason = "r"', "per-model[1].ignore is missing", ""),
        ('[[per-model]]\nmodel = "a"\nignore = []\nreason = "r"', "per-model[1].ignore is missing", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]', "per-model[1].reason is missing: say why", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]\nreason = " "', "per-model[1].reason must be a string", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]\nresaon = "x"', "unknown setting per-model[1].resaon", "reason"),
        ("a = = 1", "is not valid TOML", "correct the line"),
        ("a = " + "[" * 5000, "", ""),
        ("a = " + "1" * 5000, "is not valid TOML: it holds an integer of thousands of digits", ""),
    ],
)
def test_what_is_not_understood_is_told(text: str, message: str, hint: str) -> None:
    """One sentence with the file and the key, and a hint."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "/r/tieconv.toml")
    assert "/r/tieconv.toml" in caught.value.message and message in caught.value.message
    assert hint in caught.value.hint and caught.value.hint


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is settings or a `SettingsError`."""
    try:
        settings = parse_settings(text, "/r/tieconv.toml")
    except SettingsError as error:
        assert error.message.isprintable()
    else:
        assert isinstance(settings, Settings)


HOSTILE = {
    "a long integer": "x = " + "1" * 100_000,
    "a long integer as the depth": "depth = " + "1" * 100_000,
    "a long hexadecimal integer": "depth = 0x" + "f" * 100_000,
    "a long key": "a." * 100_000 + "a = 1",
    "a long key in quotes": '"a" . ' * 100_000 + "a = 1",
    "a long table": "[" + "a." * 100_000 + "a]",
    "a long key of an inline table": "x = { " + "a." * 100_000 + "a = 1 }",
    "many arrays": "x = " + "[" * 100_000,
    "many inline tables": "x = " + "{a=" * 100_000,
    "a repeated key": 'depth = "full"\ndepth = "full"',
    "an infinite number": "depth = inf",
    "a date": "depth = 2021-13-99",
    "half a surrogate pair": 'depth = "\\ud800"',
    "a null character": 'baseline = "a\\u0000b"',
}


def test_hostile_settings(tmp_path: Path, models: Path) -> None:
    """One sentence that names the file, for `tieconv.toml` and for the section of a `pyproject.toml`."""
    for name, text in HOSTILE.items():
        for path, content in (
            (tmp_path / "tieconv.toml", text),
            (tmp_path / "pyproject.toml", f"[tool.tieconv]\n{text}"),
        ):
            path.write_text(content)
            with prompt(2):
                message = refused("check --config", path, models / "t5")
            assert path.name in message and len(message) < 1000, (name, message)
            path.unlink()


def test_hostile_baselines(tmp_path: Path, models: Path) -> None:
    path = tmp_path / "baseline.json"
    good = json.dumps({"schema": "tieconv.baseline/1", "depth": "full", "entries": []})
    for text in (
        "1" * 100_000, "[" * 100_000, '{"a":' * 100_000, good[:-1] + ', "depth": "full"}', "[]", "null", "NaN",
        good.replace("[]", "1e999"), good.replace("[]", "NaN"), good.replace('"full"', "1" * 5000),
        good.replace("[]", "[[]]"), good.replace("[]", '[{"model": []}]'), good.replace("[]", "{}", 1)[:-2],
    ):  # fmt: skip
        path.write_text(text)
        assert "baseline.json is not a tieconv.baseline/1 file" in refused("check --baseline", path, models / "t5"), (
            text
        )


def test_an_endless_list_on_standard_input() -> None:
    """`tieconv check - < /dev/zero` stops at a bound."""
    from tieconv.sources import user_files

    problem = "the list on standard input cannot be read: it is larger than 64 MiB"
    with open("/dev/zero", "rb") as endless, pytest.raises(SettingsError, match=problem):
        user_files.read_stream(endless, "the list on standard input")


CODES = [rule.code for rule in RULES]
WORDS = st.sampled_from(sorted({code[:length] for code in CODES for length in range(1, 7)} | {ALL}))
SELECTORS = st.lists(WORDS, max_size=4).map(tuple)


def specificity(words: tuple[str, ...], code: str) -> int:
    """An oracle: the length of the longest word that covers the code, -1 where none does."""
    return max((0 if word == ALL else len(word) for word in words if word == ALL or code.startswith(word)), default=-1)


@given(SELECTORS, SELECTORS, st.sampled_from(CODES))
def test_the_longest_selector_decides(select: tuple[str, ...], ignore: tuple[str, ...], code: str) -> None:
    """A rule runs where something selects it, and counts where nothing as long ignores it."""
    selection = Selection(select, ignore)
    assert selection.runs(code) == (specificity(select, code) >= 0)
    counts = selection.runs(code) and selection.ignored_by(code) is None
    assert counts == (specificity(select, code) > specificity(ignore, code))


@given(SELECTORS, SELECTORS, st.sampled_from(CODES), st.randoms())
def test_order_and_repetition_do_not_count(select, ignore, code, random) -> None:
    """A selection is a set."""
    shuffled = [*select, *select]
    random.shuffle(shuffled)
    selection, same_codes = Selection(select, ignore), Selection(tuple(shuffled), (*ignore, *ignore))
    assert (selection.runs(code), selection.ignored_by(code)) == (same_codes.runs(code), same_codes.ignored_by(code))


def test_commas_repetition_and_case() -> None:
    """`--select tie001,STO --select ALL` is three selectors."""
    assert selectors(["tie001, STO", "all"], "--select") == ("TIE001", "STO", "ALL")


@pytest.mark.parametrize("word", ["TIE099", "TIE0011", "", "TIE001,", "missing-heads", "*", "\x1b[31m", "T" * 5000])
def test_a_word_that_covers_no_rule_is_refused(word: str) -> None:
    """A typo in a gate must not switch it off; the error is one short line that shows what was meant."""
    with pytest.raises(SettingsError) as caught:
        selectors([word], "--select")
    assert caught.value.message.startswith("--select: ") and caught.value.hint
    assert caught.value.message.isprintable() and len(caught.value.message) < 120


def test_near_matches_by_code_and_name() -> None:
    """A rule is found by its code or name, whatever the case; a typo is answered with what it is near to."""
    assert find_rule("tie003").code == find_rule("Missing-Head").code == "TIE003"
    with pytest.raises(SettingsError) as caught:
        find_rule("missing-haed")
    assert "TIE003 (missing-head)" in caught.value.hint
    assert failure_of(find_rule, SettingsError, "zzzzzzz").hint == "list all rules with: tieconv rules"
    assert selectors("TIE002", "select") == selectors(["tie002"], "select") == ("TIE002",)
    with pytest.raises(SettingsError, match="look at the files: tieconv inspect MODEL;"):
        find_rule("KeyError: 'lm_head.weight'")


def test_python_names_the_argument() -> None:
    """Not the option of the command."""
    for argument in ("select", "ignore"):
        with pytest.raises(SettingsError, match=f"^{argument}: TIE9 is not a rule"):
            tieconv.check([], **{argument: ["TIE9"]})


def test_a_name_selects_its_rule() -> None:
    """As `explain` takes it; a part of a name selects nothing."""
    assert selectors("redundant-copy,TIE001", "--ignore") == ("TIE002", "TIE001")
    with pytest.raises(SettingsError, match="did you mean TIE002"):
        selectors("redundant", "--ignore")


@pytest.mark.parametrize(
    ("pattern", "path", "answer"),
    [
        ("models/llama-*", "/repo/models/llama-tied", True),
        ("models/llama-*", "/repo/models/llama-tied/model.safetensors", True),
        ("models/*", "/repo/models/a/b", True),  # below a directory that it names
        ("models/*/b", "/repo/models/a/b", True),
        ("models/*b", "/repo/models/a/b", False),  # * stays within a name
        ("**/b", "/repo/models/a/b", True),
        ("**/b", "/repo/b", True),
        ("models/**", "/repo/models/a/b", True),
        ("models", "/repo/models-old", False),
        ("models", "/repo/other/models", False),
        ("model?", "/repo/models", True),
        ("model[st]", "/repo/models", True),
        ("model[!s]", "/repo/models", False),
        ("./models/a/", "/repo/models/a", True),
        (".", "/repo", True),
        ("../out/*", "/out/a", True),
        ("/out/*", "/out/a", True),
        ("a.b", "/repo/axb", False),  # nothing but the wildcards is special
        ("a(b", "/repo/a(b", True),
        ("a[b", "/repo/a[b", True),
        ("a\nb", "/repo/a\nb", True),
        ("hf://org/*", "hf://org/name", True),
    ],
)
def test_pattern(pattern: str, path: str, answer: bool) -> None:
    """Relative to the settings file, one name a star, and all that lies below a match."""
    assert matches(pattern, path, "/repo") is answer
