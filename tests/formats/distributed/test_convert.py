"""`convert` of a training checkpoint: the same bytes as torch's own merge, under the names of the model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieconv as api
from tests.formats.distributed.save_chunks import mesh, random_boxes, save_chunks
from tests.lazy import torch, transformers
from tieconv.cli import main
from tieconv.errors import RefusedError, TieconvError, UnreadableError
from tieconv.execute.write import Writer

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS = [[1, 5, 3, 7]]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def llama(*, tied: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def save(folder: Path, model: Any, prefix: str = "app.model.", *, config: str = ".", seed: int = 0) -> Path:
    """Save the model in random chunks of three ranks, with an optimizer's state and a counter."""
    rng = random.Random(seed)
    state = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    moments = {f"app.optim.state.{name}.exp_avg": torch.rand_like(p) for name, p in model.named_parameters()}
    every = state | moments | ({"app.step": torch.tensor(7)} if prefix else {})
    boxes = {name: random_boxes(rng, tensor.shape, rng.randrange(5)) for name, tensor in every.items()}
    save_chunks(folder, every, boxes, ranks=3)
    model.config.save_pretrained(folder / config)
    return folder


def logits(path: Path) -> Any:
    model = transformers.LlamaForCausalLM.from_pretrained(path).eval()
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits


