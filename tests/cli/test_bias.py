"""`tieconv bias` and `resize`: transformers reloads what was written, and sizes of the vocabulary agree."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import tieconv
from fixtures import zoo
from tests.checks.fixtures.model import LLAMA, flagged, gptq, save
from tests.checks.fixtures.more import inkling
from tests.cli.run import ok, refused, run
from tests.cli.stored import config, configure, edit, editing, operations, plan, same, snapshot, tensors
from tests.lazy import torch, transformers
from tests.reload.judge import differences, load
from tieconv.checkpoint.finding import Finding

OUTER, INNER = "cls.predictions.bias", "cls.predictions.decoder.bias"
HEAD, EMBEDDING = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"


def drop(*names: str):
    return lambda stored: [stored.pop(name) for name in names]


def untied_bert(model, **biases: torch.Tensor | None) -> Path:
    """A BERT whose flag is false, with both names of the bias but for what ``outer`` and ``inner`` say."""
    folder = model("bert-mlm")
    with editing(folder) as stored:
        stored[HEAD] = stored[EMBEDDING].clone()
        stored[INNER] = stored[OUTER].clone()
        for side, name in (("outer", OUTER), ("inner", INNER)):
            if side in biases:
                value = biases[side]
                stored.pop(name)
                if value is not None:
                    stored[name] = value
    configure(folder, tie_word_embeddings=False)
    return folder


# --- zero and strip --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flag", "names"), [(True, {OUTER}), (False, {OUTER, INNER})])
def test_zero_writes_the_names_that_loaders_read(model, tmp_path: Path, flag: bool, names: set[str]) -> None:
    """One name while the model is tied, each once it is not; the config and the logits stay as they are."""
    folder = model("bert-mlm")
    edit(folder, drop(OUTER))
    if not flag:
        edit(folder, lambda stored: stored.update({HEAD: stored[EMBEDDING].clone()}))
        configure(folder, tie_word_embeddings=False)
    before = load("BertForMaskedLM", folder)
    out = tmp_path / "out"
    assert set(operations(plan("bias zero", folder, "-o", out))) == names
    assert (out / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    after = load("BertForMaskedLM", out)
    assert differences(before, after, shares_head=flag) == []
    assert not after.missing


def test_zero_for_a_class_that_never_ties(tmp_path: Path) -> None:
    """A class with a head of its own has a bias like any other."""
    folder = tmp_path / "model"
    zoo.build("RemBertForMaskedLM").save_pretrained(folder)
    edit(folder, drop(INNER))
    ok("bias zero", folder, "-o", tmp_path / "out")
    assert not tensors(tmp_path / "out")[INNER].any()
    assert not load("RemBertForMaskedLM", tmp_path / "out").missing


def test_zero_then_strip_is_the_first_model(model, tmp_path: Path) -> None:
    """What zero adds, strip takes away; in place, byte for byte."""
    folder = model("llama-tied-sharded")
    before = snapshot(folder)
    ok("bias zero --in-place", folder)
    assert tensors(folder)["lm_head.bias"].shape == (192,)
    ok("bias strip --in-place", folder)
    assert snapshot(folder) == before


@pytest.mark.parametrize("line", ["bias unify", "retie", "untie", "set-tie true"])
def test_a_bias_that_transformers_5_did_not_read_is_told(model, tmp_path: Path, line: str) -> None:
    """Untied, with the outer name alone, it ran without the bias: its logits change, and the plan says so."""
    folder = untied_bert(model, inner=None)
    document = plan(line, folder, "-o", tmp_path / "out")
    assert any("transformers 5 loads" in note for note in document["notes"])
    before, after = load("BertForMaskedLM", folder), load("BertForMaskedLM", tmp_path / "out")
    assert not before.logits.equal(after.logits)
    edit(folder, lambda stored: stored[OUTER].zero_())
    assert not any("review first" in note for note in plan(line, folder)["notes"])


def test_strip_refuses_copies_of_which_one_is_trained(model) -> None:
    """The copy that transformers 5 reads is zero, the other is not."""
    folder = untied_bert(model, inner=torch.zeros(160))
    assert f"{OUTER} differs from {INNER}" in refused("bias strip", folder)


@pytest.mark.parametrize("name", ["NystromformerForMaskedLM", "LongformerForMaskedLM", "BertForMaskedLM"])
def test_a_class_that_gives_an_absent_bias_no_values_keeps_it(tmp_path: Path, name: str) -> None:
    """Its memory is not set: torch, asked to fill such memory with NaN, shows which class that is."""
    folder, without = tmp_path / "model", tmp_path / "without"
    zoo.build(name, tie=True).save_pretrained(folder)
    [bias] = [key for key in tensors(folder) if key in (OUTER, "lm_head.bias")]
    edit(folder, lambda stored: stored[bias].zero_())
    shutil.copytree(folder, without)
    edit(without, drop(bias))
    torch.use_deterministic_algorithms(True)
    try:
        unset = not zoo.model_class(name).from_pretrained(without).state_dict()[bias].eq(0).all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert unset == (name != "BertForMaskedLM")
    assert run("diff", folder, without).exit_code == unset
    for line in ("bias strip", "untie --bias strip", "retie --bias strip"):
        if unset:
            assert "without values afterwards" in refused(line, folder)
        else:
            assert operations(plan(line, folder))[bias] == "DropTensor"


def test_a_bias_of_quantised_rows_is_refused(model) -> None:
    """A bias in the dtype of codes would mean nothing."""
    folder = model("llama-untied")
    edit(folder, lambda stored: stored.update({"lm_head.weight": torch.zeros(192, 32, dtype=torch.int8)}))
    assert "is quantised (I8)" in refused("bias zero", folder)


def test_a_bias_beside_packed_tables_is_refused(tmp_path: Path) -> None:
    """The tables are stored, as codes in several parts."""
    config = {**flagged(LLAMA, False), "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1}}
    folder = save(tmp_path / "model", config, {**gptq("model.embed_tokens"), **gptq("lm_head")})
    assert "the head and the embedding are quantised" in refused("bias zero", folder)


def test_an_architecture_without_a_head_is_refused(model) -> None:
    """A reward model has no output embedding to bias."""
    folder = model("llama-tied")
    configure(folder, architectures=["LlamaForSequenceClassification"])
    assert "no output embedding" in refused("bias zero", folder)


# --- unify -----------------------------------------------------------------------------------------------


def test_unify_completes_a_legacy_name(model, tmp_path: Path) -> None:
    """Untied with the outer name alone (C14): transformers 5 starts at zero; unified, both versions read it."""
    meant = load("BertForMaskedLM", untied_bert(model))
    folder = tmp_path / "bert-mlm"
    edit(folder, drop(INNER))
    assert differences(meant, load("BertForMaskedLM", folder), shares_head=False) != []
    document = plan("bias unify", folder, "-o", tmp_path / "out")
    assert operations(document) == {INNER: "CopyTensor"}
    assert differences(meant, load("BertForMaskedLM", tmp_path / "out"), shares_head=False) == []


def test_unify_gives_the_canonical_name_back(model, tmp_path: Path) -> None:
    """Tied with the inner name alone (C16): the name that transformers 4 reads, and the same logits in 5."""
    folder = model("bert-mlm")
    meant = load("BertForMaskedLM", folder)
    edit(folder, lambda stored: stored.update({INNER: stored.pop(OUTER)}))
    document = plan("bias unify", folder, "-o", tmp_path / "out")
    assert operations(document) == {INNER: "RenameTensor"}
    assert set(tensors(tmp_path / "out")) & {OUTER, INNER} == {OUTER}
    assert differences(meant, load("BertForMaskedLM", tmp_path / "out"), shares_head=True) == []


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("survivor", ["bias", "decoder"])
def test_unify_two_that_differ_needs_a_word(model, tmp_path: Path, survivor: str, tied: bool) -> None:
    """Copies that differ (C15) are one after --from; transformers 5 sees a change only where its own copy goes."""
    folder = untied_bert(model, inner=torch.full((160,), 0.5))
    if tied:
        edit(folder, drop(HEAD))
        configure(folder, tie_word_embeddings=True)
    sentence = refused("bias unify", folder)
    assert OUTER in sentence and INNER in sentence
    survivor_values = tensors(folder)[{"bias": OUTER, "decoder": INNER}[survivor]]
    result = ok(f"bias unify --from {survivor}", folder, "-o", tmp_path / "out")
    assert "bias unify discards the values of" in result.stderr
    after = tensors(tmp_path / "out")
    assert set(after) & {OUTER, INNER} == ({OUTER} if tied else {OUTER, INNER})
    assert all(after[name].equal(survivor_values) for name in (OUTER, INNER) if name in after)
    before, written = load("BertForMaskedLM", folder), load("BertForMaskedLM", tmp_path / "out")
    changed = "logits" in str(differences(before, written, shares_head=tied))
    assert changed == (survivor == "bias")


def test_unify_drops_the_copy_of_a_tied_model(model, tmp_path: Path) -> None:
    """Equal copies of a tied model: the canonical one stays. A second time nothing changes."""
    folder = model("bert-mlm")
    edit(folder, lambda stored: stored.update({INNER: stored[OUTER].clone()}))
    assert operations(plan("bias unify", folder, "-o", tmp_path / "out")) == {INNER: "DropTensor"}
    assert operations(plan("bias unify", tmp_path / "out")) == {}


def test_unify_where_versions_disagree(tmp_path: Path) -> None:
    """Tied for transformers 5 alone: version 4 reads both names, so both are stored."""
    folder = tmp_path / "model"
    zoo.build("BlipForConditionalGeneration", tie=True).save_pretrained(folder)
    values = config(folder)
    values["text_config"]["tie_word_embeddings"] = False
    configure(folder, **values)
    document = plan("bias unify", folder)
    assert operations(document) == {"text_decoder.cls.predictions.decoder.bias": "CopyTensor"}
    values["text_config"]["tie_word_embeddings"] = True
    configure(folder, **values)
    assert operations(plan("bias unify", folder)) == {}


def test_unify_has_nothing_to_do_without_a_pair(model) -> None:
    """A class with one name, or a model without a bias, is told so."""
    assert "does not have two names" in refused("bias unify", model("llama-tied"))
    folder = model("bert-mlm")
    edit(folder, drop(OUTER))
    assert "stores no head bias" in refused("bias unify", folder)


# --- resize ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("untied", [False, True])
def test_resize_pads_to_the_head(model, tmp_path: Path, untied: bool) -> None:
    """A vocabulary grown without its bias (C20) crashes every loader; padded it loads, zeros for the new tokens."""
    folder = untied_bert(model) if untied else model("bert-mlm")
    old = tensors(folder)[OUTER]
    with editing(folder) as stored:
        for name in {EMBEDDING, HEAD} & stored.keys():
            stored[name] = torch.cat([stored[name], torch.ones(8, 32)])
    configure(folder, vocab_size=168)
    with pytest.raises(RuntimeError, match="mismatched_sizes"):
        load("BertForMaskedLM", folder)
    document = plan("bias resize", folder, "-o", tmp_path / "out")
    assert set(operations(document)) == ({OUTER, INNER} if untied else {OUTER})
    after = tensors(tmp_path / "out")
    for name in operations(document):
        assert after[name].equal(torch.cat([old, torch.zeros(8)]))
    assert not load("BertForMaskedLM", tmp_path / "out").missing


def test_resize_a_row(model, tmp_path: Path) -> None:
    """The [1, V] buffer of BART is padded in its only row."""
    folder = model("bart")
    edit(folder, lambda stored: stored.update(final_logits_bias=torch.ones(1, 150)))
    ok("bias resize", folder, "-o", tmp_path / "out")
    assert tensors(tmp_path / "out")["final_logits_bias"].equal(torch.cat([torch.ones(1, 150), torch.zeros(1, 10)], 1))
    assert not load("BartForConditionalGeneration", tmp_path / "out").missing


@pytest.mark.parametrize("end", [0.0, -0.0, 1.0, float("nan")])
def test_resize_cuts_only_zeros(model, tmp_path: Path, end: float) -> None:
    """An end is cut off where every value of it is zero, of either sign; any other is refused."""
    folder = model("bert-mlm")
    longer = torch.cat([torch.ones(160), torch.full((3,), end)])
    edit(folder, lambda stored: stored.update({OUTER: longer}))
    if end == 0:
        ok("bias resize", folder, "-o", tmp_path / "out")
        assert tensors(tmp_path / "out")[OUTER].equal(torch.ones(160))
    else:
        assert "loses trained values" in refused("bias resize", folder, "-o", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_resize_to_rows_and_back(model, tmp_path: Path) -> None:
    """--rows is obeyed, with a note where the head has others; what was added can be cut again."""
    folder = model("bert-mlm")
    result = ok("bias resize --rows 176", folder, "-o", tmp_path / "out")
    assert "the head has 160 rows" in result.stderr
    ok("bias resize", tmp_path / "out", "-o", tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(folder)


def test_resize_refuses_what_is_no_bias(model) -> None:
    """No bias, or one that is a matrix."""
    assert "stores no head bias" in refused("bias resize", model("llama-tied"))
    folder = model("bert-mlm")
    edit(folder, lambda stored: stored.update({OUTER: torch.zeros(2, 160)}))
    assert "[2, 160]" in refused("bias resize", folder)


# --- everywhere ------------------------------------------------------------------------------------------


def test_the_group_and_its_usage() -> None:
    """Each action has its own help, in whole sentences; an unknown one is a usage error; --from belongs to unify."""
    text = ok("bias --help").stdout
    assert "zero" in text and "cut off zeros at the end." in " ".join(text.split())
    assert "..." not in text.partition("Commands:")[2]
    assert run("bias polish", ".").exit_code == 2
    assert run("bias zero --from bias", ".").exit_code == 2


def test_a_magnitude_is_told_as_inspect_tells_it(model) -> None:
    """Four digits, not the seventeen of a float."""
    folder = model("bert-mlm")
    (magnitude,) = re.findall(r"largest magnitude ([\d.]+)", refused("bias strip", folder))
    assert f"largest magnitude {magnitude}\n" in ok("inspect", folder).stdout


EMBED, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def sized(model):
    """A copy of a fixture, its config changed, with a tokenizer of so many tokens where ``tokens`` is given."""

    def copy(name: str, tokens: int | None = None, **config: object) -> Path:
        folder = model(name)
        configure(folder, **config)
        if tokens is not None:
            vocab = {f"t{number}": number for number in range(tokens)}
            sized = {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}
            (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": sized}))
            (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return folder

    return copy


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_too_large_is_named(sized, tmp_path: Path, name: str) -> None:
    """The finding and the refusal say which file was not read, not that there is no tokenizer."""
    folder = sized("llama-untied", tokens=20, vocab_size=180)
    with (folder / name).open("r+b") as file:
        file.truncate(101_000_000)
    sentence = f"{name} is larger than tieconv reads"
    finding = voc(folder)
    assert finding and sentence in finding.message and "no tokenizer" not in finding.message
    assert sentence in refused("resize --to config", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_head_bias_that_the_class_lacks_is_resized_too(model, tmp_path: Path) -> None:
    folder = model("llama-untied")
    edit(folder, lambda stored: stored.update({"lm_head.bias": torch.ones(192)}))
    ok("resize --to 200", folder, "-o", tmp_path / "out")
    bias = tensors(tmp_path / "out")["lm_head.bias"]
    assert bias.tolist() == [1.0] * 192 + [0.0] * 8


def test_a_longer_head_of_a_tied_model_leads_to_its_rows(model, tmp_path: Path) -> None:
    """--to rows means those of the embedding: the hint names a number, and not the refused command."""
    folder = model("llama-tied")
    edit(folder, lambda stored: stored.update({LM_HEAD: torch.zeros(200, 32)}))
    assert "--to 200" in run("resize --to rows", folder, "-o", tmp_path / "out").stderr


def voc(folder: Path) -> Finding | None:
    return next((finding for finding in tieconv.inspect(folder).findings if finding.rule == "VOC001"), None)


def vocab_size(folder: Path) -> int:
    return config(folder)["vocab_size"]


def test_the_finding_names_all_sides_and_the_short_one(sized) -> None:
    """vocab_size, both tables and the tokenizer stand side by side, and the command is there to copy."""
    finding = voc(sized("llama-untied", tokens=192, vocab_size=190))
    assert finding is not None and finding.remedy is not None
    assert finding.message.startswith("vocab_size is smaller than the tables: ")
    for part in ("vocab_size 190", f"{EMBED} 192 rows", f"{LM_HEAD} 192 rows", "tokenizer ids below 192"):
        assert part in finding.message
    assert "tieconv resize" in finding.remedy.command and "--to rows" in finding.remedy.command and finding.remedy.safe


@pytest.mark.parametrize(
    ("tokens", "size", "begins", "holds", "command", "safe"),
    [(200, 200, "The tables are too short: ", "", "--to 200 --fill mean", False),
     (180, 256, "vocab_size is larger than the tables: ", "tokenizer ids below 180", "--to rows", True),
     (None, 256, "vocab_size is larger than the tables: ", "no tokenizer read", "--to rows", False),
     (None, 180, "vocab_size is smaller than the tables: ", "no tokenizer read", "--to rows", True)],
)  # fmt: skip
def test_sizes_that_disagree(
    sized, tokens: int | None, size: int, begins: str, holds: str, command: str, safe: bool
) -> None:
    """Tables shorter than the tokenizer get rows. The config gets the stored rows if no token can lose its row so."""
    finding = voc(sized("llama-untied", tokens=tokens, vocab_size=size))
    assert finding is not None and finding.remedy is not None
    assert finding.message.startswith(begins) and holds in finding.message
    assert command in finding.remedy.command and finding.remedy.safe is safe


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-untied-sharded"])
def test_to_rows_changes_the_config_alone(sized, tmp_path: Path, name: str) -> None:
    """Every other file is the same, byte for byte, and transformers loads the model."""
    folder, out = sized(name, vocab_size=190), tmp_path / "out"
    ok("resize --to rows", folder, "-o", out)
    assert vocab_size(out) == 192 and voc(out) is None
    for file in folder.iterdir():
        assert file.name == "config.json" or (out / file.name).read_bytes() == file.read_bytes()
    transformers.AutoModelForCausalLM.from_pretrained(out)


def test_fix_runs_it(sized, tmp_path: Path) -> None:
    """`check --fix` applies the safe repair."""
    out = tmp_path / "out"
    result = run("check --fix", sized("llama-untied", vocab_size=190), "-o", out)
    assert result.exit_code == 0, result.output
    assert "fixed: VOC001" in result.stderr and vocab_size(out) == 192


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-untied-sharded"])
@pytest.mark.parametrize("fill", ["zeros", "mean"])
def test_new_rows(sized, tmp_path: Path, name: str, fill: str) -> None:
    """The rows that were there stay byte for byte; the new ones are zero, or the mean of the others."""
    folder, out = sized(name, tokens=200, vocab_size=200), tmp_path / "out"
    plan = ok(f"resize --to config --fill {fill}", folder, "-o", out).stderr
    values = "the mean of its rows" if fill == "mean" else "zeros"
    assert "8 rows added at the end" in plan and f"8 new rows of {values} are not trained" in " ".join(plan.split())
    before, after = tensors(folder), tensors(out)
    for table in {EMBED, LM_HEAD} & before.keys():
        old, new = before.pop(table), after.pop(table)
        assert new.shape == (200, old.shape[1]) and torch.equal(new[:192], old)
        mean = torch.from_numpy(old.double().numpy().mean(axis=0)).to(old.dtype)
        expected = mean if fill == "mean" else torch.zeros_like(mean)
        assert all(torch.equal(row, expected) for row in new[192:])
    assert same(before, after)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert loaded(torch.tensor([[199]])).logits.shape[-1] == 200
    assert voc(out) is None


def test_a_bias_goes_along(sized, tmp_path: Path) -> None:
    """The head bias gets as many elements as the head has rows, zeros at its end."""
    folder, out = sized("bert-mlm"), tmp_path / "out"
    rows = vocab_size(folder)
    ok(f"resize --to {rows + 8} --fill mean", folder, "-o", out)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(out)
    assert vocab_size(out) == rows + 8 and loaded.cls.predictions.bias.shape == (rows + 8,)
    assert not loaded.cls.predictions.bias[rows:].any()


def test_rows_that_no_token_has_are_cut(sized, tmp_path: Path) -> None:
    """The tokenizer says that nothing uses them."""
    folder, out = sized("llama-untied", tokens=180, vocab_size=180), tmp_path / "out"
    ok("resize --to config", folder, "-o", out)
    cut, whole = tensors(out), tensors(folder)
    assert torch.equal(cut[EMBED], whole[EMBED][:180]) and torch.equal(cut[LM_HEAD], whole[LM_HEAD][:180])
    transformers.AutoModelForCausalLM.from_pretrained(out)


def test_rows_of_tokens_are_never_cut(sized, tmp_path: Path) -> None:
    """Nor where nobody can tell: one sentence, and nothing is written."""
    folder = sized("llama-untied", tokens=185, vocab_size=180)
    assert "tokens up to row 184" in refused("resize --to config", folder, "-o", tmp_path / "out")
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer shows" in refused("resize --to config", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cut_asked_for_by_number_needs_the_tokenizer_too(sized, tmp_path: Path) -> None:
    """Also where config and tables agree, so that nothing was wrong before."""
    folder = sized("llama-untied", tokens=185)
    assert "tokens up to row 184" in refused("resize --to 100", folder, "-o", tmp_path / "out")
    ok("resize --to 185", folder, "-o", tmp_path / "out")
    assert vocab_size(tmp_path / "out") == 185


def test_rows_that_a_config_needs_are_never_cut(sized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers fails to load such a model, or generates with an id without a row."""
    folder = sized("llama-untied", tokens=180)
    generation, rows = folder / "generation_config.json", 192
    cases: list[tuple[dict[str, object], dict[str, object], str]] = [
        ({"pad_token_id": 191}, {}, "pad_token_id in config.json needs row 191"),
        ({"vision_config": {"eos_token_id": [2, 185]}}, {}, "eos_token_id in config.json needs row 185"),
        ({"image_token_index": 190}, {}, "image_token_index in config.json needs row 190"),
        ({}, {"begin_suppress_tokens": [186]}, "begin_suppress_tokens in generation_config.json needs row 186"),
        ({}, {"bad_words_ids": [[3], [4, 187]]}, "bad_words_ids in generation_config.json needs row 187"),
        ({}, {"sequence_bias": [[[188], -1.0]]}, "sequence_bias in generation_config.json needs row 188"),
        ({"pad_token_id": -1, "bos_token_id": rows}, {"pad_token_id": None, "eos_token_id": 179}, ""),
    ]
    config = json.loads((folder / "config.json").read_text())
    for number, (changed, generated, sentence) in enumerate(cases):
        (folder / "config.json").write_text(json.dumps(config | changed))
        generation.write_text(json.dumps(generated))
        if sentence:
            assert sentence in refused("resize --to 180", folder, "-o", tmp_path / "out")
        else:
            ok("resize --to 180", folder, "-o", tmp_path / f"out{number}")
    # A default of the class counts only if config.json names no id.
    generation.write_text("{}")
    unnamed = {key: value for key, value in config.items() if not key.endswith("_token_id")}
    whisper = {"vision_config": {"model_type": "whisper"}}
    monkeypatch.setattr("tieconv.inspection.token_ids.default_ids", lambda model_type: {181})
    (folder / "config.json").write_text(json.dumps(unnamed | whisper))
    assert "a default of model_type" in refused("resize --to 180", folder, "-o", tmp_path / "out")
    (folder / "config.json").write_text(json.dumps(unnamed | whisper | {"eos_token_id": 5}))
    ok("resize --to 180", folder, "-o", tmp_path / "named")
    assert not (tmp_path / "out").exists()
    generation.write_text("{")
    assert "generation_config.json could not be read" in refused("resize --to 180", folder, "-o", tmp_path / "out")


