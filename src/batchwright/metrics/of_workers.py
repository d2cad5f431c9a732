"""Metrics of each worker, its engine, its cards and its machine: its newest reading.

Counters of a worker that has ended stay until the process that tells them ends, so that sums do
not fall; its gauges go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from batchwright.core.readings import CardReading, Reading
from batchwright.metrics.words import Family, Kind, Look, Value, WorkerLook

COUNTER: Kind = "counter"
GAUGE: Kind = "gauge"


def _labels(look: Look, worker: WorkerLook) -> dict[str, str]:
    return {"run": look.run, "worker": worker.name, "role": worker.role}


def of_heartbeat(name: str, kind: Kind, text: str, key: str) -> Family:
    """A number that stands in the heartbeat itself."""

    def found(look: Look) -> Iterator[Value]:
        for worker in _shown(look, kind):
            value = worker.heartbeat.get(key)
            if isinstance(value, int | float):
                yield _labels(look, worker), value

    return Family(name, kind, text, found)


def of_reading(
    name: str, kind: Kind, text: str, path: str, section: str = "", **labels: str
) -> Family:
    """A number of the newest reading, by its path there; none where its section is missing."""
    return of_readings(name, kind, text, {path: labels}, section)


def of_readings(
    name: str, kind: Kind, text: str, paths: dict[str, dict[str, str]], section: str = ""
) -> Family:
    """Several numbers of the newest reading, each with its labels."""

    def found(look: Look) -> Iterator[Value]:
        for worker, reading in _with_readings(look, kind):
            place = getattr(reading, section) if section else reading
            for path, labels in paths.items() if place is not None else ():
                yield {**_labels(look, worker), **labels}, attrgetter(path)(place)

    return Family(name, kind, text, found)


def of_card(
    name: str, kind: Kind, text: str, value: Callable[[CardReading], float | None]
) -> Family:
    """A number of each card."""

    def found(look: Look) -> Iterator[Value]:
        for worker, reading in _with_readings(look, kind):
            for card in reading.cards:
                labels = {**_labels(look, worker), "host": reading.host, "gpu": str(card.index)}
                yield labels, value(card)

    return Family(name, kind, text, found)


def _shown(look: Look, kind: Kind) -> list[WorkerLook]:
    return [worker for worker in look.workers if worker.lives or kind == COUNTER]


def _with_readings(look: Look, kind: Kind) -> Iterator[tuple[WorkerLook, Reading]]:
    for worker in _shown(look, kind):
        if worker.reading is not None:
            yield worker, worker.reading


def _about(look: Look) -> Iterator[Value]:
    for worker in _shown(look, GAUGE):
        engine = worker.heartbeat.get("engine") or {}
        about = {name: str(engine.get(name, "")) for name in ("name", "version", "device")}
        yield (
            {
                **_labels(look, worker),
                "host": str(worker.heartbeat.get("host", "")),
                "engine": about["name"],
                "version": about["version"],
                "device": about["device"],
            },
            1,
        )


def _throttled(look: Look) -> Iterator[Value]:
    for worker, reading in _with_readings(look, GAUGE):
        for card in reading.cards:
            labels = {**_labels(look, worker), "host": reading.host, "gpu": str(card.index)}
            for reason in ("power", "heat", "hardware"):
                yield {**labels, "reason": reason}, float(reason in card.throttled)


def _mhz(value: float | None) -> float | None:
    return None if value is None else value * 1e6


WORKERS = (
    Family("batchwright_worker_info", GAUGE, "A worker that lives; always 1.", _about),
    of_heartbeat("batchwright_worker_seen_timestamp_seconds", GAUGE,
                 "Unix time of the worker's last sign of life, by its own clock.", "at"),
    of_heartbeat("batchwright_rows_finished_total", COUNTER,
                 "Rows that came out of this worker's engine.", "rows"),
    of_heartbeat("batchwright_rows_uncommitted", GAUGE,
                 "Of these, rows not committed yet.", "uncommitted"),
    of_heartbeat("batchwright_prompt_tokens_total", COUNTER,
                 "Prompt tokens of finished rows.", "prompt_tokens"),
    of_heartbeat("batchwright_cached_tokens_total", COUNTER,
                 "Of these, tokens that the prefix cache saved.", "cached_tokens"),
    of_heartbeat("batchwright_completion_tokens_total", COUNTER,
                 "Output tokens of finished rows.", "completion_tokens"),
    of_heartbeat("batchwright_splits_prepared_total", COUNTER,
                 "Pieces of input that were prepared.", "splits"),
    of_reading("batchwright_engine_restarts_total", COUNTER,
               "Engines that died and were started again.", "restarts"),
    of_readings("batchwright_process_cpu_seconds_total", COUNTER,
                "CPU time of the worker's processes, by part: worker, engine.",
                {"cpu_s": {"part": "worker"}, "engine_cpu_s": {"part": "engine"}}, "process"),
    of_reading("batchwright_process_memory_bytes", GAUGE,
               "Resident memory of the worker's processes.", "memory_bytes", "process"),
)  # fmt: skip

ENGINES = (
    of_reading("batchwright_engine_running_rows", GAUGE, "Rows that get a token in each step.",
               "running", "engine"),
    of_reading("batchwright_engine_waiting_rows", GAUGE,
               "Rows in the engine that have no place yet.", "waiting", "engine"),
    of_reading("batchwright_engine_kv_cache_usage_ratio", GAUGE,
               "Share of the KV cache in use.", "kv_use", "engine"),
    of_reading("batchwright_engine_preemptions_total", COUNTER,
               "Rows thrown out of a full KV cache and computed again.", "preemptions", "engine"),
    of_reading("batchwright_engine_steps_total", COUNTER, "Steps that the engine made.",
               "steps", "engine"),
    of_reading("batchwright_engine_prompt_tokens_total", COUNTER,
               "Prompt tokens computed, also those of rows that are not finished.",
               "prompt_tokens", "engine"),
    of_reading("batchwright_engine_output_tokens_total", COUNTER,
               "Output tokens made, also those of rows that are not finished.",
               "output_tokens", "engine"),
    of_reading("batchwright_engine_prefix_tokens_total", COUNTER,
               "Prompt tokens that the prefix cache was asked for.", "prefix_tokens", "engine"),
    of_reading("batchwright_engine_prefix_hit_tokens_total", COUNTER,
               "Of these, tokens that it had.", "prefix_hit_tokens", "engine"),
    of_reading("batchwright_engine_drafted_tokens_total", COUNTER,
               "Tokens that speculative decoding proposed.", "drafted_tokens", "engine"),
    of_reading("batchwright_engine_accepted_tokens_total", COUNTER,
               "Of these, tokens that the model accepted.", "accepted_tokens", "engine"),
)  # fmt: skip

FEEDING = (
    of_reading("batchwright_feed_in_flight_rows", GAUGE,
               "Rows that have gone to the engine and not come back.", "in_flight", "feed"),
    of_reading("batchwright_feed_cap_rows", GAUGE,
               "Rows that the engine should hold: what its KV cache has room for.", "cap", "feed"),
    of_reading("batchwright_feed_starved_seconds_total", COUNTER,
               "Time in which the engine had room and no prepared row was at hand.",
               "starved_s", "feed"),
    of_reading("batchwright_feed_media_wait_seconds_total", COUNTER,
               "Time in which the engine had room and the next rows waited for their media.",
               "media_s", "feed"),
    of_reading("batchwright_feed_commit_wait_seconds_total", COUNTER,
               "Time in which nothing was fed because commits were too slow.",
               "commit_wait_s", "feed"),
    of_reading("batchwright_commits_waiting", GAUGE,
               "Chunks that are finished and not committed.", "commits_waiting", "feed"),
    of_reading("batchwright_commit_seconds_total", COUNTER, "Time that commits took.",
               "commit_s", "feed"),
    of_reading("batchwright_committed_bytes_total", COUNTER,
               "Bytes of parts written to the run directory.", "committed_bytes", "feed"),
    of_reading("batchwright_committed_rows_total", COUNTER, "Rows committed by this worker.",
               "committed_rows", "feed"),
    of_reading("batchwright_prepared_rows_total", COUNTER, "Rows checked and tokenised.",
               "rows", "prepare"),
    of_reading("batchwright_prepared_tokens_total", COUNTER, "Tokens of their prompts.",
               "tokens", "prepare"),
    of_readings("batchwright_prepare_seconds_total", COUNTER,
                "Time of a preparing process, by step: read, tokenize, write, idle.",
                {f"{step}_s": {"step": step} for step in ("read", "tokenize", "write", "idle")},
                "prepare"),
)  # fmt: skip

HOSTS = (
    of_reading("batchwright_host_cpu_usage_ratio", GAUGE,
               "Share of the usable cores that worked, for whomever.", "cpu_use", "node"),
    of_reading("batchwright_host_memory_used_bytes", GAUGE, "Memory in use.",
               "memory_bytes", "node"),
    of_reading("batchwright_host_memory_size_bytes", GAUGE, "Memory that may be used.",
               "memory_total_bytes", "node"),
    of_readings("batchwright_host_disk_bytes_total", COUNTER,
                "Bytes read from and written to all disks of the machine.",
                {"disk_read_bytes": {"direction": "read"},
                 "disk_written_bytes": {"direction": "written"}}, "node"),
    of_readings("batchwright_host_network_bytes_total", COUNTER,
                "Bytes received and sent over the network.",
                {"net_received_bytes": {"direction": "received"},
                 "net_sent_bytes": {"direction": "sent"}}, "node"),
    of_reading("batchwright_host_shm_used_bytes", GAUGE, "In use in /dev/shm.",
               "shm_bytes", "node"),
    of_reading("batchwright_host_shm_size_bytes", GAUGE, "Size of /dev/shm.",
               "shm_total_bytes", "node"),
    of_reading("batchwright_run_disk_free_bytes", GAUGE,
               "Free on the disk of the run directory, as this worker sees it.",
               "run_disk_free_bytes", "node"),
    of_reading("batchwright_run_disk_size_bytes", GAUGE, "Size of that disk.",
               "run_disk_total_bytes", "node"),
)  # fmt: skip

CARDS = (
    of_card("batchwright_gpu_utilization_ratio", GAUGE,
            "Share of the last moments in which any kernel ran.", lambda card: card.use),
    of_card("batchwright_gpu_memory_utilization_ratio", GAUGE,
            "Share of the last moments in which memory was read or written.",
            lambda card: card.memory_use),
    of_card("batchwright_gpu_memory_used_bytes", GAUGE, "Memory in use, by whomever.",
            lambda card: card.memory_bytes),
    of_card("batchwright_gpu_memory_size_bytes", GAUGE, "Memory of the card.",
            lambda card: card.memory_total_bytes),
    of_card("batchwright_gpu_memory_others_bytes", GAUGE,
            "Memory in use by processes that are not this worker's.",
            lambda card: card.others_bytes),
    of_card("batchwright_gpu_power_watts", GAUGE, "Power that it takes.",
            lambda card: card.power_w),
    of_card("batchwright_gpu_power_limit_watts", GAUGE, "Power that it may take.",
            lambda card: card.power_limit_w),
    of_card("batchwright_gpu_temperature_celsius", GAUGE, "Temperature of the chip.",
            lambda card: card.temperature_c),
    of_card("batchwright_gpu_sm_clock_hertz", GAUGE, "Clock of its processors.",
            lambda card: _mhz(card.sm_mhz)),
    Family("batchwright_gpu_throttled", GAUGE,
           "1 where the clock is held down for the reason: power, heat, hardware.", _throttled),
    of_card("batchwright_gpu_pcie_received_bytes_per_second", GAUGE,
            "Over PCIe from the host, now.", lambda card: card.pcie_received_bytes_s),
    of_card("batchwright_gpu_pcie_sent_bytes_per_second", GAUGE,
            "Over PCIe to the host, now.", lambda card: card.pcie_sent_bytes_s),
    of_card("batchwright_gpu_nvlink_bytes_total", COUNTER,
            "Over all NVLinks, both ways.", lambda card: card.nvlink_bytes),
)  # fmt: skip

FAMILIES = (*WORKERS, *ENGINES, *FEEDING, *HOSTS, *CARDS)
