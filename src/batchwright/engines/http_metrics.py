"""The gauges that servers of their own kind show under `/metrics`."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PREEMPTIONS = ("vllm:num_preemptions_total",)


class ServerGauges(NamedTuple):
    """A reading of a server, all its engines together; `kv_use` is that of the fullest."""

    running: float
    waiting: float
    kv_use: float
    preemptions: int


def parse_metrics(text: str) -> ServerGauges | None:
    """A page of Prometheus's text format; None if it is of a server that is not known."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        try:
            found.setdefault(name, []).append(float(value))
        except ValueError:
            continue
    running = _first(found, _RUNNING)
    if running is None:
        return None
    return ServerGauges(
        sum(running),
        sum(_first(found, _WAITING) or [0.0]),
        max(_first(found, _KV_USE) or [0.0]),
        int(sum(_first(found, _PREEMPTIONS) or [0.0])),
    )


def _first(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float] | None:
    return next((found[name] for name in names if name in found), None)


def metrics_url(base_url: str) -> str:
    """Where the gauges are: beside `/v1`, not below it."""
    return base_url.removesuffix("/v1") + "/metrics"
