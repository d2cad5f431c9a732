"""Which rows are a run's pilot, and in which order they run.

Rows that share a document are drawn together and run next to each other, as the job's will. Drawn
one by one they would share nothing: the pilot would compute every document anew, a tenth of the job
without a cache, and its rate would not be the job's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.records import Chunk, Slice
from batchwright.pilot.sample import choose_rows
from batchwright.plan.blend import common_tokens, unit_starts
from batchwright.plan.chunks import cut_chunks, divide
from batchwright.profile.blocks import adapters_apart, block_signatures
from batchwright.profile.keys import prefix_keys, shared_blocks
from batchwright.profile.signs import extras_column, flat_lists
from batchwright.rundir.manifest import Manifest, block_size
from batchwright.rundir.prepared import prompt_lengths, record_batches
from batchwright.rundir.storage import Storage

PILOT_SEED = 0
PILOT_CHUNK_ROWS = 250

# Rows of a larger group are drawn in groups of so many: a pilot of a few large groups would say
# little about the others.
LARGEST_GROUP = 8

# Where the keys of the rows to choose from are larger than this, rows are drawn one by one: 700,000
# rows of 2,000 tokens, in blocks of 16.
MOST_KEY_BYTES = 192 << 20

# To look at the rows that a run's pilot is chosen from takes seconds: with so many prompt tokens they
# are enough.
MOST_POOL_TOKENS = 20_000_000

# Where an engine is up, so many times the pilot's rows do; and it waits no longer than that for them.
LEAST_POOL = 10
ENGINE_WAITS_S = 1.5

Ints = npt.NDArray[np.int64]


def pool_is_enough(
    manifest: Manifest, engine_up_s: float | None, rows: int, prompt_tokens: int
) -> bool:
    """Whether a run's pilot may be chosen from the first rows, while others are being prepared.

    Args:
        manifest: of the run.
        engine_up_s: seconds for which an engine has been up; None before that.
        rows: that are prepared.
        prompt_tokens: of these.
    """
    if not manifest.pilot_pool:  # chosen from all rows
        return False
    if rows >= manifest.pilot_pool or prompt_tokens >= MOST_POOL_TOKENS:
        return True
    if engine_up_s is None:
        return False
    return rows >= manifest.pilot_rows * (LEAST_POOL if engine_up_s < ENGINE_WAITS_S else 1)


def choose_pilot(
    storage: Storage, manifest: Manifest, waiting: Sequence[Slice]
) -> tuple[list[Chunk], list[Slice]]:
    """Rows of every prompt length, as the first chunks; and the rows that are left.

    Args:
        storage: of the run.
        manifest: of the run; where its rows will not run grouped, they are drawn one by one.
        waiting: rows to choose from, in file order.
    """
    groups = None
    if _may_group(manifest):
        groups = find_groups(storage, waiting, block_size(manifest))
    lengths = prompt_lengths(storage, waiting)
    rows = choose_rows(lengths, manifest.pilot_rows, PILOT_SEED, groups)
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[rows] = True
    picked, others = divide(waiting, chosen)
    if groups is not None:
        picked = _side_by_side(picked, groups[rows])
    chunks, _ = cut_chunks(picked, 0, PILOT_CHUNK_ROWS, last=True)
    return chunks, others


def _may_group(manifest: Manifest) -> bool:
    """Whether the job's rows may be grouped by what they share; those for endpoints never are."""
    job = manifest.job
    return job["run"]["order"] in ("auto", "prefix") and job["engine"]["kind"] != "openai"


def find_groups(storage: Storage, slices: Sequence[Slice], block_tokens: int) -> Ints | None:
    """A number for each row, the same for rows that share a beginning.

    What all rows begin with makes no group. None if there are no groups, or too many rows to see.

    Args:
        storage: of the run.
        slices: of parts in file order.
        block_tokens: tokens of a block of the engine's cache.
    """
    keys: list[pa.LargeBinaryArray] = []
    lengths: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for batch, _ in record_batches(storage, slices, ["token_ids", "extras"]):
        ids, offsets = flat_lists(batch.column("token_ids"))
        apart = adapters_apart(extras_column(batch))
        keys.append(prefix_keys(block_signatures(ids, offsets, block_tokens, apart)))
        if sum(one.nbytes for one in keys) > MOST_KEY_BYTES:
            return None
        lengths.append(np.diff(offsets).astype(np.int64))
    if not keys:
        return None
    return group_rows(pa.concat_arrays(keys), np.concatenate(lengths), block_tokens)


def group_rows(keys: pa.LargeBinaryArray, lengths: Ints, block_tokens: int) -> Ints | None:
    """The same from the rows' keys (`profile.keys.prefix_keys`) and prompt tokens."""
    order = pa.compute.array_sort_indices(keys).to_numpy().astype(np.int64)
    shared = shared_blocks(keys.take(pa.array(order)), b"")
    common = common_tokens(np.bincount(shared[1:]), block_tokens)
    starts = unit_starts(shared * block_tokens, lengths[order], common, 0, len(order))
    starts[0] = True
    places = np.arange(len(order))
    within = places - np.maximum.accumulate(np.where(starts, places, 0))
    starts |= within % LARGEST_GROUP == 0
    if starts.all():
        return None
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.cumsum(starts) - 1
    return groups


def _side_by_side(picked: Sequence[Slice], groups: Ints) -> list[Slice]:
    """Each group's rows next to each other, the groups in no order: each stretch of a pilot is alike."""
    rows = [
        Slice(piece.part, row, row + 1, piece.first_row)
        for piece in picked
        for row in range(piece.start, piece.stop)
    ]
    _, of_row = np.unique(groups, return_inverse=True)
    turn = np.random.default_rng(PILOT_SEED).permutation(int(of_row.max(initial=-1)) + 1)
    return [rows[place] for place in np.argsort(turn[of_row], kind="stable")]
