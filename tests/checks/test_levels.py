"""A rule is graver or milder depending on what is stored, and gives way to a rule that says more."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tieconv
import tieconv as api
from fixtures.onnx_graphs import untied, values
from tests.checks.fixtures.files import FIRST, SECOND
from tests.checks.fixtures.model import (
    BART,
    BERT,
    BERT_EMBED,
    EMBED,
    GEMMA3,
    HEAD,
    INTERNVL,
    KIMI,
    LLAMA,
    NESTED_EMBED,
    NESTED_HEAD,
    REMOTE,
    T5,
    Config,
    Tensors,
    bert,
    flagged,
    gptq,
    llama,
    matrix,
    save,
    save_shards,
    vector,
    with_row,
)
from tests.checks.fixtures.more import base_of, save_adapter
from tests.checks.remedy import run
from tests.lazy import torch
from tieconv.checkpoint.finding import Finding
from tieconv.checks import is_plain
from tieconv.cli import main
from tieconv.errors import RefusedError
from tieconv.loaders.load import TRANSFORMERS_5, load
from tieconv.loaders.loaded import Cause

NESTED = {NESTED_EMBED: matrix()}
OWN_HEAD = {**NESTED, NESTED_HEAD: matrix(seed=1)}
EQUAL_HEAD = {**NESTED, NESTED_HEAD: matrix()}
NEGATED = np.where(np.arange(32).reshape(8, 4) == 5, np.float32(0), matrix())
T5_SHARED = {"shared.weight": matrix()}


def findings(folder: Path, config: Config | None, tensors: Tensors) -> tuple[Finding, ...]:
    return api.inspect(save(folder / "model", config, tensors)).findings


def test_a_zero_bias_is_not_kept_over_a_trained_one(tmp_path: Path) -> None:
    """BIA003 names the outer bias if the inner one is all zero."""
    (finding,) = findings(tmp_path, flagged(BERT, True), bert(outer=vector(), inner=0 * vector()))
    assert finding.rule == "BIA003"
    assert finding.remedy is not None
    assert "--from bias" in finding.remedy.command
    assert not finding.remedy.safe


def sign_flipped() -> np.ndarray:
    tensor = NEGATED.copy()
    tensor[1, 1] = -0.0
    return tensor


CASES = {
    "a cast copy depends on the load dtype": (
        flagged(LLAMA, True),
        llama(head=matrix().astype("<f2")),
        "TIE001 warning",
    ),
    "the same values in another dtype are equal in each": (
        flagged(LLAMA, True),
        {**llama(head=matrix().astype("<f2")), EMBED: matrix().astype("<f2").astype("<f4")},
        "TIE002 warning",
    ),
    "the sign of a zero changes no logit": (
        flagged(LLAMA, True),
        {EMBED: NEGATED, HEAD: sign_flipped()},
        "TIE001 note",
    ),
    "a guessed architecture gives no errors": (
        flagged(REMOTE, True),
        llama(head=matrix(seed=1)),
        "TIE001 warning, TIE012 warning",
    ),
    "no config at all": (None, llama(head=matrix(seed=1)), "TIE012 note"),
    "nothing recognised": (None, {"conv.weight": matrix()}, "TIE012 note"),
    "version 4 is tied by default and 5 is not, equal head": (INTERNVL, EQUAL_HEAD, "TIE002 warning, TIE007 note"),
    "version 5 would complain about a head of its own": (INTERNVL, OWN_HEAD, "TIE007 warning"),
    "levels disagree and transformers 5 is right": (flagged(GEMMA3, False, text_config=True), OWN_HEAD, "TIE008 note"),
    "levels disagree and transformers 5 is wrong": (flagged(GEMMA3, True, text_config=False), OWN_HEAD, "TIE008 error"),
    "levels disagree and the head is equal": (flagged(GEMMA3, False, text_config=True), EQUAL_HEAD, "TIE008 note"),
    "version 4 goes by a nested level that is silent": (
        flagged({**INTERNVL, "text_config": {"model_type": "qwen2"}}, True),
        NESTED,
        "TIE007 note",
    ),
    "a silent nested level excuses no missing head": (flagged(GEMMA3, False), NESTED, "TIE003 error"),
    "null is no boolean, and a copy says nothing": (
        {**LLAMA, "tie_word_embeddings": None},
        llama(head=matrix()),
        "TIE013 error",
    ),
    "a loader may read null as false": ({**LLAMA, "tie_word_embeddings": None}, llama(), "TIE013 error"),
    "null is no boolean": ({**LLAMA, "tie_word_embeddings": None}, llama(head=matrix(seed=1)), "TIE013 error"),
    "an all-zero bias was asked for": (flagged(LLAMA, True), llama(bias=np.zeros(8, "<f4")), "BIA001 note"),
    "half a pair of zeros loses nothing": (
        flagged(BERT, False),
        bert(head=matrix(seed=1), outer=np.zeros(8, "<f4")),
        "BIA002 note",
    ),
    "transformers 4 leaves the outer name without values": (
        flagged(BERT, False),
        bert(head=matrix(seed=1), inner=vector()),
        "BIA002 error",
    ),
    "untied biases are two parameters": (
        flagged(BERT, False),
        bert(head=matrix(seed=1), outer=vector(), inner=vector(seed=1)),
        "BIA003 note",
    ),
    "the bias tie is inverted": (flagged(BERT, True), bert(inner=vector()), "TIE005 error"),
    "an untied placeholder is a lost head": (flagged(LLAMA, False), llama(head=np.zeros(0, "<f4")), "STO002 error"),
    "a BART untied by its flag alone": (
        flagged(BART, False),
        {"model.shared.weight": matrix()},
        "TIE003 error, TIE011 error",
    ),
    "a T5 with the flag false has no head in version 4": (flagged(T5, False), T5_SHARED, "TIE003 error"),
    "a T5 with a head of its own": (flagged(T5, False), {**T5_SHARED, HEAD: matrix(seed=1)}, ""),
    "a T5 with the flag true and a head of its own": (
        flagged(T5, True),
        {**T5_SHARED, HEAD: matrix(seed=1)},
        "TIE001 error",
    ),
    "a square head that is the transpose": (
        flagged({**LLAMA, "vocab_size": 4}, True),
        {EMBED: matrix(4, 4), HEAD: matrix(4, 4).T},
        "TIE001 error",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_level(case: str, tmp_path: Path) -> None:
    """The findings of one layout, worst first, and every remedy that they name is accepted."""
    config, tensors, expected = CASES[case]
    reported = findings(tmp_path, config, tensors)
    assert sorted(f"{finding.rule} {finding.level}" for finding in reported) == [
        entry for entry in expected.split(", ") if entry
    ]
    for number, finding in enumerate(reported):
        if finding.remedy is not None:
            out = tmp_path / f"out{number}"
            run(finding.remedy.command, out)
            assert finding.rule not in [later.rule for later in api.inspect(out).findings]


def test_worst_findings_come_first(tmp_path: Path) -> None:
    """Readers who stop early have read the errors."""
    tensors = {**llama(head=matrix(seed=1)), "lm_head.bias": np.zeros(8, "<f4")}
    levels = [str(finding.level) for finding in findings(tmp_path, flagged(LLAMA, True), tensors)]
    assert levels == ["error", "note"]


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """Control characters in a name are escaped in messages, and no command is built from such a name."""
    head = "\x1b[31mlm_head.\u202ehead.lm_head.weight"
    (finding, *_) = findings(tmp_path, flagged(REMOTE, True), {EMBED: matrix(), head: matrix()})
    assert finding.rule == "TIE002"
    assert finding.message.isprintable()
    assert "\\x1b[31m" in finding.message
    assert finding.remedy is None


@pytest.mark.parametrize("agrees", [True, False])
def test_a_shard_that_the_index_does_not_list(tmp_path: Path, agrees: bool) -> None:
    """Its tensors are missing in transformers 4 and 5: an error, and nothing about it is repaired without a review."""
    part = "model-{:05d}-of-00003.safetensors".format
    shards = {part(1): {EMBED: matrix()}, part(2): {"model.layers.0.mlp.down_proj.weight": matrix()}}
    shards[part(3)] = {"model.norm.weight": matrix(1)}
    listed = {EMBED: part(1), "model.norm.weight": part(3)}
    total = matrix().nbytes + matrix(1).nbytes if agrees else 1
    folder = save_shards(tmp_path / "model", flagged(LLAMA, True), shards, listed, total_size=total)
    reported = api.inspect(folder).findings
    assert [finding.rule for finding in reported] == ["IDX002", *([] if agrees else ["IDX004"])]
    assert reported[0].level == "error" and reported[0].tensors == ("model.layers.0.mlp.down_proj.weight",)
    assert "the index does not list its 1 tensor. transformers does not read the file." in reported[0].message
    assert all(not finding.remedy.safe and finding.remedy.command.startswith("tieconv reindex") for finding in reported)
    (note,) = [note for note in api.plan_reindex(folder).plan.notes if "random numbers" in note]
    assert note.startswith("transformers 4 and 5 load model.layers.0.mlp.down_proj.weight with random numbers now")


@pytest.mark.parametrize(
    ("tie", "listed", "hidden"),
    [
        (False, {EMBED: matrix()}, {HEAD: matrix(seed=1)}),  # else TIE003
        (False, {HEAD: matrix(seed=1)}, {EMBED: matrix()}),  # else TIE011
        (True, {"model.norm.weight": matrix(1)}, {EMBED: matrix()}),  # else TIE006
    ],
)
def test_a_table_in_a_shard_outside_the_index(tmp_path: Path, tie: bool, listed: Tensors, hidden: Tensors) -> None:
    """It is there, so no finding asks for it, or offers to replace it with the other table."""
    part = "model-{:05d}-of-00002.safetensors".format
    names = dict.fromkeys(listed, part(1))
    folder = save_shards(tmp_path / "model", flagged(LLAMA, tie), {part(1): listed, part(2): hidden}, names)
    assert {finding.rule for finding in api.inspect(folder).findings} <= {"IDX002", "IDX004"}
    (folder / part(2)).unlink()
    assert {finding.rule for finding in api.inspect(folder).findings} & {"TIE003", "TIE006", "TIE011"}


def test_shards_that_are_torn_or_several(tmp_path: Path) -> None:
    """One finding for all. A file that tieconv cannot read is named, and no command is offered that would refuse."""
    part = "model-{:05d}-of-00004.safetensors".format
    shards = {part(1): {EMBED: matrix()}, part(2): {"a": matrix()}, part(3): {"b": matrix()}, part(4): {"c": matrix()}}
    folder = save_shards(tmp_path / "model", flagged(LLAMA, True), shards, {EMBED: part(1)}, matrix().nbytes)
    (finding,) = api.inspect(folder).findings
    assert (finding.rule, finding.tensors) == ("IDX002", ("a", "b", "c"))
    assert finding.message.endswith("does not list their 3 tensors. transformers does not read the files.")
    assert finding.remedy is not None and not finding.remedy.safe
    for number in (2, 3, 4):
        (folder / part(number)).write_bytes(b"torn")
    (finding,) = [finding for finding in api.inspect(folder).findings if finding.rule == "IDX002"]
    assert f"tieconv cannot read {part(2)}, {part(3)} and {part(4)}." in finding.message
    assert finding.level == "error" and finding.remedy is None


def test_three_copies_of_a_graph_are_all_listed(tmp_path: Path) -> None:
    """The message ends with the third."""
    graph = untied()
    for number, name in enumerate(("a.1", "a.2", "b.1", "b.2", "c.1", "c.2")):
        graph.tensors[name] = values(number // 2, (128, 128))
        graph.add("MatMul", [name, name], f"{name}.squared")
    graph.save(tmp_path / "model.onnx")
    (finding,) = api.inspect(tmp_path, depth="full").findings
    assert "b.1 and b.2 (byte-identical); c.1 and c.2 (byte-identical). " in finding.message


def test_many_names_are_counted(tmp_path: Path) -> None:
    """A broken index of thousands of tensors gives one line."""
    names = {f"layer.{number}.weight": matrix(1, 1) for number in range(50)}
    weight_map = {f"absent.{number}.weight": "model-00001-of-00001.safetensors" for number in range(1000)}
    shards = {"model-00001-of-00001.safetensors": {**llama(), **names}}
    reported = api.inspect(save_shards(tmp_path / "model", flagged(LLAMA, True), shards, weight_map)).findings
    assert [finding.rule for finding in reported] == ["IDX001", "IDX002"]
    assert "and 996 more" in reported[0].message
    assert len(reported[0].message) < 300


def test_remedy_of_a_lone_file_names_its_directory(tmp_path: Path) -> None:
    """A command that changes the config needs the directory, even where the weight file was inspected."""
    folder = save(tmp_path / "model", flagged(LLAMA, False), llama(head=matrix()))
    (finding,) = api.inspect(folder / "model.safetensors").findings
    assert finding.remedy is not None
    run(finding.remedy.command, tmp_path / "out")
    assert api.inspect(tmp_path / "out").findings == ()


def test_no_remedy_where_the_flag_stands_twice(tmp_path: Path) -> None:
    """Nobody can say which of two flags a command should change."""
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama(head=matrix()))
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"tie_word_embeddings": false,', 1))
    reported = api.inspect(folder).findings
    assert [(finding.rule, finding.remedy) for finding in reported] == [("SEC002", None), ("TIE002", None)]


SHORT = matrix(rows=6)
ENCODERS = {f"{part}.embed_tokens.weight": matrix(seed=seed) for seed, part in enumerate(("encoder", "decoder"), 1)}
# By the rule: a model, and what the rule offers. Another command of the rule would be refused, or changes nothing.
OFFERED: dict[str, tuple[Config, Tensors, str | None]] = {
    "VOC001": (flagged(BERT, True), bert(outer=vector()) | {BERT_EMBED: SHORT}, "resize DIR --to 8 --fill mean -o OUT"),
    "VOC003": (flagged({**LLAMA, "pad_token_id": 8}, True), {**llama(bias=vector()), "model.scales": vector()}, None),
    "TIE006": (
        flagged(LLAMA, True),
        {f"module.{name}": tensor for name, tensor in llama(head=matrix(rows=9)).items()},
        None,
    ),
    "TIE014": ({**T5, "tie_word_embeddings": None, "scale_decoder_outputs": True}, {"shared.weight": matrix()}, None),
    "TIE005": (flagged(T5, False), {**ENCODERS, "lm_head.weight": matrix(seed=3)}, None),
    "QNT009": (
        flagged({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "lm_head": True}}, True),
        llama(head=matrix(rows=9)),
        None,
    ),
    "TIE005 without a head": (flagged(T5, False), ENCODERS, None),  # `untie` stores the head alone
}


@pytest.mark.parametrize("rule", OFFERED)
def test_a_command_that_is_refused_is_not_offered(rule: str, tmp_path: Path) -> None:
    """The planner compares more than the rule does."""
    config, tensors, command = OFFERED[rule]
    folder = save(tmp_path / "model", config, tensors)
    reported = {finding.rule: finding for finding in api.inspect(folder).findings}
    offered = reported[rule.split()[0]].remedy
    assert (offered and offered.command.replace(str(folder), "DIR")) == (command and f"tieconv {command}")
    if offered is not None:
        run(offered.command, tmp_path / "out")


@pytest.mark.parametrize(("tokens", "options"), [(8, "config"), (9, "10 --fill mean"), (0, "10 --fill mean")])
def test_one_table_was_resized(tokens: int, options: str, tmp_path: Path) -> None:
    """Rows that no token has are removed rather than invented in the other table; without a tokenizer nobody knows."""
    config = flagged({**LLAMA, "vocab_size": 8}, False)
    folder = save(tmp_path / "model", config, {EMBED: matrix(10), HEAD: matrix(8, seed=1)})
    if tokens:
        vocabulary = {f"w{number}": number for number in range(tokens)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (finding,) = api.inspect(folder).findings
    assert finding.rule == "VOC001" and finding.remedy is not None and not finding.remedy.safe
    assert finding.remedy.command.endswith(f"--to {options} -o OUT")
    run(finding.remedy.command, tmp_path / "out")
    assert api.inspect(tmp_path / "out").findings == ()


def test_the_padding_token_of_a_model_with_a_bias_that_the_class_lacks(tmp_path: Path) -> None:
    """The bias belongs to the tied head and grows with the embedding."""
    folder = save(tmp_path / "model", flagged({**LLAMA, "pad_token_id": 8}, True), llama(bias=vector()))
    offered = next(finding.remedy for finding in api.inspect(folder).findings if finding.rule == "VOC003")
    assert offered is not None
    run(offered.command, tmp_path / "out")
    assert {record.shape[0] for record in api.inspect(tmp_path / "out").checkpoint.tensors.values()} == {4, 9}


def test_a_padding_token_far_beyond_the_table(tmp_path: Path) -> None:
    """1,000 absent rows are no forgotten resize, so no command."""
    for number, command in ((1007, True), (1008, False)):
        folder = save(tmp_path / f"{number}", flagged({**LLAMA, "pad_token_id": number}, True), llama())
        (finding,) = [entry for entry in api.inspect(folder).findings if entry.rule == "VOC003"]
        assert (finding.remedy is not None) is command
        assert finding.message.endswith("Check pad_token_id in the config.") is not command


def test_a_resize_is_planned_beside_a_head_of_an_unknown_scheme(tmp_path: Path) -> None:
    """The head was not read, and `resize` refuses its layout: VOC003 offers no command."""
    codes = {HEAD: np.zeros((8, 4), np.int32)}
    folder = save(tmp_path / "model", flagged({**LLAMA, "pad_token_id": 8}, False), llama() | codes)
    offered = [finding.remedy for finding in api.inspect(folder).findings if finding.rule == "VOC003"]
    assert offered == [None]


def test_a_flag_of_text_is_not_called_tied(tmp_path: Path) -> None:
    """TIE013 says that transformers 5 refuses the config, so TIE001 does not say that it uses the head."""
    reported = findings(tmp_path, {**LLAMA, "tie_word_embeddings": "false"}, llama(head=matrix(seed=1)))
    (finding,) = (each for each in reported if each.rule == "TIE001")
    assert finding.message.endswith(", but some loaders tie them. They ignore lm_head.weight.")


def test_shards_without_an_index_beside_an_adapter(tmp_path: Path) -> None:
    """The file of PEFT is no shard: `reindex` is offered, and not the path of the adapter."""
    adapter = {"adapter_model.safetensors": {"base_model.model.x": vector()}}
    shards = {FIRST: {EMBED: matrix()}, SECOND: {"model.norm.weight": vector()}}
    folder = save_shards(tmp_path / "model", flagged(LLAMA, True), shards | adapter)
    offered = next(finding.remedy for finding in api.inspect(folder).findings if finding.rule == "IDX006")
    assert offered is not None and offered.command.startswith("tieconv reindex ")


def test_changed_rows_are_named(tmp_path: Path) -> None:
    """The rows that a fine-tune moved point to its new tokens."""
    changed = with_row(with_row(with_row(matrix(), 2), 5), 6)
    (finding,) = findings(tmp_path, flagged(LLAMA, True), llama(head=changed))
    assert "in rows 2, 5–6 of 8, by at most 0.5" in finding.message


PARTS = {
    "SpQR": ("lm_head.dense_weights", "lm_head.row_offsets"),
    "MXFP4 with other names": ("lm_head_blocks", "lm_head_scales"),
    "HQQ": ("lm_head.W_q_packed", "lm_head.meta"),
    "an unknown suffix": ("lm_head.weight_q3",),
    "a wrapped head": ("model.lm_head.linear.weight",),
    "another name of the table": ("output.weight",),
}


def test_parts_that_tieconv_does_not_understand(tmp_path: Path) -> None:
    """They block every rule that calls the head missing, every write, and every prediction."""
    for case, names in PARTS.items():
        for tied in (True, False):
            stored = {name: matrix(seed=1) for name in names}
            folder = save(tmp_path / f"{case}-{tied}", flagged(LLAMA, tied), {**llama(), **stored})
            before = {path.name: path.read_bytes() for path in folder.iterdir()}
            evidence = api.inspect(folder)
            codes = [(finding.rule, str(finding.level)) for finding in evidence.findings]
            # QNT001 reports a tied head in quantised parts too.
            assert codes in ([("TIE012", "warning")], [("QNT001", "warning"), ("TIE012", "warning")]), (case, codes)
            usual = "of the output head. " if len(names) > 1 else "may be the output head. "
            assert f"{usual}LlamaForCausalLM has it under lm_head.weight." in evidence.findings[-1].message, case
            assert evidence.config.effect.startswith("Unknown: "), case
            verbs = {
                "retie": tieconv.plan_retie,
                "untie": tieconv.plan_untie,
                "set-tie": partial(tieconv.plan_set_tie, "auto"),
            }
            for verb, plan in verbs.items():
                with pytest.raises(RefusedError) as refused:
                    plan(folder)
                assert refused.value.code == "tie.unexplained", (case, verb)
            assert load(evidence, TRANSFORMERS_5).refused(Cause.UNKNOWN), case
            checked = CliRunner().invoke(main, ["check", str(folder), "--fix", "--depth", "full"])
            assert (checked.exit_code, "--depth full" in checked.output) == (1, False), case
            assert before == {path.name: path.read_bytes() for path in folder.iterdir()}, case


def test_near_misses_of_unknown_parts(tmp_path: Path) -> None:
    """A head of a draft layer, a bias, and the parts of a norm in the head's module of a BERT say nothing."""
    for name in ("mtp.layers.0.lm_head.weight", "model.layers.61.shared_head.head.weight", "talker.lm_head.weight"):
        assert findings(tmp_path / name, flagged(LLAMA, True), {**llama(), name: matrix(seed=1)}) == (), name


