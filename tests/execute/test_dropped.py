"""What a plan drops as equal is compared once more right before the rename: other programs may write meanwhile."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tieconv as api
from tests.execute import models as small
from tests.lazy import torch
from tieconv.checkpoint.model_files import FileState
from tieconv.errors import StalePlanError
from tieconv.planned import PlannedWrite

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROWS, WIDTH = 192, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "vocab_size": ROWS,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory where a write through a mapping changes no time of the file, as with a page that is dirty."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm: elsewhere the kernel may write a page back, and then notes the time")
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tieconv-test-"))
    yield path
    shutil.rmtree(path)


def table(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**15, (ROWS, WIDTH)).astype("<f2")


def normal() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("f4")


def model(root: Path, tensors: dict[str, np.ndarray], suffix: str = "safetensors", **config: Any) -> Path:
    root.mkdir()
    if suffix == "bin":
        torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, root / "pytorch_model.bin")
    else:
        save_file(tensors, root / "model.safetensors", {"format": "pt"})
    (root / "config.json").write_text(json.dumps(CONFIG | config))
    return root


def duplicated(root: Path, suffix: str = "safetensors", **config: Any) -> Path:
    return model(root, {EMBED: table(), HEAD: table().copy(), "model.norm.weight": table(2)[0]}, suffix, **config)


def biased(root: Path) -> Path:
    bias = np.zeros(ROWS, "f4")
    return model(root, {EMBED: table(), HEAD: table(3), "lm_head.bias": bias})


def bert(root: Path) -> Path:
    names = ("cls.predictions.bias", "cls.predictions.decoder.bias")
    tensors = {"bert.embeddings.word_embeddings.weight": table(), **{name: np.ones(ROWS, "f4") for name in names}}
    return model(root, tensors, architectures=["BertForMaskedLM"], model_type="bert", tie_word_embeddings=True)


def repeated(root: Path) -> Path:
    """Two shards that both hold the head, under no index."""
    root.mkdir()
    tensors = {EMBED: table(), HEAD: table(3)}
    save_file(tensors, root / "model-00001-of-00002.safetensors", {"format": "pt"})
    save_file({HEAD: table(3)}, root / "model-00002-of-00002.safetensors", {"format": "pt"})
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def t5(root: Path) -> Path:
    """A head that is the embedding times d_model ** -0.5, which the tied class applies itself."""
    embed = table().astype("f4")
    tensors = {"shared.weight": embed, "lm_head.weight": embed / 8}
    return model(root, tensors, architectures=["T5ForConditionalGeneration"], model_type="t5", d_model=WIDTH)


def folded(root: Path) -> Path:
    """A head with the norm's factors in its columns."""
    factors = (2.0 ** np.random.default_rng(3).integers(-3, 4, WIDTH)).astype("f4")
    tensors = {EMBED: normal(), "model.norm.weight": np.ones(WIDTH, "f4"), HEAD: normal() * factors}
    return model(root, tensors)


def nearly(root: Path) -> Path:
    """A head that is almost the embedding, and a norm that bounds what that costs."""
    head = normal() * np.float32(1 + 2**-20)
    return model(root, {EMBED: normal(), "model.norm.weight": np.ones(WIDTH, "f4"), HEAD: head}, rms_norm_eps=1e-6)


Make = Callable[[Path], Path]
Plan = Callable[[Path], PlannedWrite]
CASES: dict[str, tuple[Make, Plan, str, str]] = {
    "retie": (duplicated, api.plan_retie, "model.safetensors", HEAD),
    "retie-torch": (lambda root: duplicated(root, "bin"), api.plan_retie, "pytorch_model.bin", HEAD),
    "retie-t5": (t5, api.plan_retie, "model.safetensors", HEAD),
    "fold-norm": (folded, lambda path: api.plan_retie(path, fold_norm=True), "model.safetensors", HEAD),
    "max-kl": (
        nearly, lambda path: api.plan_retie(path, survivor="embed", max_kl=1.0), "model.safetensors", HEAD,
    ),
    "dedup": (
        lambda root: duplicated(root, tie_word_embeddings=True), api.plan_dedup, "model.safetensors", HEAD,
    ),
    "dedup-torch": (lambda root: duplicated(root, "bin"), api.plan_dedup, "pytorch_model.bin", HEAD),
    "strip": (biased, lambda path: api.plan_bias("strip", path), "model.safetensors", "lm_head.bias"),
    "resize": (
        biased, lambda path: api.plan_bias("resize", path, rows=ROWS - 8), "model.safetensors", "lm_head.bias",
    ),
    "unify": (bert, lambda path: api.plan_bias("unify", path), "model.safetensors", "cls.predictions.decoder.bias"),
    "reindex": (repeated, api.plan_reindex, "model-00002-of-00002.safetensors", HEAD),
}  # fmt: skip


