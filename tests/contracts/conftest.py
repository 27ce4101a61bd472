"""A real Docker Engine and Podman, out of `.engines`, once for each test process that asks."""

import os

import pytest

from perdure.contracts.inject.engines import CliEngine
from tests.contracts.images import images
from tools import engines
from tools import podman as podman_here


@pytest.fixture(scope="session")
def docker():
    """A Docker Engine with the images that specimens and the small application name.

    Where none can run, tests that ask for it are skipped, and say what is missing.
    """
    try:
        with engines.running() as environment, pytest.MonkeyPatch.context() as patch:
            images.load(("docker",), environment)
            for name, value in environment.items():
                patch.setitem(os.environ, name, value)
            yield CliEngine()
    except (engines.Missing, images.NoImages) as missing:
        pytest.skip(f"NO DOCKER ENGINE HERE: {missing}")


@pytest.fixture(scope="session")
def podman():
    """A Podman with the same images; where it can't run, tests are skipped, and say why."""
    try:
        with podman_here.running() as environment, pytest.MonkeyPatch.context() as patch:
            images.load(("podman",), environment)
            patch.setitem(os.environ, "PATH", environment["PATH"])
            yield CliEngine("podman")
    except (engines.Missing, images.NoImages) as missing:
        pytest.skip(f"NO PODMAN HERE: {missing}")