def test_what_check_says_about_an_unknown_class(tmp_path: Path) -> None:
    """It warns where the config says untied and no head is found; a model that stores all of its tables passes."""
    head = matrix(seed=1)
    cases = {
        "untied, no head": (flagged(REMOTE, False), llama(), "TIE012 warning"),
        "untied, own head": (flagged(REMOTE, False), llama(head=head), "TIE012 note"),
        "no flag, own head": (REMOTE, llama(head=head), "TIE012 note"),
        "no flag, no head": (REMOTE, llama(), "TIE012 note"),
        "tied, no head": (flagged(REMOTE, True), llama(), "TIE012 note"),
        "no head by its name": (
            flagged({**REMOTE, "architectures": ["AcmeForSequenceClassification"]}, False),
            llama(),
            "TIE012 note",
        ),
        "a model type of another family": (
            flagged({**LLAMA, "model_type": "gpt2"}, True),
            llama(head=head),
            "TIE001 warning, TIE012 warning",
        ),
        "a model type of no release": (
            flagged({**LLAMA, "model_type": "acme"}, False),
            llama(),
            "CON003 error, TIE012 warning",
        ),
    }
    for case, (config, tensors, expected) in cases.items():
        reported = findings(tmp_path / case, config, tensors)
        assert ", ".join(sorted(f"{finding.rule} {finding.level}" for finding in reported)) == expected, case
        assert not any(finding.remedy and finding.remedy.safe for finding in reported), case


