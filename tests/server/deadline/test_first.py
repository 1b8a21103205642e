"""The first K reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import make_setup, make_state

from fedbalancer.server.deadline import FirstReports


@pytest.mark.parametrize(("cohort", "quorum"), [(0, 0), (1, 1), (9, 9), (10, 10), (13, 10), (100, 10)])
def test_waits_for_k_reports_however_many_were_invited(cohort: int, quorum: int) -> None:
    setup = make_setup(clients_per_round=10)
    assert FirstReports().plan(setup, make_state(), np.arange(cohort)) == (math.inf, quorum)
