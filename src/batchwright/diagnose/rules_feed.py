"""Rules about an engine that waits: for rows to be read, tokenised or ordered, for media, for commits."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import Evidence, PrepareEvidence, WorkerEvidence
from batchwright.diagnose.figures import over_time, per_second, percent

# A feeder that is full loses a few percent between readings; a tenth of the time is a cause.
LEAST_WAIT = 0.10

# What takes so much of the time of preparing is what holds it up.
DOMINANT = 0.5

# Preparers that rest for so long are not the bottleneck.
MOSTLY_IDLE = 0.5

# So many files, so small, cost more to open than to read: in a bucket each is two requests.
MANY_FILES = 1_000
SMALL_FILE_BYTES = 256 * 1024


def starved_share(evidence: Evidence) -> float:
    """Share of the engines' working time in which no prepared row was there."""
    return over_time(evidence.reliable, lambda one: one.starved)


def slow_reading(evidence: Evidence) -> Finding | None:
    """The engine waits, and those who prepare rows spend their time reading."""
    prepare = _bottleneck(evidence)
    if prepare is None or _part(prepare, prepare.read_s) < DOMINANT or has_small_files(evidence):
        return None
    return Finding(
        code="slow_reading",
        title="The engine waits for input that is read too slowly",
        weight=Weight.LOSS,
        evidence=(*_starved(evidence), *_prepare_figures(prepare), *_input_rate(evidence, prepare)),
        cause="The disk, the network or decompression gives fewer rows a second than the engine "
        "answers.",
        remedy="Read with more processes, or put the input on a faster disk or nearer bucket; "
        "Parquet and zstd are read faster than gzip.",
        changes=_more_processes(evidence),
        gain=starved_share(evidence),
    )


def slow_tokenizing(evidence: Evidence) -> Finding | None:
    """The engine waits, and those who prepare rows spend their time tokenising."""
    prepare = _bottleneck(evidence)
    if prepare is None or _part(prepare, prepare.tokenize_s) < DOMINANT:
        return None
    speed = prepare.tokens / prepare.tokenize_s if prepare.tokenize_s else 0.0
    return Finding(
        code="slow_tokenizing",
        title="The engine waits for rows to be checked and tokenised",
        weight=Weight.LOSS,
        evidence=(
            *_starved(evidence),
            *_prepare_figures(prepare),
            ("tokenised", f"{speed:,.0f} tokens/s of one process"),
        ),
        cause="Templates, checks and the tokenizer take more time on the host than the answers do "
        "on the engine.",
        remedy="Prepare in more processes; a tokenizer without a fast version (tokenizer.json) is "
        "several times slower.",
        changes=_more_processes(evidence),
        gain=starved_share(evidence),
    )


def small_files(evidence: Evidence) -> Finding | None:
    """Thousands of small files, and the engine waits for them."""
    prepare = _bottleneck(evidence)
    if prepare is None or _part(prepare, prepare.read_s) < DOMINANT:
        return None
    if not has_small_files(evidence):
        return None
    data = evidence.data
    return Finding(
        code="small_files",
        title="The input is thousands of small files",
        weight=Weight.LOSS,
        evidence=(
            ("files", f"{data.files:,}"),
            ("mean size", f"{data.bytes / data.files / 1024:,.1f} KiB"),
            ("rows per file", f"{evidence.rows / data.files:,.1f}"),
            *_starved(evidence),
            *_prepare_figures(prepare),
        ),
        cause="Each file is opened on its own, which takes longer than reading its rows.",
        remedy="Join the files (cat *.jsonl, or one Parquet file of 100 MB and more); more "
        "processes help a little.",
        changes=_more_processes(evidence),
        gain=starved_share(evidence),
    )


def slow_order(evidence: Evidence) -> Finding | None:
    """The engine waits, though those who prepare rows are idle, or nobody knows what they do."""
    if starved_share(evidence) < LEAST_WAIT or _bottleneck(evidence) is not None:
        return None
    prepare = evidence.prepare
    return Finding(
        code="waiting_for_rows",
        title="The engine waits for rows",
        weight=Weight.LOSS,
        evidence=(*_starved(evidence), *(_prepare_figures(prepare) if prepare else ())),
        cause="Rows are prepared, but reach the engine late: while they are put in order, or while "
        "chunks are claimed and read from a slow run directory."
        if prepare
        else "Rows do not reach the engine in time; what prepares them has left no readings.",
        remedy="Keep file order, and put the run directory on a disk or in a bucket near the engines.",
        changes=(Change("run.order", evidence.settings.order, "file"),)
        if evidence.settings.order != "file"
        else (),
        gain=starved_share(evidence),
    )


