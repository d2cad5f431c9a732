"""Every name in a run directory, once."""

from __future__ import annotations

JOB = "job.yaml"
MANIFEST = "manifest.json"
EVENTS = "events.jsonl"
SUCCESS = "_SUCCESS"
SUMMARY = "summary.json"
REPORT = "report.html"
PROGRESS = "progress.json"

PREPARED = "prepared"
ORDER = "order"
CLAIMS = "claims"
WORKERS = "workers"
RECEIPTS = "receipts"
OUTPUT = "output"
REJECTED = "rejected"
RESULTS = "results"
LOGS = "logs"
TELEMETRY = "telemetry"
PLAN = "plan.json"
PILOT = "pilot.json"
ORDER_DECISION = "order.json"
LOAD = "load"


def prepared_part(split: int, part: int) -> str:
    """A prepared part; its receipt has the same name with `.json`."""
    return f"{PREPARED}/part-{split:06d}-{part:04d}.arrow"


def is_prepared_part(file: str) -> bool:
    """Whether a file is made of the input alone, and so may be made again."""
    return file.startswith(f"{PREPARED}/part-")


def prepared_receipt(split: int, part: int) -> str:
    """Receipt of a prepared part."""
    return f"{PREPARED}/part-{split:06d}-{part:04d}.json"


def grouped_part(number: int, attempt: str) -> str:
    """Rows of many prepared parts, in the order in which they run; it counts if the order names it."""
    return f"{PREPARED}/grouped-{number:06d}-{attempt}.arrow"


def order_batch(generation: int, sequence: int) -> str:
    """A stretch of the order: prepared parts numbered and cut into chunks."""
    return f"{ORDER}/{generation}-{sequence:06d}.json"


def rejected_batch(sequence: int) -> str:
    """The rows rejected in a stretch of the order, for people."""
    return f"{REJECTED}/{sequence:06d}.jsonl"


def output_part(chunk_name: str, attempt: str) -> str:
    """An output part; only the one that a receipt names counts."""
    return f"{OUTPUT}/part-{chunk_name}-{attempt}.parquet"


def chunk_of_part(name: str) -> str:
    """The chunk that an output part is of, by the part's file name; empty if it is none."""
    return name.removeprefix("part-").rpartition("-")[0] if name.startswith("part-") else ""


def receipt(chunk_name: str, sequence: int = 0) -> str:
    """Receipt of a chunk; of a part of its rows where `sequence` goes on."""
    return f"{RECEIPTS}/{chunk_name}{f'.{sequence}' if sequence else ''}.json"


def claim(unit: str, epoch: int) -> str:
    """The claim of a worker on a unit of work; the highest epoch holds."""
    return f"{CLAIMS}/{unit}.{epoch}"


def heartbeat(worker: str) -> str:
    """A worker's sign of life and its counters."""
    return f"{WORKERS}/{worker}.json"


def telemetry(worker: str) -> str:
    """Readings of a worker's engine, a line each second."""
    return f"{TELEMETRY}/{worker}.jsonl"


def worker_log(worker: str) -> str:
    """What a worker tells of its work, a line each."""
    return f"{LOGS}/{worker}.jsonl"


def timings(chunk_name: str) -> str:
    """When each row of a pilot's chunk finished."""
    return f"{TELEMETRY}/{chunk_name}.json"


def load_record(target: str) -> str:
    """What a run loads into a table of a vector database."""
    return f"{LOAD}/{target}/target.json"


def load_parts(target: str) -> str:
    """Folder of the receipts of a load, one for each output part."""
    return f"{LOAD}/{target}/parts"


def load_errors(target: str) -> str:
    """The rows that are not in the database, and why."""
    return f"{LOAD}/{target}/errors.jsonl"


def load_summary(target: str) -> str:
    """Written when all rows of a run are in the database."""
    return f"{LOAD}/{target}/summary.json"


def split_unit(ordinal: int) -> str:
    """Name of a split as a unit of claim."""
    return f"split-{ordinal:06d}"


ORDER_UNIT = "order"
RESULTS_UNIT = "results"
CREATE_UNIT = "create"
OVERSEE_UNIT = "oversee"
