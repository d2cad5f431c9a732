"""What images and sounds add to prompts, read from a whole column of extras."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.media import MEDIA_HEAD


def media_token_column(extras: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Tokens that each row's media are expected to add; 0 where it has none."""
    if extras.null_count == len(extras):
        return np.zeros(len(extras), dtype=np.int32)
    found = pc.extract_regex(extras, rf"^\{MEDIA_HEAD}(?P<n>\d+)")
    counts = pc.fill_null(pc.struct_field(found, "n").cast(pa.int32()), 0)
    return np.asarray(counts.to_numpy(zero_copy_only=False), dtype=np.int32)