def written(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped goes on with its finished files."""
    source, out = save(tmp_path / "c", llama(tied=False)), tmp_path / "out"
    planned = api.plan_convert("safetensors", source, max_shard_size="2kB")
    names = [weights.name for weights in planned.plan.weights]
    write = Writer.weights

    def stopped(self: Writer, output: Any, name: str) -> None:
        if name == names[-1]:
            raise KeyboardInterrupt
        write(self, output, name)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "weights", stopped)
        with pytest.raises(KeyboardInterrupt):
            planned.execute(out, resume=True)
    outcome = api.plan_convert("safetensors", source, max_shard_size="2kB").execute(out, resume=True)
    assert f"{len(names) - 1} of {len(names)} weight files" in outcome.plan.notes[-1]
    expected = llama(tied=False).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written(out).items())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["5GB", "2kB"])
@pytest.mark.parametrize("prefix", ["", "app.model.", "module.", "state.model.module._orig_mod."])
def test_same_model(tied: bool, shard: str, prefix: str, tmp_path: Path) -> None:
    """Names, bytes and logits are those of the trained model; a tied pair is stored once."""
    model = llama(tied=tied)
    source, out = save(tmp_path / "c", model, prefix), tmp_path / "out"
    outcome = api.plan_convert("safetensors", source, max_shard_size=shard).execute(out)
    expected = model.state_dict()
    if tied:
        del expected[HEAD]
    stored = written(out)
    assert stored.keys() == expected.keys() and outcome.verified
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    with torch.no_grad():
        assert torch.equal(logits(out), model(torch.tensor(IDS)).logits)
    assert (out / "model.safetensors.index.json").exists() == (shard == "2kB")
    notes = " ".join(outcome.plan.notes)
    assert "training state" in notes and (not prefix or f"removes the prefix {prefix}" in notes)


def test_torch_merge_has_the_same_bytes(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    source = save(tmp_path / "c", llama(tied=False))
    dcp_to_torch_save(source, tmp_path / "merged.pt")
    merged = torch.load(tmp_path / "merged.pt", weights_only=True)
    api.plan_convert("safetensors", source).execute(tmp_path / "out")
    stored = written(tmp_path / "out")
    assert stored and all(torch.equal(merged[f"app.model.{name}"], tensor) for name, tensor in stored.items())


def test_a_tensor_without_elements(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = llama(tied=False)
    model.model.register_buffer("empty", torch.zeros(0, 4))
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "c", no_dist=True)
    model.config.save_pretrained(tmp_path / "c")
    api.plan_convert("safetensors", tmp_path / "c").execute(tmp_path / "out")
    assert written(tmp_path / "out")["model.empty"].shape == (0, 4)


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    """The flag says tied, but the bytes differ: both tensors are written, and `check` says so before and after."""
    model = llama(tied=True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    source = save(tmp_path / "c", model)
    assert "TIE001" in {finding.rule for finding in api.inspect(source, depth="full").findings}
    api.plan_convert("safetensors", source).execute(tmp_path / "out")
    assert {EMBED, HEAD} <= written(tmp_path / "out").keys()


@pytest.mark.parametrize("folder", [".", "huggingface", "hf_assets"])
def test_config_beside(folder: str, tmp_path: Path) -> None:
    """The config may be where trainers put it; the plan says where."""
    source = save(tmp_path / "run" / "step-1", llama(tied=True), config=folder)
    plan = api.plan_convert("safetensors", source)
    plan.execute(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True
    name = "config.json" if folder == "." else f"{folder}/config.json"
    assert api.inspect(source).checkpoint.config.name == name
    assert any(folder in note for note in plan.plan.notes) or folder == "."


@pytest.mark.parametrize("folder", ["..", "../huggingface"])
def test_config_outside(folder: str, tmp_path: Path) -> None:
    """A config of the parent directory may be of another model: it is not read, and the plan says what to do."""
    source = save(tmp_path / "run" / "step-1", llama(tied=True), config=folder)
    assert api.inspect(source).checkpoint.config is None
    notes = api.plan_convert("safetensors", source).plan.notes
    assert any("copy its config.json into the checkpoint" in note for note in notes)


def refused(path: Path, **options: Any) -> TieconvError:
    with pytest.raises(TieconvError) as caught:
        api.plan_convert("safetensors", path, **options)
    return caught.value


def test_two_models_in_one_checkpoint(tmp_path: Path) -> None:
    """Averaged weights beside the model: the user names the embedding of one."""
    model = llama(tied=True)
    state = {
        f"{part}.{name}": t + (part == "ema") for part in ("model", "ema") for name, t in model.state_dict().items()
    }
    paths = {name: tuple(name.split(".", 1)) for name in state}
    source = save_chunks(tmp_path / "c", state, {}, paths=paths)
    model.config.save_pretrained(source)
    error = refused(source)
    assert error.code == "dcp.several" and f"embed='model.{EMBED}'" in error.hint
    finding = next(finding for finding in api.inspect(source).findings if finding.rule == "TIE002")
    assert finding.remedy is not None and f"--embed model.{EMBED}" in finding.remedy.command
    api.plan_convert("safetensors", source, embed=f"model.{EMBED}").execute(tmp_path / "out")
    assert torch.equal(written(tmp_path / "out")[EMBED], model.state_dict()[EMBED])


def test_names_of_another_tool(tmp_path: Path) -> None:
    """torchtitan's own names are not those of transformers."""
    model = llama(tied=False)
    source = save_chunks(tmp_path / "c", {"tok_embeddings.weight": torch.ones(32, 16)}, {})
    model.config.save_pretrained(source)
    assert refused(source).code == "dcp.names"


def test_a_checkpoint_of_megatron(tmp_path: Path) -> None:
    """Both of its files tell it; a metadata.json alone is any tool's."""
    source = save(tmp_path / "c", llama(tied=True))
    (source / "metadata.json").write_text("{}")
    api.plan_convert("safetensors", source)
    (source / "common.pt").write_bytes(b"")
    error = refused(source)
    assert error.code == "dcp.megatron" and "llm.export_ckpt" in str(error.hint)


def test_a_tensor_outside_the_model(tmp_path: Path) -> None:
    """What is not below the prefix is left out only if it is a counter."""
    model = llama(tied=True)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} | {
        "value_head.weight": torch.ones(4, 4)
    }
    source = save_chunks(tmp_path / "c", state, {})
    model.config.save_pretrained(source)
    error = refused(source)
    assert error.code == "dcp.outside-model" and "value_head.weight" in error.message


