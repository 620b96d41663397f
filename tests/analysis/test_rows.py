"""Rows: which have a token, are zeros, copies or untrained, and how their norms follow token frequency."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.analysis.constructed import table
from tests.analysis.lm import PADDING, VOCABULARY, build
from tests.analysis.test_evolution import ROWS, checkpoint, noise
from tests.cli.run import ok, refused
from tests.cli.stored import configure, edit, editing
from tests.lazy import transformers
from tests.patience import examples
from tieconv import SettingsError, analyze
from tieconv.analysis import rows_section as undertrained
from tieconv.analysis.rows_section import _frequency_sentence, read_counts
from tieconv.analysis.subject import read_tokens
from tieconv.analysis.tables import digests, duplicates, lengths, overlap, points, ranges
from tieconv.checkpoint.results.analysis import POINTS, Analysis, Measure, Section
from tieconv.reporters.html.analyze_page import render_analysis
from tieconv.sources.local import open_files


def figure(analysis: Analysis, title: str, name: str) -> Measure:
    section = analysis.section(title)
    assert section is not None
    return next(measure for measure in section.measures if measure.name == name)


@pytest.mark.parametrize("tied", [True, False])
def test_every_figure_has_a_meaning(tmp_path: Path, tied: bool) -> None:
    """Rows that say nothing themselves too; a page explains each term of its figures."""
    build(tmp_path, tied=tied)
    with editing(tmp_path) as values:
        values["model.embed_tokens.weight"][3] = 0
    analysis = tieconv.analyze(tmp_path)
    figures = [measure for section in analysis.sections for measure in section.measures]
    assert [measure.name for measure in figures if not measure.meaning] == []
    page = render_analysis(analysis)
    for name, term in (("P@1", "P@1: the share"), ("cka", "CKA: how alike"), ("residual", "Residual: the length")):
        assert (term in page) is any(name in measure.name for measure in figures)


def test_padding_zeros_and_copies_are_counted(tmp_path: Path) -> None:
    """Rows without a token, zero rows with the probability that they take, and equal rows."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["model.embed_tokens.weight"][0] = 1  # the padding token's, which transformers starts at zero
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-PADDING:] = 0
        values["lm_head.weight"][5] = values["lm_head.weight"][9]
    analysis = tieconv.analyze(tmp_path)
    assert analysis.relation == "k-rows-differ"
    assert figure(analysis, "Rows", "rows without a token").value == PADDING
    assert figure(analysis, "Rows", "rows of zeros in the head").value == PADDING
    assert figure(analysis, "Rows", "rows equal to an earlier one").value == 1
    assert figure(analysis, "Rows", "differing rows without a token").value == PADDING
    mass = figure(analysis, "Rows", "probability of the rows of zeros")
    assert mass.value is not None and 0 < mass.value < 1 and mass.floor == PADDING / VOCABULARY
    rows = analysis.section("Rows")
    assert rows is not None
    assert rows.detail["zero_rows"] == rows.detail["rows_without_token"] == [[VOCABULARY - PADDING, VOCABULARY]]
    assert rows.detail["duplicate_rows"] == [[5, 9]]
    assert rows.detail["differing_rows_without_token"] == [[VOCABULARY - PADDING, VOCABULARY]]
    assert rows.detail["differing_rows_with_token"] == [[5, 6]]
    assert f"their tokens still get probability ({mass.value:.2g}, estimated)" in rows.sentence


EXTREMES = {"F64": 5e-324, "F32": 1e-45, "BF16": 1e-40, "F16": 6e-8}
plain = st.floats(allow_nan=True, allow_infinity=True)


