"""Rows of like length side by side, padded to the longest: what every encoder can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from batchwright.core.records import Request
from batchwright.engines.length_batches import LengthBatches
from batchwright.engines.torch_batches import Shape, flat_ids, lengths_of


class PaddedLayout:
    """A batch as [rows, longest] token ids; rows are sorted by length, so that little is padding.

    Args:
        pad_id: token id of the padding.
    """

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def queue(self, max_tokens: int) -> LengthBatches:
        """Where rows wait and are put together."""
        return LengthBatches(max_tokens)

    def pack(self, into: Any, batch: Sequence[Request]) -> Shape:
        """Lay a batch into one buffer: the lengths, then the token ids, padded on the right.

        Args:
            into: int32 array that is long enough.
            batch: the rows.
        """
        count, lengths, flat = len(batch), lengths_of(batch), flat_ids(batch)
        longest = int(lengths.max())
        size = count * (1 + longest)
        into[:count] = lengths
        ids = into[count:size].reshape(count, longest)
        padded = len(flat) < count * longest
        if padded:
            ids.fill(self._pad_id)
            ids[np.arange(longest) < lengths[:, None]] = flat
        else:
            ids[:] = flat.reshape(count, longest)
        return Shape(size, count, longest, padded=padded)

    def vectors(self, model: Any, there: Any, shape: Shape, pooling: str) -> Any:
        """Begin to compute the pooled vectors of a batch that is on the device.

        Returns:
            Tensor [rows, numbers].
        """
        import torch

        rows, longest = shape.rows, shape.longest
        lengths, ids = there[:rows], there[rows:].view(rows, longest)
        mask = torch.arange(longest, device=there.device) < lengths[:, None]
        # Without a mask attention may use its fastest kernels.
        seen = mask.long() if shape.padded else None
        states = model(input_ids=ids.long(), attention_mask=seen).last_hidden_state
        return pool(states, mask, lengths, pooling)


def pool(states: Any, mask: Any, lengths: Any, pooling: str) -> Any:
    """The tokens' vectors to one per row, in float32.

    Args:
        states: [rows, longest, numbers].
        mask: bool [rows, longest], true for real tokens; they stand on the left.
        lengths: int [rows], real tokens of each row.
        pooling: `mean`, `cls` (the first token) or `last`.
    """
    import torch

    if pooling == "cls":
        return states[:, 0].float()
    if pooling == "last":
        every = torch.arange(len(lengths), device=states.device)
        return states[every, lengths.long() - 1].float()
    real = states.masked_fill(~mask[..., None], 0.0)
    return real.sum(1, dtype=torch.float32) / lengths[:, None]