def test_a_release_that_lost_its_config(tmp_path: Path) -> None:
    """transformers does not load it. A tokenizer shows that it is a release; weights alone are a note."""
    folder = save(tmp_path, None, llama(head=matrix(seed=1)))
    for name, level in (("LICENSE", "note"), ("tokenizer.json", "warning"), ("params.json", "note")):
        (folder / name).write_text("{}")
        (finding,) = api.inspect(folder).findings
        assert (finding.rule, str(finding.level)) == ("TIE012", level), name
        assert ("transformers does not load the directory" in finding.message) == (level == "warning"), name


def test_an_embedder_needs_no_head(tmp_path: Path) -> None:
    """Beside the files of sentence-transformers a missing head is a note without a command, in every class."""
    beside = ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json")
    for name in beside:
        for config, tensors in ((flagged(LLAMA, False), llama()), (flagged(GEMMA3, False), NESTED)):
            folder = save(tmp_path / f"{name}-{config['model_type']}".replace("/", "-"), config, tensors)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("{}")
            (finding,) = api.inspect(folder).findings
            assert (finding.rule, str(finding.level), finding.remedy) == ("TIE003", "note", None), name
            assert CliRunner().invoke(main, ["check", str(folder)]).exit_code == 0, name


@pytest.mark.parametrize(("tied", "level", "also"), [(False, "error", "embedding too"), (True, "note", "of the head")])
def test_rows_of_a_tied_head_alone(tied: bool, level: str, also: str, tmp_path: Path) -> None:
    """A merge writes them into the one matrix. With `ensure_weight_tying`, PEFT trains both sides."""
    name = "base_model.model.lm_head.token_adapter.trainable_tokens_delta"
    rows = {"trainable_token_indices": {"lm_head": [3, 4, 5]}, "ensure_weight_tying": tied}
    folder = save_adapter(tmp_path / "adapter", {name: matrix(3)}, base_of(tmp_path / "adapter"), **rows)
    (finding,) = (finding for finding in api.inspect(folder).findings if finding.rule == "PEF005")
    assert str(finding.level) == level and also in finding.message


