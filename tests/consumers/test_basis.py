"""What an answer rests on, and `load`: for each release, the stored tensor whose values a parameter gets."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieconv as api
from fixtures.loaders import DATA, document
from tests.checks.fixtures import FIXTURES
from tests.checks.fixtures.model import BART, BERT, HEAD, LLAMA, T5, bert, flagged, llama, matrix, save, vector
from tieconv.architectures import class_table
from tieconv.checkpoint.finding import Outcome
from tieconv.checkpoint.inspection import Inspection
from tieconv.cli import main
from tieconv.loaders.interface import Asked, Consumer, basis, verdict
from tieconv.loaders.load import TRANSFORMERS_4, TRANSFORMERS_5, load, releases
from tieconv.loaders.loaded import Absence, Cause
from tieconv.loaders.registry import CONSUMERS

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
MLX = ("0.28.4", "0.32.2")
V5 = ("4.57.6", "5.0.0", "5.23.0")


@pytest.mark.parametrize(
    ("ran", "every", "asked", "expected"),
    [
        ((), (), None, "read"),
        ((), ("1.0",), Asked("==", (1, 0)), "read"),
        (("0.32.2",), MLX, None, "ran 0.32.2"),
        (("0.32.2",), MLX, Asked("", (0, 32)), "ran 0.32.2"),
        (("5.0.0", "5.23.0"), V5, None, "ran 5.0.0, 5.23.0, not the releases between them"),
        (("5.0.0", "5.23.0"), V5, Asked("==", (5, 9)), "between 5.0.0 and 5.23.0, which ran"),
        (("0.32.2",), MLX, Asked("==", (0, 30)), "between 0.28.4 and 0.32.2, which ran"),
        (("0.32.2",), MLX, Asked("==", (0, 40)), "newer than 0.32.2, which ran"),
        (("0.28.4",), MLX, Asked("==", (0, 20)), "older than 0.28.4, which ran"),
        (("0.32.2",), MLX, Asked("==", (1,)), "newer than 0.32.2, which ran"),
        (("0.32.2",), MLX, Asked(">=", (0, 32)), "ran 0.32.2"),
        (("0.32.2",), MLX, Asked("<=", (0, 32)), "ran 0.32.2"),
        (("0.32.2",), MLX, Asked(">", (0, 32)), "newer than 0.32.2, which ran"),
        (("0.32.2",), MLX, Asked("<", (0, 32)), "between 0.28.4 and 0.32.2, which ran"),
        (("0.28.4",), MLX, Asked("<", (0, 28)), "older than 0.28.4, which ran"),
        (("5.23.0",), V5, Asked(">=", (6,)), "newer than 5.23.0, which ran"),
        (("5.0.0",), V5, Asked(">=", (5, 3)), "between 5.0.0 and 5.23.0, which ran"),
    ],
)
def test_basis(ran: tuple[str, ...], every: tuple[str, ...], asked: Asked | None, expected: str) -> None:
    assert basis(ran, every, asked) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    {
        "transformers>=6": "newer than 5.23.0, which ran",
        "vllm>=1": "newer than 0.32.0, which ran",
        "mlx-lm>=1": "newer than 0.32.2, which ran",
        "llama.cpp": "ran 0.3.36",
        "llama.cpp>=2026": "ran 0.3.36",
        "llama.cpp==0.3": "ran 0.3.36",
        "llama.cpp 2027": "newer than 0.3.36, which ran",
        "llama.cpp==2025": "older than 0.3.36, which ran",
        "llama.cpp<2026": "older than 0.3.36, which ran",
        "tensorrt-llm>=1": "read",
    }.items(),
)
def test_releases_that_did_not_run(spec: str, expected: str) -> None:
    """The basis names the release that ran only if the user's releases include it."""
    assert {row.basis for row in api.inspect(MODELS / "llama-tied", consumers=spec).consumers} == {expected}


