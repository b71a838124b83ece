"""A running local cloud for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.local.cloud import LocalCloud
from tests.local_cloud.workbench import Workbench


@pytest.fixture(scope="session")
def bench() -> Iterator[Workbench]:
    with LocalCloud(wait_scale=0.1) as cloud:
        yield Workbench(cloud)