@pytest.mark.parametrize(
    ("stored", "later", "legacy"),
    [
        ("adapter_model.safetensors", "adds the adapter to the weights", "ignores the weights"),
        ("adapter_model.bin", "fails to load the model", "ignores the weights"),
        ("", "fails to load the model", "fails too"),
    ],
)
def test_what_an_adapter_beside_the_weights_does(stored: str, later: str, legacy: str, tmp_path: Path) -> None:
    """As transformers 5.23, 5.24 and 4.57 did with these files. Without a config.json nobody loads the directory so."""
    config = LLAMA | {"tie_word_embeddings": True, "vocab_size": len(llama()[EMBED]), "has_lora_adapter": "no"}
    folder = save(tmp_path / "model", config, llama())  # without the adapter, a model that needs no rule
    assert is_plain(api.inspect(folder))
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if stored:
        (folder / stored).write_bytes((folder / "model.safetensors").read_bytes())
    (finding,) = (finding for finding in api.inspect(folder).findings if finding.rule == "PEF006")
    assert f"transformers 5.24 {later}, and transformers 4.57 {legacy}." in finding.message
    (folder / "config.json").unlink()
    assert "PEF006" not in {finding.rule for finding in api.inspect(folder).findings}


@pytest.mark.parametrize("listed", [True, False])
def test_a_tensor_in_another_shard_is_found_if_the_index_names_that_shard(tmp_path: Path, listed: bool) -> None:
    """transformers 4.57 and 5.23, accelerate 1.15 and mlx-lm 0.32 read every shard that the index names."""
    norm = "model.norm.weight"
    shards = {FIRST: {EMBED: matrix()}, SECOND: {HEAD: matrix(seed=1), norm: vector()}}
    mapped = {EMBED: FIRST, HEAD: FIRST, **({norm: SECOND} if listed else {})}
    folder = save_shards(tmp_path / "model", flagged(LLAMA, False), shards, mapped)
    (finding,) = [finding for finding in api.inspect(folder).findings if finding.rule == "IDX001"]
    assert str(finding.level) == ("warning" if listed else "error")
    assert ("read all shards of the index, so they find it" in finding.message) is listed
    mapped["model.gone.weight"] = FIRST
    folder = save_shards(tmp_path / "gone", flagged(LLAMA, False), shards, mapped)
    (finding,) = [finding for finding in api.inspect(folder).findings if finding.rule == "IDX001"]
    assert finding.level == "error" and (f" fails. {HEAD} is in {SECOND}. " in finding.message) is listed
    outside = (
        f" fails. {HEAD} is in {SECOND}, which the index does not list. No file in this directory holds model.gone"
    )
    assert (outside in finding.message) is not listed and finding.remedy is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_lost_tensor_is_fetched_and_a_spare_entry_removed(tmp_path: Path, tied: bool) -> None:
    """A tied model needs no head: `reindex` is safe then. Else the entry shows the loss, also with another entry."""
    folder = save_shards(tmp_path / "m", flagged(LLAMA, tied), {FIRST: {EMBED: matrix()}}, {EMBED: FIRST, HEAD: FIRST})
    finding = next(finding for finding in api.inspect(folder).findings if finding.rule == "IDX001")
    remedy = finding.remedy and (finding.remedy.command.split()[1], finding.remedy.safe)
    assert remedy == (("reindex", True) if tied else None)
    download = "No file in this directory holds it. Download the shard that does."
    assert finding.message.endswith("The model is tied and does not need it." if tied else download)


