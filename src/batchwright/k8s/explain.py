"""What a pod's status and events say, in words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.k8s.pod import CONTAINER, GROUP_LABEL, ROLE_LABEL
from batchwright.k8s.problems import Manifest

_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod.

    Attributes:
        state: `running`, `starting`, `pending`, `done`, `failed` or `stopped`, which is nobody's
            fault: another pod takes over.
        why: in words; empty if there is nothing to say.
    """

    name: str
    state: str
    why: str = ""
    index: int | None = None
    role: str = ""
    group: str = ""
    node: str = ""
    restarts: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def pod_state(pod: Manifest, events: Sequence[Manifest]) -> PodState:
    """Where a pod stands, and why.

    Args:
        pod: as the API shows it.
        events: about this pod, oldest first.
    """
    state, why = _state(pod, events)
    head, status = pod["metadata"], pod.get("status") or {}
    labels = head.get("labels") or {}
    index = {**labels, **(head.get("annotations") or {})}.get(_INDEX)
    return PodState(
        name=head["name"],
        state=state,
        why=why,
        index=None if index is None else int(index),
        role=labels.get(ROLE_LABEL, ""),
        group=labels.get(GROUP_LABEL, ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        restarts=sum(one.get("restartCount", 0) for one in status.get("containerStatuses") or []),
    )


def _state(pod: Manifest, events: Sequence[Manifest]) -> tuple[str, str]:
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase == "Succeeded":
        return "done", ""
    if phase == "Failed":
        return _failed(status)
    if pod["metadata"].get("deletionTimestamp"):
        return "stopped", "it is being ended (for long: its node does not answer)"
    container = _container(status)
    waiting = (container.get("state") or {}).get("waiting") or {}
    if phase == "Running" and not waiting:
        ready = container.get("ready", True)
        return ("running", "") if ready else ("starting", "")
    if waiting.get("reason") == "CrashLoopBackOff":
        ended = (container.get("lastState") or {}).get("terminated") or {}
        return "failed", f"it ends again and again: {_ended(ended)[1]}"
    return "pending", _pending(status, waiting, events)


def _container(status: Manifest) -> Manifest:
    """The status of our container, or of an init container that is not through yet."""
    for one in status.get("initContainerStatuses") or []:
        if ((one.get("state") or {}).get("terminated") or {}).get("exitCode") != 0:
            return dict(one)
    found = status.get("containerStatuses") or [{}]
    return dict(next((one for one in found if one.get("name") == CONTAINER), found[0]))


# --- why it does not start ----------------------------------------------------------------------


def _pending(status: Manifest, waiting: Manifest, events: Sequence[Manifest]) -> str:
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}:
        return _image(message or _last(events, "Failed"), reason)
    if reason in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
        return f"its container cannot be made: {message}"
    for event_reason, words in _EVENTS:
        text = _last(events, event_reason)
        if text:
            return words(text)
    scheduled: Manifest = next(
        (one for one in status.get("conditions") or [] if one.get("type") == "PodScheduled"), {}
    )
    if scheduled.get("status") == "False":
        return unschedulable(scheduled.get("message", ""))
    return "its container is being made" if reason == "ContainerCreating" else ""


def _last(events: Sequence[Manifest], reason: str) -> str:
    found = [event.get("message") or "" for event in events if event.get("reason") == reason]
    return found[-1] if found else ""


def _image(message: str, reason: str) -> str:
    lower = message.lower()
    if reason == "ErrImageNeverPull":
        return "the image is not on the node, and kubernetes.image_pull_policy is Never"
    if "not found" in lower or "manifest unknown" in lower:
        return f"image not found: {message} (see kubernetes.image)"
    if any(word in lower for word in ("unauthorized", "denied", "forbidden", "authentication")):
        return f"the registry refuses it: {message} (see kubernetes.image_pull_secrets)"
    return f"the image cannot be fetched: {message or reason}"


def _key_of(resource: str) -> str:
    """Where the job file says how much of it a pod asks for."""
    keys = {
        "cpu": " (kubernetes.cpu_per_gpu)",
        "memory": " (kubernetes.memory_per_gpu)",
        "ephemeral-storage": " (kubernetes.ephemeral_storage)",
    }
    return keys.get(resource, "")


