"""All rules, and what they make of a run."""

from __future__ import annotations

from collections.abc import Callable

from batchwright.core.findings import Finding, by_importance
from batchwright.diagnose import (
    rules_batch,
    rules_cards,
    rules_faults,
    rules_feed,
    rules_host,
    rules_lengths,
    rules_rows,
    rules_time,
)
from batchwright.diagnose.evidence import Evidence

Rule = Callable[[Evidence], "Finding | list[Finding] | None"]

RULES: tuple[Rule, ...] = (
    rules_faults.out_of_memory,
    rules_faults.host_memory,
    rules_faults.graph_capture,
    rules_faults.unknown_model,
    rules_faults.engine_failed,
    rules_faults.unfinished,
    rules_cards.others_on_card,
    rules_cards.shared_memory,
    rules_lengths.model_len,
    rules_rows.rows_failed,
    rules_rows.chat_template,
    rules_lengths.answers_cut,
    rules_rows.unstable_sampling,
    rules_feed.small_files,
    rules_feed.slow_reading,
    rules_feed.slow_tokenizing,
    rules_feed.slow_media,
    rules_feed.slow_order,
    rules_feed.slow_writes,
    rules_batch.kv_full,
    rules_batch.kv_small,
    rules_batch.small_batch,
    rules_host.host_bound,
    rules_rows.duplicates,
    rules_rows.unshared_prefixes,
    rules_lengths.long_cap,
    rules_cards.throttled,
    rules_cards.parallel_over_pcie,
    rules_time.slow_replicas,
    rules_time.slowing,
    rules_time.start_up,
    rules_time.tail,
)

# Every name that a finding can have; each has a page in `docs/diagnose`.
CODES = (
    "out_of_memory", "host_memory", "graph_capture", "unknown_model", "engine_failed",
    "unfinished",
    "others_on_card", "shared_memory", "model_len", "rows_failed", "chat_template", "answers_cut",
    "unstable_sampling", "small_files", "slow_reading", "slow_tokenizing", "slow_media",
    "waiting_for_rows", "slow_writes", "kv_full", "kv_small", "small_batch", "host_bound",
    "duplicates", "unshared_prefixes", "long_cap", "throttled", "parallel_over_pcie",
    "slow_replica", "small_replica", "slowing", "start_up", "tail",
)  # fmt: skip


def find(evidence: Evidence) -> list[Finding]:
    """All that is wrong, what matters most first; nothing for a healthy run."""
    found: list[Finding] = []
    for rule in RULES:
        said = rule(evidence)
        if isinstance(said, Finding):
            found.append(said)
        elif said:
            found += said
    return _without_echoes(by_importance(found))


def _without_echoes(found: list[Finding]) -> list[Finding]:
    """A card that is held down is why its engine is slower than the others: that is one finding."""
    held_down = {one.worker for one in found if one.code == "throttled"}
    return [one for one in found if not (one.code == "slow_replica" and one.worker in held_down)]
