"""Rules about cards and hosts: held down, shared with others, joined too slowly, out of room."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import CardEvidence, Evidence, WorkerEvidence
from batchwright.diagnose.faults import SHARED_MEMORY, TAKEN, faults_of
from batchwright.diagnose.figures import gigabytes, over_time, percent

# Heat and hardware slowdowns are faults whenever they last.
LEAST_SLOWDOWN = 0.10

# Large batches run into the power limit on healthy cards, at 70 to 90 % of the highest clock:
# only clocks below that mean a limit that somebody lowered, or a supply that is too weak.
MOSTLY_POWER = 0.5
LOW_CLOCK = 0.65
SLOWED_CLOCK = 0.95

# A desktop or a monitor takes a few hundred MB; a process that computes takes more than this.
LEAST_OTHERS = 0.05

# One direction of PCIe 4.0 x16 in practice: see `plan.speed.PCIE_BYTES_S`.
PCIE_BYTES_S = 25e9
# All-reduces wait for their data: that share of the link's rate is time in which cards stand still.
LEAST_LINK = 0.15

# Rings of shared memory are made full: above this the next engine finds none.
SHM_FULL = 0.95
SHM = "/dev/shm"  # noqa: S108


def throttled(evidence: Evidence) -> list[Finding]:
    """Cards whose clock is held down, each reported with its worker."""
    found = [
        _throttled(worker, card)
        for worker in evidence.reliable
        for card in worker.cards
        if _is_held_down(card)
    ]
    # One cause for many cards is one finding: the worst stands for all.
    if len(found) > 3:
        found = sorted(found, key=lambda one: -(one.gain or 0.0))[:3]
    return found


def _is_held_down(card: CardEvidence) -> bool:
    clock = 1.0 if card.clock is None else card.clock
    hot = max(card.throttled.get("heat", 0.0), card.throttled.get("hardware", 0.0))
    if hot >= LEAST_SLOWDOWN and clock < SLOWED_CLOCK:
        return True
    return card.throttled.get("power", 0.0) >= MOSTLY_POWER and clock < LOW_CLOCK


def _throttled(worker: WorkerEvidence, card: CardEvidence) -> Finding:
    reason = max(card.throttled, key=lambda one: card.throttled[one])
    clock = card.clock if card.clock is not None else 1.0
    what = {"heat": "heat", "power": "its power limit"}.get(reason, "a hardware slowdown")
    return Finding(
        code="throttled",
        title=f"Card {card.index} is held down by {what}",
        weight=Weight.LOSS,
        evidence=(
            *((name, percent(share)) for name, share in card.throttled.items()),
            ("clock", f"{percent(clock)} of its highest"),
            *(
                (("hottest", f"{card.temperature_c:,.0f} °C"),)
                if card.temperature_c is not None
                else ()
            ),
            *((("host", worker.host),) if worker.host else ()),
        ),
        cause={
            "heat": "The card lowers its clock because it gets too hot.",
            "power": "The card lowers its clock to stay within a power limit below what it was "
            "made for.",
        }.get(reason, "The card or its power supply asks for a lower clock."),
        remedy={
            "heat": "Mend the cooling: fans, filters, air flow, neighbours.",
            "power": "Raise the limit: nvidia-smi -q -d POWER shows it, nvidia-smi -pl sets it.",
        }.get(
            reason, "See nvidia-smi -q -d PERFORMANCE and the machine's log of its power supply."
        ),
        # As if all work followed the clock, as matrix products do: the most that can be won.
        gain=1 - clock,
        worker=worker.name,
    )


def others_on_card(evidence: Evidence) -> Finding | None:
    """Memory of a card is in use by processes that are not of this run."""
    fault = next(iter(faults_of(evidence, TAKEN)), None)
    shared = _shared_cards(evidence)
    found = [
        (worker, card)
        for worker in evidence.workers
        for card in worker.cards
        if (worker.host, card.index) not in shared
        and card.total_bytes
        and card.others_bytes >= LEAST_OTHERS * card.total_bytes
    ]
    if fault is None and not found:
        return None
    now = evidence.settings.gpu_memory_utilization
    figures: list[tuple[str, str]] = []
    to = 0.8
    if found:
        worker, card = max(found, key=lambda one: one[1].others_bytes)
        assert card.total_bytes
        to = max(0.1, int(100 * (0.95 - card.others_bytes / card.total_bytes)) / 100)
        figures = [
            (f"card {card.index} of {worker.host or worker.name}", gigabytes(card.total_bytes)),
            ("used by others", gigabytes(card.others_bytes)),
        ]
    if fault is not None:
        figures.append(("the engine says", fault.line))
    asked = 0.92 if now is None else now
    return Finding(
        code="others_on_card",
        title="Other processes use the card",
        weight=Weight.BROKEN if fault else Weight.LOSS,
        evidence=tuple(figures),
        cause="What they hold is missing for the KV cache, and their kernels take turns with ours.",
        remedy="End them (nvidia-smi lists them), or let the engine take less of the card.",
        changes=(Change("engine.options.gpu_memory_utilization", f"{asked:g}", f"{to:g}"),)
        if to < asked
        else (),
    )


def _shared_cards(evidence: Evidence) -> set[tuple[str, int]]:
    """Cards on which several engines of the run are: each takes the others for strangers."""
    seen: set[tuple[str, int]] = set()
    shared: set[tuple[str, int]] = set()
    for worker in evidence.workers:
        for card in worker.cards:
            place = (worker.host, card.index)
            (shared if place in seen else seen).add(place)
    return shared


def parallel_over_pcie(evidence: Evidence) -> Finding | None:
    """An engine spans cards that are joined by PCIe only, and much of the time is transfers."""
    wide = evidence.settings.tensor_parallel
    workers = [one for one in evidence.reliable if one.cards and not _has_nvlink(one)]
    share = over_time(workers, _link_share)
    if wide < 2 or share < LEAST_LINK:
        return None
    plan = evidence.plan
    # Weights with a third as much again for the cache and the rest: enough to be worth a try.
    fits = plan is not None and 1.5 * plan.weight_bytes < 0.9 * plan.memory_bytes * (wide // 2)
    if fits:
        to = wide // 2
        changes = (
            Change("engine.options.tensor_parallel_size", f"{wide}", f"{to}"),
            Change(
                "run.replicas", f"{evidence.settings.replicas}", f"{2 * evidence.settings.replicas}"
            ),
        )
    else:
        changes = (
            Change("engine.options.tensor_parallel_size", f"{wide}", f"{wide // 2}"),
            Change("engine.options.pipeline_parallel_size", "1", "2"),
        )
    return Finding(
        code="parallel_over_pcie",
        title="Tensor parallelism goes over PCIe",
        weight=Weight.LOSS,
        evidence=(
            ("tensor_parallel_size", f"{wide}"),
            ("PCIe in use", percent(share)),
            ("NVLink", "none in use"),
        ),
        cause="Every layer exchanges its results between the cards twice, and PCIe is ten times "
        "slower than NVLink.",
        remedy="Run narrower engines, more of them."
        if fits
        else "Split the model into stages, which hand over far less than layers do.",
        changes=changes,
        gain=share,
    )


def _has_nvlink(worker: WorkerEvidence) -> bool:
    return any(card.nvlink_bytes_s for card in worker.cards)


def _link_share(worker: WorkerEvidence) -> float:
    return min(1.0, max(card.link_bytes_s for card in worker.cards) / PCIE_BYTES_S)


def shared_memory(evidence: Evidence) -> Finding | None:
    """`/dev/shm` is too small for the processes of an engine."""
    fault = next(iter(faults_of(evidence, SHARED_MEMORY)), None)
    full = [
        host
        for host in evidence.hosts
        if host.shm_total_bytes and (host.shm_bytes or 0) >= SHM_FULL * host.shm_total_bytes
    ]
    if fault is None and not full:
        return None
    figures = [
        (f"{SHM} of {host.name}", f"{gigabytes(host.shm_bytes or 0)} of "
         f"{gigabytes(host.shm_total_bytes or 0)}")
        for host in (full or evidence.hosts)
        if host.shm_total_bytes
    ]  # fmt: skip
    if fault is not None:
        figures.append(("the engine says", fault.line))
    return Finding(
        code="shared_memory",
        title=f"{SHM} is too small",
        weight=Weight.BROKEN if fault else Weight.HINT,
        evidence=tuple(figures),
        cause="The processes of an engine, and NCCL between cards, hand data over through shared "
        "memory; containers have 64 MB of it unless told otherwise.",
        remedy="docker run --shm-size=8g; in a pod, a volume with emptyDir.medium Memory at "
        "/dev/shm (batchwright k8s does that by itself).",
    )