def test_what_does_not_fit_is_refused(sized, tmp_path: Path) -> None:
    """Tables that disagree, and words that are not a target."""
    folder = sized("llama-untied")
    edit(folder, lambda stored: stored.update({LM_HEAD: stored[LM_HEAD][:100]}))
    assert "disagree" in refused("resize --to rows", folder, "-o", tmp_path / "out")
    assert "--to 192 --fill mean" in run("resize --to rows", folder).stderr
    for word in ("0", "-1", "many", "1.5", "٣"):
        assert run("resize", folder, "--to", word).exit_code == 2


def test_python(sized, tmp_path: Path) -> None:
    """The same plan as a function; a target that is none is a `ValueError`."""
    folder = sized("llama-untied", vocab_size=190)
    tieconv.plan_resize(folder, to=194, fill="mean").execute(tmp_path / "out")
    assert vocab_size(tmp_path / "out") == 194
    with pytest.raises(ValueError, match="is not rows, config or a number"):
        tieconv.plan_resize(folder, to="all")
    assert tensors(tmp_path / "out")[EMBED].isfinite().all()


FOLLOWERS = {
    "MobileBertForMaskedLM": "cls.predictions.dense.weight",
    "DeepseekV4ForCausalLM": "model.layers.0.ffn.gate.tid2eid",
    "IBertForMaskedLM": "ibert.embeddings.word_embeddings.weight_integer",
    "NeoMMEForMaskedLM": "model.value_embeddings.weight",
    "MusicgenForCausalLM": "lm_heads.1.weight",
    "Nemotron3_5TranscribeForConditionalGeneration": "ctc_timestamp.decoder.decoder_layers.0.bias",
}
"""A tensor with an entry for each token that is neither embedding, head nor head bias, by class."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_tensor_that_may_follow_the_vocabulary_is_refused(tmp_path: Path, name: str) -> None:
    """transformers failed to load these models after a resize that left the tensor alone."""
    zoo.build(name, tie=False).save_pretrained(tmp_path / "model")
    assert FOLLOWERS[name] in tensors(tmp_path / "model")
    sentence = refused("resize --to 106", tmp_path / "model", "-o", tmp_path / "out")
    assert "has an axis of the old vocabulary, and tieconv does not know whether it follows it" in sentence
    assert not (tmp_path / "out").exists()


def test_an_axis_of_the_old_vocabulary_is_named(sized, tmp_path: Path) -> None:
    """Any stored tensor counts, on any axis, also if only the config follows the rows."""
    folder = sized("llama-untied")
    edit(folder, lambda stored: stored.update({"mtp.head.weight": torch.zeros(32, 192)}))
    assert "mtp.head.weight has an axis" in refused("resize --to 200", folder, "-o", tmp_path / "out")
    configure(folder, vocab_size=32)
    assert "has an axis" in refused("resize --to rows", folder, "-o", tmp_path / "out")
    configure(folder, vocab_size=190)
    ok("resize --to rows", folder, "-o", tmp_path / "out")


@pytest.mark.parametrize("name", ["ReformerForMaskedLM", "ReformerModelWithLMHead"])
def test_a_bias_that_changes_no_logit_goes_along(tmp_path: Path, name: str) -> None:
    """Reformer stores a head bias that its forward pass ignores."""
    zoo.build(name).save_pretrained(tmp_path / "model")
    ok("resize --to 106", tmp_path / "model", "-o", tmp_path / "out")
    loaded, info = zoo.model_class(name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert loaded.lm_head.bias.shape == (106,) and not info["mismatched_keys"] and not info["missing_keys"]


def test_the_size_of_another_part_stays(tmp_path: Path) -> None:
    """The Q-Former has a vocabulary beside the language model's; a language model without a size has a default."""
    name, folder, out = "InstructBlipForConditionalGeneration", tmp_path / "model", tmp_path / "out"
    small = zoo.tiny_config(name)
    small.qformer_config.vocab_size = 50
    zoo.instantiate(name, small).save_pretrained(folder)
    ok("resize --to 106", folder, "-o", out)
    assert config(out)["qformer_config"]["vocab_size"] == 50 and config(out)["text_config"]["vocab_size"] == 106
    zoo.model_class(name).from_pretrained(out)
    text = {key: value for key, value in config(folder)["text_config"].items() if key != "vocab_size"}
    configure(folder, text_config=text, vocab_size=99)
    assert "cannot tell which config key" in refused("resize --to 106", folder, "-o", tmp_path / "none")


def test_a_text_part_under_another_key(tmp_path: Path) -> None:
    """NVIDIA writes `llm_config`, which transformers reads as `text_config`."""
    name, folder, out = "NemotronH_Omni_Reasoning_V3", tmp_path / "model", tmp_path / "out"
    zoo.build(name).save_pretrained(folder)
    configure(folder, llm_config=config(folder)["text_config"], text_config=...)
    ok("resize --to 106", folder, "-o", out)
    assert config(out)["llm_config"]["vocab_size"] == 106
    zoo.model_class(name).from_pretrained(out)


@pytest.mark.parametrize(
    ("unpadded", "tokens", "reported"), [(6, 8, True), (8, 8, False), (6, 6, False), (6, None, False)]
)
def test_a_head_that_the_config_cuts(tmp_path: Path, unpadded: int, tokens: int | None, reported: bool) -> None:
    """Inkling has a second size for the head. Without a tokenizer nothing is compared."""
    folder = inkling(tmp_path / "model", unpadded, tokens)
    assert [finding.rule for finding in tieconv.inspect(folder).findings] == ["VOC002"] * reported
    assert "cannot tell which config key counts" in refused("resize --to 9", folder, "-o", tmp_path / "out")
