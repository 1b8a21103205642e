from fedbalancer.paper.bench.results import measure_clients_per_s, measure_overhead_ms


def test_rounds_without_training_are_counted() -> None:
    assert measure_clients_per_s("fedavg+1t", seconds=0.0) > 0


def test_tiny_clients_are_timed_inline_and_in_a_pool() -> None:
    found = measure_overhead_ms(workers=2, repeats=1)
    assert list(found) == ["fast inline", "fast pool of 2"]
    assert min(found.values()) > 0