def test_json_and_text(tmp_path: Path) -> None:
    """Each answer names its basis in JSON; text says it behind the sentence."""
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama())
    spec = "transformers==4.57.2,text-generation-inference"
    entries = json.loads(CliRunner().invoke(main, ["inspect", str(folder), "--for", spec, "--json"]).stdout)[
        "consumers"
    ]
    assert [entry["basis"] for entry in entries] == ["between 4.48.3 and 4.57.6, which ran", "read"]
    lines = CliRunner().invoke(main, ["inspect", str(folder), "--for", spec]).stdout.splitlines()
    start = lines.index("consumers")
    assert lines[start + 1].endswith("(between 4.48.3 and 4.57.6, which ran)")
    assert lines[start + 2].endswith("(unverified: the source was read, the loader was never run)")


def test_findings_name_what_never_ran(tmp_path: Path) -> None:
    """A finding about a loader that no test runs says so."""
    folder = save(tmp_path / "model", flagged(LLAMA, False), llama())
    (prediction,) = api.inspect(folder, consumers="text-generation-inference").consumers
    assert prediction.basis == "read"
    found = CliRunner().invoke(main, ["check", str(folder), "--for", "text-generation-inference"]).stdout
    assert "text-generation-inference 3.x (unverified)" in found


FILES = sorted(DATA.glob("*.json"))
ROOM = DATA.parent
CLASSES = frozenset(class_table.names())
TYPES = frozenset(str((class_table.record(5, name) or {})["type"]) for name in CLASSES)
NAMED_BY_READERS = 2
"""Strings of one literal that are model types or classes: one may be a word, like `bart` in a sentence."""


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_it_is_of(path: Path) -> None:
    """The release, how it was measured, and the form in which the script writes it."""
    entry = read(path)
    assert path.read_text(encoding="utf-8") == document(entry)
    assert entry["release"].split()[0].lower().startswith(path.stem.split("-")[0][:4]) and entry["measured"].endswith(
        "."
    )
    assert entry["about"].keys() <= entry["tables"].keys()


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith("transformers")], ids=lambda p: p.stem)
def test_tables_of_transformers_are_explained_and_name_what_is_known(path: Path) -> None:
    """Each table has its sentence; its entries are classes or model types of the architectures' table."""
    entry = read(path)
    assert list(entry["about"]) and entry["about"].keys() == entry["tables"].keys()
    for table, names in entry["tables"].items():
        unknown = set(names) - CLASSES - TYPES
        assert table == "types" or not unknown, (table, unknown)


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_lists_classes_or_types(path: Path) -> None:
    """A literal of several class names or model types would be a measurement without its release."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            entries = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
            texts = [one.value for one in entries if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found = {text for text in texts if text in CLASSES or text in TYPES}
            assert len(found) < NAMED_BY_READERS, f"{path.name}:{node.lineno}: {sorted(found)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_reads_the_file(path: Path) -> None:
    """A release holds once a loader's module names it: by the file's name, or by the version that ends it."""
    texts = {
        node.value
        for module in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    version = path.stem.rpartition("-")[2]
    assert {path.stem, version} & texts, f"no `CONSUMERS` of tieconv/loaders names {path.name}"


EMBEDDING, ENCODER = "model.embed_tokens.weight", "model.encoder.embed_tokens.weight"
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}


def inspected(folder: Path, config: dict[str, object], *names: str) -> Inspection:
    """A model of random tables, each with values of its own."""
    return api.inspect(save(folder / "m", config, {name: matrix(seed=seed) for seed, name in enumerate(names)}))


def test_a_tied_head_gets_the_embedding(tmp_path: Path) -> None:
    """One parameter in both releases, and nothing is thrown away."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING)
    for release in releases(model):
        loaded = load(model, release)
        assert loaded.source(HEAD) == loaded.holder(HEAD) == EMBEDDING
        assert loaded.tied(HEAD, EMBEDDING) and loaded.discarded == () and loaded.refusals == ()


def test_a_head_that_differs_from_the_embedding(tmp_path: Path) -> None:
    """transformers 4 throws it away, 5 keeps it."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING, HEAD)
    older, newer = load(model, TRANSFORMERS_4), load(model, TRANSFORMERS_5)
    assert (older.source(HEAD), older.discarded) == (EMBEDDING, (HEAD,))
    assert (newer.source(HEAD), newer.discarded) == (HEAD, ()) and not newer.tied(HEAD, EMBEDDING)


@pytest.mark.parametrize(("flag", "older"), [(True, Absence.UNSET), (False, Absence.RANDOM)])
def test_what_is_not_stored(flag: bool, older: Absence, tmp_path: Path) -> None:
    """The encoder's table alone: tied, transformers 4 moves nothing into the others, and 5 gives them that table."""
    model = inspected(tmp_path, flagged(BART, flag), ENCODER)
    assert load(model, TRANSFORMERS_4).parameters[HEAD].absence is older
    assert load(model, TRANSFORMERS_5).source(HEAD) == (ENCODER if flag else None)


