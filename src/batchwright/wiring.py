"""Names to adapters: who uses one loads it, in the process that needs it."""

from __future__ import annotations

ENGINES = {
    "vllm": "batchwright.engines.vllm:VllmEngine",
    "fake": "batchwright.engines.fake:FakeEngine",
}


def engine_target(kind: str) -> str:
    """`module:Class` of an engine, for the process that will load it."""
    return ENGINES[kind]