@given(st.sampled_from(sorted(EXTREMES)), st.lists(st.tuples(plain, plain, plain), min_size=1, max_size=6))
@settings(deadline=None, max_examples=examples(300))
def test_a_row_is_zero_where_every_number_is(dtype: str, values: list[tuple[float, ...]]) -> None:
    """By its bits, signs aside, however small the numbers are; the length of any other is that of exact arithmetic."""
    signs = [(0.0, -0.0, 0.0), (EXTREMES[dtype], -0.0, 0.0), (1e-200, 1e-200, -1e-200), (1e200, 0.0, 0.0)]
    with np.errstate(all="ignore"):
        stored = table(np.array([*signs, *values]), dtype)
    found, numbers = lengths(stored), stored.values(0, stored.rows)
    sign = 1 << (8 * stored.form.width - 1)
    for length, row, bits in zip(found, numbers, stored.bits(0, stored.rows), strict=True):
        assert (length == 0) == all(int(number) & (sign - 1) == 0 for number in bits)
        assert np.isfinite(length) == np.isfinite(row).all()
        if np.isfinite(length):
            assert length == pytest.approx(min(math.hypot(*row), np.finfo("f8").max), rel=1e-14, abs=5e-324)


def test_small_numbers_are_no_rows_of_zeros(tmp_path: Path) -> None:
    """Float64 rows whose squares underflow are told as what they are, and so are rows whose squares overflow."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        head = values["lm_head.weight"].double()
        head[3], head[4], head[5] = 1e-200, -0.0, 1e200
        values["lm_head.weight"] = head
    analysis = tieconv.analyze(tmp_path)
    assert figure(analysis, "Rows", "rows of zeros in the head").value == 1
    rows = analysis.section("Rows")
    assert rows is not None and rows.detail["zero_rows"] == [[4, 5]]
    assert "NaN or infinity" not in rows.sentence


def test_rows_that_no_token_has_cost_nothing_where_the_head_survives(tmp_path: Path) -> None:
    """Differing padding rows: the head may survive, certified for every input of the tokenizer."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-3:] += 1
    analysis = tieconv.analyze(tmp_path)
    assert figure(analysis, "Re-tying", "KL bound, head survives").value == 0
    assert analysis.verdict.startswith("Yes, if the head survives")
    (tmp_path / "tokenizer.json").unlink()
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value is None


@pytest.mark.parametrize("kind", ["bpe", "unigram", "vocab"])
def test_every_kind_of_tokenizer_is_read(tmp_path: Path, kind: str) -> None:
    """A map of texts, a list of pairs and a bare vocabulary give the same ids; added tokens count."""
    words = {f"w{number}": number for number in range(5)}
    if kind == "vocab":
        (tmp_path / "vocab.json").write_text(json.dumps(words | {"end": 7}))
    else:
        model = {"vocab": words if kind == "bpe" else [[word, -1.0] for word in words]}
        added = [{"id": 7, "content": "end"}, {"id": "x", "content": "odd"}, 3]
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    with open_files(tmp_path) as files:
        tokens, _ = read_tokens(files, {path.name: 1 for path in tmp_path.iterdir()}, {})
    assert tokens is not None
    assert tokens.used(9).tolist() == [True] * 5 + [False, False, True, False]
    assert tokens.text[7] == "end"


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_tokens_that_other_files_add_are_tokens(tmp_path: Path, name: str) -> None:
    """A row that only an added token has is read by inputs: no certificate may rest on it."""
    build(tmp_path, tied=False)
    row = VOCABULARY - PADDING  # where transformers puts a new token
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][row] += 1
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value == 0
    entry = (
        {"<new>": row} if name == "added_tokens.json" else {"added_tokens_decoder": {str(row): {"content": "<new>"}}}
    )
    path = tmp_path / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entry))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids("<new>") == row
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value is None


LATE = VOCABULARY - 1


def _undecided(folder: Path, change: Callable[[Path], object]) -> str:
    """Why there is no certificate after a change; the change is what ends it."""
    build(folder, tied=False)
    with editing(folder) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][LATE] += 1
    assert figure(tieconv.analyze(folder), "Re-tying", "KL bound, head survives").value == 0
    change(folder)
    measure = figure(tieconv.analyze(folder), "Re-tying", "KL bound, head survives")
    assert measure.value is None
    return measure.says


def _pad(path: Path) -> None:
    """Put 101 MB of white space into a file, without storing it."""
    text = path.read_bytes() if path.exists() else b"{}"
    path.write_bytes(text)
    with path.open("r+b") as file:
        file.truncate(101_000_000)


