"""A real control plane of each version for the tests here; each is started once, by the first test that wants it.

Every test here is marked ``cluster``: ``make test-cluster`` builds the control plane and runs them, ``make test`` does not.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from control_plane import VERSIONS, ControlPlane

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def planes():
    """Return how to get the control plane of a version that tests share."""
    started: dict[str, ControlPlane] = {}
    with ExitStack() as stack:

        def get(version):
            if version not in started:
                started[version] = stack.enter_context(ControlPlane(version))
            return started[version]

        yield get


@pytest.fixture(params=VERSIONS)
def plane(request, planes):
    """Return a control plane that is shared: a test makes its own nodes and namespaces, and breaks nothing."""
    return planes(request.param)


@pytest.fixture(params=VERSIONS)
def own_plane(request):
    """Return a control plane of the test's own, to break."""
    with ControlPlane(request.param) as started:
        yield started