def test_without_config_nothing_is_renamed(tmp_path: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in llama(tied=False).state_dict().items()}
    plan = api.plan_convert("safetensors", save_chunks(tmp_path / "c", state, {}))
    plan.execute(tmp_path / "out")
    assert written(tmp_path / "out").keys() == state.keys()
    assert {
        "the checkpoint holds no config.json, so convert keeps the stored names and every tensor",
        "to convert the model, copy its config.json into the checkpoint first",
    } <= set(plan.plan.notes)


def test_to_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        api.plan_convert("torch", save(tmp_path / "c", llama(tied=True)))
    assert caught.value.code == "dcp.target"


def test_damaged_bytes_are_never_written(tmp_path: Path) -> None:
    """A chunk whose CRC-32 is wrong: one sentence, and no output."""
    source = save(tmp_path / "c", llama(tied=False))
    file = source / "__1_0.distcp"
    model = llama(tied=False).state_dict()
    data = bytearray(file.read_bytes())
    row = next(row for row in model[EMBED] if row[:4].numpy().tobytes() in data)
    data[data.index(row[:4].numpy().tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(UnreadableError) as caught:
        api.plan_convert("safetensors", source).execute(tmp_path / "out")
    assert caught.value.code == "dcp.crc" and EMBED in caught.value.message
    assert not (tmp_path / "out").exists()


def test_sharded_safetensors(tmp_path: Path) -> None:
    """The files of `HuggingFaceStorageWriter`: each rank has its chunks and their offsets."""
    from safetensors.torch import save_file

    model = llama(tied=True)
    source = tmp_path / "c"
    source.mkdir()
    ranks: list[dict[str, Any]] = [{}, {}]
    offsets: list[dict[str, Any]] = [{}, {}]
    for name, tensor in model.state_dict().items():
        for rank, (start, sides) in enumerate(mesh(tensor.shape, (2,) + (1,) * (tensor.dim() - 1))):
            slices = tuple(slice(a, a + b) for a, b in zip(start, sides, strict=True))
            ranks[rank][name], offsets[rank][name] = tensor[slices].clone(), {"saved_offsets": list(start)}
    for rank in range(2):
        metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets[rank])}
        save_file(ranks[rank], source / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", metadata)
    model.config.save_pretrained(source)
    tie = api.inspect(source, depth="full").word_tie
    assert tie is not None and {str(member.state) for member in tie.members} == {"canonical", "identical"}
    api.plan_convert("safetensors", source).execute(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "out"), model(torch.tensor(IDS)).logits)
    (source / "shard-00001-model-00001-of-00001.safetensors").unlink()
    assert refused(source).code == "dcp.absent-file"


@pytest.mark.parametrize("tied", [True, False])
def test_analyze_measures_the_chunks(tied: bool, tmp_path: Path) -> None:
    """The sections about the two tables have the figures of the saved model."""
    model = llama(tied=tied)
    model.save_pretrained(tmp_path / "hf")
    pair = [api.analyze(path) for path in (save(tmp_path / "c", model, prefix=""), tmp_path / "hf")]
    if tied:  # the run stores the head too, and the saved model does not
        assert pair[0].sections[0].sentence == "The head and the embedding are byte-identical."
    else:
        assert pair[0].sections == pair[1].sections


def test_analyze_asks_for_the_converted_model(tmp_path: Path) -> None:
    """No program runs chunks on a text: one sentence, and the command that helps."""
    (tmp_path / "text").write_text("a text")
    with pytest.raises(UnreadableError) as caught:
        api.analyze(save(tmp_path / "c", llama(tied=True)), text=tmp_path / "text")
    assert caught.value.code == "analyze.chunks" and "convert" in caught.value.hint


def test_diff_with_the_saved_model(tmp_path: Path) -> None:
    """`diff` sees through chunks and prefixes."""
    model = llama(tied=True)
    model.save_pretrained(tmp_path / "hf")
    source = save(tmp_path / "c", model)
    (source / "config.json").write_bytes((tmp_path / "hf" / "config.json").read_bytes())
    result = CliRunner().invoke(main, ["diff", str(source), str(tmp_path / "hf")])
    assert result.exit_code == 0, result.output
