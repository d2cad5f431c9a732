"""Values of the section `kubernetes` as a cluster wants them: names, labels, quantities, variables."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"(\d+(\.\d+)?|\.\d+)(m|k|[MGTPE]i?|Ki)?")
_IMAGE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OUR_MOUNTS = ("/dev/shm", "/etc/batchwright", "/tmp", "/scratch")  # noqa: S108
_SECRET_PARTS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL")
_SECRET_ENDS = {"TOKEN", "KEY", "APIKEY", "PASS", "PWD"}
_OF_PLACES = {"FILE", "PATH", "DIR", "URL", "URI", "ENDPOINT"}
_PASSWORD_IN_URL = re.compile(r"://[^/@:\s]*:[^/@\s]+@")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def dns_name(text: str, limit: int = 63) -> str:
    """The text, if it is a label of DNS. Raises ValueError."""
    if len(text) > limit or not _LABEL.fullmatch(text):
        raise ValueError(
            f"a name in Kubernetes has at most {limit} small letters, digits and hyphens"
        )
    return text


def _subdomain(text: str) -> str:
    if len(text) > 253 or not all(_LABEL.fullmatch(part) for part in text.split(".")):
        raise ValueError("a name in Kubernetes has small letters, digits, hyphens and dots only")
    return text


def _quantity(text: str) -> str:
    if not _QUANTITY.fullmatch(text):
        raise ValueError("not a quantity of Kubernetes, such as 500m, 16, 64Gi or 64G (no space)")
    return text


def _image(text: str) -> str:
    if text and not _IMAGE.fullmatch(text):
        raise ValueError("not an image's name, such as registry.example/team/batchwright:0.1.0")
    return text


def _key(key: str) -> str:
    if len(key.rpartition("/")[2]) > 63 or not _KEY.fullmatch(key):
        raise ValueError(
            f"{key!r} is not a key of Kubernetes, such as nvidia.com/gpu: letters, digits and -_. "
            "after the slash, 63 at most"
        )
    return key


def _annotations(values: dict[str, str]) -> dict[str, str]:
    for key in values:
        _key(key)
    return values


def _host_path(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError("a folder of the node is absolute, without ..")
    return path


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        _key(key)
        if len(value) > 63 or not _VALUE.fullmatch(value):
            raise ValueError(f"{key}: the value of a label has at most 63 letters, digits, -_.")
    return labels


def _label_values(values: list[str]) -> list[str]:
    for value in values:
        if not value or len(value) > 63 or not _VALUE.fullmatch(value):
            raise ValueError(
                f"{value!r} is not the value of a label: look at a node's "
                "(kubectl get nodes -L nvidia.com/gpu.product), such as NVIDIA-L40S"
            )
    return values


def _environment(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if not _ENV.fullmatch(name):
            raise ValueError(f"{name} is not the name of an environment variable")
    return values


def _looks_secret(name: str, value: str) -> bool:
    """By the words of its name: `HF_TOKEN` and `ACCOUNT_KEY` do, `TOKENIZERS_PARALLELISM` does not."""
    words = name.upper().split("_")
    if words[-1] in _OF_PLACES or (words[-1] == "CREDENTIALS" and value.startswith("/")):
        return False  # where the secret lies, not the secret
    hidden = any(part in word for word in words for part in _SECRET_PARTS)
    return hidden or words[-1] in _SECRET_ENDS or "ACCESS_KEY" in name.upper()


def _plain_environment(values: dict[str, str]) -> dict[str, str]:
    for name, value in _environment(values).items():
        if _looks_secret(name, value):
            raise ValueError(
                f"{name} looks like a secret, and manifests are not secret: put it into a Secret "
                "and name that in secret_env"
            )
        if _PASSWORD_IN_URL.search(value):
            raise ValueError(
                f"{name} has a password in its address, and manifests are not secret: put it into "
                "a Secret and name that in secret_env"
            )
    return values


def _secret_references(values: dict[str, str]) -> dict[str, str]:
    for name, reference in _environment(values).items():
        secret, slash, key = reference.partition("/")
        if not (slash and _SECRET_KEY.fullmatch(key)):
            raise ValueError(f"{name}: name the Secret and its key: {name}: my-secret/token")
        _subdomain(secret)
    return values


def _mount_path(path: str) -> str:
    if not path.startswith("/") or path == "/" or ":" in path:
        raise ValueError("a mount path is absolute, and not the root")
    place = path.rstrip("/")
    if place in _OUR_MOUNTS or place.startswith(_OUR_MOUNTS[:2]):
        raise ValueError("batchwright mounts something of its own there")
    return path.rstrip("/")


DnsName = Annotated[str, AfterValidator(dns_name)]
Subdomain = Annotated[str, AfterValidator(_subdomain)]
Quantity = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_quantity)]
Image = Annotated[str, AfterValidator(_image)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
Key = Annotated[str, AfterValidator(_key)]
Annotations = Annotated[dict[str, str], AfterValidator(_annotations)]
HostPath = Annotated[str, AfterValidator(_host_path)]
LabelValues = Annotated[list[str], AfterValidator(_label_values)]
Environment = Annotated[dict[str, str], AfterValidator(_plain_environment)]
SecretEnvironment = Annotated[dict[str, str], AfterValidator(_secret_references)]
MountPath = Annotated[str, AfterValidator(_mount_path)]
