"""Words of telemetry: what a worker notes of itself, its engine, its cards and its host.

A name that ends in `_s` or `_bytes` and is said to grow counts from the start of what it counts:
two readings and the time between them make a rate. Shares are from 0 to 1. None is what nobody
could tell, a machine without NVML for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from batchwright.core.ports import EngineGauges

INFER, PREPARE = "infer", "prepare"

# The phase of a worker that is about to leave: its engine is stopped, its last parts are written.
STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card, by NVML.

    Attributes:
        index: as the driver counts.
        use: share of the last moments in which any kernel ran.
        memory_use: share of the last moments in which its memory was read or written.
        memory_bytes: in use, by whomever.
        memory_total_bytes: that the card has.
        others_bytes: in use by processes that are not this worker's.
        power_w: that it takes.
        power_limit_w: that it may take.
        sm_mhz: clock of its processors.
        sm_max_mhz: the highest that clock can be.
        temperature_c: of the chip.
        throttled: why its clock is held down: `power`, `heat`, `hardware`; empty if it is not.
        pcie_received_bytes_s: over PCIe from the host, now.
        pcie_sent_bytes_s: over PCIe to the host, now.
        nvlink_bytes: over all its NVLinks, both ways; grows.
    """

    index: int
    use: float | None = None
    memory_use: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    others_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    pcie_received_bytes_s: int | None = None
    pcie_sent_bytes_s: int | None = None
    nvlink_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine, or of it what this container may use.

    Attributes:
        cores: that may be used.
        cpu_use: share of them that worked since the last reading, for whomever.
        memory_bytes: in use.
        memory_total_bytes: that may be used.
        disk_read_bytes: from all disks; grows.
        disk_written_bytes: to all disks; grows.
        net_received_bytes: grows.
        net_sent_bytes: grows.
        shm_bytes: in use in `/dev/shm`.
        shm_total_bytes: its size.
        run_disk_free_bytes: on the disk that holds the run directory, where that is a folder.
        run_disk_total_bytes: size of that disk.
    """

    cores: int
    cpu_use: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    net_received_bytes: int | None = None
    net_sent_bytes: int | None = None
    shm_bytes: int | None = None
    shm_total_bytes: int | None = None
    run_disk_free_bytes: int | None = None
    run_disk_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """The worker's processes.

    Attributes:
        cpu_s: of the worker's own process, all threads; grows.
        engine_cpu_s: of the engine's processes, together; grows.
        busiest_engine_cpu_s: of the one among them that has the most; grows. It is the engine's
            core as a rule, whose one thread is the limit of small models.
        memory_bytes: resident, of all of them.
    """

    cpu_s: float
    engine_cpu_s: float = 0.0
    busiest_engine_cpu_s: float = 0.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FeedReading:
    """Between what is prepared and the engine, and between the engine and what is written.

    Attributes:
        in_flight: rows that have gone to the engine and not come back.
        cap: rows that the engine should hold by now: fewer than `max_num_seqs` where the KV cache
            has no room for more.
        max_num_seqs: rows that the engine may run at the same time.
        starved_s: in which the engine had room and no prepared row was at hand; grows.
        media_s: in which it had room and the next rows waited for their media; grows.
        commit_wait_s: in which the loop waited for commits; grows.
        commits_waiting: chunks that are finished and not committed.
        commit_s: that commits took, in their own thread; grows.
        committed_bytes: written to the run directory; grows.
        committed_rows: grows.
    """

    in_flight: int = 0
    cap: int = 0
    max_num_seqs: int = 0
    starved_s: float = 0.0
    media_s: float = 0.0
    commit_wait_s: float = 0.0
    commits_waiting: int = 0
    commit_s: float = 0.0
    committed_bytes: int = 0
    committed_rows: int = 0


@dataclass(frozen=True, slots=True)
class PrepareReading:
    """A process that reads and tokenises. All of it grows.

    Attributes:
        rows: prepared.
        tokens: of their prompts.
        read_s: in which it read and parsed the input.
        tokenize_s: in which it checked rows, rendered and tokenised them.
        write_s: in which it wrote prepared parts.
        idle_s: in which it had nothing to prepare.
    """

    rows: int = 0
    tokens: int = 0
    read_s: float = 0.0
    tokenize_s: float = 0.0
    write_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A line of a worker's telemetry.

    Attributes:
        at: Unix time.
        worker: its name.
        role: `infer` or `prepare`.
        host: name of its machine.
        phase: what it does, in words.
        rows: that came out of its engine; grows.
        prompt_tokens: of these rows; grows.
        cached_tokens: of these, saved by the prefix cache; grows.
        completion_tokens: of these rows; grows.
        restarts: engines that died and were started again; grows.
        kv_peak: the most of the KV cache that was in use since the reading before.
        engine: its gauges; their counters start again with an engine that was restarted.
    """

    at: float
    worker: str
    role: str = INFER
    host: str = ""
    phase: str = ""
    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    restarts: int = 0
    kv_peak: float = 0.0
    engine: EngineGauges | None = None
    feed: FeedReading | None = None
    prepare: PrepareReading | None = None
    process: ProcessReading | None = None
    node: HostReading | None = None
    cards: tuple[CardReading, ...] = field(default=())
