"""What a new release changes is said in words, and measured in the environment of the newest measured one."""

from __future__ import annotations

import re

import click
import pytest
import yaml

from tests import release
from tests.oracles.environments import ENVIRONMENTS
from tests.oracles.measure import KEPT


@pytest.mark.parametrize("package", ["transformers", "vllm", "mlx-lm", "sglang", "accelerate", "onnxruntime-genai"])
def test_a_release_takes_the_place_of_the_newest_one(package: str) -> None:
    """One package of the environment changes, and the cells that it is held against are kept."""
    name = release.environment_of(package)
    old = ENVIRONMENTS[name]
    new = release.released(old, package, "99.1")
    words = [word for word in (*new.packages, *new.alone) if word not in (*old.packages, *old.alone)]
    assert len(words) == 1 and re.fullmatch(rf"{package}(-cpu)?==99\.1", words[0])
    assert (KEPT / f"{name}.json").is_file()
    assert release.environment_of("transformers") == "transformers-5.23.0"


def test_a_package_that_nothing_runs() -> None:
    """One sentence with the environments that there are."""
    with pytest.raises(click.UsageError, match="no environment runs litgpt"):
        release.environment_of("litgpt")


def test_classes_that_came_went_and_changed() -> None:
    """Each field of a record has its words."""
    old = {"A": {"out": "lm_head.weight", "tying": "can", "type": "a"}, "B": {"out": None}}
    new = {"A": {"out": "lm_head.weight", "tying": "never", "type": "a"}, "C": {"out": None}}
    assert list(release.classes_in_words(old, new)) == [
        "1 classes new: C",
        "1 classes gone: B",
        "A: whether it can tie changed from 'can' to 'never'",
    ]
    assert list(release.classes_in_words(old, old)) == []


def test_the_canary_measures_each_loader() -> None:
    """A package of the index for each environment but llama.cpp, whose files have no release of their own."""
    jobs = yaml.safe_load((release.ROOT / ".github/workflows/canary.yml").read_text(encoding="utf-8"))["jobs"]
    packages = jobs["releases"]["strategy"]["matrix"]["package"]
    loaders = {ENVIRONMENTS[release.environment_of(package)].loader for package in packages}
    assert loaders == {made.loader for made in ENVIRONMENTS.values()} - {"llama.cpp"}
    assert "releases" in jobs["issue"]["needs"]
