"""A vLLM logits processor that ends every row at its hidden length, for all systems alike.

It is the engine option `logits_processors: [benchmarks.throughput.hidden:HiddenLengths]`. A row's
end tokens are masked until its last step, in which one of them wins; so an answer ends as a
model's would, with a stop that nobody saw coming.

**vLLM's runners**, as their source says. In 0.25.1 dense models are run by Model Runner V2 unless
something asks for what it cannot do, and custom logits processors are of that kind: vLLM falls back
to the V1 runner with a warning, and refuses to start if `VLLM_USE_V2_MODEL_RUNNER=1` is set
(`vllm/config/vllm.py`). In 0.32.0 V2 takes logits processors, but of another interface, and refuses
this class. So the benchmark sets the variable to 0 for every system (`RUNNER`): one runner, V1, in both
versions. There, with asynchronous scheduling, each step also waits for the sampled tokens of the
one before, as soon as there is any logits processor. Figures of hidden lengths therefore compare
with figures of known lengths only where those were made with the variable at 0 too.
"""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.throughput.lengths import Endings, Lengths, Tracked
from vllm import SamplingParams
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

# Wins against every logit, and is no infinity, of which softmax makes a NaN.
CERTAIN = 1e9


class HiddenLengths(LogitsProcessor):
    """Masks end tokens for all rows, and lets them win where a row's next token is its last.

    Two facts of vLLM's runner make this right. The list of output tokens that comes with a row is
    its own and grows by one with each sampled token, with asynchronous scheduling too: then the
    newest is a placeholder, so its number is right. And `update_state` is called before every
    step. Rows that ignore end tokens are left alone.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002 (vLLM's signature)
        self._lengths = Lengths.from_environment()
        self._device = device
        self._endings = Endings()
        self._end_tokens: set[int] = set()
        self._masked = self._on_device([])
        self._certain = torch.tensor(CERTAIN, dtype=torch.float32, device=device)
        self._ending: tuple[torch.Tensor, torch.Tensor] | None = None

    def is_argmax_invariant(self) -> bool:
        """It decides which token wins."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch, and find who ends in the coming step."""
        if process_dict_updates(self._endings.rows, batch_update, self._track):
            self._endings.moved()
            if len(self._masked) != len(self._end_tokens):
                self._masked = self._on_device(sorted(self._end_tokens))
        ending = self._endings.next_step()
        self._ending = None
        if ending:
            self._ending = (
                self._on_device([row.index for row in ending]),
                self._on_device([row.end_token for row in ending]),
            )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """One small write for all rows, and one more in steps in which a row ends."""
        if self._endings.rows:
            logits.index_fill_(1, self._masked, -float("inf"))
        if self._ending is not None:
            logits.index_put_(self._ending, self._certain)
        return logits

    def _track(
        self, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> Tracked | None:
        if params.ignore_eos or prompt is None or params.eos_token_id is None:
            return None
        self._end_tokens |= params.all_stop_token_ids
        return Tracked(self._lengths.of(prompt), output, params.eos_token_id)

    def _on_device(self, values: list[int]) -> torch.Tensor:
        """A copy that the host does not wait for."""
        return async_tensor_h2d(values, device=self._device, dtype=torch.int64)
