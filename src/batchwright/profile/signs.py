"""What the profile needs to know of some consecutive rows, light enough to send and merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.extras import adapter_of
from batchwright.core.media import INLINE, has_media
from batchwright.core.media_counts import media_token_column
from batchwright.profile.blocks import Signatures, adapters_apart, block_signatures
from batchwright.profile.duplicates import prompt_digests

# A row outside the sample.
NOT_TAKEN = "not_taken"

# In place of a number of tokens: it was not counted; it is over the limit, but by how much is gone.
NOT_COUNTED = -1
OVER_LIMIT = -2

SIGNS = pa.schema(
    [
        pa.field("split", pa.int32()),
        pa.field("id", pa.large_string()),
        pa.field("code", pa.string()),
        pa.field("full", pa.int32()),
        pa.field("max_tokens", pa.int32()),
        pa.field("script", pa.int8()),
        pa.field("tokens", pa.int32()),
        pa.field("digest", pa.binary(16)),
        pa.field("blocks", pa.large_list(pa.uint64())),
    ]
)


@dataclass(frozen=True, slots=True)
class RowSigns:
    """Rows of one split, in order; every list and array has one entry per row.

    Attributes:
        ids: the user's key.
        codes: why a row will not run, None if it will; `NOT_TAKEN` outside the sample.
        full: prompt tokens before truncation, `NOT_COUNTED` or `OVER_LIMIT`.
        tokens: prompt tokens that the engine will see; 0 for a row that will not run.
        max_tokens: output cap.
        scripts: index into `SCRIPTS`, -1 if not looked at.
        digests: shape (rows, 2), of the whole request.
        blocks: signatures of the prompt's prefixes.
    """

    ids: Sequence[str | None]
    codes: Sequence[str | None]
    full: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    max_tokens: npt.NDArray[np.int32]
    scripts: npt.NDArray[np.int8]
    digests: npt.NDArray[np.uint64]
    blocks: Signatures

    def __len__(self) -> int:
        return len(self.codes)

    def head(self, rows: int) -> RowSigns:
        """The first rows only."""
        return self if rows >= len(self) else signs_from_batch(signs_to_batch(self, 0)[:rows])


def make_signs(
    *,
    ids: Sequence[str | None],
    codes: Sequence[str | None],
    full: npt.NDArray[np.int32],
    token_ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    max_tokens: Sequence[int],
    sampling: Sequence[str],
    scripts: npt.NDArray[np.int8],
    block_size: int,
    media_tokens: npt.NDArray[np.int32] | None = None,
    extras: Sequence[str | None] = (),
) -> RowSigns:
    """The signs of rows whose kept tokens are `token_ids[offsets[r]:offsets[r + 1]]`.

    `media_tokens` are those of images and sounds, which no token ids tell apart.
    """
    apart = adapters_apart(extras)
    if apart is not None:  # the same request to another adapter is another request
        named = zip(sampling, extras, strict=True)
        sampling = [f"{fields} {adapter_of(extra) or ''}" for fields, extra in named]
    tokens = np.diff(offsets).astype(np.int32)
    return RowSigns(
        ids=ids,
        codes=codes,
        full=full,
        tokens=tokens if media_tokens is None else tokens + media_tokens,
        max_tokens=np.asarray(max_tokens, dtype=np.int32),
        scripts=scripts,
        digests=prompt_digests(token_ids, offsets, max_tokens, sampling),
        blocks=block_signatures(token_ids, offsets, block_size, apart),
    )


def signs_to_batch(signs: RowSigns, split: int) -> pa.RecordBatch:
    """Signs on their way between processes."""
    rows = len(signs)
    digests = pa.Array.from_buffers(
        pa.binary(16), rows, [None, pa.py_buffer(np.ascontiguousarray(signs.digests).tobytes())]
    )
    columns = [
        pa.array(np.full(rows, split, dtype=np.int32)),
        pa.array(signs.ids, pa.large_string()),
        pa.array(signs.codes, pa.string()),
        pa.array(signs.full),
        pa.array(signs.max_tokens),
        pa.array(signs.scripts),
        pa.array(signs.tokens),
        digests,
        pa.LargeListArray.from_arrays(
            pa.array(signs.blocks.offsets), pa.array(signs.blocks.values)
        ),
    ]
    return pa.record_batch(columns, schema=SIGNS)


def signs_from_batch(batch: pa.RecordBatch) -> RowSigns:
    """What `signs_to_batch` has sent."""
    digests = batch.column("digest")
    raw = b"" if not len(digests) else digests.buffers()[1]
    words = np.frombuffer(raw, dtype=np.uint64)
    start = 2 * digests.offset
    return RowSigns(
        ids=batch.column("id").to_pylist(),
        codes=batch.column("code").to_pylist(),
        full=batch.column("full").to_numpy(),
        tokens=batch.column("tokens").to_numpy(),
        max_tokens=batch.column("max_tokens").to_numpy(),
        scripts=batch.column("script").to_numpy(),
        digests=words[start : start + 2 * len(digests)].reshape(-1, 2),
        blocks=Signatures(*flat_lists(batch.column("blocks"))),
    )


def flat_lists(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """A list column as its flat values and offsets from 0."""
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy()[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


def prepared_signs(batch: pa.RecordBatch, block_size: int) -> RowSigns:
    """The signs of prepared rows, from the columns of a prepared part that `PREPARED` names."""
    ids, offsets = flat_lists(batch.column("token_ids"))
    codes = batch.column("error_code").to_pylist()
    media_tokens = media_token_column(batch.column("extras"))
    full = np.diff(offsets).astype(np.int32) + media_tokens
    full[[code is not None for code in codes]] = NOT_COUNTED
    full[[code == "prompt_too_long" for code in codes]] = OVER_LIMIT
    full[np.asarray(batch.column("truncated").to_pylist(), dtype=np.bool_)] = OVER_LIMIT
    return make_signs(
        ids=batch.column("id").to_pylist(),
        codes=codes,
        full=full,
        token_ids=ids,
        offsets=offsets,
        max_tokens=batch.column("max_tokens").to_pylist(),
        sampling=with_media(
            batch.column("sampling").to_pylist(), batch.column("extras").to_pylist()
        ),
        media_tokens=media_tokens,
        scripts=np.full(len(codes), -1, dtype=np.int8),
        block_size=block_size,
        extras=extras_column(batch),
    )


def extras_column(batch: pa.RecordBatch) -> list[str | None]:
    """What rows of a prepared part carry beside their tokens; empty if none of them does."""
    if "extras" not in batch.schema.names or batch.column("extras").null_count == len(batch):
        return []
    return list(batch.column("extras").to_pylist())


def with_media(sampling: Sequence[str], extras: Sequence[str | None]) -> list[str]:
    """Sampling texts that tell rows with different media apart, for finding equal requests.

    What a row holds itself is not compared: two such rows count as different.
    """
    return [
        f"{text}{more}{index if INLINE in more else ''}" if more and has_media(more) else text
        for index, (text, more) in enumerate(zip(sampling, extras, strict=True))
    ]


# The columns of a prepared part that `prepared_signs` reads.
PREPARED = (
    "id", "token_ids", "max_tokens", "sampling", "extras", "truncated", "error_code",
)  # fmt: skip
