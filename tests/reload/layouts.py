"""The classes that are taken through every verb, and one tiny model in each layout that repositories have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards

from fixtures import families, zoo
from tests.lazy import load_file, torch

LAYOUTS = ("single", "sharded", "bin", "bin-sharded")
"""safetensors, then the files of `torch.save`, which transformers 5 still loads and no longer writes."""
SHARD = "50KB"
FLAG = families.FLAG


class Subject:
    """A class built tied and untied with the same random weights; every layout is saved from the same two models."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.untied = zoo.build(name, tie=False)
        self.refuses_the_flag = False
        try:
            self.tied = zoo.build(name, tie=True)
            self.tied.config.validate()
        except Exception as error:  # huggingface_hub's own validation error
            if FLAG not in str(error):
                raise
            self.tied, self.refuses_the_flag = self.untied, True

    def save(self, folder: Path, layout: str, *, tie: bool = True) -> Path:
        """The model as transformers saves it in that layout."""
        model = self.tied if tie else self.untied
        if layout in ("bin", "bin-sharded"):
            return save_torch(model, self.untied, folder, SHARD if layout == "bin-sharded" else None)
        limit = {"max_shard_size": SHARD} if layout == "sharded" else {}
        model.save_pretrained(folder, **limit)
        assert (folder / "model.safetensors.index.json").exists() == (layout == "sharded")
        return folder


def save_torch(model: Any, untied: Any, folder: Path, shard: str | None = None) -> Path:
    """The model as transformers 4 saved it: every name, those of one tensor in one storage and in one shard."""
    model.save_pretrained(folder)
    state = _with_aliases(model, untied, load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if shard is None:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    split = split_torch_state_dict_into_shards(
        state, filename_pattern="pytorch_model{suffix}.bin", max_shard_size=shard
    )
    for file, names in split.filename_to_tensors.items():
        torch.save({name: state[name] for name in names}, folder / file)
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return folder


def _file_names(untied: Any) -> dict[str, str]:
    """Name in memory -> name in the file, of the model in which no two names are one tensor."""
    matched = families.match(untied, families.saved(untied))
    return {name: families.in_file(name, matched) for name in families.memory(untied)}


def _with_aliases(model: Any, untied: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state dict that safetensors holds, with the names that it dropped on the tensor that they share.

    Left out is a name whose own parameter has another shape: no loader takes the shared tensor for it.
    """
    names, own = _file_names(untied), families.memory(untied)
    for group in families.aliases(model):
        files = [names[name] for name in group]
        kept = next((name for name in files if name in state), None)
        if kept is not None:
            fitting = [names[name] for name in group if own[name].shape == state[kept].shape]
            state.update(dict.fromkeys(fitting, state[kept]))
    return state


SAMPLE = (
    # decoder-only, one pair
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM",
    "CohereForCausalLM", "GraniteForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM", "DeepseekV3ForCausalLM",
    "MixtralForCausalLM", "FalconForCausalLM", "BloomForCausalLM", "GPT2LMHeadModel", "GPTNeoForCausalLM",
    "GPTNeoXForCausalLM", "GPTJForCausalLM", "OPTForCausalLM", "MptForCausalLM", "CTRLLMHeadModel",
    "XLNetLMHeadModel", "MambaForCausalLM", "JambaForCausalLM", "SmolLM3ForCausalLM", "BioGptForCausalLM",
    # masked, with bias pairs
    "BertForMaskedLM", "RobertaForMaskedLM", "AlbertForMaskedLM", "ElectraForMaskedLM", "DistilBertForMaskedLM",
    "DebertaV2ForMaskedLM", "XLMRobertaForMaskedLM", "MPNetForMaskedLM", "FunnelForMaskedLM", "ModernBertForMaskedLM",
    # encoder-decoder, up to four names
    "BartForConditionalGeneration", "MBartForConditionalGeneration", "MarianMTModel",
    "PegasusForConditionalGeneration", "M2M100ForConditionalGeneration", "ProphetNetForConditionalGeneration",
    # the flag changes the forward pass
    "T5ForConditionalGeneration", "LongT5ForConditionalGeneration", "SwitchTransformersForConditionalGeneration",
    "UMT5ForConditionalGeneration", "MT5ForConditionalGeneration",
    # speech
    "WhisperForConditionalGeneration", "MoonshineForConditionalGeneration",
    # vision-language: nested flags, names that differ between file and memory
    "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "LlavaForConditionalGeneration",
    "Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "PaliGemmaForConditionalGeneration", "AyaVisionForConditionalGeneration", "Llama4ForConditionalGeneration",
    "Blip2ForConditionalGeneration", "Kosmos2ForConditionalGeneration",
    # refused
    "ReformerModelWithLMHead", "RemBertForMaskedLM", "ZambaForCausalLM", "ElectraForPreTraining",
    "PerceiverForMaskedLM", "Pop2PianoForConditionalGeneration",
)  # fmt: skip

FAST = (
    "LlamaForCausalLM", "Gemma2ForCausalLM", "PhiForCausalLM", "GraniteForCausalLM", "GPT2LMHeadModel",
    "MambaForCausalLM", "BertForMaskedLM", "ModernBertForMaskedLM", "BartForConditionalGeneration",
    "T5ForConditionalGeneration", "UMT5ForConditionalGeneration", "WhisperForConditionalGeneration",
    "LlavaForConditionalGeneration", "ReformerModelWithLMHead", "RemBertForMaskedLM", "ZambaForCausalLM",
    "ElectraForPreTraining",
)  # fmt: skip
"""Those of every test run: each way once, and each reason to refuse. The others are slow tests."""
