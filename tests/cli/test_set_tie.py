"""`tieconv set-tie`: the flag alone, judged by transformers reloading what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import config, configure, edit, flags, operations, plan, snapshot, tensors
from tests.lazy import torch
from tests.reload.judge import differences, load

E, H = "model.embed_tokens.weight", "lm_head.weight"


TIED = "llama-tied llama-tied-sharded llama-duplicated llama-headless-config qwen2-vl bert-mlm bart t5 gpt2-unprefixed"


@pytest.mark.parametrize("name", [*TIED.split(), "llama-diverged", "llama-untied"])
def test_auto_is_what_the_tensors_say(model, tmp_path: Path, name: str) -> None:
    """No tensor changes; every level says what is stored; a second time nothing changes."""
    folder, out = model(name), tmp_path / "out"
    plan("set-tie auto", folder, "-o", out)
    assert set(flags(out)) <= {name in TIED.split()}
    before, after = snapshot(folder), snapshot(out)
    assert {file for file in before if before[file] != after[file]} <= {"config.json"}
    assert operations(plan("set-tie auto", out)) == {}


def test_a_diverged_head_keeps_its_function(model, tmp_path: Path) -> None:
    """C01: transformers 5 gives the same logits before and after, and the head then is separate for every loader."""
    folder = model("llama-diverged")
    ok("set-tie false", folder, "-o", tmp_path / "out")
    before, after = (load("LlamaForCausalLM", path) for path in (folder, tmp_path / "out"))
    assert differences(before, after, shares_head=False) == []


@pytest.mark.parametrize("line", ["set-tie false", "set-tie auto", "check --fix"])
def test_a_head_that_transformers_4_passed_over_is_told(model, line: str) -> None:
    """With the flag true it runs the embedding, with false the head that is stored: its logits change."""
    folder = model("llama-diverged")
    note = f"the stored {H} differs from the embedding"
    assert note in run(line, folder).output
    configure(folder, tie_word_embeddings=False)
    assert note not in run(line, folder).output


def test_a_missing_head_is_tied_again(model, tmp_path: Path) -> None:
    """C06: before, the head starts random and is reported missing; after, it is the embedding."""
    folder = model("llama-headless-config")
    assert load("LlamaForCausalLM", folder).missing == {H}
    ok("set-tie true", folder, "-o", tmp_path / "out")
    after = load("LlamaForCausalLM", tmp_path / "out")
    assert after.shares_head and not after.missing


def test_every_level_is_written(model, tmp_path: Path) -> None:
    """C09: a nested flag that says something else, or is absent where a loader reads it, follows."""
    folder = model("qwen2-vl")
    values = config(folder)
    values["text_config"]["tie_word_embeddings"] = False
    configure(folder, **values)
    document = plan("set-tie true", folder, "-o", tmp_path / "out")
    assert operations(document) == {"text_config.tie_word_embeddings": "SetConfig"}
    del values["text_config"]["tie_word_embeddings"]
    configure(folder, **values)
    ok("set-tie true --in-place", folder)
    assert flags(folder) == [True, True]


@pytest.mark.parametrize(
    ("name", "flag", "why"),
    [
        ("llama-diverged", "true", "transformers 4 silently discards it"),
        ("llama-untied", "true", "transformers 4 silently discards it"),
        ("llama-tied", "false", "lm_head.weight is not stored: with the flag false, it would start random"),
        ("llama-headless-config", "false", "would start random"),
        ("bart", "false", "model.encoder.embed_tokens.weight is not stored"),
        ("bert-mlm", "false", "would start random"),
    ],
)
def test_a_loss_is_refused_and_can_be_forced(model, tmp_path: Path, name: str, flag: str, why: str) -> None:
    """What a loader would discard or start random is named; --force writes the flag all the same and says so."""
    folder = model(name)
    assert why in refused(f"set-tie {flag}", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result = ok(f"set-tie {flag} --force", folder, "-o", tmp_path / "out")
    assert "review first" in result.stderr
    assert flags(tmp_path / "out") == [flag == "true"]


def test_a_bias_that_would_start_at_zero(model, tmp_path: Path) -> None:
    """Untied with the outer bias alone transformers 5 starts at zero (C14): refused unless that is what is stored."""
    folder = model("bert-mlm")
    head = {"cls.predictions.decoder.weight": tensors(folder)["bert.embeddings.word_embeddings.weight"].clone()}
    edit(folder, lambda stored: stored.update(head))
    assert "start at zero" in refused("set-tie false", folder)
    edit(folder, lambda stored: stored.update({"cls.predictions.bias": torch.zeros(160)}))
    before = load("BertForMaskedLM", folder)
    ok("set-tie false", folder, "-o", tmp_path / "out")
    after = load("BertForMaskedLM", tmp_path / "out")
    assert before.logits.equal(after.logits)


@pytest.mark.parametrize("force", ["", " --force"])
def test_a_flag_that_scales_logits_is_refused(model, force: str) -> None:
    """T5: the flag alone multiplies the logits (C11), so no force helps; the hint names the verb that may."""
    folder = model("t5")
    names = (H, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    edit(folder, lambda stored: stored.update({name: stored["shared.weight"].clone() for name in names}))
    assert "multiply the logits" in refused(f"set-tie false{force}", folder)
    assert "tieconv untie" in run(f"set-tie false{force}", folder).stderr


def test_t5_with_its_own_head_cannot_be_tied_by_the_flag(model, tmp_path: Path) -> None:
    """After `untie` the head is scaled: the flag alone would scale it twice."""
    ok("untie", model("t5"), "-o", tmp_path / "untied")
    assert "multiply the logits" in refused("set-tie true", tmp_path / "untied")
    for flag in ("false", "auto"):
        assert operations(plan(f"set-tie {flag}", tmp_path / "untied")) == {}


@pytest.mark.parametrize("line", ["set-tie true", "retie"])
def test_a_default_that_is_written_out_scales_no_logits(model, tmp_path: Path, line: str) -> None:
    """T5 without the flag is tied and obeys a scale of its own: true says what was read, and the scale stays."""
    folder = model("t5")
    configure(folder, tie_word_embeddings=..., scale_decoder_outputs=False)
    before = load("T5ForConditionalGeneration", folder)
    assert operations(plan(line, folder, "-o", tmp_path / "out")) == {"tie_word_embeddings": "SetConfig"}
    after = load("T5ForConditionalGeneration", tmp_path / "out")
    assert differences(before, after, shares_head=True) == []


@pytest.mark.parametrize("value", [0, "", None])
@pytest.mark.parametrize("line", ["set-tie true", "set-tie false", "retie", "untie"])
def test_a_flag_of_another_type_scales_by_the_version(model, line: str, value: object) -> None:
    """transformers 5 scales T5 unless the flag is false itself, transformers 4 where it is true in Python's sense."""
    folder = model("t5")
    configure(folder, tie_word_embeddings=value)
    assert refused(line, folder)


