"""Flower's own strategies in the aggregation slot: what goes together, and what is refused by name at the start."""

from __future__ import annotations

from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.mods import NO_SECURE_AGGREGATION
from fedbalancer.methods.composition import Method

MU_KEY = "proximal-mu"
"""Where Flower's FedProx tells its clients mu."""

NO_EFFECT = {
    "fraction_train": (1.0, "clients_per_round"),
    "min_train_nodes": (2, "clients_per_round"),
    "min_available_nodes": (2, "min_clients"),
    "fraction_evaluate": (1.0, "fraction_evaluate of fedbalancer.flower.Strategy"),
    "min_evaluate_nodes": (2, "min_evaluate_nodes of fedbalancer.flower.Strategy"),
    "weighted_by_key": ("num-examples", "nothing: updates weigh by the samples trained"),
}
"""Arguments of Flower's strategies that say what is said elsewhere here: their default, and where."""
POOLS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
"""Functions that Flower's strategies may be given; theirs unless told."""
OTHER_METHODS = ("configure_train", "configure_evaluate", "aggregate_evaluate")
"""What is not called of a strategy in the aggregation slot."""


def with_aggregation(method: Method, policy: Any) -> Method:
    """The method with another aggregation: a policy of ours as it is, one of Flower's strategies in an adapter."""
    if type(policy).__name__.startswith("SecAgg") and type(policy).__module__.startswith("flwr."):
        raise BadSetting(f"aggregate={type(policy).__name__} {NO_SECURE_AGGREGATION}")
    if not hasattr(policy, "aggregate_train"):
        return method.with_policies(aggregate=policy)
    from fedbalancer.flower.aggregate import FlowerAggregator

    name = type(policy).__name__
    aggregator = FlowerAggregator(policy)
    _check_configuration(policy, name)
    method_with = method.with_policies(aggregate=aggregator)
    if "FedProx" not in _classes(policy):
        return method_with
    mu = float(policy.proximal_mu)
    if method.client.mu not in (0.0, mu):
        raise BadSetting(f"{name} has mu {mu:g} and the method {method.name} {method.client.mu:g}; choose one of them")
    return method_with.with_policies(mu=mu)


def sent_with_orders(policy: Any) -> dict[str, float]:
    """What a strategy of Flower tells its clients beside the model."""
    strategy = policy.flower_strategy
    return {MU_KEY: float(strategy.proximal_mu)} if "FedProx" in _classes(strategy) else {}


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy that would not do here what it says."""
    name = type(strategy).__name__
    if any(kind.__module__ == "fedbalancer.flower.strategy" for kind in type(strategy).__mro__):
        raise BadSetting(f"aggregate={name}: it runs rounds of its own; give one of Flower's strategies, or a policy")
    for known in _classes(strategy):
        if known.startswith("DifferentialPrivacy"):
            raise BadSetting(
                f"aggregate={name}: its noise is worked out for num_sampled_clients equal replies, and a round that "
                "closes at its deadline has fewer, of unequal weight: the guarantee would not hold. LocalDpMod on the "
                "clients protects their updates (docs/how-to/flower.md, Privacy)"
            )
        if known.startswith("FedXgb"):
            raise BadSetting(f"aggregate={name}: it collects trees, and this trains vectors of weights")


def _check_configuration(strategy: Any, name: str) -> None:
    """Only a strategy's `aggregate_train` is called: one that does more elsewhere is told."""
    for method in OTHER_METHODS:
        home = next(kind for kind in type(strategy).__mro__ if method in vars(kind))
        if not home.__module__.startswith("flwr."):
            raise BadSetting(
                f"aggregate={name}: its own {method} would not be called; write it in a subclass of "
                f"fedbalancer.flower.Strategy (what is sent may also be said in train_config), and give "
                f"aggregate=FlowerAggregator({name}(...)) if its aggregate_train is all that you want"
            )
    for argument, (default, place) in NO_EFFECT.items():
        value = getattr(strategy, argument, default)
        if value != default:
            raise BadSetting(f"{argument} = {value!r} of aggregate={name} would have no effect; here it is {place}")
    for argument in POOLS:
        given = getattr(strategy, argument, None)
        if given is not None and not getattr(given, "__module__", "").startswith("flwr."):
            raise BadSetting(f"{argument} of aggregate={name} would have no effect; give it to Strategy itself")


def _classes(strategy: Any) -> set[str]:
    return {kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")}
