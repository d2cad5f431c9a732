"""The section of the job file about Kubernetes: what the pods are like and where they may run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from batchwright.config.kubernetes_values import (
    Annotations,
    DnsName,
    Environment,
    HostPath,
    Image,
    Key,
    Labels,
    LabelValues,
    MountPath,
    Quantity,
    SecretEnvironment,
    Subdomain,
    dns_name,
)
from batchwright.config.sections import Section

Mode = Literal["job", "ray", "ray-deployment"]


class Toleration(Section):
    """A taint that pods put up with, in Kubernetes' own words."""

    key: Key | None = None
    """The taint's key; none for all taints, with `operator: Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the value must be the same, or the key be there."""
    value: str | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Which effect; none for all."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("with operator: Exists there is no value")
        if self.key is None and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists")
        return self


class Volume(Section):
    """Files below `path` of every pod: a claim, image, folder of the node, Secret or ConfigMap."""

    path: MountPath
    """Where the pods see it."""
    claim: Subdomain | None = None
    """A PersistentVolumeClaim. Shared by several pods it needs the access mode ReadWriteMany, or
    ReadOnlyMany with `read_only`."""
    image: Image | None = None
    """An OCI image whose files are mounted, read only (Kubernetes 1.33 or newer)."""
    host_path: HostPath | None = None
    """A folder of the node itself."""
    secret: Subdomain | None = None
    """A Secret, each key a file: for a variable that names a file, such as
    `GOOGLE_APPLICATION_CREDENTIALS`."""
    config_map: Subdomain | None = None
    """A ConfigMap, each key a file: a company's own certificates, for instance."""
    read_only: bool = False
    """Mount it read only; images, Secrets and ConfigMaps always are."""
    shared: bool = False
    """Of a `host_path`: every node has the same file system there (NFS, Lustre)."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Volume:
        sources = (self.claim, self.image, self.host_path, self.secret, self.config_map)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of claim, image, host_path, secret and config_map")
        return self

    @property
    def is_read_only(self) -> bool:
        """Whether nobody can write there."""
        return self.read_only or (self.claim is None and self.host_path is None)

    @property
    def takes_writes_of_all(self) -> bool:
        """Whether what one pod writes there is seen by the others."""
        is_shared = self.claim is not None or (self.host_path is not None and self.shared)
        return is_shared and not self.read_only


class Hami(Section):
    """A share of a card by HAMi; what is not given is not limited."""

    memory_mb: Annotated[int | None, Field(ge=1)] = None
    """`nvidia.com/gpumem`: memory of each share, in MB."""
    memory_percent: Annotated[int | None, Field(ge=1, le=100)] = None
    """`nvidia.com/gpumem-percentage`: the same as a share of the card's memory."""
    cores_percent: Annotated[int | None, Field(ge=1, le=100)] = None
    """`nvidia.com/gpucores`: share of the card's computing time."""

    @model_validator(mode="after")
    def _memory_is_said_once(self) -> Hami:
        if self.memory_mb is not None and self.memory_percent is not None:
            raise ValueError("give memory_mb or memory_percent, not both")
        if self.memory_mb is None and self.memory_percent is None:
            raise ValueError("give memory_mb or memory_percent: how much of a card a pod gets")
        return self


class Dra(Section):
    """Cards by Dynamic Resource Allocation (`resource.k8s.io/v1`, Kubernetes 1.34 or newer)."""

    device_class: Subdomain = "gpu.nvidia.com"
    """The DeviceClass to ask for."""
    selector: str | None = None
    """A CEL expression that a device must fulfil."""