@pytest.mark.parametrize("case", ["shard", "repeats", "torn", "head.safetensors", "pytorch_model.bin"])
def test_a_lost_tensor_is_sought_in_the_files_outside_the_index(case: str, tmp_path: Path) -> None:
    """`reindex` takes a shard that the index does not list, if it repeats no tensor with other bytes."""
    stray = {HEAD: matrix(seed=1)} | ({EMBED: matrix(seed=2)} if case == "repeats" else {})
    mapped = {EMBED: FIRST, HEAD: FIRST}
    folder = save_shards(tmp_path / "m", flagged(LLAMA, False), {FIRST: {EMBED: matrix()}, SECOND: stray}, mapped)
    says = f" fails. It is in {SECOND}, which the index does not list."
    if case == "torn":
        (folder / SECOND).write_bytes(b"torn")
        says = f" fails. tieconv cannot read {SECOND}, which may hold it. Download this file again."
    elif case == "head.safetensors":
        (folder / SECOND).rename(folder / case)
    elif case == "pytorch_model.bin":
        (folder / SECOND).unlink()
        torch.save({name: torch.from_numpy(array) for name, array in stray.items()}, folder / case)
    if "." in case:
        says = f" fails. No shard holds it, but {case} does. Save the model again, with all tensors in its shards."
    reported = {finding.rule: finding for finding in api.inspect(folder).findings}
    finding = reported["IDX001"]
    assert finding.message.endswith(says)
    assert (finding.remedy is None) is (case != "shard")
    if finding.remedy is not None:
        assert not finding.remedy.safe
        run(finding.remedy.command, tmp_path / "out")
        left = {each.rule for each in api.inspect(tmp_path / "out").findings}
        assert {"IDX001", "IDX002", "IDX004"}.isdisjoint(left)
    if case == "pytorch_model.bin":
        return  # a refusal asks for one format first
    with pytest.raises(RefusedError) as refused:
        api.plan_untie(folder)
    rebuild = "rebuild the index from the shards" if case in ("shard", "repeats") else "download the shard"
    assert str(refused.value.hint).startswith(rebuild)