def sign_of_zero(stored) -> None:
    stored[E][0, 0] = 0.0
    stored[H] = stored[E].clone()
    stored[H][0, 0] = -0.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda stored: stored.update({H: stored[E].float()}), "the same values in another dtype"),
        (sign_of_zero, "sign of zeros"),
        (lambda stored: stored.update({H: stored.pop(E)}), "is absent, but another name of its group is stored"),
        (lambda stored: stored.update({H: stored[E][:100].clone()}), "the shapes are [100, 32] and [192, 32]"),
        (lambda stored: stored.pop(E), "neither"),
    ],
)
def test_auto_refuses_what_is_open(model, change, why: str) -> None:
    """A rounded copy, a sign of zero, an inverted tie, another shape, nothing at all: the user decides."""
    folder = model("llama-tied")
    edit(folder, change)
    assert why in refused("set-tie auto", folder)


def test_a_group_that_fits_neither_value_is_refused(model) -> None:
    """BART with a head of its own and no encoder embedding; and without the canonical name (C08)."""
    bart, llama = model("bart"), model("llama-tied")
    edit(bart, lambda stored: stored.update({H: torch.randn(160, 32)}))
    assert "is absent, but another name is stored separately" in refused("set-tie auto", bart)
    edit(llama, lambda stored: stored.update({H: stored.pop(E)}))
    assert "transformers 4 reads the tied values only from that name" in refused("set-tie true", llama)


def test_a_copy_that_stays_is_told(model) -> None:
    """True beside an equal copy is right and wasteful."""
    folder = model("llama-duplicated")
    configure(folder, tie_word_embeddings=False)
    assert "tieconv retie drops it" in ok("set-tie true", folder).stdout


def test_there_must_be_a_config_and_a_directory(model) -> None:
    """Without a config there is nothing to write; a lone file is written alone."""
    folder = model("llama-untied")
    file = folder / "model.safetensors"
    configure(folder, tie_word_embeddings=True)
    assert "must change too" in refused("set-tie false", file)
    (folder / "config.json").unlink()
    pair = f"--embed {E} --head {H}"
    assert "no config.json" in refused(f"set-tie false {pair}", folder)