class Group(Section):
    """Pods of one kind of node, where there are several kinds."""

    name: Annotated[str, AfterValidator(lambda text: dns_name(text, 20))]
    """Part of the pods' names."""
    replicas: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Pods of this group; `kubernetes.replicas` unless given."""
    min_replicas: Annotated[int | None, Field(ge=0, le=4096)] = None
    """With `max_replicas`: Ray adds and removes pods between the two."""
    max_replicas: Annotated[int | None, Field(ge=1, le=4096)] = None
    """See `min_replicas`."""
    gpu_products: LabelValues = Field(default=[])
    """Values of the node label `gpu_product_label`; those of the whole section unless given."""
    node_selector: Labels = Field(default={})
    """Labels that a node must have, on top of those of the whole section."""
    tolerations: list[Toleration] = Field(default=[])
    """On top of those of the whole section."""

    @model_validator(mode="after")
    def _range_is_one(self) -> Group:
        _check_range(self.min_replicas, self.max_replicas, self.replicas)
        return self


def _check_range(least: int | None, most: int | None, wanted: int | None) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_replicas ({least}) is more than max_replicas ({most})")
    if most is not None and wanted is not None and wanted > most:
        raise ValueError(f"replicas ({wanted}) is more than max_replicas ({most})")


class Kubernetes(Section):
    """How the job runs as pods: `batchwright k8s` reads this, other commands do not."""

    mode: Mode = "job"
    """`job`: an Indexed Job whose pods are all alike; `ray`: a RayJob of KubeRay;
    `ray-deployment`: Ray without that operator."""
    image: Image = ""
    """Image with batchwright and the engine (see the Dockerfile), with a tag or digest."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes fetch the image."""
    image_pull_secrets: list[Subdomain] = Field(default=[])
    """Secrets with which nodes may fetch it."""
    version: Annotated[str, Field(pattern=r"^1\.\d+$", coerce_numbers_to_str=True)] = "1.34"
    """The cluster's version; manifests are checked against its schemas."""
    name: Annotated[str | None, AfterValidator(lambda text: text and dns_name(text, 40))] = None
    """Name of the objects; made of the job's name unless given."""
    namespace: DnsName = "default"
    """Where they live."""
    context: str | None = None
    """Context of the kubeconfig; its current one unless given."""
    replicas: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Pods, each with one engine. Unset: as many as the plan has for `hardware`."""
    min_replicas: Annotated[int | None, Field(ge=0, le=4096)] = None
    """With `queue` in mode `job`: Kueue may begin with so many. In the Ray modes, with
    `max_replicas`: Ray adds and removes pods between the two."""
    max_replicas: Annotated[int | None, Field(ge=1, le=4096)] = None
    """See `min_replicas`."""
    groups: list[Group] = Field(default=[])
    """Kinds of nodes, each with its own pods; one group without a name unless given."""
    gpus: Annotated[int | None, Field(ge=0, le=16)] = None
    """Cards per pod. Unset: the engine's tensor times pipeline parallel size; 0 for an endpoint."""
    gpu_resource: Key = "nvidia.com/gpu"
    """What the cards are called as a resource of the nodes."""
    gpu_products: LabelValues = Field(default=[])
    """Values of the node label `gpu_product_label` that will do, such as `NVIDIA-H100-80GB-HBM3`."""
    gpu_product_label: Key = "nvidia.com/gpu.product"
    """The label in which nodes tell their kind of card."""
    cpu_per_gpu: Quantity = "8"
    """Processor cores per card (of the pod if it has none): 8 to 16 keep a card busy."""
    memory_per_gpu: Quantity | None = None
    """Main memory per card (of the pod if it has none). Unset: twice the card's memory."""
    shm: Quantity | None = None
    """Size of `/dev/shm`, a part of the pod's memory. Unset: 1Gi, or 2Gi per card for several."""
    ephemeral_storage: Quantity | None = None
    """Disk of the node to ask for: models without a `model_cache`, logs, temporary files. Unset:
    as much as the node has left."""
    node_selector: Labels = Field(default={})
    """Labels that a node must have. Pods that compute nothing (Ray's head, the driver) keep to those
    about the processor, the system, the zone and the region only."""
    tolerations: list[Toleration] = Field(default=[])
    """Taints that all pods put up with. Pods with cards put up with `nvidia.com/gpu` and
    `gpu_resource` anyway."""
    priority_class: Subdomain | None = None
    """PriorityClass of the pods."""
    runtime_class: Subdomain | None = None
    """RuntimeClass of the pods that have cards: `nvidia` where that is not the nodes' default (k3s,
    RKE2)."""
    service_account: Subdomain | None = None
    """ServiceAccount of the pods, for instance one that may read a bucket."""
    model_cache: Volume | None = None
    """Where models are kept from one pod to the next; `HF_HOME` is set to it."""
    volumes: list[Volume] = Field(default=[])
    """More files that the pods see."""
    env: Environment = Field(default={})
    """Environment variables."""
    secret_env: SecretEnvironment = Field(default={})
    """Environment variables from Secrets: `HF_TOKEN: hub/token` is the key `token` of `hub`."""
    env_from_secrets: list[Subdomain] = Field(default=[])
    """Secrets of which every key becomes an environment variable."""
    hami: Hami | None = None
    """Shares of cards by HAMi."""
    dra: Dra | None = None
    """Cards by Dynamic Resource Allocation."""
    queue: DnsName | None = None
    """LocalQueue of Kueue that admits the job."""
    queue_priority: Subdomain | None = None
    """WorkloadPriorityClass of Kueue."""
    deadline_hours: Annotated[float, Field(gt=0, le=8760)] = 72
    """The cluster ends the job after so long; submitted again, it goes on."""
    ttl_s: Annotated[int | None, Field(ge=0)] = None
    """The cluster removes the finished job after so long. Unset: a day, in the Ray modes a
    minute, since cards are held until then."""
    retries: Annotated[int, Field(ge=0, le=100)] = 3
    """So often a pod may fail (and with Ray, the cluster) before it is given up. Evictions and
    exit code 75 do not count."""
    user_id: Annotated[int | None, Field(ge=1)] = 1000
    """User that the pods run as; it is never root. `null` leaves it to the cluster, as OpenShift wants."""
    read_only_root: bool = True
    """In mode `job`, the container's own file system is read only, apart from `/tmp` and
    `/scratch`. Ray needs to write there, so the Ray modes leave it open."""
    ray_version: str = "2.60.0"
    """The image's version of Ray, for KubeRay."""
    labels: Labels = Field(default={})
    """More labels for every object."""
    annotations: Annotations = Field(default={})
    """Annotations of the pods."""

    @model_validator(mode="after")
    def _fits_together(self) -> Kubernetes:
        _check_range(self.min_replicas, self.max_replicas, self.replicas)
        if self.hami is not None and self.dra is not None:
            raise ValueError("give hami or dra: both hand out the same cards")
        elastic = self.max_replicas or any(group.max_replicas for group in self.groups)
        if elastic and self.mode == "job":
            raise ValueError("max_replicas needs mode: ray; an Indexed Job has a fixed size")
        if elastic and self.queue:
            raise ValueError("max_replicas does not go with queue: Kueue admits a fixed size")
        twice = sorted(set(self.env) & set(self.secret_env))
        if twice:
            raise ValueError(f"env and secret_env both set {twice[0]}")
        for names, what in (
            ([group.name for group in self.groups], "groups: two have the same name"),
            ([volume.path for volume in self.all_volumes], "volumes: two have the same path"),
        ):
            if len(set(names)) < len(names):
                raise ValueError(what)
        return self._needs_no_newer_cluster()

    def _needs_no_newer_cluster(self) -> Kubernetes:
        minor = self.minor_version
        if minor < 31:
            raise ValueError("version: pod failure policies need Kubernetes 1.31 or newer")
        if self.dra is not None and minor < 34:
            raise ValueError("dra: resource.k8s.io/v1 needs Kubernetes 1.34 (see version)")
        if minor < 33 and any(volume.image for volume in self.all_volumes):
            raise ValueError("volumes: an image as a volume needs Kubernetes 1.33 (see version)")
        return self

    @property
    def minor_version(self) -> int:
        """34 of 1.34."""
        return int(self.version.partition(".")[2])

    @property
    def all_volumes(self) -> list[Volume]:
        """The model cache and the other volumes."""
        return [*([self.model_cache] if self.model_cache else []), *self.volumes]