def test_a_name_that_a_release_does_not_know(tmp_path: Path) -> None:
    """A table without the prefix beside names with it: transformers 4 does not read it, 5 does."""
    model = inspected(tmp_path, flagged(GPT2, False), "wte.weight", "transformer.wpe.weight", "lm_head.weight")
    older, newer = load(model, TRANSFORMERS_4), load(model, TRANSFORMERS_5)
    assert older.unread == {"wte.weight"} and older.discarded == ("wte.weight",)
    assert older.parameters[older.names["transformer.wte.weight"]].absence is Absence.RANDOM
    assert newer.unread == frozenset() and newer.source("wte.weight") == "wte.weight"


def test_a_file_that_a_release_refuses(tmp_path: Path) -> None:
    """A head beside names without the prefix: the sentence names it."""
    model = inspected(tmp_path, flagged(GPT2, False), "wte.weight", "wpe.weight", "lm_head.weight")
    refusal = load(model, TRANSFORMERS_4).refused(Cause.NAMES)
    assert refusal is not None and refusal.tensors == ("lm_head.weight",) and "corrupted" in refusal.sentence
    assert load(model, TRANSFORMERS_5).refusals == ()


def test_the_factor_of_the_forward_pass(tmp_path: Path) -> None:
    """T5 scales the logits by d_model**-0.5 while the flag is true, and that is the head's factor."""
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 16, "vocab_size": 8}
    for flag, factor in ((True, 0.25), (False, 1.0)):
        model = inspected(tmp_path / str(flag), flagged(config, flag), "shared.weight")
        assert load(model, TRANSFORMERS_5).parameters[HEAD].factor == factor


def test_a_bias_that_is_not_stored(tmp_path: Path) -> None:
    """It starts at zero, but for classes that give it no values at all, and then in the releases that do."""
    for name, older, newer in (
        ("BertForMaskedLM", Absence.ZERO, Absence.ZERO),
        ("LongformerForMaskedLM", Absence.ZERO, Absence.UNSET),
        ("ErnieForMaskedLM", Absence.UNSET, Absence.ZERO),
    ):
        model = inspected(tmp_path / name, {"architectures": [name], "model_type": name[:-11].lower()}, "x.weight")
        bias = model.family.output_biases[0]
        found = [load(model, release).parameters[bias].absence for release in (TRANSFORMERS_4, TRANSFORMERS_5)]
        assert found == [older, newer], name


