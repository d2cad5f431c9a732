"""The image's recipe: linted, and its parts are there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run(
        [str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert found.stdout + found.stderr == ""
    assert found.returncode == 0


def test_images_are_pinned_and_the_user_is_not_root() -> None:
    images = re.findall(r"^ARG \w+_IMAGE=(\S+)$", TEXT, re.MULTILINE)
    assert len(images) == 2
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in images)
    assert re.search(r"^USER 1000:1000$", TEXT, re.MULTILINE)
    assert TEXT.rstrip().endswith('ENTRYPOINT ["batchwright"]\nCMD ["--help"]')


def test_what_the_wheel_is_built_from_is_sent_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"pyproject.toml", "src", project["project"]["readme"]}
    wanted |= set(project["project"]["license-files"])
    wanted |= set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"])
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (.+) \S+$", TEXT, re.MULTILINE)
    for name in wanted:
        assert f"!{name}" in ignored
        assert name in " ".join(copied).split()
    extras = re.search(r'^ARG EXTRAS="(.*)"$', TEXT, re.MULTILINE)
    assert extras
    assert set(extras[1].split(",")) <= set(project["project"]["optional-dependencies"])


def test_ray_comes_with_the_dashboard_that_kuberay_sends_jobs_to() -> None:
    assert re.search(r"\$\{RAY_VERSION:\+\"ray\[data,default\]==\$\{RAY_VERSION\}\"\}", TEXT)
