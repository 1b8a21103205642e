from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedbalancer.experiments.rounds import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests run side by side: threads of torch would only wait for each other."""
    with one_thread():
        yield
