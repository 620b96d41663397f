"""How the files lie decides whether a loader finds the weights: predictions held against transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.remedy import run
from tests.consumers import layouts
from tests.oracles import run_transformers as loader
from tieconv.checkpoint.finding import Outcome
from tieconv.errors import TieconvError

RECORDED = json.loads(layouts.RECORDED.read_text(encoding="utf-8"))

UNREAD = {
    "model.SAFETENSORS",
    "sub/model.safetensors",
    "index with a missing shard",
    "index without weights",
    "index to bin",
    "index to a subfolder",
    "two indexes of other names",
    "empty",
    "dangling link",
    "dangling link and another",
    "empty file",
    "a directory of that name",
}
"""Layouts that tieconv refuses to read, with exit code 2: it predicts nothing of them."""

UNCLAIMED = {"bin index to safetensors", "index without the embedding"}
"""Layouts whose index is of another format, or is not whole: predictions are `unknown`, and a rule says why."""

SIDE_BY_SIDE = {
    "single and index",
    "safetensors and bin",
    "sharded and bin",
    "safetensors and sharded bin",
    "another name and bin",
    "no index and bin",
    "an adapter and bin",
}
"""Layouts that may be two models, of which transformers takes one and others take another."""

NAMED_WRONGLY = {"bin named by the config", "another one named by the config"}
"""Layouts that only another config mends."""

Places = dict[str, list[tuple[Path, dict[str, object]]]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    found: Places = {}
    for name, folder, job in layouts.write(tmp_path_factory.mktemp("layouts")):
        found.setdefault(name, []).append((folder, job))
    return found


def predicted(folder: Path, spec: str) -> str | None:
    """The outcome; ``None`` where the directory is refused."""
    try:
        (found,) = api.inspect(folder, consumers=spec).consumers
    except TieconvError:
        return None
    return str(found.outcome)


def expected(name: str, seen: list[str]) -> list[str | None]:
    if name in UNREAD:
        return [None] * len(seen)
    return [str(Outcome.UNKNOWN)] * len(seen) if name in UNCLAIMED else [*seen]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_the_installed_transformers(name: str, places: Places) -> None:
    """Found or not, tied or untied: what is predicted is what `from_pretrained` does, whatever the flag."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = [loader.observe("transformers", job)["outcome"] for _, job in places[name]]
    assert [predicted(folder, "transformers>=5.4") for folder, _ in places[name]] == expected(name, seen)


@pytest.mark.parametrize("consumer", layouts.ASKED)
@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_the_recorded_ones(name: str, consumer: str, places: Places) -> None:
    """The same for versions that are not installed, as `python -m tests.consumers.layouts` recorded them."""
    seen = RECORDED[consumer]["outcomes"][name]
    spec = consumer.replace(" ", "==")
    assert [predicted(folder, spec) for folder, _ in places[name]] == expected(name, seen)


def test_the_record_is_of_these_layouts() -> None:
    """Each layout under each flag, with the versions that the predictions cite."""
    assert {consumer: entry["version"] for consumer, entry in RECORDED.items()} == layouts.ASKED
    for entry in RECORDED.values():
        assert list(entry["outcomes"]) == list(layouts.LAYOUTS)
        assert all(len(outcomes) == len(layouts.FLAGS) for outcomes in entry["outcomes"].values())


def test_a_loader_finds_what_the_remedy_writes(places: Places, tmp_path: Path) -> None:
    """Each finding that names a file no loader looks for, or a missing index, names the command that mends it."""
    mended = 0
    for name in layouts.LAYOUTS.keys() - UNREAD - UNCLAIMED - SIDE_BY_SIDE - {"no index, a missing shard"}:
        folder, job = places[name][0]
        rules = [
            found for found in api.inspect(folder).findings if found.rule in ("IDX006", "IDX010", "IDX011", "IDX012")
        ]
        if name in NAMED_WRONGLY or not rules:
            assert [found.remedy for found in rules] == [None] * (name in NAMED_WRONGLY)
            continue
        (found,) = rules
        # What is said of numpy goes, which is for a person to decide.
        assert found.remedy is not None and found.remedy.safe is (name != "metadata of numpy")
        out = tmp_path / str(mended)
        run(found.remedy.command, out)
        seen = loader.observe("transformers", job | {"folder": str(out)})["outcome"]
        assert predicted(out, "transformers>=5.4") == seen == "tied"
        assert {left.rule for left in api.inspect(out).findings} <= {"IDX005"}
        mended += 1
    assert mended > 15