def _settings(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "tokenizer.model").write_bytes(b"x"), "does not read tokenizer.model"),
        (lambda folder: (folder / "tekken.json").write_text("{}"), "does not read tekken.json"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "tokenizer_config.json could not be read"),
        (lambda folder: _pad(folder / "tokenizer.json"), "tokenizer.json is larger than tieconv reads"),
        (lambda folder: _pad(folder / "tokenizer_config.json"), "tokenizer_config.json is larger than tieconv reads"),
        (lambda folder: _pad(folder / "vocab.json"), "vocab.json is larger than tieconv reads"),
        (lambda folder: _pad(folder / "vocab.txt"), "vocab.txt is larger than tieconv reads"),
        (lambda folder: _pad(folder / "generation_config.json"), "generation_config.json is larger than tieconv reads"),
        (lambda folder: (folder / "vocab.json").write_text('{"en": {"a": 0}}'), "not a map of tokens to ids"),
        (lambda folder: (folder / "processor_config.json").write_text("{}"), "processor_config.json may add tokens"),
        (lambda folder: (folder / "vocab.txt").write_text("\n".join(map(str, range(VOCABULARY)))), "rows have a token"),
        (_settings(processor_class="IdeficsProcessor"), "names may add tokens"),
        (_settings(auto_map={"AutoTokenizer": ["house.Tokenizer", None]}), "is remote code"),
        (_settings(tokenizer_class="HouseTokenizer"), "HouseTokenizer"),
        (_settings(tokenizer_class="CanineTokenizer"), "CanineTokenizer"),
        (_settings(fast_tokenizer_files=["tokenizer.4.0.0.json"]), "fast_tokenizer_files"),
        (_settings(vocab_file="elsewhere.json"), "vocab_file"),
        (_settings(extra_ids="many"), "extra_ids"),
        (_settings(extra_ids=100), "may give these ids to tokens"),
        (_settings(extra_special_tokens=[f"<{number}>" for number in range(PADDING)]), "may give these ids"),
    ],
)
def test_where_ids_are_not_known_no_row_is_certified_unread(
    change: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    """Vocabularies that were not read, code, unknown classes and keys, and enough new tokens to reach the last row."""
    assert why in _undecided(tmp_path, change)


def test_the_certificate_names_the_inputs_that_it_is_not_about(tmp_path: Path) -> None:
    """Ids may be given or generated: the sentence names the rows, in the report and in what retie writes."""
    build(tmp_path / "model", tied=False)
    with editing(tmp_path / "model") as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-4:] += 1
    rows = f"does not cover ids that you pass, generate or add later: {VOCABULARY - 4}-{LATE}"
    assert rows in tieconv.analyze(tmp_path / "model").verdict
    told = ok("retie --from head --max-kl 0", tmp_path / "model").stdout
    assert rows in " ".join(told.split())


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": 3}', '{"model": {"vocab": {"a": -1, "b": 1.5, "c": true}}}']
)
def test_a_tokenizer_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    """Malformed and empty tokenizers are as good as none, and stop nothing."""
    (tmp_path / "tokenizer.json").write_text(text)
    with open_files(tmp_path) as files:
        assert read_tokens(files, {"tokenizer.json": len(text)}, {}) == (None, "")


def _trained(rng: np.random.Generator, *, output: bool) -> tuple[Any, Any, Any]:
    """Tables as training leaves them: (values, used, truly untrained tokens)."""
    rows, width, unused, lost = 600, 32, 30, 20
    values = rng.standard_normal((rows, width))
    away = 2 * rng.standard_normal(width)
    untrained = np.r_[rows - unused - lost : rows]
    values[untrained] = (away + 0.1 * values[untrained]) if output else 0.05 * values[untrained]
    used = np.ones(rows, bool)
    used[-unused:] = False
    return values, used, untrained[:lost]


@pytest.mark.parametrize("output", [True, False])
def test_untrained_tokens_are_found_by_the_indicator_of_the_table(output: bool) -> None:
    """By distance to the unused rows in an output table, by length in an input table: most found, few others."""
    values, used, lost = _trained(np.random.default_rng(0), output=output)
    norms = np.linalg.norm(values, axis=1)
    found = undertrained.find(table(values, "F32"), norms, used, output=output)
    assert found is not None and found.distinct
    assert len(set(found.rows) & set(lost)) >= 17
    assert len(set(found.rows) - set(lost)) == 0


