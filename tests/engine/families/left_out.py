"""Classes of experts that no causal language model of text alone has, and what they are of instead."""

from __future__ import annotations

_NO_TEXT_MODEL = "no causal language model of text alone"
_SHARED = "shared experts, which the device role runs"
ABSENT: dict[str, str] = {
    "DeepseekOcr2TextExperts": _NO_TEXT_MODEL,
    "DiffusionGemmaTextExperts": "a diffusion model: tokens are not drawn one after the other",
    "Ernie4_5_VLMoeMoeExperts": _NO_TEXT_MODEL,
    "Glm4vMoeTextExperts": _NO_TEXT_MODEL,
    "Glm5NextTextExperts": _NO_TEXT_MODEL,
    "InklingSharedExperts": _SHARED,
    "Mistral4Experts": _NO_TEXT_MODEL,
    "MistralLarge4TextExperts": _NO_TEXT_MODEL,
    "MuseSparkExperts": _NO_TEXT_MODEL,
    "NllbMoeExperts": "an encoder and a decoder",
    "OpenAIPrivacyFilterExperts": "a classifier of tokens",
    "Qwen3OmniMoeTalkerTextExperts": _NO_TEXT_MODEL,
    "Qwen3OmniMoeThinkerTextExperts": _NO_TEXT_MODEL,
    "Qwen3VLMoeTextExperts": _NO_TEXT_MODEL,
    "Step3p7Experts": _NO_TEXT_MODEL,
    "SwitchTransformersExperts": "an encoder and a decoder",
    "UnlimitedOcrTextExperts": _NO_TEXT_MODEL,
}