def test_the_bias_that_transformers_4_computes_with(tmp_path: Path) -> None:
    """RoBERTa's outer bias is set to the inner one after loading."""
    config = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "tie_word_embeddings": False}
    tensors = {"lm_head.bias": vector(seed=1), "lm_head.decoder.bias": vector(seed=2), "roberta.norm.weight": vector()}
    loaded = load(api.inspect(save(tmp_path / "m", config, tensors)), TRANSFORMERS_4)
    assert loaded.source("lm_head.bias") == loaded.source("lm_head.decoder.bias") == "lm_head.decoder.bias"


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda entry: f"{entry.name} {entry.version}")
def test_every_release_of_every_loader_answers(consumer: Consumer, tmp_path: Path) -> None:
    """A tied model that stores its embedding alone: the head gets it, or a refusal says why nothing is claimed."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING)
    loaded = load(model, consumer.version, consumer.name)
    assert loaded.refusals == () and loaded.discarded == ()
    assert loaded.holder(HEAD) == loaded.source(EMBEDDING) == EMBEDDING and loaded.tied(HEAD, EMBEDDING)
    assert verdict(model, loaded).outcome is consumer.predict(model).outcome is Outcome.TIED


def test_an_unknown_release() -> None:
    """No other release is answered for."""
    with pytest.raises(KeyError):
        load(None, "0.1", "vllm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loader", "release", "source", "discarded"),
    [
        ("vllm", "<0.29", EMBEDDING, (HEAD,)),
        ("vllm", ">=0.29", HEAD, ()),
        ("llama.cpp", "2026", HEAD, ()),
        ("mlx-lm", "0.32", EMBEDDING, (HEAD,)),
        ("text-generation-inference", "3.x", EMBEDDING, (HEAD,)),
        ("tensorrt-llm", "engine", HEAD, ()),
        ("tensorrt-llm", "pytorch", EMBEDDING, (HEAD,)),
    ],
)
def test_a_tied_head_that_differs(
    loader: str, release: str, source: str, discarded: tuple[str, ...], tmp_path: Path
) -> None:
    """Each loader gives the head its own tensor, or the embedding and throws the stored head away."""
    loaded = load(inspected(tmp_path, flagged(LLAMA, True), EMBEDDING, HEAD), release, loader)
    assert (loaded.source(HEAD), loaded.discarded) == (source, discarded)
    assert loaded.tied(HEAD, EMBEDDING) is (source == EMBEDDING)


def test_the_builder_of_graphs_takes_the_head_for_both(tmp_path: Path) -> None:
    """onnxruntime-genai loads two and keeps the head's; two that were not compared may be one in transformers 5."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING, HEAD)
    assert load(model, "0.18", "onnxruntime-genai").source(EMBEDDING) == HEAD
    unread = load(api.inspect(model.checkpoint.source, depth="header"), "0.18", "onnxruntime-genai")
    assert [one.tied(HEAD, EMBEDDING) for one in unread.alternatives] == [True, True]
    assert [one.source(EMBEDDING) for one in unread.alternatives] == [HEAD, EMBEDDING]


def test_vllm_reads_two_tables_into_one(tmp_path: Path) -> None:
    """A class that does not skip the head: the last one that is read stays; equal tables have no order."""
    model = inspected(tmp_path, flagged(GPT2, True), "transformer.wte.weight", HEAD)
    loaded = load(model, "<0.29", "vllm")
    assert loaded.in_order == ("transformer.wte.weight", HEAD) and loaded.discarded == (HEAD,)
    answer = verdict(model, loaded)
    assert answer.outcome is Outcome.DISCARDED and "keeps the last one that it reads" in answer.detail
    both = {"transformer.wte.weight": matrix(), HEAD: matrix()}
    equal = api.inspect(save(tmp_path / "equal", flagged(GPT2, True), both))
    assert load(equal, "<0.29", "vllm").in_order == ()


def test_vllm_leaves_what_is_missing_as_the_memory_was(tmp_path: Path) -> None:
    """Where neither table is stored nothing is loaded into both, and the answer is not that they are tied."""
    model = inspected(tmp_path, flagged(GPT2, True), "transformer.wpe.weight")
    loaded = load(model, "<0.29", "vllm")
    assert loaded.parameters[HEAD].absence is loaded.parameters["transformer.wte.weight"].absence is Absence.MEMORY
    answer = verdict(model, loaded)
    assert (answer.outcome, answer.tensors) == (Outcome.RANDOM, ("transformer.wte.weight",))


def test_what_was_not_compared_is_unknown(tmp_path: Path) -> None:
    """Nothing is called discarded whose bytes were not read; where both answers are the same, it is given."""
    model = inspected(tmp_path, flagged(LLAMA, True), EMBEDDING, HEAD)
    header = api.inspect(model.checkpoint.source, depth="header")
    for loader, release in (("vllm", "<0.29"), ("vllm", ">=0.29"), ("mlx-lm", "0.32"), ("transformers", "5.x")):
        loaded = load(header, release, loader)
        assert loaded.undecided == (EMBEDDING, HEAD)
        answer = verdict(header, loaded)
        assert answer.outcome is Outcome.UNKNOWN and f"tieconv did not compare {HEAD} with" in answer.detail
    same = replace(loaded, alternatives=loaded.alternatives[:1])
    assert verdict(header, same).outcome is Outcome.UNTIED


