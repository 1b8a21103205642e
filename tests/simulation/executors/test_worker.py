"""An error of a worker arrives with where it arose, whether it can travel itself or not."""

from __future__ import annotations

import cloudpickle
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.simulation.executors.worker import told


class Stubborn(Exception):
    """Cannot be made again from what it holds."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize("error", [ValueError("seven"), KeyError("seven"), Stubborn("seven", "eight")])
def test_a_strangers_error_says_where_it_arose(error: Exception) -> None:
    came = cloudpickle.loads(cloudpickle.dumps(told(raised(error))))
    assert "seven" in str(came)
    assert "in raised" in "".join(came.__notes__), "the traceback is in a note"


def test_one_that_cannot_travel_keeps_its_name() -> None:
    came = told(raised(Stubborn("seven", "eight")))
    assert (type(came), str(came)) == (RuntimeError, "Stubborn: seven and eight")


def test_one_of_ours_says_enough() -> None:
    assert not hasattr(told(raised(BadData("the label 17"))), "__notes__")
