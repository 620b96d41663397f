"""The classes that are taken through every verb: one or more of each way to tie, name, bias and scale."""

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
