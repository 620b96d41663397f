"""What `--for` takes: names and versions, and an error that says what is known."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tieconv.loaders.registry import CONSUMERS, UnknownConsumerError, select

TRANSFORMERS = ["transformers 4.48", "transformers 4.57", "transformers 5.0", "transformers 5.x"]
CASES = {
    "all": [f"{consumer.name} {consumer.version}" for consumer in CONSUMERS],
    "transformers": TRANSFORMERS,
    "vllm,transformers>=4.57": [
        "transformers 4.57",
        "transformers 5.0",
        "transformers 5.x",
        "vllm <0.29",
        "vllm >=0.29",
    ],
    " VLLM == 0.28.1 ": ["vllm <0.29"],
    "vllm==0.29": ["vllm >=0.29"],
    "vllm==0.29.0": ["vllm >=0.29"],
    "vllm<0.29": ["vllm <0.29"],
    "vllm<=0.29": ["vllm <0.29", "vllm >=0.29"],
    "transformers==5": ["transformers 5.0", "transformers 5.x"],
    "transformers==5.0": ["transformers 5.0"],
    "transformers==5.3": ["transformers 5.0"],
    "transformers==5.4": ["transformers 5.x"],
    "transformers==5.x": ["transformers 5.0", "transformers 5.x"],
    "transformers>=5.0.0": ["transformers 5.0", "transformers 5.x"],
    "transformers<5": ["transformers 4.48", "transformers 4.57"],
    "transformers==4.57.6": ["transformers 4.57"],
    "transformers==4": ["transformers 4.48", "transformers 4.57"],
    "transformers>4.57,transformers": [
        "transformers 4.48",
        "transformers 4.57",
        "transformers 5.0",
        "transformers 5.x",
    ],
    "llama.cpp": ["llama.cpp 2026"],
    "SGLang==0.5.23": ["sglang 0.5"],
    "transformers 4.50": ["transformers 4.57"],
    "vllm 0.30.1,tensorrt-llm engine": ["vllm >=0.29", "tensorrt-llm engine"],
}


@pytest.mark.parametrize("spec", CASES)
def test_selected(spec: str) -> None:
    """The loaders of a specification, each once, in the order of the documentation."""
    assert [f"{consumer.name} {consumer.version}" for consumer in select(spec)] == CASES[spec]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda one: f"{one.name} {one.version}")
def test_what_the_error_lists_is_taken(consumer) -> None:
    """Each entry of the list in the error message selects exactly that loader."""
    with pytest.raises(UnknownConsumerError) as raised:
        select("vlm")
    entry = f"{consumer.name} {consumer.version}"
    assert entry in raised.value.hint.removeprefix("give one of: ").split(", ")
    assert select(entry) == select(f"  {entry.upper()} ") == (consumer,)


@pytest.mark.parametrize(
    "spec", ["", ",", "vllm,", "vlm", "vllm>=", "vllm=0.28", "vllm<0.1", "transformers==3", "vllm>=a", "x" * 500]
)
def test_refused(spec: str) -> None:
    """A part that names nothing stops with exit code 2 and the list of what is known."""
    with pytest.raises(UnknownConsumerError, match=r"loader|know") as raised:
        select(spec)
    assert raised.value.exit_code == 2
    assert "transformers 5.x" in raised.value.hint
    assert len(raised.value.message) < 300


def test_a_release_before_the_first_is_answered_with_the_first() -> None:
    """Somebody with an old release learns that it is older than what tieconv knows."""
    with pytest.raises(UnknownConsumerError, match=r"know what vllm==0\.4 does; the oldest that it knows is 0\.5\.3\n"):
        select("vllm==0.4")


def test_names_and_versions_are_unique() -> None:
    """A finding can name a loader, and ranges of one loader do not overlap."""
    names = [(consumer.name, consumer.version) for consumer in CONSUMERS]
    assert len(set(names)) == len(names)
    for name in {consumer.name for consumer in CONSUMERS}:
        ranges = sorted((consumer.since, consumer.before) for consumer in CONSUMERS if consumer.name == name)
        for (_, before), (since, _) in pairwise(ranges):
            assert before is not None and before <= since


def test_releases_that_ran_are_in_their_range() -> None:
    """From the first release on, and before the next range."""
    for consumer in CONSUMERS:
        for version in consumer.ran:
            number = tuple(map(int, version.split(".")))
            assert consumer.since <= number, (consumer.name, version)
            assert consumer.before is None or number < consumer.before, (consumer.name, version)


def test_every_loader_cites_its_source() -> None:
    """A prediction says what it follows: a file at a version, or an issue."""
    for consumer in CONSUMERS:
        assert any(mark in consumer.cited for mark in (".py", "#", "/")), consumer.name
