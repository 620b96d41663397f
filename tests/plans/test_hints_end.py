"""Commands that findings and refusals print: whoever follows them comes to an end."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import Tensors, matrix, save, vector
from tests.cli.run import run
from tieconv.checkpoint.finding import Level
from tieconv.loaders.load import TRANSFORMERS_4, TRANSFORMERS_5, load

SCALED = {
    "T5ForConditionalGeneration": "t5",
    "LongT5ForConditionalGeneration": "longt5",
    "Pop2PianoForConditionalGeneration": "pop2piano",
    "MT5ForConditionalGeneration": "mt5",
    "UMT5ForConditionalGeneration": "umt5",
    "SwitchTransformersForConditionalGeneration": "switch_transformers",
}
"""Classes whose tie flag also scales the logits in transformers 4, with their model types."""
DERIVING = tuple(SCALED)[:3]
"""Those that transformers 5 scales by a key of its config."""
HEADS: dict[str, Tensors] = {
    "absent": {},
    "equal": {"lm_head.weight": matrix()},
    "differs": {"lm_head.weight": matrix(seed=1)},
}
VERBS = ("set-tie true", "set-tie false", "set-tie auto", "untie", "retie")
FLAGS = (True, False, None)


def build(folder: Path, architecture: str, flag: bool | None, key: bool | None, head: str) -> Path:
    config = {"architectures": [architecture], "model_type": SCALED[architecture], "d_model": 4, "vocab_size": 8}
    config |= {} if flag is None else {"tie_word_embeddings": flag}
    config |= {} if key is None else {"scale_decoder_outputs": key}
    return save(
        folder, config, {"shared.weight": matrix(), "encoder.final_layer_norm.weight": vector(4), **HEADS[head]}
    )


def commands(text: str, model: Path) -> list[str]:
    """The commands about the model in a hint, without its path and OUT."""
    path = re.escape(str(model))
    found = re.findall(rf"tieconv ((?:set-tie \w+|untie|retie)) {path}((?: --[a-z-]+(?: (?:embed|head)\b)?)*)", text)
    return [verb + options for verb, options in found]


def edited(model: Path, out: Path, path: str, value: str) -> Path:
    """A copy of the model with the value that a message asks for."""
    shutil.copytree(model, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, path: json.loads(value)}))
    return out


class Walk:
    """Follows everything that is printed about a model, and yields where that ends."""

    def __init__(self, work: Path) -> None:
        self.work, self.copies = work, 0
        work.mkdir(exist_ok=True)

    def command(self, line: str, model: Path, trail: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Path]]:
        step = f"{line} {model.name}"
        assert step not in trail and len(trail) < 7, f"in circles: {(*trail, step)}"
        out = self.out()
        verb, _, options = line.partition(" --")
        result = run(verb, model, *(f" --{options}".split() if options else ()), "-o", out)
        if result.exit_code:
            (hint,) = (text for text in result.stderr.splitlines() if text.startswith("hint: "))
            offered = commands(hint, model)
            if not offered:
                yield (*trail, step, hint), model
            for each in offered:
                yield from self.command(each, model, (*trail, step))
        elif " nothing to change" in result.output:
            yield (*trail, step), model
        else:
            yield from self.findings(out, (*trail, step))

    def findings(self, model: Path, trail: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Path]]:
        offered = [finding for finding in api.inspect(model).findings if finding.level is not Level.NOTE]
        ends = True
        for finding in offered:
            edits = re.findall(r"set (\w+) to (true|false) in config.json", finding.message)
            lines = commands(finding.remedy.command, model) if finding.remedy else []
            for path, value in edits:
                ends = False
                yield from self.findings(edited(model, self.out(), path, value), (*trail, f"{path} {value}"))
            for line in lines:
                ends = False
                yield from self.command(line, model, (*trail, finding.rule))
        if ends:
            yield trail, model

    def out(self) -> Path:
        self.copies += 1
        return self.work / f"m{self.copies}"


def grave(model: Path) -> set[str]:
    return {finding.rule for finding in api.inspect(model).findings if finding.level is not Level.NOTE}


def factors(model: Path) -> set[float]:
    """What transformers 4 and 5 multiply the head by."""
    inspection = api.inspect(model)
    return {load(inspection, each).parameters["lm_head.weight"].factor for each in (TRANSFORMERS_4, TRANSFORMERS_5)}


MODELS = [
    (architecture, flag, key)
    for architecture, flag, key in product(SCALED, FLAGS, FLAGS)
    if key is None or architecture in DERIVING
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("architecture", "flag", "key"), MODELS)
def test_what_is_printed_about_a_class_that_scales_its_logits_ends(
    architecture: str, flag: bool | None, key: bool | None, tmp_path: Path
) -> None:
    """No hint leads back to the command that printed it, and no advice to a new finding."""
    for head in HEADS:
        folder = tmp_path / head
        model = build(folder / "m0", architecture, flag, key, head)
        before = grave(model)
        for verb in VERBS:
            assert [*Walk(folder / verb.replace(" ", "-")).command(verb, model)]
        for trail, end in Walk(folder / "findings").findings(model):
            assert grave(end) <= before - {"TIE014"}, f"{head}: {trail}"
            if "TIE014" in before:
                assert len(factors(end)) == 1, f"{head}: {trail}"


@pytest.mark.parametrize("architecture", DERIVING)
def test_a_model_of_transformers_5_that_scales_no_logits(architecture: str, tmp_path: Path) -> None:
    """The config that transformers 5.23 saves for a false flag: one command makes transformers 4 compute the same."""
    head = "equal" if architecture.startswith("Pop2Piano") else "absent"
    model = build(tmp_path / "m0", architecture, True, False, head)
    (_,) = api.inspect(model).findings
    before = load(api.inspect(model), TRANSFORMERS_5).parameters["lm_head.weight"]
    ends = [end for _, end in Walk(tmp_path / "walk").command("set-tie false", model)]
    ends += [end for trail, end in Walk(tmp_path / "next").findings(model) if trail[-1] != "scale_decoder_outputs true"]
    assert len(ends) == 2
    for end in ends:
        assert (
            api.inspect(end).findings == ()
            and api.inspect(end).checkpoint.config_values["tie_word_embeddings"] is False
        )
        assert factors(end) == {before.factor} == {1.0}


def test_a_config_that_is_silent_about_the_scale(tmp_path: Path) -> None:
    """`Pop2PianoConfig` has the flag true by default, and its key takes that value (transformers 5.23)."""
    assert factors(build(tmp_path, "Pop2PianoForConditionalGeneration", None, None, "differs")) == {0.5}


@pytest.mark.parametrize("architecture", [name for name in SCALED if not name.startswith(("Pop2", "UMT5"))])
def test_a_trained_head_under_a_true_flag_has_one_way_out(architecture: str, tmp_path: Path) -> None:
    """Every refusal and the finding print one command. After it, both releases load the head without a factor."""
    model = build(tmp_path / "m0", architecture, True, None, "differs")
    way_out = "set-tie false --force"
    if architecture.startswith("Switch"):  # its stacks read separate tables if the flag is false
        for verb in VERBS:
            assert set(commands(run(verb, model).stderr, model)) & {"untie --keep-flag", "untie"}
        assert run("untie", model, "--keep-flag", "-o", tmp_path / "whole").exit_code == 0
        model = tmp_path / "whole"
    for verb in VERBS:
        result = run(verb, model)
        assert result.exit_code == 2 and commands(result.stderr, model)[0] == way_out, result.stderr
        assert "if lm_head.weight was trained with the flag false, set it: " in result.stderr
    (finding,) = (finding for finding in api.inspect(model).findings if finding.rule == "TIE001")
    assert finding.remedy is not None and not finding.remedy.safe
    assert commands(finding.remedy.command, model) == [way_out]
    result = run("set-tie false", model, "--force", "-o", tmp_path / "out")
    assert ("times 0.5 now" in result.output) is (architecture != "MT5ForConditionalGeneration")
    after = api.inspect(tmp_path / "out")
    assert not grave(tmp_path / "out") and factors(tmp_path / "out") == {1.0}
    for release in (TRANSFORMERS_4, TRANSFORMERS_5):
        assert load(after, release).source("lm_head.weight") == "lm_head.weight"