def test_the_wrong_indicator_is_refused_or_blind() -> None:
    """Length finds no untrained row of an output table, where those are long: it must not be used there."""
    values, used, _ = _trained(np.random.default_rng(0), output=True)
    found = undertrained.find(table(values, "F32"), np.linalg.norm(values, axis=1), used, output=False)
    assert found is not None and not found.distinct


def test_an_untied_copy_is_judged_as_output_shaped(tmp_path: Path) -> None:
    """The indicator follows the stored values and not the flag of the config."""
    build(tmp_path, tied=False)
    edit(tmp_path, lambda values: values.update({"lm_head.weight": values["model.embed_tokens.weight"].clone()}))
    configure(tmp_path, tie_word_embeddings=False)
    assert "distance" in figure(tieconv.analyze(tmp_path), "Rows", "tokens that look untrained").says


def test_random_rows_are_not_called_untrained(tmp_path: Path) -> None:
    """In a model that was never trained the unused rows do not stand apart, and nothing is claimed."""
    build(tmp_path, tied=True)
    measure = figure(tieconv.analyze(tmp_path), "Rows", "tokens that look untrained")
    assert measure.value is None and "does not separate" in measure.says


def test_rows_are_joined_by_content() -> None:
    """Digests tell rows apart by a single bit, and equal rows are paired off one by one."""
    values = np.arange(40.0).reshape(10, 4)
    values[7] = values[2]
    one, two = digests(table(values, "F32")), digests(table(values[::-1].copy(), "F32"))
    assert duplicates(one) == [[2, 7]]
    assert overlap(one, two) == 10 and overlap(one, one[:4]) == 4
    assert overlap(one, one[[2, 2, 2, 0]]) == 3  # two rows of `one` are alike, three of the other
    assert overlap(one, digests(table(values + 0.5, "F32"))) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_rows_that_are_not_finite_are_out_of_the_ordinary(tmp_path: Path, tied: bool) -> None:
    """NaN or infinity in a table that both ends share, or in two equal ones: counted, and said."""
    build(tmp_path, tied=tied)
    with editing(tmp_path) as values:
        values["model.embed_tokens.weight"][3, 1] = float("nan")
        values["model.embed_tokens.weight"][7, 2] = float("inf")
        if not tied:
            values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
    analysis = tieconv.analyze(tmp_path)
    section = analysis.section("Rows")
    assert section is not None and "2 rows of the head with NaN or infinity" in section.sentence
    assert analysis.headline.answer.startswith("2 rows of model.embed_tokens.weight hold NaN or infinity.")
    assert figure(analysis, "Rows", "rows of the head with NaN or infinity").value == 2


@pytest.mark.parametrize("which", ["tied embed_tokens", "embed_tokens", "lm_head"])
def test_a_table_of_zeros_leads(tmp_path: Path, which: str) -> None:
    """The answer starts with the table of zeros. The similarity of the tables is left out, and refused if asked for."""
    tied, zeroed = which.startswith("tied"), "lm_head" if which == "lm_head" else "model.embed_tokens"
    build(tmp_path, tied=tied)
    with editing(tmp_path) as values:
        rows = len(values[f"{zeroed}.weight"].zero_())
    answer = tieconv.analyze(tmp_path).headline.answer
    assert answer.startswith(f"All {rows} rows of {zeroed}.weight are zeros. Restore the values from an earlier save.")
    if not tied:
        refusal = refused("analyze --similarity", tmp_path)
        assert "common rows are zeros, NaN or infinite in one of them" in refusal and "tokenizer" not in refusal


