"""Personal models: the model as each client uses it, with its own layers or after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound
from fedbalancer.client.training import start_model
from fedbalancer.core.types import Evaluation, Order, Weights
from fedbalancer.simulation.engine import SimulatedEngine


def personal_model(engine: SimulatedEngine, weights: Weights, client: str, order: Order) -> Weights:
    """Return the model that a client uses: its part of the global model, with its own layers, after fine-tuning.

    Fine-tuning is plain training of the whole model on all of the client's samples. It changes no client's state.

    Args:
        engine: The engine, which has the clients' states.
        weights: The global model.
        client: The client's id.
        order: Batch size, learning rate and seed of the fine-tuning.
    """
    row, policies = engine.ledger.position[client], engine.policies
    part = None if engine.costs is None else engine.costs.part(client, order)
    model = start_model(weights, part, engine.memory.of(row).state)
    if not policies.train.tuning_epochs:
        return model
    tuned = ClientRound(ClientPolicies(), order, client, int(engine.ledger.size[row]), ClientMemory())
    work = tuned.work(tuned.per_epoch * policies.train.tuning_epochs)
    return model + engine.executor.train(model, [work])[0].update


def evaluate_clients(
    engine: SimulatedEngine, weights: Weights, clients: Sequence[str], order: Order
) -> list[Evaluation]:
    """Evaluate a model on the data of clients, as each of them would use it.

    Args:
        engine: The engine.
        weights: The global model.
        clients: Ids of the clients.
        order: Batch size, learning rate and seed of clients that fine-tune the model first.
    """
    shared = engine.policies.part.is_whole and not engine.policies.train.tuning_epochs
    if shared or not len(weights):
        return engine.executor.evaluate_clients(weights, clients)
    models = ((personal_model(engine, weights, client, order), client) for client in clients)
    return [engine.executor.evaluate_clients(model, [client])[0] for model, client in models]
