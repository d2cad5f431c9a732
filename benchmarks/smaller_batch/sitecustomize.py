"""Python runs this first where its folder is on PYTHONPATH: half the batch for the engines of one card.

For `benchmarks/spoiled.py`. A run gives all its engines the same settings, so nothing but a spoiled
engine differs from the others like a card with less memory.
"""

import os

CARD = "SMALLER_BATCH_ON_CARD"

if os.environ.get(CARD) and os.environ.get("CUDA_VISIBLE_DEVICES") == os.environ[CARD]:
    from typing import Any

    from batchwright.engines import vllm_setup

    as_planned = vllm_setup.engine_arguments

    def with_half_the_rows(*args: Any, **settings: Any) -> dict[str, Any]:
        """What the engine is started with, but for its rows at a time."""
        arguments = as_planned(*args, **settings)
        return {**arguments, "max_num_seqs": arguments["max_num_seqs"] // 2}

    vllm_setup.engine_arguments = with_half_the_rows