def test_the_dtype_at_loading_decides_about_a_cast(tmp_path: Path) -> None:
    """As transformers 4.57.6 and 5.24.0 load both models in float32 and bfloat16."""
    narrow, config = matrix().astype("<f2"), flagged(LLAMA, True)
    expected = {True: (Outcome.TIED, Outcome.TIED), False: (Outcome.DISCARDED, Outcome.UNKNOWN)}
    for lossless, outcomes in expected.items():
        tables = {EMBEDDING: narrow, HEAD: narrow.astype("<f4") if lossless else matrix()}
        model = api.inspect(save(tmp_path / str(lossless), config, tables))
        loaded = load(model, TRANSFORMERS_4), load(model, "<0.29", "vllm")
        answers = [verdict(model, entry) for entry in loaded]
        assert tuple(answer.outcome for answer in answers) == outcomes
        assert ("equal only in the narrower of their dtypes" in answers[1].detail) is not lossless


def test_why_two_stored_tensors_stay_two_parameters(tmp_path: Path) -> None:
    """The row says what decides: a NaN in equal bytes, a class that always ties, or its default."""

    def row(config: dict[str, Any], tables: dict[str, Any]) -> str:
        model = api.inspect(save(tmp_path / config["model_type"], config, tables), consumers="transformers==5.x")
        return f"{model.config.effect} {model.consumers[-1].detail}"

    table = matrix()
    table[0, 0] = float("nan")
    equal = row(flagged(LLAMA, True), {EMBEDDING: table, HEAD: table})
    assert equal.startswith("Untied in transformers 5: lm_head.weight is stored and holds a NaN")
    assert "the config says tied, but both hold a NaN, which differs from itself" in equal
    names = ("encoder.embed_tokens.weight", "lm_head.weight")
    always = row(flagged(T5, False), {name: matrix(seed=seed) for seed, name in enumerate(names)})
    assert "the class always ties, but lm_head.weight and encoder.embed_tokens.weight differ, so" in always
    assert "the class ties by default, but their values differ" in row(BERT, bert(head=matrix(seed=1)))


def test_a_cast_with_a_nan_is_never_tied(tmp_path: Path) -> None:
    """transformers 5.23.0 keeps two parameters, because a NaN differs from itself."""
    narrow = matrix().astype("<f2")
    narrow[0, 0] = float("nan")
    model = api.inspect(save(tmp_path / "m", flagged(LLAMA, True), {EMBEDDING: narrow, HEAD: narrow.astype("<f4")}))
    assert verdict(model, load(model, TRANSFORMERS_5)).outcome is Outcome.UNTIED
    (finding,) = (entry for entry in model.findings if entry.rule != "TIE012")
    assert (finding.rule, finding.level) == ("TIE001", "error") and "in another dtype, with a NaN)" in finding.message


def test_equal_bytes_are_not_discarded(tmp_path: Path) -> None:
    """A NaN unties two copies in transformers 5; the graph that takes the head for both loses no value."""
    table = matrix()
    table[0, 0] = float("nan")
    model = api.inspect(save(tmp_path / "m", flagged(LLAMA, True), {EMBEDDING: table, HEAD: table}))
    assert verdict(model, load(model, TRANSFORMERS_5)).outcome is Outcome.UNTIED
    assert verdict(model, load(model, "0.18", "onnxruntime-genai")).outcome is Outcome.TIED


def test_a_refusal_of_the_files_is_no_refusal_of_the_model(tmp_path: Path) -> None:
    """Plans and `diff` ask what a release makes of the weights, wherever they lie and whatever is not known."""
    lone = api.inspect(inspected(tmp_path, flagged(LLAMA, True), EMBEDDING).checkpoint.source + "/model.safetensors")
    loaded = load(lone, TRANSFORMERS_5)
    assert loaded.refusals[0].cause is Cause.UNKNOWN and loaded.refused() is None
    assert loaded.source(HEAD) == EMBEDDING


@pytest.mark.parametrize("build", [FIXTURES["ONX001 good"], FIXTURES["ONX003 good"]], ids=["one-table", "two-tables"])
def test_a_graph_beside_a_config(build: Callable[[Path], Path], tmp_path: Path) -> None:
    """The ties of a graph are its own, not the groups of the class: each loader says that it reads no graph."""
    model = api.inspect(build(tmp_path / "m"))
    for consumer in CONSUMERS:
        assert consumer.predict(model).outcome in (Outcome.ERROR, Outcome.UNKNOWN)
