"""Some seconds of every target, every kept seed, and proof that the oracles see what they look for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import differences, oracles
from tests.fuzz.case import SEEDS, Case, pack, unpack
from tests.fuzz.models import safetensors, tensors
from tests.fuzz.reference import Reading, Verdict
from tests.fuzz.runner import replay, run
from tests.fuzz.targets import SERVED, TARGETS, maker
from tests.patience import examples

CASES = examples(150)
ROOT = Path(__file__).parents[2]
KEPT = sorted(SEEDS.glob("*.json"))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in SERVED])
def test_target(target: str) -> None:
    """Nothing is unexpected, and the target is neither all refused nor all taken."""
    said: list[str] = []
    tally = run(target, CASES, seed=0, say=said.append, keep=False)
    assert not tally.failures, said
    assert tally.refused > CASES // 100 and tally.accepted > CASES // 100, tally.line()


@pytest.mark.slow
def test_every_listed_difference_is_real() -> None:
    """Each entry of the list is met by a few graphs: an entry that nothing needs is taken out."""
    tally = run("onnx", 500, seed=2, say=lambda _: None, keep=False)
    assert set(tally.listed) == {one.reason for one in differences.LISTED}


def process(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The fuzzer in a process of its own: the endpoint of the Hub is read once."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *map(str, words)],
        cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("target", SERVED)
def test_what_servers_answer(target: str) -> None:
    """The same for answers of the Hub and for listings, by the command."""
    done = process(target, "--cases", str(CASES // 2))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: {CASES // 2:,} cases" in done.stdout


@pytest.mark.parametrize(
    "path", [path for path in KEPT if not path.name.startswith("hub-")], ids=lambda path: path.stem
)
def test_kept_seed(path: Path) -> None:
    """What once failed does not fail again, whatever the command."""
    assert replay(unpack(path.read_text())[0]) == []


def test_kept_seeds_of_the_hub() -> None:
    kept = [path for path in KEPT if path.name.startswith("hub-")]
    done = process("hub", "--replay", *kept)
    assert kept and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_gives_one_case(target: str) -> None:
    """A failure is found again by its target, seed and number."""
    make = maker(target)
    for number in range(40):
        again = [make(random.Random(f"{target}:3:{number}")) for _ in range(2)]
        assert again[0] == again[1]


def test_a_seed_file_is_the_case() -> None:
    case = Case("hub", {"a": b"\0"}, ".", "json", ("a",), {"info": b"x"}, (("check",),))
    assert unpack(pack(case, "why")) == (case, "why")


def answer(
    words: tuple[str, ...] = ("inspect",), code: int = 0, out: str = "", err: str = "", **more: float
) -> oracles.Answer:
    cost = {"seconds": 0.0, "megabytes": 0.0, **more}
    return oracles.Answer(words, code, out, err, cost["seconds"], cost["megabytes"])


@pytest.mark.parametrize(
    "bad",
    [
        answer(code=1), answer(code=3), answer(code=2, err="error: x"), answer(code=-1, err="more than 10 s"),
        answer(err="hint: this is a bug in tieconv"), answer(err="Traceback"), answer(out="\x1b[31m"),
        answer(out="a\u202eb"),
        answer(out=" ::error::x"), answer(out="##[error]x"), answer(out="x\n" * 300), answer(megabytes=400),
        answer(("inspect", "--json"), out="{"), answer(("inspect", "--json"), out="NaN"),
        answer(("check", "--format", "github"), out="::set-output name=a::b"),
    ],
)  # fmt: skip
def test_the_oracles_see(bad: oracles.Answer) -> None:
    assert list(oracles.faults(bad))


def test_the_oracles_are_content_with_good_answers() -> None:
    assert not list(oracles.faults(answer(out="fine\n")))
    assert not list(oracles.faults(answer(("check", "--format", "github"), 1, "::error title=a::b")))
    assert not list(oracles.faults(answer(code=2, err="error: x\nhint: y\n")))


def test_the_differential_rule_sees() -> None:
    """Silence about a refusal, a tensor that only one reader sees, and other bytes are faults."""
    seen = {"a": ["U8", [4], 1]}
    assert list(differences.differences("safetensors", Reading(), Verdict("refused")))
    assert list(differences.differences("safetensors", Reading(), Verdict("", seen)))
    assert list(differences.differences("safetensors", Reading(tensors={"a": ["U8", [4], 2]}), Verdict("", seen)))
    assert not list(differences.differences("safetensors", Reading("x.code"), Verdict("refused")))
    assert not list(differences.differences("safetensors", Reading("", ("FMT001",)), Verdict("refused")))
    assert not list(differences.differences("safetensors", Reading(tensors=dict(seen)), Verdict("", seen)))


def test_honest_models_pass() -> None:
    """A reader that refuses everything would pass the rule: the models that the targets start from are taken."""
    case = Case(
        "safetensors", {"model.safetensors": safetensors(tensors())}, ".", "safetensors", ("model.safetensors",)
    )
    assert replay(case) == []
