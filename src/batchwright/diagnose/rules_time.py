"""Rules about time: start-up, the tail, replicas that are slower than the others, rates that fall."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import Evidence, WorkerEvidence
from batchwright.diagnose.figures import median, over_time, percent
from batchwright.diagnose.rules_feed import LEAST_WAIT

# Engines of vLLM need a minute or two, a third of the time in jobs of a few minutes only; what takes
# less than half a minute is not worth a word.
LEAST_START_UP = 0.30
LEAST_START_UP_S = 30.0

# The last chunks are small, so engines end within seconds of each other; a tenth is too much.
LEAST_TAIL = 0.10
LEAST_TAIL_S = 10.0

# Replicas on equal cards differ by a few percent.
SLOW_REPLICA = 0.75
SMALL_REPLICA = 0.6
# With a smaller batch it is a fault if the work shows it, beyond chance.
SLOWER = 0.95

# Rates wander with the lengths of rows; what falls three times in a row, by a fifth, is no chance.
SLOWED_TO = 0.8
LEAST_SLOWING_S = 600.0


def start_up(evidence: Evidence) -> Finding | None:
    """Starting engines takes much of the whole time."""
    started = [one for one in evidence.workers if one.start_up_s is not None]
    seconds = sum(one.start_up_s or 0.0 for one in started)
    whole = evidence.engine_seconds
    if not evidence.reliable or not whole or seconds < LEAST_START_UP_S:
        return None
    share = seconds / whole
    if share < LEAST_START_UP:
        return None
    replicas = len(started)
    longest = max(one.start_up_s or 0.0 for one in started)
    fewer = " Fewer engines save time of the cards, and the run takes longer."
    return Finding(
        code="start_up",
        title="Much of the time goes to starting engines",
        weight=Weight.LOSS,
        evidence=(
            ("start-up", percent(share)),
            ("engines", f"{replicas}, {longest:,.0f} s at most"),
            ("work", f"{sum(one.seconds for one in evidence.workers):,.0f} engine seconds"),
        ),
        cause="Loading weights, compiling and capturing graphs take the same time for few rows as "
        "for many.",
        remedy="Give one run more rows; keep the folder of compiled graphs (~/.cache/vllm) between "
        "runs; enforce_eager starts sooner and runs slower." + (fewer if replicas > 1 else ""),
        changes=(Change("run.replicas", f"{replicas}", f"{max(1, replicas // 2)}"),)
        if replicas > 1
        else (),
        # Starting half as many engines, or one for twice the rows, halves it.
        gain=share / 2,
    )


def tail(evidence: Evidence) -> Finding | None:
    """Engines stand idle at the end, while a few rows or one replica go on."""
    working = evidence.reliable
    if not working:
        return None
    lost = sum(one.idle_s + one.tail_s for one in evidence.workers)
    whole = sum(one.seconds + one.idle_s for one in evidence.workers)
    share = lost / whole if whole else 0.0
    if share < LEAST_TAIL or lost < LEAST_TAIL_S:
        return None
    idle = sum(one.idle_s for one in evidence.workers)
    longest = evidence.answers.outputs.longest
    several = idle > 0.5 * lost
    chunk_rows = evidence.settings.chunk_rows
    return Finding(
        code="tail",
        title="Engines stand idle at the end",
        weight=Weight.LOSS,
        evidence=(
            ("idle at the end", f"{lost:,.0f} engine seconds, {percent(share)}"),
            *(
                ((one.name, f"done {one.idle_s:,.0f} s before the last"))
                for one in sorted(evidence.workers, key=lambda one: -one.idle_s)[:3]
                if one.idle_s > 0
            ),
            *((("longest answer seen", f"{longest:,} tokens"),) if longest else ()),
        ),
        cause="The last chunk is large, so one engine goes on with it alone."
        if several
        else "A few rows with very long answers come last, and run alone.",
        remedy="Leave run.chunk_rows to batchwright, which makes the last chunks small; if it does, "
        "see which rows the last engine had."
        if several
        else "Lower max_tokens if such answers are of no use. If the rows' own max_tokens tells which "
        "are long, run.order: longest starts with those; else put them first in the file.",
        changes=(Change("run.chunk_rows", f"{chunk_rows}", "unset"),)
        if several and chunk_rows is not None
        else (),
        gain=share,
    )


def slow_replicas(evidence: Evidence) -> list[Finding]:
    """Replicas that do less than the others while both had work."""
    workers = [one for one in evidence.reliable if one.tokens_per_s > 0]
    if len(workers) < 2:
        return []
    found = []
    for one in workers:
        others = [other for other in workers if other is not one]
        usual = median(_own_rate(other) for other in others)
        batch = median(other.running for other in others)
        fewer = 0 < one.running < SMALL_REPLICA * batch and one.waited < LEAST_WAIT
        if fewer and _own_rate(one) < SLOWER * usual:
            found.append(_small_replica(one, batch, usual, workers))
        elif _own_rate(one) < SLOW_REPLICA * usual:
            found.append(_slow_replica(one, usual, workers))
    # Half of the replicas cannot be the exception.
    return found if len(found) <= len(workers) // 2 else []


def _own_rate(worker: WorkerEvidence) -> float:
    """Work a second while it had rows: it is not its fault if it had none."""
    return worker.tokens_per_s / max(0.1, 1 - worker.waited)


def _slow_replica(worker: WorkerEvidence, usual: float, workers: list[WorkerEvidence]) -> Finding:
    own = _own_rate(worker)
    return Finding(
        code="slow_replica",
        title=f"{worker.name} is slower than the other engines",
        weight=Weight.LOSS,
        evidence=(
            ("its work", f"{own:,.0f} tokens/s (answers count twice)"),
            ("median of the others", f"{usual:,.0f} tokens/s"),
            ("of that", percent(own / usual)),
            *_place(worker),
        ),
        cause="Its card or host does less in the same time: held down by heat or power, shared with "
        "others, joined by fewer PCIe lanes, or of another kind.",
        remedy=f"Look at that machine ({worker.host or 'its host'}): nvidia-smi -q -d "
        "PERFORMANCE,CLOCK; leave it out if it stays so.",
        gain=_deficit(own, usual, workers),
        worker=worker.name,
    )


def _small_replica(
    worker: WorkerEvidence, batch: float, usual: float, workers: list[WorkerEvidence]
) -> Finding:
    return Finding(
        code="small_replica",
        title=f"{worker.name} runs smaller batches than the other engines",
        weight=Weight.LOSS,
        evidence=(
            ("running", f"{worker.running:,.0f} rows"),
            ("median of the others", f"{batch:,.0f} rows"),
            *((("its cache holds", f"{worker.kv_tokens:,} tokens"),) if worker.kv_tokens else ()),
            *_place(worker),
        ),
        cause="Its engine found less memory for the KV cache, or was started with other settings.",
        remedy="See what else is on its card (nvidia-smi), free it, and start that worker again.",
        gain=_deficit(_own_rate(worker), usual, workers),
        worker=worker.name,
    )


def _deficit(own: float, usual: float, workers: list[WorkerEvidence]) -> float:
    """Share of the time that it would save if this one were as fast as the others."""
    whole = sum(_own_rate(one) for one in workers)
    missing = max(0.0, usual - own)
    return missing / (whole + missing) if whole else 0.0


def _place(worker: WorkerEvidence) -> tuple[tuple[str, str], ...]:
    found = [("host", worker.host)] if worker.host else []
    found += [
        (f"card {card.index}", f"clock at {percent(card.clock)} of its highest")
        for card in worker.cards
        if card.clock is not None
    ]
    return tuple(found)


def slowing(evidence: Evidence) -> Finding | None:
    """The rate falls from quarter to quarter of a long run, with the engine full all the time."""
    found = [one for one in evidence.reliable if _slows(one)]
    if not found or len(found) * 2 < len(evidence.reliable):
        return None
    worker = max(found, key=lambda one: one.seconds)
    best = max(worker.quarters)
    return Finding(
        code="slowing",
        title="The engine gets slower as the run goes on",
        weight=Weight.LOSS,
        evidence=(
            (
                "work by quarters of the run",
                ", ".join(f"{one:,.0f}" for one in worker.quarters) + " tokens/s",
            ),
            ("last quarter", f"{percent(worker.quarters[-1] / best)} of the best"),
            ("running", f"{worker.running:,.0f} rows"),
        ),
        cause="The same batch takes longer and longer: fragmented memory, a cache of the host that "
        "grows, or a card that heats up.",
        remedy="Stop the run and start it again: it goes on where it stopped, with a fresh engine. "
        "If that brings the rate back each time, report it with the engine's version.",
        gain=over_time(found, lambda one: 1 - sum(one.quarters) / len(one.quarters) / best),
    )


def _slows(worker: WorkerEvidence) -> bool:
    if worker.seconds < LEAST_SLOWING_S or len(worker.quarters) < 4 or worker.waited >= LEAST_WAIT:
        return False
    # The first quarter is left out: caches warm up in it.
    second, third, fourth = worker.quarters[1:]
    return second > third > fourth and fourth < SLOWED_TO * second
