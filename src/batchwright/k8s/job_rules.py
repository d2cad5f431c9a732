"""Rules on Jobs, RayJobs and Deployments that an API server or operator holds and no schema does."""

from __future__ import annotations

from typing import Any

from batchwright.k8s.problems import Findings, Manifest, containers

_MODES = {"K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"}
_ACTIONS = {"FailJob", "FailIndex", "Ignore", "Count"}


def job_problems(manifest: Manifest) -> Findings:
    """What is wrong with a batch/v1 Job, its pods apart."""
    spec = manifest.get("spec") or {}
    template = spec.get("template") or {}
    restart = (template.get("spec") or {}).get("restartPolicy")
    if restart not in {"Never", "OnFailure"}:
        yield "spec.template.spec.restartPolicy", f"{restart} is neither Never nor OnFailure"
    yield from _not_negative(spec, "parallelism", "completions", "backoffLimit",
                             "backoffLimitPerIndex", "maxFailedIndexes", "ttlSecondsAfterFinished")  # fmt: skip
    if spec.get("activeDeadlineSeconds") is not None and spec["activeDeadlineSeconds"] <= 0:
        yield "spec.activeDeadlineSeconds", "it must be more than 0"
    yield from _indexes(spec, template)
    yield from _limits_per_index(spec, restart)
    yield from _failure_policy(spec, template, restart)


def _not_negative(spec: Manifest, *names: str) -> Findings:
    for name in names:
        if isinstance(spec.get(name), int) and spec[name] < 0:
            yield f"spec.{name}", "it cannot be negative"


def _indexes(spec: Manifest, template: Manifest) -> Findings:
    mode = spec.get("completionMode", "NonIndexed")
    if mode not in {"Indexed", "NonIndexed"}:
        yield "spec.completionMode", f"{mode} is neither Indexed nor NonIndexed"
    if mode == "Indexed" and spec.get("completions") is None:
        yield "spec.completions", "an Indexed Job needs it"
    if mode != "Indexed":
        for name in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if spec.get(name) is not None:
                yield f"spec.{name}", "it needs completionMode: Indexed"
        if any(_uses_the_index(container) for _, container in containers(template)):
            yield (
                "spec.completionMode",
                "a container uses JOB_COMPLETION_INDEX, which is there only with Indexed",
            )


def _uses_the_index(container: Manifest) -> bool:
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    values = [one.get("value") or "" for one in container.get("env") or []]
    return any("JOB_COMPLETION_INDEX" in str(word) for word in (*words, *values))


def _limits_per_index(spec: Manifest, restart: Any) -> Findings:
    per_index = spec.get("backoffLimitPerIndex") is not None
    if spec.get("maxFailedIndexes") is not None and not per_index:
        yield "spec.maxFailedIndexes", "it needs backoffLimitPerIndex"
    if per_index and restart != "Never":
        yield "spec.backoffLimitPerIndex", "it needs restartPolicy: Never"


def _failure_policy(spec: Manifest, template: Manifest, restart: Any) -> Findings:
    policy = spec.get("podFailurePolicy")
    rules = (policy or {}).get("rules") or []
    if policy is not None and restart != "Never":
        yield "spec.podFailurePolicy", "it needs restartPolicy: Never"
    names = {container.get("name") for _, container in containers(template)}
    for index, rule in enumerate(rules):
        for place, message in _failure_rule(rule, names, spec):
            yield f"spec.podFailurePolicy.rules.{index}{place}", message


def job_advice(manifest: Manifest) -> Findings:
    """What a cluster takes, and a long job suffers from."""
    rules = ((manifest.get("spec") or {}).get("podFailurePolicy") or {}).get("rules") or []
    if not any(_ignores_disruption(rule) for rule in rules):
        yield (
            "spec.podFailurePolicy",
            "no rule ignores the condition DisruptionTarget: each eviction counts as a failure",
        )


def _ignores_disruption(rule: Manifest) -> bool:
    types = {one.get("type") for one in rule.get("onPodConditions") or []}
    return rule.get("action") == "Ignore" and "DisruptionTarget" in types


def _failure_rule(rule: Manifest, names: set[Any], spec: Manifest) -> Findings:
    action = rule.get("action")
    if action not in _ACTIONS:
        yield ".action", f"{action} is none of {', '.join(sorted(_ACTIONS))}"
    if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        yield ".action", "FailIndex needs backoffLimitPerIndex"
    codes = rule.get("onExitCodes")
    if bool(codes) == bool(rule.get("onPodConditions")):
        yield "", "a rule has either onExitCodes or onPodConditions"
    if codes:
        yield from _exit_codes(codes, names)


def _exit_codes(codes: Manifest, names: set[Any]) -> Findings:
    values, operator = codes.get("values") or [], codes.get("operator")
    if operator not in {"In", "NotIn"}:
        yield ".onExitCodes.operator", f"{operator} is neither In nor NotIn"
    if values != sorted(set(values)) or not values:
        yield ".onExitCodes.values", "they must be in order, each once"
    if operator == "In" and 0 in values:
        yield ".onExitCodes.values", "0 is no failure"
    container = codes.get("containerName")
    if container is not None and container not in names:
        yield ".onExitCodes.containerName", f"there is no container {container}"


