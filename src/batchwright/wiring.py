"""Names to adapters: who uses one loads it, in the process that needs it."""

from __future__ import annotations

ENGINES = {
    "vllm": "batchwright.engines.vllm:VllmEngine",
    "openai": "batchwright.engines.openai_http:OpenAiEngine",
    "fake": "batchwright.engines.fake:FakeEngine",
}

# Engines that make vectors, labels and scores.
POOLERS = {
    "vllm": "batchwright.engines.vllm_pooling:VllmPoolingEngine",
    "torch": "batchwright.engines.torch_encoder:TorchEncoder",
    "openai": "batchwright.engines.openai_http:OpenAiEngine",
    "fake": "batchwright.engines.fake:FakeEngine",
}


def engine_target(kind: str, task: str = "generate") -> str:
    """`module:Class` of an engine, for the process that will load it."""
    return (ENGINES if task == "generate" else POOLERS)[kind]