LOADERS = ("vllm>=0.29", "text-generation-inference", "tensorrt-llm==1.0", "mlx-lm==0.32", "llama.cpp")


@pytest.mark.parametrize(
    ("name", "outcomes"),
    {
        "model.safetensors": "tied tied tied tied tied",
        "model (1).safetensors": "tied tied tied tied tied",
        "weights.safetensors": "tied tied tied error error",
        "Model.safetensors": "tied tied tied error error",
        "sharded, no index": "tied tied tied tied tied",
        "sharded under another name": "tied tied tied error error",
        "no index, a missing shard": "unknown unknown unknown unknown unknown",
        "index to a lone file": "tied tied tied error error",
        "weights.bin": "tied tied tied error error",
        "pytorch_model (1).bin": "tied tied tied error tied",
        "pytorch_model.pt": "tied error error error error",
        "consolidated.00.pth": "error error tied error error",
    }.items(),
    ids=lambda value: value if "." in value or "," in value else None,
)
def test_loaders_that_go_by_patterns(name: str, outcomes: str, places: Places) -> None:
    """Each of the others takes every file of its patterns, as its source has it, with an index or without."""
    folder, _ = places[name][0]
    assert [predicted(folder, spec) for spec in LOADERS] == outcomes.split()


def test_a_file_beside_that_a_pattern_takes_too(places: Places, tmp_path: Path) -> None:
    """Two files that hold the head: where they differ, which one a loader by patterns ends with is not claimed."""
    folder = Path(shutil.copytree(places["single and another"][1][0], tmp_path / "model"))
    asked = ("transformers>=5.4", *LOADERS)
    assert [predicted(folder, spec) for spec in asked] == ["untied"] * len(asked)
    tensors = loader.stored(folder)
    tensors[layouts.HEAD] += 1
    layouts.one(folder, tensors, "model (1).safetensors")
    assert [predicted(folder, spec) for spec in asked] == ["untied"] + ["unknown"] * len(LOADERS)


SAFETENSORS_FIRST = {"safetensors and bin", "sharded and bin", "safetensors and sharded bin"}
"""Layouts of two formats in which transformers reads the safetensors files."""


@pytest.mark.parametrize("name", sorted(SIDE_BY_SIDE))
def test_others_may_take_the_other_model(name: str, places: Places) -> None:
    """Nothing is claimed if the directory may hold two models; some loaders prefer safetensors files."""
    outcomes = {spec: predicted(places[name][0][0], spec) for spec in LOADERS}
    for spec in ("llama.cpp", "mlx-lm==0.32", "vllm>=0.29"):
        assert outcomes.pop(spec) == ("tied" if name in SAFETENSORS_FIRST else "unknown")
    assert set(outcomes.values()) == {"unknown"}


def test_an_index_leaves_it_out(places: Places, tmp_path: Path) -> None:
    """Beside an index, vLLM and llama.cpp read what that names; the others take the file as well."""
    folder = Path(shutil.copytree(places["sharded"][1][0], tmp_path / "model"))
    tensors = loader.stored(places["model.safetensors"][1][0])
    tensors[layouts.HEAD] += 1
    layouts.one(folder, tensors, "model (1).safetensors")
    assert [predicted(folder, spec) for spec in LOADERS] == ["untied", "unknown", "unknown", "unknown", "untied"]


def test_load_model_takes_any_one_file(places: Places) -> None:
    """`safetensors.torch.load_model` is given a path: its name, and an index beside it, are no matter."""
    for name in ("model (1).safetensors", "index to a lone file", "model-00001-of-00001.safetensors"):
        assert predicted(places[name][0][0], "safetensors") == "tied"
    assert predicted(places["sharded"][0][0], "safetensors") == "error"