@pytest.mark.parametrize("key", ["decoder_start_token_id", "pad_token_id", "image_token_index"])
def test_a_row_that_the_config_feeds_is_read(tmp_path: Path, key: str) -> None:
    """An id that no token has, and that the model reads all the same: the head's survival is not certified."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-PADDING:] += 1
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value == 0
    configure(tmp_path, **{key: VOCABULARY - 1})
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value is None
    configure(tmp_path, **{key: 3, "decoder": {key: VOCABULARY - 2}})
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value is None


@pytest.mark.parametrize("which", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_row_that_is_equal_once_rounded_is_no_equal_row(tmp_path: Path, which: str) -> None:
    """Two types, and padding that differs: the rows of all tokens change with the survivor, so nothing is certified."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-PADDING:] += 1
        values[which] = values[which].bfloat16()
    analysis = tieconv.analyze(tmp_path)
    relation = analysis.section("Relation")
    assert analysis.relation == "k-rows-differ" and relation is not None
    assert "The others are equal after rounding to BF16" in relation.sentence
    assert figure(analysis, "Re-tying", "KL bound, head survives").value is None
    told = refused("retie --survivor head --max-kl 0", tmp_path, "-o", tmp_path / "out")
    assert "the weights give no KL bound" in told
    edit(tmp_path, lambda values: values.update({name: value.bfloat16() for name, value in values.items()}))
    assert figure(tieconv.analyze(tmp_path), "Re-tying", "KL bound, head survives").value == 0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An untied model: the norms of E grow with the frequency, those of U fall, both with noise."""
    counts = zipf()
    chance = np.random.default_rng(5)
    scale = np.log(counts)[:, None] / 10 + 0.3 * chance.random((ROWS, 1))
    checkpoint(tmp_path / "model", noise(0) * (1 + scale), noise(1) * (2 - scale))
    lines = [f"{row},{int(count)}" for row, count in enumerate(counts) if row >= 50]
    (tmp_path / "counts.csv").write_text("\n".join(["id,count", *lines]) + "\n")
    return tmp_path / "model"


def zipf() -> np.ndarray:
    return np.floor(1e5 / np.random.default_rng(4).permutation(np.arange(1, ROWS + 1)))


def found(model: Path) -> Section:
    section = analyze(model, counts=model.parent / "counts.csv").section("Frequency")
    assert section is not None
    return section


def test_correlations_are_those_of_numpy(model: Path) -> None:
    """Spearman and Pearson of the tokens that occur, recomputed from the stored values."""
    from safetensors.numpy import load_file

    stored, counts = load_file(model / "model.safetensors"), zipf()[50:]
    measures = {measure.name: measure for measure in found(model).measures}
    for role, name in (("input embedding", "model.embed_tokens.weight"), ("output head", "lm_head.weight")):
        norms = np.linalg.norm(stored[name].astype("f8"), axis=1)[50:]
        assert measures[f"Pearson of log p, norm of the {role}"].value == pytest.approx(
            np.corrcoef(norms, np.log(counts))[0, 1], abs=1e-6
        )
        ranks = [np.array([(values < value).sum() + (values == value).sum() / 2 for value in values])
                 for values in (norms, counts)]  # fmt: skip
        spearman = measures[f"Spearman, norm of the {role}"]
        assert spearman.value == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-6)
        assert spearman.n == ROWS - 50 and spearman.floor is not None and abs(spearman.floor) < 0.2
    assert "longer rows in the input embedding" in found(model).sentence
    assert "shorter rows in the output head" in found(model).sentence


def test_intervals_cover_the_truth(tmp_path: Path) -> None:
    """Of 400 samples of correlated normal numbers, 95 % intervals hold the true Pearson correlation about as often."""
    from tieconv.analysis.alignment_measures import pearson
    from tieconv.analysis.rows_section import _interval

    inside = 0
    for seed in range(400):
        left, right = np.random.default_rng(seed).standard_normal((2, 150))
        low, high = _interval(pearson(left, 0.6 * left + 0.8 * right), 1 / np.sqrt(147))
        inside += low < 0.6 < high
    assert 365 <= inside <= 395


def test_detail_and_series(model: Path) -> None:
    """The JSON has the intervals and the points of the plot; a tied model has one table."""
    counts = model.parent / "counts.csv"
    document = json.loads(ok("analyze --json --counts", counts, model).stdout)
    (section,) = [entry for entry in document["sections"] if entry["title"] == "Frequency"]
    assert section["detail"]["tokens"] == ROWS - 50 and section["detail"]["occurrences"] == int(zipf()[50:].sum())
    for measure in section["measures"]:
        low, high = section["detail"]["interval"][measure["name"]]
        assert low < measure["value"] < high and f"{low:.3f} to {high:.3f}" in measure["says"]
    assert {len(points) for points in section["series"].values()} == {ROWS - 50}
    checkpoint(model.parent / "tied", noise(0))
    tied = analyze(model.parent / "tied", counts=counts).section("Frequency")
    names = ["Spearman, norm of the tied table", "Pearson of log p, norm of the tied table"]
    assert tied is not None and [measure.name for measure in tied.measures] == names
    ok(f"analyze --counts {counts} --html {model.parent / 'p.html'}", model)
    assert "norm of the output head against word frequency" in (model.parent / "p.html").read_text("utf-8")


def test_few_tokens_have_no_correlation(model: Path) -> None:
    (model.parent / "counts.csv").write_text("".join(f"{row}\t{row}\n" for row in range(1, 60)))
    assert found(model).measures == () and "needs 100" in found(model).sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\nx\n", "line 2 is not a token id and a count"),
        ("0 1e400\n1 2\n", "line 1 is not"),
        ("-1,2\n1,2\n", "line 1 is not"),
        ("1,2\n-3,4\n", "line 2 is not"),
        ("1,2\n1,3\n", "line 2 repeats the id 1"),
        ("1,2\n400,3\n", "line 2 has the id 400, but the table has 400 rows"),
        ("id,count\n1,2.5\n", "line 2 is not"),
    ],
)
def test_other_files_are_refused(text: str, says: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_counts(str(tmp_path / "c.csv"), ROWS)
    assert "does not hold counts" in refused("analyze --counts", tmp_path / "c.csv", model)


@pytest.mark.parametrize("text", ["3,7\n5,9", "3\t7\r\n5\t9\r\n", "token count\n3 7\n\n5 9\n", "3, 7\n5 , 9\n"])
def test_separators(text: str, tmp_path: Path) -> None:
    """A comma, a tab or a space; a header and empty lines are skipped."""
    (tmp_path / "c.txt").write_bytes(text.encode())
    counts = read_counts(str(tmp_path / "c.txt"), 6)
    assert counts.tolist() == [0, 0, 0, 7, 0, 9]


@pytest.mark.parametrize(
    ("interval", "which"),
    [([0.1, 0.2], "longer"), ([0, 0.2], "neither longer nor shorter"), ([-0.2, 0], "neither longer nor shorter"),
     ([-0.2, -0.1], "shorter")],
)  # fmt: skip
def test_the_sentence_follows_the_interval(interval: list[float], which: str) -> None:
    name = "Spearman, norm of the head"
    sentence = _frequency_sentence({"head": np.zeros(1)}, {name: 0.15}, {name: interval})
    assert sentence == f"Frequent tokens have {which} rows in the head (rank correlation 0.15)."


@given(st.integers(0, 3 * POINTS))
def test_series_are_thinned_out(length: int) -> None:
    """At most `POINTS` numbers, and both ends are kept."""
    found = points(np.arange(length, dtype=float))
    assert len(found) == min(length, POINTS)
    if length:
        assert (found[0], round(found[-1])) == (0.0, length - 1)


@given(st.sets(st.integers(0, 200)))
def test_ranges_hold_exactly_the_rows(rows: set[int]) -> None:
    """The ranges, when none is left out, hold the rows and nothing else."""
    found = ranges(np.array(sorted(rows), int), most=1000)
    assert {row for start, stop in found for row in range(start, stop)} == rows
    assert all(stop < after for (_, stop), (after, _) in pairwise(found))


def test_numbers_that_json_lacks_are_text() -> None:
    """An infinite bound prints as text, so that the document stays JSON."""
    section = Section("Bias", "", (Measure("bound", float("inf")),))
    document = Analysis("m", (section,), "alias", "").to_dict()
    assert document["sections"][0]["measures"][0]["value"] == "inf"  # type: ignore[index]
