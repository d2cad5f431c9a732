"""Rows one behind the other without padding, each seeing only itself: for encoders on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from batchwright.core.records import Request
from batchwright.engines.length_batches import MAX_ROWS
from batchwright.engines.torch_batches import Shape, flat_ids, lengths_of

# The name under which transformers knows our attention.
ATTENTION = "batchwright_packed"

# Encoders whose tokens know their place by a number that can be given: these kinds count from 0,
# or behind the number of their padding.
_COUNT_FROM_ZERO = ("bert",)
_COUNT_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert")

# The common encoders, by the `model_type` of their config.
KINDS = _COUNT_FROM_ZERO + _COUNT_BEHIND_PADDING

Kernel = Callable[..., Any]


def can_pack(kind: str, device: str, dtype: str) -> bool:
    """Whether rows of a model can be packed: flash attention knows half precision on a GPU only."""
    return kind in KINDS and device == "cuda" and dtype in ("float16", "bfloat16")


def varlen_kernel() -> Kernel | None:
    """Torch's attention over rows of different lengths; None before torch 2.10."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


class TokenBatches:
    """A queue of rows in the order of their coming: without padding, lengths need not be alike.

    Args:
        max_tokens: tokens of a batch; one row may be longer.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._waiting: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, requests: Sequence[Request]) -> None:
        """Queue rows."""
        self._waiting.extend(requests)

    def remove(self, rows: Collection[int]) -> None:
        """Forget rows."""
        self._waiting = deque(one for one in self._waiting if one.row not in rows)

    def take(self) -> list[Request]:
        """The next batch; empty when nothing waits."""
        batch: list[Request] = []
        room = self.max_tokens
        while self._waiting and len(batch) < MAX_ROWS:
            room -= len(self._waiting[0].token_ids)
            if batch and room < 0:
                break
            batch.append(self._waiting.popleft())
        return batch


class PackedLayout:
    """A batch as one long row of token ids, and where each of its rows ends.

    Args:
        kernel: attention over [tokens, heads, size], by the rows' beginnings; as torch's
            `varlen_attn`.
        first_position: number of a row's first place.
    """

    def __init__(self, kernel: Kernel, first_position: int) -> None:
        self._kernel = kernel
        self._first_position = first_position
        self._bounds: Any = None
        self._longest = 0

    def register(self) -> None:
        """Make our attention known to transformers; without a mask of its own, it makes none."""
        from transformers import AttentionInterface

        interface: Any = AttentionInterface
        interface.register(ATTENTION, self.attend)

    def attend(
        self, _module: Any, query: Any, key: Any, value: Any, _mask: Any, **options: Any
    ) -> tuple[Any, None]:
        """What transformers calls in each layer, with [1, heads, tokens, size]."""
        query, key, value = (one[0].transpose(0, 1) for one in (query, key, value))
        bounds, longest = self._bounds, self._longest
        found = self._kernel(
            query, key, value, bounds, bounds, longest, longest, scale=options.get("scaling")
        )
        return found[None], None

    def queue(self, max_tokens: int) -> TokenBatches:
        """Where rows wait and are put together."""
        return TokenBatches(max_tokens)

    def pack(self, into: Any, batch: Sequence[Request]) -> Shape:
        """Lay a batch into an int32 array: the lengths, then the token ids."""
        rows, lengths, flat = len(batch), lengths_of(batch), flat_ids(batch)
        size = rows + len(flat)
        into[:rows] = lengths
        into[rows:size] = flat
        return Shape(size, rows, int(lengths.max()), padded=False)

    def vectors(self, model: Any, there: Any, shape: Shape, pooling: str) -> Any:
        """Begin to compute the pooled vectors [rows, numbers] of a batch on the device."""
        import torch

        lengths, ids = there[: shape.rows], there[shape.rows :]
        self._bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        self._longest = shape.longest
        begins = self._bounds[:-1].repeat_interleave(lengths, output_size=len(ids))
        places = torch.arange(len(ids), device=there.device) - begins + self._first_position
        states = model(input_ids=ids[None].long(), position_ids=places[None]).last_hidden_state[0]
        return pool(states, self._bounds, lengths, pooling)


def first_position(config: Any) -> int:
    """Number of the first place, by the kind of model."""
    if config.model_type in _COUNT_BEHIND_PADDING:
        return int(config.pad_token_id) + 1
    return 0


def pool(states: Any, bounds: Any, lengths: Any, pooling: str) -> Any:
    """The tokens' vectors to one per row, in float32.

    Args:
        states: [tokens, numbers].
        bounds: int [rows + 1], where rows begin and the last one ends.
        lengths: int [rows].
        pooling: `mean`, `cls` (the first token) or `last`.
    """
    import torch

    if pooling == "cls":
        return states[bounds[:-1].long()].float()
    if pooling == "last":
        return states[bounds[1:].long() - 1].float()
    # Each row is summed by itself and in order: the same row gives the same vector in any batch.
    return torch.segment_reduce(states.float(), "mean", lengths=lengths.long(), axis=0)
