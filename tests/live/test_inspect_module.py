"""`tieconv.inspect(model)`: the report of a module in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tieconv
from fixtures import zoo
from tests.lazy import torch
from tests.live import planted
from tests.schemas import validate
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import RefusedError, UnreadableError
from tieconv.integrations.torch import Watch
from tieconv.live.live_tensors import StorageReader, capture, shared_elements, shared_objects
from tieconv.reporters.text.inspect_text import render

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def state_of(inspection: tieconv.Inspection, name: str = HEAD) -> State:
    """The state of a tied name."""
    return next(member.state for tie in inspection.ties for member in tie.members if member.name == name)


def codes(inspection: tieconv.Inspection) -> list[str]:
    """The rules with a finding."""
    return [finding.rule for finding in inspection.findings]


def test_tied() -> None:
    """One parameter under two names; the head is left out of the save, and every loader ties it again."""
    inspection = tieconv.inspect(planted.llama(), consumers="transformers,vllm")
    live = inspection.live
    assert live is not None and live.one_object == ((EMBED, HEAD),)
    assert live.left_out == ((HEAD, EMBED),) and HEAD not in live.written and EMBED in live.written
    assert state_of(inspection) is State.ALIASED and codes(inspection) == []
    assert {str(entry.outcome) for entry in inspection.consumers} == {"tied"}


def test_storages() -> None:
    """Two parameters on one storage share it, in whatever shape; parameters without values share nothing."""
    module, values = torch.nn.Module(), torch.ones(1, 4)
    for name, value in {"a": values, "b": values, "row": values[:, 1:], "empty": torch.ones(0, 4)}.items():
        module.register_parameter(name, torch.nn.Parameter(value))
    module.register_parameter("nothing", torch.nn.Parameter(torch.ones(0, 4)))
    captured = {tensor.name: tensor for tensor in capture(module)}
    storages = [captured[name].storage for name in ("a", "b", "row", "empty", "nothing")]
    assert storages[0] == storages[1] == storages[2]
    assert len(set(storages)) == 3
    assert shared_elements(captured.values()) == (("a", "b"),)
    assert shared_objects(captured.values()) == ()


def test_values_that_are_no_bytes_of_a_storage() -> None:
    """A tensor of a wrapper class is named by it, and what ends behind its storage is refused."""
    from torch.testing._internal.two_tensor import TwoTensor

    module = torch.nn.Module()
    module.register_buffer("pair", TwoTensor(torch.ones(2), torch.zeros(2)))
    assert [tensor.unread for tensor in capture(module)] == ["a tensor of the class TwoTensor"]
    reader = StorageReader()
    for start, holder in ((0, torch.arange(4.0)), (16, None)):
        reader.add(start, holder)
    buffer = memoryview(bytearray(8))
    reader.read_into(ByteRange("memory", 4, 16), 4, buffer)
    assert (bytes(buffer), reader.bytes_read) == (torch.tensor([2.0, 3.0]).numpy().tobytes(), 8)
    for start in (12, 16):
        with pytest.raises(UnreadableError, match="has no values that tieconv can read"):
            reader.read_into(ByteRange("memory", start, 99), 0, buffer)


def test_untied() -> None:
    """Two parameters, both written."""
    inspection = tieconv.inspect(planted.llama(tied=False), consumers="transformers")
    assert inspection.live is not None and inspection.live.one_object == () and HEAD in inspection.live.written
    assert state_of(inspection) is State.DISTINCT and codes(inspection) == []
    assert {str(entry.outcome) for entry in inspection.consumers} == {"untied"}


@pytest.mark.parametrize("fault", [fault for fault, rule in planted.FAULTS.items() if rule])
def test_planted_faults(fault: Any) -> None:
    """Each fault is a finding of the rule, or of TIE010 where the shapes differ too."""
    model = planted.llama()
    fault(model)
    expected = "TIE010" if fault is planted.replace_embedding else planted.FAULTS[fault]
    assert expected in codes(tieconv.inspect(model))


def test_two_parameters_of_one_storage() -> None:
    """They are reported apart from one parameter."""
    model = planted.llama()
    planted.share_storage(model)
    live = tieconv.inspect(model).live
    assert live is not None and live.one_object == () and len(live.one_storage) == 1
    assert set(live.one_storage[0]) == {EMBED, HEAD}


def test_remedies_are_python() -> None:
    """A finding about a model in memory gives no command on a file that does not exist."""
    model = planted.llama()
    planted.copy_head(model)
    assert [finding.remedy.command for finding in tieconv.inspect(model).findings if finding.remedy] == [
        "model.tie_weights()"
    ]
    model = planted.llama()
    planted.clear_flag(model)
    (finding,) = tieconv.inspect(model).findings
    assert finding.remedy is not None and finding.remedy.command == "model.config.tie_word_embeddings = True"
    assert finding.remedy.safe
    planted.change_head(model := planted.llama())
    (finding,) = tieconv.inspect(model).findings
    assert finding.remedy is not None and finding.remedy.command == "model.config.tie_word_embeddings = False"


def test_text_and_json() -> None:
    """Both name the shared parameter and what the save leaves out."""
    inspection = tieconv.inspect(planted.llama())
    text = render(inspection)
    assert f"one parameter    {EMBED}, {HEAD}" in text
    assert "save_pretrained  writes 20 tensors" in text and f"leaves out {HEAD}" in text
    document = json.loads(str(inspection))
    validate(document, "inspect")
    assert document["model"]["format"] == "live"
    assert document["live"]["one_object"] == [[EMBED, HEAD]]
    assert document["live"]["save_pretrained"]["leaves_out"] == {HEAD: EMBED}


@pytest.mark.parametrize("tied", [True, False])
def test_zero_3_leaves_empty_parameters(tied: bool) -> None:
    """DeepSpeed empties a parameter and notes its shape: identities and shapes are read, and no value is claimed."""
    model = planted.llama(tied=tied)
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    inspection = tieconv.inspect(model)
    live = inspection.live
    assert live is not None and bool(live.one_object) is tied
    assert dict(live.unread)[EMBED] == "sharded by DeepSpeed ZeRO-3"
    assert "[99, 64]" in render(inspection)
    assert state_of(inspection) is (State.ALIASED if tied else State.UNREAD)


def test_meta_tensors_have_identities_and_no_values() -> None:
    """Nothing is claimed about values, and the reason is said."""
    config = planted.llama().config
    with torch.device("meta"):
        model = zoo.model_class("LlamaForCausalLM")(config)
    inspection = tieconv.inspect(model)
    assert state_of(inspection) is State.ALIASED and inspection.bytes_read == 0
    assert inspection.live is not None and "meta device" in dict(inspection.live.unread)[HEAD]
    model.lm_head.weight = torch.nn.Parameter(torch.empty(99, 64, device="meta"))
    cut = tieconv.inspect(model, depth="full")
    assert state_of(cut) is State.UNREAD and "meta device" in render(cut) and codes(cut) == ["TIE012"]


def test_to_empty_loses_the_tie() -> None:
    """Each module gets a parameter of its own."""
    config = planted.llama().config
    with torch.device("meta"):
        model = zoo.model_class("LlamaForCausalLM")(config)
    model.to_empty(device="cpu")
    torch.nn.init.normal_(model.lm_head.weight)
    assert tieconv.inspect(model).live.one_object == ()


def test_a_module_without_config() -> None:
    """Its accessors name the pair."""
    tied, untied = (tieconv.inspect(planted.net(tied=tied)) for tied in (True, False))
    assert tied.live is not None and not tied.live.saves
    assert (state_of(tied, "out.weight"), state_of(untied, "out.weight")) == (State.ALIASED, State.DISTINCT)
    assert tied.head.input_embedding is not None and tied.head.input_embedding.name == "table.weight"


def test_wrappers() -> None:
    """The names are those of the inner model."""
    model = planted.llama()
    wrapped = torch.nn.DataParallel(model)
    assert tieconv.inspect(wrapped).to_dict() == tieconv.inspect(model).to_dict()
    assert tieconv.inspect(torch.compile(model)).to_dict() == tieconv.inspect(model).to_dict()


def test_accelerate() -> None:
    """A prepared model, and offloaded ones: in memory the tie is known, on disk nothing is claimed."""
    accelerate = pytest.importorskip("accelerate")
    model = planted.llama()
    assert codes(tieconv.inspect(accelerate.Accelerator(cpu=True).prepare(model))) == []
    model = planted.llama()
    accelerate.cpu_offload(model, execution_device="cpu")
    inspection = tieconv.inspect(model)
    assert state_of(inspection) is State.ALIASED
    assert inspection.live is not None and inspection.live.one_storage == ()


def test_disk_offload(tmp_path: Path) -> None:
    """Values on disk are not read."""
    accelerate = pytest.importorskip("accelerate")
    model = planted.llama()
    accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    inspection = tieconv.inspect(model)
    assert state_of(inspection) is State.UNREAD and codes(inspection) == ["TIE012"]


def test_a_quantised_head_is_not_compared() -> None:
    """A tensor without plain storage is said to be unread."""

    class Quantised(torch.Tensor):
        """A wrapper subclass, as torchao has them: no storage of its own."""

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Quantised:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)  # type: ignore[attr-defined]

        def __init__(self, inner: torch.Tensor) -> None:
            self.inner = inner

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["inner"], None

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.detach.default:
                return cls(args[0].inner)
            raise NotImplementedError(str(function))

    model = planted.llama()
    codes_of_head = Quantised(torch.zeros(99, 64, dtype=torch.int8))
    model.lm_head.weight = torch.nn.Parameter(codes_of_head, requires_grad=False)
    inspection = tieconv.inspect(model)
    assert state_of(inspection) is State.UNREAD and codes(inspection) == ["TIE012"]
    assert "Quantised" in dict(inspection.live.unread)[HEAD]


def test_embed_and_head_and_depth() -> None:
    """The options of a file hold for a module too; `full` compares every tensor."""
    model = planted.llama(tied=False)
    first, second = (layer.mlp.up_proj for layer in model.model.layers)
    second.weight = torch.nn.Parameter(first.weight.detach().clone())
    assert not tieconv.inspect(model).duplicates
    assert len(tieconv.inspect(model, depth="full").duplicates) == 1
    named = tieconv.inspect(planted.net(), embed="table.weight", head="out.weight")
    assert named.family.named


def test_check() -> None:
    """`tieconv.check` takes a module, alone or in a list."""
    model = planted.llama()
    assert tieconv.check(model).exit_code == 0
    planted.copy_head(model)
    report = tieconv.check([model, planted.llama()], select=["TIE"])
    assert (report.exit_code, report.failed) == (1, 1)
    assert report.models[0].findings[0].finding.rule == "TIE002"


def test_torch_stays_unimported() -> None:
    """Importing tieconv and inspecting files needs no torch."""
    script = (
        "import sys, tieconv; path = 'fixtures/models/llama-tied'; tieconv.inspect(path); tieconv.check(path); "
        "print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "False"


def test_tensors_without_shape_or_values() -> None:
    """One sentence for each tensor that has no shape. Those without values are reported as not read."""
    nested = torch.nested.nested_tensor
    parts = [torch.ones(2), torch.ones(3)]
    shapeless = {
        "has no shape: its lazy module": torch.nn.LazyLinear(8),
        "lazy module": torch.nn.LazyBatchNorm1d(),
        "it is a nested tensor": torch.nn.Module(),
        "nested": torch.nn.Module(),
    }
    shapeless["it is a nested tensor"].register_buffer("rows", nested(parts))
    shapeless["nested"].register_buffer("rows", nested(parts, layout=torch.jagged))
    for reason, part in shapeless.items():
        model = planted.net()
        model.part = part
        for act in (tieconv.inspect, tieconv.check, Watch):
            with pytest.raises(RefusedError, match=reason) as caught:
                act(model)  # type: ignore[operator]
            assert caught.value.message.startswith("part.") and caught.value.command_hint, reason
    with torch._subclasses.FakeTensorMode():
        fake = planted.net()
        inside = tieconv.inspect(fake)
    freed = planted.net(tied=False)
    freed.out.weight.untyped_storage().resize_(0)
    for model, reason in ((fake, "a fake tensor"), (freed, "freed")):
        live = tieconv.inspect(model).live
        assert live is not None and reason in dict(live.unread)["out.weight"], reason
    assert inside.live is not None and inside.live.one_object == (("table.weight", "out.weight"),)
