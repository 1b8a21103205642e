import numpy as np
import pytest

from fedbalancer.core.errors import UnknownName
from fedbalancer.paper.bench.workloads import SHAPES, bench_task, check_tasks
from fedbalancer.training.trainer import TorchTrainer

PUBLISHED = {"femnist": 6_603_710, "har": 1_602_502, "celeba": 31_202, "shakespeare": 817_872}


@pytest.mark.parametrize("name", SHAPES)
def test_every_task_trains_at_its_published_size(name: str) -> None:
    trainer = TorchTrainer(
        bench_task(name, clients=1), backend="plain"
    )  # checks model, loss and data against each other
    count = len(trainer.initial_weights(0))
    assert count == PUBLISHED.get(name, count)
    assert np.isfinite(trainer.losses(trainer.initial_weights(0), "c0000")[0])


def test_clients_differ_and_repeat_themselves() -> None:
    one, again = bench_task("watch", clients=2), bench_task("watch", clients=3)
    np.testing.assert_array_equal(one.clients["c0001"][0], again.clients["c0001"][0])
    assert not np.array_equal(one.clients["c0000"][0], one.clients["c0001"][0])


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean femnist"):
        check_tasks(["har", "femnits"])
