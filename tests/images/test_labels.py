"""The labels of the images: all that OCI names for who, what and where from. The Dockerfiles are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from checks.sbom import DOCKERFILE, REPOSITORY

SHIM = REPOSITORY / "shim/Dockerfile"
PREFIX = "org.opencontainers.image."
LABELS = {
    "title",
    "description",
    "version",
    "revision",
    "licenses",
    "source",
    "url",
    "documentation",
    "base.name",
}
IMAGES = {"muster-shim": (SHIM, ""), "muster-service": (DOCKERFILE, "service")} | {
    "muster-node-agent": (DOCKERFILE, "node-agent")
}
"""By title: the Dockerfile and the name of the stage, "" for the last one."""


@dataclass
class Stage:
    """What one stage says itself, and the image or stage that it begins from."""

    base: str
    arguments: set[str] = field(default_factory=set)
    labels: dict[str, str] = field(default_factory=dict)


def stages(text: str) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name."""
    stage_by_name: dict[str, Stage] = {}
    current = Stage("")
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, words = line.partition(" ")
        if word == "FROM":
            base, _, name = re.sub(r"--\S+ ", "", words).partition(" AS ")
            current = stage_by_name[name] = Stage(base)
        elif word == "ARG":
            current.arguments.add(words.partition("=")[0])
        elif word == "LABEL":
            current.labels |= {key: quoted or bare for key, quoted, bare in _PAIR.findall(words)}
    return stage_by_name


_PAIR = re.compile(r'(\S+?)=(?:"([^"]*)"|(\S+))')


def chain(image: str) -> list[Stage]:
    """Return the stages that an image is made of, the last one first."""
    file, name = IMAGES[image]
    of_file, stages_of_chain = stages(file.read_text()), []
    while name in of_file:
        stages_of_chain.append(of_file[name])
        name = of_file[name].base
    return stages_of_chain


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_all_labels(image: str) -> None:
    labels = {key: value for stage in reversed(chain(image)) for key, value in stage.labels.items()}
    assert {*labels} == {f"{PREFIX}{name}" for name in LABELS}
    assert labels[f"{PREFIX}title"] == image
    assert labels[f"{PREFIX}base.name"] == chain(image)[-1].base


@pytest.mark.parametrize("image", IMAGES)
def test_what_labels_refer_to_is_an_argument_of_their_stage_and_in_the_docs(image: str) -> None:
    documented = (REPOSITORY / "docs/images.md").read_text()
    for stage in chain(image):
        names = {name for value in stage.labels.values() for name in re.findall(r"\$\{(\w+)", value)}
        assert names <= stage.arguments
        assert all(f"`{name}`" in documented for name in names)


def test_base_images_are_named_with_their_registry() -> None:
    """OCI asks for full names in `base.name`."""
    for file in (SHIM, DOCKERFILE):
        defaults = re.findall(r"(?m)^ARG (\w+_IMAGE)=(\S+)$", file.read_text())
        assert defaults
        assert all(re.match(r"[\w-]+(\.[\w-]+)+/", image) for _, image in defaults), defaults
