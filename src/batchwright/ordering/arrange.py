"""Put rows that wait in another order: look at what they share, decide, sort, write them grouped."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.records import OrderBatch, OrderDecision, Slice
from batchwright.engines.flow import ahead_of
from batchwright.plan.blend import (
    LONG_QUANTILE,
    Units,
    blend,
    common_tokens,
    deal,
    gather_units,
    unit_starts,
)
from batchwright.plan.chunks import LARGEST_CHUNK, count_rows, plan_chunks
from batchwright.plan.gate import UNKNOWN_CACHE, Known, Outlook, cache_for_prompts, decide
from batchwright.profile.blocks import Signatures, adapters_apart, block_signatures
from batchwright.profile.keys import length_keys, longest_keys, prefix_keys, shared_blocks
from batchwright.profile.prefixes import PrefixTally
from batchwright.profile.signs import extras_column, flat_lists
from batchwright.rundir import layout
from batchwright.rundir.key_sort import SORTED_ROWS, KeyFile
from batchwright.rundir.manifest import Manifest, block_size
from batchwright.rundir.prepared import record_batches
from batchwright.rundir.regroup import Regrouper
from batchwright.rundir.storage import Storage

# Where grouping puts down what does not fit in memory: in `prepared/`, or on a disk of this machine.
SCRATCH = ".grouping-"

GPU_BLOCK_SIZE = 16

# Rows that an engine runs at the same time if neither job nor plan say: vLLM's default on large cards.
MOST_RUNNING = 1024

# What is kept of each row in sorted order, on disk.
_SORTED = np.dtype([("seq", "i8"), ("shared", "i4"), ("prompt", "i4"), ("cap", "i4")])

# Distinct prefix blocks that are followed exactly; of more a sample is. 13 MB.
_FOLLOWED_BLOCKS = 1 << 18

Ints = npt.NDArray[np.int64]


class Arrangement:
    """Another order for rows that wait: first `look`, then perhaps `group`, a step at a time.

    Rows may go from the front of the line into chunks in file order while this looks at them.

    Args:
        storage: of the run.
        manifest: of the run.
        waiting: the rows, in file order.
        by: `prefix`, `length` or `longest`.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, waiting: Sequence[Slice], by: str
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._waiting = list(waiting)
        self._by = by
        self._block_size = block_size(manifest)
        folder = storage.local_folder(layout.PREPARED)
        self._scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
        self._keys = KeyFile(self._scratch)
        self._tally = PrefixTally(self._block_size, _FOLLOWED_BLOCKS)
        self._prompt_tokens = 0
        self._cap_tokens = 0
        self.slices: list[Slice] = []

    @property
    def prompt_tokens(self) -> int:
        """Of the rows looked at."""
        return self._prompt_tokens

    def look(self) -> Iterator[None]:
        """Read all prompts, a few thousand rows at each step."""
        with self._keys as keys:
            for batch, _ in record_batches(
                self._storage, self._waiting, ["token_ids", "max_tokens", "extras"]
            ):
                ids, offsets = flat_lists(batch.column("token_ids"))
                lengths = np.diff(offsets).astype(np.int32)
                caps = batch.column("max_tokens").to_numpy()
                apart = adapters_apart(extras_column(batch))
                signatures = block_signatures(ids, offsets, self._block_size, apart)
                self._tally.add(signatures, lengths)
                keys.add(self._keys_of(signatures, lengths, caps), lengths, caps)
                self._prompt_tokens += int(lengths.sum())
                self._cap_tokens += int(caps.sum())
                yield

    def _keys_of(
        self, signatures: Signatures, lengths: npt.NDArray[np.int32], caps: npt.NDArray[np.int32]
    ) -> pa.LargeBinaryArray:
        if self._by == "prefix":
            return prefix_keys(signatures)
        if self._by == "longest":
            return longest_keys(caps, self._keys.rows)
        return length_keys(lengths)

    def decide(self, asked: str, known: Known) -> OrderDecision:
        """Whether to group the rows that were looked at; what the job file asks for is done."""
        rows = max(1, self._keys.rows)
        mean_output = self._cap_tokens / rows if known.mean_output is None else known.mean_output
        cache = None
        if known.kv_tokens:
            cache = cache_for_prompts(known.kv_tokens, self._prompt_tokens / rows, mean_output)
        verdict = decide(
            Outlook(
                prompt_tokens=self._prompt_tokens,
                output_tokens=round(mean_output * rows),
                hit_file=self._tally.hit_rate(cache),
                hit_best=self._tally.best_hit_rate(cache),
                tokens_per_s=known.tokens_per_s,
            )
        )
        order, reason = ("prefix" if verdict.group else "file"), verdict.reason
        if asked != "auto":
            order, reason = asked, "run.order asks for it"
        elif cache is None:
            order, reason = "file", UNKNOWN_CACHE
        return OrderDecision(
            asked=asked,
            order=order,
            reason=reason,
            rows=self._keys.rows,
            prompt_tokens=self._prompt_tokens,
            output_tokens=round(mean_output * rows),
            cache_tokens=cache,
            hit_rate_file=round(self._tally.hit_rate(cache), 4),
            hit_rate_best=round(self._tally.best_hit_rate(cache), 4),
            gain=round(verdict.gain, 4),
            seconds_left=verdict.seconds_left,
        )

    def group(self, waiting: Sequence[Slice], first_chunk: int) -> Iterator[None]:
        """Write the rows that still wait as grouped parts; then `slices` has one for each chunk.

        Args:
            waiting: the last of the rows that were looked at.
            first_chunk: number of the next chunk.
        """
        chunk_rows: int | None = self._manifest.job["run"]["chunk_rows"]
        count = count_rows(waiting)
        skip = self._keys.rows - count
        table: Any = np.memmap(self._scratch / "sorted", _SORTED, "w+", shape=(max(count, 1),))
        shared = np.zeros(1, dtype=np.int64)
        done = 0
        before = b""
        for batch in self._keys.sorted(skip):
            blocks = shared_blocks(batch.column("key"), before)
            before = batch.column("key")[-1].as_py()
            shared = _added(shared, np.bincount(blocks))
            part = table[done : done + len(blocks)]
            part["seq"] = batch.column("seq").to_numpy() - skip
            part["shared"] = blocks * self._block_size if self._by == "prefix" else 0
            part["prompt"] = batch.column("prompt").to_numpy()
            part["cap"] = batch.column("cap").to_numpy()
            done += len(blocks)
            yield
        places, units = self._order(table, common_tokens(shared, self._block_size), chunk_rows)
        writer = Regrouper(
            self._storage,
            waiting,
            places,
            plan_chunks(units, first_chunk, chunk_rows, self._manifest.most_engines),
            self._scratch,
            uuid.uuid4().hex[:8],
        )
        yield from writer.steps()
        self.slices = writer.slices

    def _order(
        self, table: npt.NDArray[Any], common: int, chunk_rows: int | None
    ) -> tuple[Ints, list[int]]:
        """The new place of each row, and the rows of each unit in the new order."""
        largest = chunk_rows or LARGEST_CHUNK
        pieces = [
            _units(table[start : start + SORTED_ROWS], start, common, largest)
            for start in range(0, len(table), SORTED_ROWS)
        ]
        units = gather_units(
            Units(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))
        )
        # By length a row's neighbours are alike on purpose: nothing is blended.
        order = np.arange(len(units.rows))
        if self._by == "prefix":
            order = blend(units, _quantile(table["cap"], LONG_QUANTILE))
        first = np.cumsum(units.rows) - units.rows
        sizes = units.rows[order]
        new_first = np.empty(len(order), dtype=np.int64)
        new_first[order] = np.cumsum(sizes) - sizes
        places: Any = np.memmap(self._scratch / "places", np.int64, "w+", shape=(len(table),))
        places[table["seq"]] = np.arange(len(table)) + np.repeat(new_first - first, units.rows)
        if self._by == "longest":
            places[:] = deal(places, rows_at_once(self._manifest))
        return places, sizes.tolist()

    def close(self) -> None:
        """Remove what was put down, also by others before."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def rows_at_once(manifest: Manifest) -> int:
    """Rows that all engines of a run take as soon as they are up: those they run and hold ready."""
    asked = {**manifest.planned, **manifest.job["engine"]["options"]}.get("max_num_seqs")
    running = asked if isinstance(asked, int) and asked > 0 else MOST_RUNNING
    return manifest.most_engines * (running + ahead_of(running))


def remove_leftovers(storage: Storage, batches: Sequence[OrderBatch]) -> None:
    """Remove what was written for an order that never came to count. Only once it is settled.

    Args:
        storage: of the run.
        batches: the order: what it names stays.
    """
    named = {piece.part for batch in batches for piece in batch.waiting}
    named |= {one.part for batch in batches for chunk in batch.chunks for one in chunk.slices}
    for name in storage.names(layout.PREPARED):
        path = f"{layout.PREPARED}/{name}"
        if name.startswith("grouped-") and path not in named:
            storage.delete(path)
    for left in storage.local_folder(layout.PREPARED).glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def _units(rows: npt.NDArray[Any], first_row: int, common: int, largest: int) -> Units:
    """Units of some rows in sorted order; none reaches beyond them."""
    shared = rows["shared"].astype(np.int64)
    prompts = rows["prompt"].astype(np.int64)
    caps = rows["cap"].astype(np.int64)
    starts = unit_starts(shared, prompts, common, first_row, largest)
    starts[0] = True
    at = np.flatnonzero(starts)
    return Units(
        np.diff(np.append(at, len(rows))),
        np.add.reduceat(np.maximum(prompts - shared, 1), at),
        np.add.reduceat(caps, at),
        np.maximum.reduceat(caps, at),
    )


def _quantile(values: npt.NDArray[np.int32], share: float) -> int:
    return int(np.quantile(values, share, method="lower"))


def _added(totals: Ints, more: Ints) -> Ints:
    """The sum of two histograms of different length."""
    size = max(len(totals), len(more))
    return np.pad(totals, (0, size - len(totals))) + np.pad(more, (0, size - len(more)))