ROBERTA = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
BIASES = {"bert": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
          "roberta": ("lm_head.bias", "lm_head.decoder.bias")}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "stored", "message"),
    [
        (BERT, (0,), "transformers 5 fills cls.predictions.decoder.bias with zeros."),
        (BERT, (1,), "transformers 4 leaves cls.predictions.bias without values."),
        (BERT, (0, 1), "The version of transformers decides which one is loaded."),
        (ROBERTA, (1,), "transformers reads lm_head.decoder.bias."),
        (ROBERTA, (0, 1), "Both are the head bias. transformers loads lm_head.decoder.bias."),
    ],
)
def test_who_reads_which_bias(config: dict[str, object], stored: tuple[int, ...], message: str, tmp_path: Path) -> None:
    """RoBERTa's outer bias is set to the inner one in transformers 4 too; BERT's inner one to the outer."""
    kind = str(config["model_type"])
    tensors = {BIASES[kind][number]: vector(seed=number) for number in stored} | {f"{kind}.x.weight": vector(4)}
    tables = {"bert": "bert.embeddings.word_embeddings.weight", "roberta": "roberta.embeddings.word_embeddings.weight"}
    heads = {"bert": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight"}
    tensors |= {tables[kind]: matrix(), heads[kind]: matrix(seed=3)}
    findings = api.inspect(save(tmp_path / "m", flagged(config, False), tensors)).findings
    assert [finding.message for finding in findings if message in finding.message and finding.rule.startswith("BIA00")]


UNKNOWN: dict[str, tuple[Config, Tensors, str]] = {
    "codes of no known scheme": (
        flagged(LLAMA, True),
        {**llama(), HEAD: matrix().view("<i4")},
        "tieconv does not know how the output head is quantised.",
    ),
    "an untied embedding of no known scheme": (
        flagged(LLAMA, False),
        {**llama(head=matrix(seed=1)), EMBED: matrix().view("<i4")},
        "tieconv does not know how the input embedding is quantised.",
    ),
    "a class that ties whatever the config says": (
        flagged({**T5, "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5"}, True),
        {**gptq("shared"), HEAD: matrix(seed=1)},
        "The config says tied, but the input embedding is quantised separately. The loader decides.",
    ),
    "the embedding of a classifier": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
        {**llama(), EMBED: matrix().view("<i4")},
        "tieconv does not know how the input embedding is quantised.",
    ),
    "a class that never ties, with a float head that the config lists": (
        {**KIMI, "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1, "lm_head": True}},
        llama(head=matrix(seed=1)),
        "The config says that the output head is quantised, but no codes are stored for it.",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_unknown_of_quantised_tables_is_a_finding(name: str, tmp_path: Path) -> None:
    """The first line of `inspect` says Unknown, so `check` does not pass the model."""
    config, tensors, message = UNKNOWN[name]
    inspection = api.inspect(save(tmp_path / "model", config, tensors))
    assert (
        inspection.config.effect == f"Unknown: {message[0].lower() if message[0] == 'T' else message[0]}{message[1:]}"
    )
    assert [(entry.rule, entry.message) for entry in inspection.findings] == [("TIE012", message)]


def test_a_classifier_has_no_head_that_the_config_could_list(tmp_path: Path) -> None:
    """The config of its quantisation lists `lm_head`; the class has none."""
    config = {
        **LLAMA,
        "architectures": ["LlamaForSequenceClassification"],
        "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": -1, "lm_head": True},
    }
    inspection = api.inspect(save(tmp_path / "model", config, llama()))
    assert inspection.config.effect == "No output head: LlamaForSequenceClassification has none."
    assert inspection.findings == ()


@pytest.mark.parametrize("name", [EMBED, HEAD])
@pytest.mark.parametrize(
    ("value", "depths"),
    [(0.0, ["candidates", "full"]), (-0.0, ["candidates", "full"]), (np.nan, ["full"]), (np.inf, ["full"])],
    ids=str,
)
def test_a_table_without_usable_values(name: str, value: float, depths: list[str], tmp_path: Path) -> None:
    """A probe finds a table of zeros at the default depth. One NaN or infinity needs all bytes, so `full`."""
    tensors = llama(head=matrix(seed=1))
    tensors[name] = np.full_like(tensors[name], value) if value == 0 else tensors[name].copy()
    tensors[name][1, 2] = value
    model = save(tmp_path / "model", flagged(LLAMA, False), tensors)
    for depth in ("header", "candidates", "full"):
        listed = [finding for finding in api.inspect(model, depth=depth).findings if finding.rule == "NUM001"]
        assert [finding.tensors for finding in listed] == [(name,)] * (depth in depths)


LAYER = "model.layers.0."


@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ({"model.norm.weight": np.nan}, "model.norm.weight holds a NaN or an infinity. "),
        ({"model.norm.weight": np.inf}, "model.norm.weight holds a NaN or an infinity. "),
        ({f"{LAYER}self_attn.q_proj.bias": np.nan}, f"{LAYER}self_attn.q_proj.bias holds a NaN. "),
        ({f"{LAYER}self_attn.q_proj.bias": -np.inf}, ""),
        ({f"{LAYER}mlp.up_proj.bias": np.nan}, f"{LAYER}mlp.up_proj.bias holds a NaN. "),
        ({f"{LAYER}mlp.up_proj.scales": np.nan}, ""),
        (
            {"model.norm.weight": np.nan, f"{LAYER}input_layernorm.weight": np.nan},
            f"model.norm.weight and {LAYER}input_layernorm.weight hold a NaN or an infinity. ",
        ),
    ],
    ids=["norm", "infinity", "bias", "infinite bias", "long bias", "scales", "two"],
)
def test_a_vector_without_usable_values(lost: dict[str, float], text: str, depth: str, tmp_path: Path) -> None:
    """Norms and biases are small, so the default depth reads them. A bias of -infinity may exclude an expert."""
    tensors = {**llama(), f"{LAYER}input_layernorm.weight": np.ones(4, "<f4"), "model.norm.weight": np.ones(4, "<f4")}
    tensors |= {name: np.full(8 if "mlp" in name else 4, value, "<f4") for name, value in lost.items()}
    model = save(tmp_path / "model", flagged(LLAMA, True), tensors)
    messages = [finding.message for finding in api.inspect(model, depth=depth).findings if finding.rule == "NUM001"]
    text = text or (f"{LAYER}mlp.up_proj.scales holds a NaN. " if depth == "full" and "scales" in str(lost) else "")
    them = "them" if " hold " in text else "it"
    message = f"{text}Values that depend on {them} are not finite."
    assert messages == [message] * (bool(text) and depth != "header")