def rayjob_problems(manifest: Manifest) -> Findings:
    """What is wrong with a RayJob, its pods apart (KubeRay's validation, and our experience)."""
    spec = manifest.get("spec") or {}
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in _MODES:
        yield "spec.submissionMode", f"{mode} is none of {', '.join(sorted(_MODES))}"
    if bool(spec.get("rayClusterSpec")) == bool(spec.get("clusterSelector")):
        yield "spec", "give one of rayClusterSpec and clusterSelector"
    yield from _not_negative(spec, "backoffLimit", "ttlSecondsAfterFinished")
    if spec.get("activeDeadlineSeconds") is None:
        yield (
            "spec.activeDeadlineSeconds",
            "it is missing: a RayJob whose head is lost can stay Running for ever",
        )
    elif spec["activeDeadlineSeconds"] <= 0:
        yield "spec.activeDeadlineSeconds", "it must be more than 0"
    if spec.get("backoffLimit") and (spec.get("clusterSelector") or mode == "InteractiveMode"):
        yield "spec.backoffLimit", "it does not go with clusterSelector or InteractiveMode"
    yield from _shutdown(manifest, spec)
    yield from _sidecar(spec, mode)
    yield from _groups(spec.get("rayClusterSpec") or {})


def _shutdown(manifest: Manifest, spec: Manifest) -> Findings:
    shuts_down = spec.get("shutdownAfterJobFinishes") is True
    rules = (spec.get("deletionStrategy") or {}).get("deletionRules")
    ttl_s = spec.get("ttlSecondsAfterFinished") or 0
    if rules and (shuts_down or ttl_s):
        yield (
            "spec.deletionStrategy",
            "its rules do not go with shutdownAfterJobFinishes or ttlSecondsAfterFinished",
        )
    if not shuts_down and not spec.get("deletionStrategy") and not spec.get("clusterSelector"):
        yield (
            "spec.shutdownAfterJobFinishes",
            "without it or a deletionStrategy the cluster keeps its cards when the job is done",
        )
    if ttl_s and not shuts_down and not rules:
        yield "spec.ttlSecondsAfterFinished", "it needs shutdownAfterJobFinishes: true"
    if spec.get("suspend") and not shuts_down:
        yield "spec.suspend", "it needs shutdownAfterJobFinishes: true"
    if spec.get("suspend") and spec.get("clusterSelector"):
        yield "spec.suspend", "it does not go with clusterSelector"
    labels = (manifest.get("metadata") or {}).get("labels") or {}
    if "kueue.x-k8s.io/queue-name" in labels:
        yield from _kueue(spec, shuts_down=shuts_down)


def _kueue(spec: Manifest, *, shuts_down: bool) -> Findings:
    cluster = spec.get("rayClusterSpec") or {}
    if not shuts_down:
        yield "spec.shutdownAfterJobFinishes", "Kueue needs it to be true"
    if cluster.get("enableInTreeAutoscaling"):
        yield "spec.rayClusterSpec.enableInTreeAutoscaling", "Kueue admits a fixed size only"
    if len(cluster.get("workerGroupSpecs") or []) > 7:
        yield "spec.rayClusterSpec.workerGroupSpecs", "Kueue takes 7 at most"


def _sidecar(spec: Manifest, mode: str) -> Findings:
    if mode != "SidecarMode":
        return
    for name in ("submitterPodTemplate", "submitterConfig"):
        if spec.get(name):
            yield f"spec.{name}", "it does not go with SidecarMode"
    head = ((spec.get("rayClusterSpec") or {}).get("headGroupSpec") or {}).get("template") or {}
    if (head.get("spec") or {}).get("restartPolicy") not in {None, "Never"}:
        yield "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy", "SidecarMode: Never"


def _groups(cluster: Manifest) -> Findings:
    names = []
    for index, group in enumerate(cluster.get("workerGroupSpecs") or []):
        names.append(group.get("groupName"))
        least, most = group.get("minReplicas", 0), group.get("maxReplicas")
        wanted = group.get("replicas", least)
        if most is not None and not least <= wanted <= most:
            yield (
                f"spec.rayClusterSpec.workerGroupSpecs.{index}.replicas",
                f"{wanted} is not between minReplicas ({least}) and maxReplicas ({most})",
            )
    if len(set(names)) < len(names):
        yield "spec.rayClusterSpec.workerGroupSpecs", "two groups have the same name"


def deployment_problems(manifest: Manifest) -> Findings:
    """What is wrong with a Deployment, its pods apart."""
    spec = manifest.get("spec") or {}
    template = spec.get("template") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    has = (template.get("metadata") or {}).get("labels") or {}
    if not wanted or any(has.get(key) != value for key, value in wanted.items()):
        yield "spec.selector.matchLabels", "the pods do not have these labels"
    restart = (template.get("spec") or {}).get("restartPolicy", "Always")
    if restart != "Always":
        yield "spec.template.spec.restartPolicy", f"{restart}: a Deployment's pods have Always"
    yield from _not_negative(spec, "replicas")


def claim_problems(manifest: Manifest) -> Findings:
    """What is wrong with a ResourceClaimTemplate."""
    devices = ((manifest.get("spec") or {}).get("spec") or {}).get("devices") or {}
    for index, request in enumerate(devices.get("requests") or []):
        if not request.get("exactly") and not request.get("firstAvailable"):
            yield (
                f"spec.spec.devices.requests.{index}",
                "resource.k8s.io/v1 wants exactly: {deviceClassName: …}",
            )
