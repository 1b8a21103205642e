import pytest

from fedbalancer.paper.bench.results import peak_flop_per_s
from fedbalancer.paper.bench.workloads import bench_task
from fedbalancer.training.flops import count_flops


def test_the_count_of_the_femnist_cnn_is_that_on_paper() -> None:
    first = 2 * 25 * 1 * 32 * 28 * 28  # its inputs need no gradient: two products, not three
    second = 2 * 25 * 32 * 64 * 14 * 14
    dense = 2 * (3136 * 2048 + 2048 * 62)
    assert count_flops(bench_task("femnist", 1)).train_flops == 2 * first + 3 * second + 3 * dense


def test_the_count_of_an_lstm_is_not_left_out() -> None:
    steps = 80 * 2 * 4 * 256 * ((8 + 256) + (256 + 256))
    assert count_flops(bench_task("shakespeare", 1)).train_flops == pytest.approx(3 * steps, rel=0.01)


def test_the_peak_leaves_the_number_of_threads_alone() -> None:
    import torch

    before = torch.get_num_threads()
    assert peak_flop_per_s(0.01, before + 1) > 0
    assert torch.get_num_threads() == before
