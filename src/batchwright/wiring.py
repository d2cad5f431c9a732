"""Names to adapters: who uses one loads it, in the process that needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchwright.core.ports import VectorStore
    from batchwright.core.stores import StoreTarget

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

STORES = {
    "pgvector": "batchwright.load.postgres:PostgresStore",
    "qdrant": "batchwright.load.qdrant:QdrantStore",
    "milvus": "batchwright.load.milvus:MilvusStore",
    "lancedb": "batchwright.load.lance:LanceStore",
}


def engine_target(kind: str, task: str = "generate") -> str:
    """`module:Class` of an engine, for the process that will load it."""
    return (ENGINES if task == "generate" else POOLERS)[kind]


def open_store(target: StoreTarget) -> VectorStore:
    """The adapter of a vector database. Raises MissingExtra."""
    module, _, name = STORES[target.kind].partition(":")
    store: VectorStore = getattr(importlib.import_module(module), name)(target)
    return store