class Writer:
    """Another program that holds the last element of a tensor mapped, its page dirty from before the plan."""

    def __init__(self, path: Path, tensor: str) -> None:
        from tieconv.formats import read_checkpoint
        from tieconv.sources.local import locate, open_files

        with open_files(path.parent) as files:
            checkpoint = read_checkpoint(locate(str(path)), files)
        self.path, self.at = path, checkpoint.tensors[tensor].range.end - 1
        with path.open("r+b") as stream:
            self.map = mmap.mmap(stream.fileno(), 0)
        self.map[self.at] ^= 0  # dirty

    def change(self) -> None:
        self.map[self.at] ^= 0x15

    def change_and_put_back_the_time(self) -> None:
        status = self.path.stat()
        with self.path.open("r+b") as stream:
            stream.seek(self.at)
            stream.write(bytes([self.map[self.at] ^ 0x15]))
        os.utime(self.path, ns=(status.st_atime_ns, status.st_mtime_ns))


def when_proved(plan: PlannedWrite, act: Callable[[], None]) -> PlannedWrite:
    """``act`` once the written model was inspected: behind every proof, before the rename."""

    def reinspect(path: Path) -> Any:
        found = plan.reinspect(path)
        act()
        return found

    return replace(plan, reinspect=reinspect)


@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"hardlink": True}, {"verify": "structure"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_write_through_a_mapping(name: str, options: dict[str, Any], memory: Path) -> None:
    """The tensor that goes differs by a byte, and no time of the file tells: refused, the source as it was."""
    make, plan, file, tensor = CASES[name]
    source = make(memory / "source")
    writer = Writer(source / file, tensor)
    planned, before = plan(source), small.state_of(source / file)
    assert planned.plan.proofs
    names = os.listdir(memory)
    out = None if options.get("in_place") else memory / "out"
    with pytest.raises(StalePlanError) as caught:
        when_proved(planned, writer.change).execute(out, **options)
    relinked = {(before.device, before.inode)} if options.get("in_place") or options.get("hardlink") else set()
    assert before.is_still(small.state_of(source / file), relinked), "the times must not tell, or this proves nothing"
    assert "another program changed" in caught.value.message and tensor in caught.value.message
    assert os.listdir(memory) == names
    writer.change()
    assert plan(source).execute(memory / "again").verified


@pytest.mark.parametrize("name", ["retie", "strip", "dedup-torch"])
def test_a_write_with_the_time_put_back(name: str, tmp_path: Path) -> None:
    """The change time of the file cannot be put back."""
    make, plan, file, tensor = CASES[name]
    source = make(tmp_path / "source")
    writer = Writer(source / file, tensor)
    with pytest.raises(StalePlanError, match="changed after the plan was made"):
        when_proved(plan(source), writer.change_and_put_back_the_time).execute(tmp_path / "out")
    assert os.listdir(tmp_path) == ["source"]


def test_another_inode_of_the_same_size_and_time(tmp_path: Path) -> None:
    """A file that took the name is another file, whatever its times."""
    source = duplicated(tmp_path / "source")
    path = source / "model.safetensors"
    status = path.stat()

    def swap() -> None:
        shutil.copy2(path, source / "twin")
        os.replace(source / "twin", path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(StalePlanError):
        when_proved(api.plan_retie(source), swap).execute(tmp_path / "out")
    assert os.listdir(tmp_path) == ["source"]


def test_the_survivor_changes(memory: Path) -> None:
    """What was written of the survivor is what the head is held against; the survivor's later change is not in it."""
    source = duplicated(memory / "source")
    writer = Writer(source / "model.safetensors", EMBED)
    when_proved(api.plan_retie(source), writer.change).execute(memory / "out")
    assert load_file(memory / "out" / "model.safetensors")[EMBED].tobytes() == table().tobytes()


def test_state_of_a_hard_link() -> None:
    """The change time counts, but for a file of which this run made a hard link."""
    before, after = FileState(1, 2, 3, 4, 5), FileState(1, 2, 3, 4, 6)
    assert not before.is_still(after) and before.is_still(after, {(1, 2)})
    assert not before.is_still(FileState(1, 2, 3, 9, 6), {(1, 2)})
    assert not before.is_still(None, {(1, 2)})