def test_an_unknown_architecture_needs_names(model) -> None:
    """What ties is a guess until it is named."""
    folder = model("llama-diverged")
    configure(folder, architectures=["NovelForCausalLM"], model_type="novel")
    assert "so the tied tensors are a guess" in refused("set-tie auto", folder)
    assert operations(plan(f"set-tie auto --embed {E} --head {H}", folder)) == {"tie_word_embeddings": "SetConfig"}


@pytest.mark.parametrize("line", ["set-tie true", "set-tie auto", "retie"])
def test_an_absent_head_that_is_decided_is_told(model, line: str) -> None:
    """Nothing in an untied model without a head says what the head is: the plan says what it becomes."""
    note = f"transformers 4 and 5 load {H} with random numbers now and with the values of {E} afterwards"
    assert note in ok(line, model("llama-headless-config")).stdout
    assert note not in ok(line, model("llama-tied")).stdout


@pytest.mark.parametrize("line", ["set-tie true", "retie"])
def test_no_hint_is_a_command_that_changes_nothing(model, line: str) -> None:
    """Of a model that is untied and says so no hint is to untie it."""
    hint = run(line, model("llama-untied")).stderr.splitlines()[1]
    assert "set-tie false" not in hint and "tieconv untie" not in hint
    apart = run(line, model("llama-diverged")).stderr.splitlines()[1]
    assert "set-tie false" in apart or "tieconv untie" in apart


def test_a_budget_that_is_too_small_names_the_survivor_and_the_next_step(model) -> None:
    """Whole words, and hints that can be followed: for an untied model none that untie it."""
    small_budget = run("retie --from embed --max-kl 0.01", model("llama-diverged")).stderr
    assert "the outputs may change by" in small_budget and "add --text FILE" in small_budget
    apart = run("retie --from embed --max-kl 0.01", model("llama-untied")).stderr
    assert apart.splitlines()[1] == "hint: the model is untied; nothing to change"


def test_a_t5_that_transformers_5_already_scales_is_tied(model, tmp_path: Path) -> None:
    """Without a head transformers 4 has random values, so the flag alone repairs both findings."""
    folder = model("t5")
    configure(folder, tie_word_embeddings=False, scale_decoder_outputs=True)
    assert "to compute what transformers 5 does: tieconv set-tie true" in run("retie", folder).stderr
    first = tieconv.inspect(folder).findings[0]
    assert first.rule == "TIE003" and first.message.endswith("is tied to shared.weight, run set-tie true.")
    assert first.remedy is not None and first.remedy.command.startswith("tieconv set-tie true ")
    before = load("T5ForConditionalGeneration", folder)
    ok("set-tie true", folder, "-o", tmp_path / "out")
    assert tieconv.inspect(tmp_path / "out").findings == ()
    assert differences(before, load("T5ForConditionalGeneration", tmp_path / "out"), shares_head=True) == []


def test_a_t5_that_transformers_5_does_not_scale_is_untied(model, tmp_path: Path) -> None:
    """transformers 5.23 saves such a config for a false flag. transformers 5 computes the same afterwards."""
    folder = model("t5")
    configure(folder, tie_word_embeddings=True, scale_decoder_outputs=False)
    before = load("T5ForConditionalGeneration", folder)
    note = f"transformers 4 loads {H} with the values of shared.weight times"
    assert note in ok("untie", folder, "-o", tmp_path / "out").stderr
    assert flags(tmp_path / "out") == [False]
    assert tieconv.inspect(tmp_path / "out").findings == ()
    assert differences(before, load("T5ForConditionalGeneration", tmp_path / "out"), shares_head=True) == []


def test_a_stored_copy_of_such_a_t5_needs_force(model, tmp_path: Path) -> None:
    """transformers 4 reads the copy without the scale. TIE014 names key, value and file, and the forced command."""
    folder = model("t5")
    configure(folder, tie_word_embeddings=False, scale_decoder_outputs=True)
    edit(folder, lambda stored: stored.update({H: stored["shared.weight"].clone()}))
    assert "multiply the logits" in refused("set-tie true", folder)
    (finding,) = tieconv.inspect(folder).findings
    assert finding.message.endswith(
        "If transformers 5 is right, set tie_word_embeddings to true in config.json. "
        "If transformers 4 is right, set scale_decoder_outputs to false in config.json."
    )
    assert (
        finding.remedy is not None and "set-tie true" in finding.remedy.command and "--force" in finding.remedy.command
    )
    ok("set-tie true --force", folder, "-o", tmp_path / "out")
    assert [finding.rule for finding in tieconv.inspect(tmp_path / "out").findings] == ["TIE002"]
