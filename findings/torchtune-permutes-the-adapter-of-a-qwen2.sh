#!/usr/bin/env bash
# torchtune 0.6.1: a Qwen2 adapter that is exported for PEFT has the rows of q and k in the wrong order.
#
# torchtune rotates pairs of neighbours in a Llama, so it orders the rows of q and k anew when it loads one. Its Qwen2
# rotates the halves of a head, as transformers does, and keeps the order. When a run ends, the checkpointer for
# transformers writes the adapter for PEFT. It brings the rows of each adapter back from the order of a Llama, whatever
# the model is. So a LoRA of a Qwen2 that trains q and k is written for other rows. PEFT loads the files without an
# error. Here the result is further from the tuned model than the base model is. The full model and the adapter in
# torchtune's own format do not pass through this step. A LoRA of v and o is right, and so is that of a Llama. Adapters
# with DoRA lose more: adapter_config.json does not say use_dora, so PEFT loads them as LoRA and leaves the magnitudes
# out. The recipe writes the same four keys. Nothing is raised or warned; for Phi-3 and Llama 3.2 Vision, torchtune
# warns that it cannot export. Pull request 933 of torchtune added the export for Llama. Pull request 1115 leaves the
# names for DoRA in PEFT as a task to do. No public issue about Qwen2 was found. Seen with torchtune 0.6.1,
# transformers 5.24.0, peft 0.21.2 and torch 2.13.0; the figures are distances from the logits in torchtune, by their
# norm:
#   Llama, q and k: adapter in PEFT 0.00, base model 0.84
#   Qwen2, v and o: adapter in PEFT 0.00, base model 1.22
#   Qwen2, q and k: adapter in PEFT 0.75, base model 0.60
#   Llama with DoRA, v and o: adapter in PEFT 0.71, base model 1.10
# So release the merged model, or put the rows of q and k back yourself.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchtune==0.6.1 torchao==0.10.0 transformers==5.24.0 peft==0.21.2 2>/dev/null
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
"$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import logging
import sys
from pathlib import Path

import torch
from torchtune.models.llama3 import lora_llama3
from torchtune.models.qwen2 import lora_qwen2
from torchtune.modules.peft import get_adapter_state_dict
from torchtune.training.checkpointing import FullModelHFCheckpointer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

logging.disable(logging.WARNING)
ids = torch.arange(24)[None]
sizes = {"vocab_size": 120, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 64, "intermediate_dim": 128}
theirs = {"vocab_size": 120, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
theirs |= {"hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": False, "initializer_range": 0.1}


def export(name, model, rotary, build, modules, **options):
    """Tune a model in torchtune: write the base, the adapter for PEFT, and the logits of the tuned model."""
    work = Path(sys.argv[1], name)
    kind, config = model
    model = kind(config(**theirs, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": rotary}))
    model.eval().save_pretrained(work / "base")
    name = {LlamaConfig: "LLAMA3", Qwen2Config: "QWEN2"}[config]
    checkpointer = FullModelHFCheckpointer(str(work / "base"), ["model.safetensors"], name, str(work))
    tuned = build(modules, **sizes, max_seq_len=128, lora_rank=4, lora_alpha=8, **options).eval()
    tuned.load_state_dict(checkpointer.load_checkpoint()["model"], strict=False)
    with torch.no_grad():
        for module in tuned.modules():
            if hasattr(module, "initialize_dora_magnitude"):
                module.initialize_dora_magnitude()
        assert torch.allclose(tuned(ids), model(ids).logits, atol=1e-3)
        for key, value in tuned.named_parameters():
            if "lora_b" in key:
                torch.nn.init.normal_(value, std=0.3)
            elif "magnitude" in key:
                value.mul_(torch.rand_like(value) + 0.5)
        torch.save(tuned(ids), work / "logits.pt")
    adapter = {"r": 4, "lora_alpha": 8, "target_modules": list(modules), "peft_type": "LORA"}
    state = {"model": {}, "adapter": get_adapter_state_dict(tuned.state_dict()), "adapter_config": adapter}
    checkpointer.save_checkpoint(state, epoch=0, adapter_only=True)


llama, qwen = (LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)
torch.manual_seed(0)
export("Llama, q and k", llama, 5e5, lora_llama3, ["q_proj", "k_proj"])
export("Qwen2, v and o", qwen, 1e6, lora_qwen2, ["v_proj", "output_proj"])
export("Qwen2, q and k", qwen, 1e6, lora_qwen2, ["q_proj", "k_proj"])
export("Llama with DoRA, v and o", llama, 5e5, lora_llama3, ["v_proj", "output_proj"], use_dora=True)
PY
"$work/venv/bin/pip" uninstall -q -y torchao 2>/dev/null  # torchtune needs a release that PEFT refuses
"$work/venv/bin/python" -W ignore - "$work" <<'PY' 2>/dev/null
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

ids = torch.arange(24)[None]
seen = {}
for path in sorted(Path(sys.argv[1]).glob("*/logits.pt"), key=lambda path: path.stat().st_mtime_ns):
    tuned, folder = torch.load(path), path.parent / "epoch_0"
    base = AutoModelForCausalLM.from_pretrained(path.parent / "base").eval()
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, folder).eval()(ids).logits
    far = [((one - tuned).norm() / tuned.norm()).item() for one in (after, before)]
    seen[path.parent.name] = far
    print("{}: adapter in PEFT {:.2f}, base model {:.2f}".format(path.parent.name, *far))
right = [after < 0.01 < before for after, before in seen.values()]
sys.exit(right != [True, True, False, False] or seen["Qwen2, q and k"][0] < 0.3)
PY