def test_a_matrix_with_a_nan(tmp_path: Path) -> None:
    """Depth `full` reads every tensor, and the default a few bytes of each table."""
    up, table = matrix(8, 4), matrix()
    up[0, 0], table[len(table) // 2, 1] = np.nan, np.nan
    tensors = {**llama(), EMBED: table, f"{LAYER}mlp.up_proj.weight": up}
    model = save(tmp_path / "model", flagged(LLAMA, True), tensors)
    for depth, names in (("candidates", (EMBED,)), ("full", (EMBED, f"{LAYER}mlp.up_proj.weight"))):
        named = [finding.tensors for finding in api.inspect(model, depth=depth).findings if finding.rule == "NUM001"]
        assert named == [names], depth


@pytest.mark.parametrize(("dtype", "reported"), [("<i8", True), ("<f2", False)])
def test_a_table_of_a_type_that_no_quantiser_uses(dtype: str, reported: bool, tmp_path: Path) -> None:
    """The header says it, so every depth reports it. transformers 5.23 loads such values without a message."""
    for name in (HEAD, f"{LAYER}mlp.up_proj.weight"):
        tensors = {**llama(), HEAD: matrix(seed=1), f"{LAYER}mlp.up_proj.weight": matrix(8, 4)}
        tensors[name] = tensors[name].astype(dtype)
        model = save(tmp_path / name, flagged(LLAMA, False), tensors)
        findings = api.inspect(model, depth="header").findings
        assert [(finding.rule, finding.tensors) for finding in findings] == [("NUM001", (name,))] * reported


def test_integers_that_are_no_weights(tmp_path: Path) -> None:
    """Indices and masks are no matrices to multiply with."""
    others = {f"{LAYER}mlp.up_proj.weight_mask": (8, 4), f"{LAYER}positions": (1, 8), f"{LAYER}steps.weight": (8,)}
    tensors = {**llama(), **{name: np.zeros(shape, "<i8") for name, shape in others.items()}}
    findings = api.inspect(save(tmp_path / "model", flagged(LLAMA, True), tensors)).findings
    assert "NUM001" not in {finding.rule for finding in findings}
