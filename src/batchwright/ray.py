"""For pipelines of Ray Data: a callable from Dataset to Dataset, with batchwright in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.config.load import load_job, make_job
from batchwright.core.errors import JobError
from batchwright.equip.choosing import with_engine
from batchwright.equip.coherence import check_engine, check_task
from batchwright.equip.equipment import DEFAULT_MAX_NUM_SEQS, job_tokenizer
from batchwright.executors.ray_cluster import connect, import_ray, living_nodes
from batchwright.executors.ray_workers import engine_resources, resource_options, too_small
from batchwright.executors.room import Need
from batchwright.foresight.survey import choose_max_model_len, wants_chat
from batchwright.rundir.manifest import Manifest, encode_input_type
from batchwright.running.staffing import gpus_of_engine
from batchwright.tokens.pooling import resolve_embedding
from batchwright.tokens.scoring import resolve_scoring
from batchwright.working.row_stream import RowStream

if TYPE_CHECKING:
    from ray.data import Dataset

# Blocks of half an engine's rows each: two fill it, one waits, one is prepared, so that it never drains.
BLOCKS_IN_WORK = 4

# One more is on its way. Each beyond that would be kept from the engines that come up later: an actor
# takes all it may as soon as it is ready.
_BLOCKS_TAKEN = BLOCKS_IN_WORK + 1

_LEAST_BLOCK, _MOST_BLOCK = 32, 512

Row = dict[str, Any]


def processor(
    job: Job | Mapping[str, Any] | str | Path,
    *,
    preprocess: Callable[[Row], Row] | None = None,
    postprocess: Callable[[Row], Row] | None = None,
    concurrency: int | tuple[int, int] | None = None,
    block_rows: int | None = None,
) -> Callable[[Dataset], Dataset]:
    """A stage for a pipeline of Ray Data: rows in, the same rows with their answers out.

    The output has the input's columns and those of the output contract (`status`, `text`,
    `error_code`, …; without `row` and `id`); an input column of the same name gets the prefix
    `input_`. A bad row has `status: rejected` or `failed` and says why; it never ends the pipeline.
    Rows keep their order within a block, and blocks keep theirs if the pipeline preserves order.

    Args:
        job: a job, as a file, as data, or made already; `input` and `output` are not used.
        preprocess: made of each row before it is read, as with `ray.data.llm.build_processor`.
        postprocess: made of each row that comes out, bad ones too.
        concurrency: engines, or the fewest and the most; `run.replicas` unless given.
        block_rows: rows of a block; half as many as an engine runs at the same time unless given.

    Raises:
        JobError: the job cannot be, or the cluster has no room for the engines.
    """
    import_ray()
    found = stream_job(job)
    manifest = stream_manifest(found)
    engines = engine_counts(found, concurrency)
    rows = block_rows or rows_per_block(found)

    def apply(dataset: Dataset) -> Dataset:
        if preprocess is not None:
            dataset = dataset.map(preprocess)
        dataset = _answered(dataset, found, manifest, engines, rows)
        return dataset if postprocess is None else dataset.map(postprocess)

    return apply


def _answered(
    dataset: Dataset, job: Job, manifest: Manifest, engines: tuple[int, int], block_rows: int
) -> Dataset:
    cluster = job.run.ray
    least, most = engines
    ray = connect(cluster, most * cluster.cpus_per_engine + 1)
    options = _engine_options(job, manifest, least)
    # Without this a small input is one block, which one engine would get alone.
    return dataset.repartition(target_num_rows_per_block=block_rows).map_batches(
        RowStreamActor,
        fn_constructor_kwargs={"job": job.model_dump(mode="json"), "manifest": manifest},
        batch_size=block_rows,  # and blocks that are too small are put together
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            min_size=least,
            max_size=most,
            max_tasks_in_flight_per_actor=_BLOCKS_TAKEN,
            max_concurrent_calls_per_actor=BLOCKS_IN_WORK,
        ),
        **options,
    )


class RowStreamActor:
    """One engine of the pool: each call is a block, and several are in work at the same time."""

    def __init__(self, job: dict[str, Any], manifest: Manifest) -> None:
        self._stream = RowStream(Job.model_validate(job), manifest)

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """The rows of a block with their answers."""
        return await asyncio.wrap_future(self._stream.submit(batch))


def stream_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    """A checked job, whose rows come from a dataset. Raises JobError."""
    if isinstance(job, str | Path):
        job = load_job(Path(job))
    elif not isinstance(job, Job):
        job = make_job({"input": {"path": "a dataset"}, **job}, {}, source="the job")
    job, _ = with_engine(job, on_ray=True)
    check_task(job)
    check_engine(job)
    if job.task == "embed":
        return resolve_embedding(job)
    return job if job.task == "generate" else resolve_scoring(job)


def stream_manifest(job: Job) -> Manifest:
    """What the preparation of rows must know, with no file to look at."""
    tokenizer = job_tokenizer(job)
    return Manifest(
        job=job.model_dump(mode="json"),
        tools={},
        files=(),
        splits=(),
        format="dataset",
        input_type=encode_input_type(pa.null()),
        id_column="",
        chat=wants_chat(job, tokenizer),
        max_model_len=choose_max_model_len(job),
        fingerprint={},
    )


def engine_counts(job: Job, concurrency: int | tuple[int, int] | None) -> tuple[int, int]:
    """The fewest and the most engines. Raises JobError."""
    if concurrency is None:
        most = job.run.replicas or 1
        least = job.run.ray.min_replicas
        concurrency = (max(1, most if least is None else least), most)
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    if not 1 <= least <= most:
        raise JobError(f"concurrency: 1 <= fewest <= most (got {least} and {most})")
    return least, most


def rows_per_block(job: Job) -> int:
    """About half as many rows as an engine runs at the same time."""
    usual = DEFAULT_MAX_NUM_SEQS.get(job.engine.kind, 256)
    seqs = job.engine.options.get("max_num_seqs", usual)
    return min(_MOST_BLOCK, max(_LEAST_BLOCK, int(seqs) // 2))


def _engine_options(job: Job, manifest: Manifest, least: int) -> dict[str, Any]:
    """Resources of one engine. Raises JobError if the cluster has no room for the first ones."""
    cluster = job.run.ray
    nodes = living_nodes(connect(cluster))
    gpus, needs_cards = gpus_of_engine(manifest, job)
    if not needs_cards and not any(node.has.get("GPU", 0) for node in nodes):
        gpus = 0.0
    each = engine_resources(cluster, gpus)
    shortage = too_small([Need("engines", least, each)], nodes)
    if shortage is not None:
        raise shortage
    options = resource_options(each)
    variables = cluster.runtime_env.get("env_vars")
    return {**options, **({"runtime_env": {"env_vars": variables}} if variables else {})}