def slow_media(evidence: Evidence) -> Finding | None:
    """The engine has room and the next rows wait for images or sounds."""
    share = over_time(evidence.reliable, lambda one: one.media)
    if share < LEAST_WAIT:
        return None
    now = evidence.settings.media_workers
    return Finding(
        code="slow_media",
        title="The engine waits for images or sounds",
        weight=Weight.LOSS,
        evidence=(("waited for media", percent(share)), ("media.workers", f"{now}")),
        cause="Media are fetched more slowly than the engine takes rows.",
        remedy="Fetch more of them at the same time, or copy them near the engines beforehand.",
        changes=(Change("media.workers", f"{now}", f"{min(256, 4 * now)}"),),
        gain=share,
    )


def slow_writes(evidence: Evidence) -> Finding | None:
    """The worker stands still until parts are written."""
    share = over_time(evidence.reliable, lambda one: one.commit_wait)
    if share < LEAST_WAIT:
        return None
    written = sum(one.committed_bytes_s for one in evidence.reliable)
    return Finding(
        code="slow_writes",
        title="The engine waits for results to be written",
        weight=Weight.LOSS,
        evidence=(
            ("waited for commits", percent(share)),
            ("written", per_second(written)),
        ),
        cause="The run directory's disk or bucket takes parts more slowly than the engine makes "
        "them.",
        remedy="Put the run directory on a faster disk (--dir), keep fewer input columns, or write "
        "larger chunks.",
        changes=(Change("output.columns", "all", "none"),),
        gain=share,
    )


def has_small_files(evidence: Evidence) -> bool:
    """Whether the input is many files of hardly any content."""
    data = evidence.data
    return data.files >= MANY_FILES and data.bytes < SMALL_FILE_BYTES * data.files


def waits_for_rows(worker: WorkerEvidence) -> bool:
    """Whether a worker's engine is held up by what comes before it."""
    return worker.starved + worker.media >= LEAST_WAIT


def _bottleneck(evidence: Evidence) -> PrepareEvidence | None:
    """Those who prepare rows, if the engines wait for them."""
    prepare = evidence.prepare
    if prepare is None or not prepare.busy_s or starved_share(evidence) < LEAST_WAIT:
        return None
    return prepare if prepare.idle < MOSTLY_IDLE else None


def _part(prepare: PrepareEvidence, seconds: float) -> float:
    return seconds / prepare.busy_s


def _starved(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    return (("engine starved", percent(starved_share(evidence))),)


def _prepare_figures(prepare: PrepareEvidence) -> tuple[tuple[str, str], ...]:
    parts = {
        "reading": prepare.read_s,
        "tokenising": prepare.tokenize_s,
        "writing": prepare.write_s,
    }
    shares = ", ".join(
        f"{name} {percent(_part(prepare, seconds) if prepare.busy_s else 0.0)}"
        for name, seconds in parts.items()
    )
    each = prepare.rows / prepare.busy_s if prepare.busy_s else 0.0
    return (
        ("preparing", shares),
        ("prepared", f"{each:,.0f} rows/s of each of {prepare.processes} processes"),
    )


def _input_rate(evidence: Evidence, prepare: PrepareEvidence) -> tuple[tuple[str, str], ...]:
    if not evidence.data.bytes or not evidence.rows or not prepare.read_s:
        return ()
    read = evidence.data.bytes * min(1.0, prepare.rows / evidence.rows)
    return (("read", f"{per_second(read / prepare.read_s)} of one process"),)


def _more_processes(evidence: Evidence) -> tuple[Change, ...]:
    """As many processes as would keep up, by the share of the time that the engine was fed."""
    now = evidence.settings.prepare_processes
    fed = max(0.05, 1 - starved_share(evidence))
    most = max((one.cores for one in evidence.hosts), default=0)
    wanted = max(now + 1, round(now / fed + 0.5))
    wanted = min(wanted, max(1, most - 1)) if most else wanted
    if wanted <= now:
        return ()
    return (Change("run.prepare_processes", f"{now}", f"{wanted}"),)