# Parts of the scheduler's sentence, and what each means for the job file.
_REASONS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"(\d+) Insufficient (\S+/(?:gpu|mig-)[^\s,]*?)(?=[.,]?(?:\s|$))", lambda it: f"{it[1]} nodes have too few free cards ({it[2]})"),
    (r"(\d+) Insufficient ([^\s,]+?)(?=[.,]?(?:\s|$))", lambda it: f"{it[1]} nodes have too little free {it[2]}{_key_of(it[2])}"),
    (r"(\d+) node\(s\) didn't match Pod's node affinity/selector",
     lambda it: f"{it[1]} nodes are not of the wanted kind (kubernetes.gpu_products, node_selector)"),
    (r"(\d+) node\(s\) had untolerated taint(?:\(s\)|s)? ?\{([^}]*)\}",
     lambda it: f"{it[1]} nodes have the taint {it[2].rstrip(': ')} (kubernetes.tolerations)"),
    (r"(\d+) node\(s\) had untolerated taint\(s\)",
     lambda it: f"{it[1]} nodes have taints that the pods do not tolerate (kubernetes.tolerations)"),
    (r"(\d+) node\(s\) were unschedulable", lambda it: f"{it[1]} nodes take no new pods"),
    (r"(\d+) cannot allocate all claims", lambda it: f"{it[1]} nodes have no free device for the claim (kubernetes.dra)"),
    (r"(?:pod has )?unbound immediate PersistentVolumeClaims", lambda _: "a claim has no volume yet"),
    (r'persistentvolumeclaim "([^"]+)" not found', lambda it: f"there is no claim {it[1]} (kubernetes.volumes)"),
    (r"(\d+) node\(s\) had volume node affinity conflict", lambda it: f"a claim's volume is elsewhere than {it[1]} nodes"),
)  # fmt: skip


def unschedulable(message: str) -> str:
    """The scheduler's sentence, part by part."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    for pattern, words in _REASONS:
        for found in re.finditer(pattern, message):
            if not any(start <= found.start() < stop for start, stop in spans):
                spans.append(found.span())
                parts.append(words(found))
    if not parts:
        return f"no node takes it: {message}"
    total = re.search(r"0/(\d+) nodes", message)
    if total and f"{total[1]} nodes are not of the wanted kind" in parts[0]:
        return f"no node of that kind: {parts[0]}"
    return "no node takes it: " + "; ".join(parts)


_EVENTS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("FailedScheduling", unschedulable),
    ("FailedMount", lambda text: f"a volume cannot be mounted: {text}"),
    ("FailedAttachVolume", lambda text: f"a volume cannot be attached: {text}"),
    ("FailedCreatePodSandBox", lambda text: f"the node cannot start it: {text}"),
)


# --- why it ended -------------------------------------------------------------------------------


def _failed(status: Manifest) -> tuple[str, str]:
    reason, message = status.get("reason", ""), status.get("message", "")
    ended = (_container(status).get("state") or {}).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        return _ended(ended)
    disrupted = next(
        (one for one in status.get("conditions") or []
         if one.get("type") == "DisruptionTarget" and one.get("status") == "True"), None,
    )  # fmt: skip
    if reason == "Evicted":
        return "stopped", f"evicted: {message}"
    if disrupted is not None:
        return "stopped", _disruption(disrupted)
    if reason in {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "Preempting"}:
        return "stopped", f"the node could not take it: {message or reason}"
    if reason == "DeadlineExceeded":
        return "failed", "its time was up"
    return _ended(ended) if ended else ("failed", message or reason)


def _disruption(condition: Manifest) -> str:
    words = {
        "PreemptionByScheduler": "a pod of higher priority took its place",
        "DeletionByTaintManager": "its node was lost or is going away",
        "EvictionByEvictionAPI": "evicted: its node is being emptied",
        "DeletionByPodGC": "its node is gone",
        "TerminationByKubelet": "its node ended it (short of memory or disk, or shutting down)",
    }
    reason = condition.get("reason", "")
    return words.get(reason) or f"disrupted: {condition.get('message') or reason}"


# By the exit codes of `core.errors`.
_EXITS = {
    2: ("failed", "the job file is wrong"),
    3: ("failed", "the input cannot be used, or too many rows fail"),
    4: ("failed", "finished, but more rows failed than run.max_failed"),
    75: ("stopped", "it stopped and can go on"),
    127: ("failed", "the image has no such command"),
    137: ("failed", "killed"),
    143: ("stopped", "ended by SIGTERM"),
}


def _ended(ended: Manifest) -> tuple[str, str]:
    code, said = ended.get("exitCode"), _said(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        return "failed", "killed for memory: raise kubernetes.memory_per_gpu"
    if ended.get("reason") == "StartError":
        return "failed", f"its container cannot start: {ended.get('message', '')}"
    state, words = _EXITS.get(int(code or 0), ("failed", f"exit code {code}"))
    if code == 75 and "engine" in said:
        state, words = "failed", "the engine failed to start or died"
    if code == 75 and "the hub does not give it" in said:
        state, words = "failed", "the model cannot be fetched now, and another pod will try"
    return state, f"{words}: {said}" if said else words


def _said(log: str) -> str:
    """The last error in a log's last lines, and its hint."""
    lines = log.strip().splitlines()
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith(("error: ", "stopped: ")):
            return " ".join(line.strip() for line in lines[at : at + 2]).partition(": ")[2]
    return lines[-1].strip()[:300] if lines else ""
