"""The ready client for torch trains what the simulator's trainer would, and stops itself."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import make_order

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import ArrayRecord, Message, RecordDict

from fedbalancer import Task
from fedbalancer.client.live import LiveRound
from fedbalancer.client.round import ClientMemory
from fedbalancer.client.work import batches
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import integer_seed, stream
from fedbalancer.core.types import ClientWork, TrainOptions
from fedbalancer.flower import Strategy, balanced, client_app, trained_arrays
from fedbalancer.flower.grid_engine import Waiting
from fedbalancer.flower.messages import Instruction
from fedbalancer.methods.table import method
from fedbalancer.paper.testbed.client import PhoneClock
from fedbalancer.simulation.devices.models import DeviceDraw
from fedbalancer.training.trainer import TorchModel, TorchTrainer

torch = pytest.importorskip("torch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def linear() -> Any:
    return torch.nn.Linear(5, 3)


def samples(context: Any) -> Any:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    y = rng.integers(0, 3, 40)
    return (rng.normal(size=(40, 5)) + 2 * np.eye(3, 5)[y]).astype(np.float32), y


class Nodes:
    """Apps behind a fake grid; a reply comes a second after its message, or as late as this machine really was: the
    clients look at the wall clock, and a report of more seconds than its round trip is not believed."""

    def __init__(self, apps: int, model: Any = net, data: Any = samples, **options: Any) -> None:
        self.clock, self.replies = Clock(), []
        app = client_app(model, data, **options)
        contexts = self.contexts = [make_context(n + 2, **{"partition-id": n}) for n in range(apps)]

        def node(context: Any) -> Any:
            def handle(message: Message, sent_s: float) -> Any:
                began_s = time.monotonic()
                self.replies.append(app(message, context))
                return [(sent_s + max(time.monotonic() - began_s, 1.0), self.replies[-1])]

            return handle

        self.grid = FakeGrid(self.clock, {context.node_id: node(context) for context in contexts})

    def trained(self) -> list[Any]:
        """The replies with an update."""
        return [reply for reply in self.replies if "arrays" in reply.content.array_records]

    def start(
        self,
        method: str,
        rounds: int,
        initial: Any = net,
        as_arrays: Any = lambda module: ArrayRecord(module.state_dict()),
        **options: Any,
    ) -> Any:
        waiting = Waiting(clock=self.clock, sleep=self.clock.sleep, background=False)
        given = {"clients_per_round": 3, "epochs": 2, "batch_size": 8, "learning_rate": 0.1, "min_clients": 1}
        torch.manual_seed(0)
        arrays = as_arrays(initial())
        return arrays, Strategy(method, waiting=waiting, **(given | options)).start(self.grid, arrays, rounds)


def test_one_round_is_what_the_simulators_trainer_gives() -> None:
    nodes = Nodes(1)
    sent, result = nodes.start("fedavg+wfa", 1)
    x, y = samples(make_context(2, **{"partition-id": 0}))
    trainer = TorchTrainer(Task(clients={"client-0": (x, y)}, test=(x, y), model=net))
    module = net()
    module.load_state_dict({name: torch.tensor(array.numpy()) for name, array in sent.items()})
    floats = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = np.concatenate([floats[name].detach().numpy().ravel() for name, _ in trainer.layout]).astype(np.float32)
    seed = integer_seed(0, "train", 1, "client-0")
    update = trainer.train(weights, ClientWork("client-0", np.arange(40), 10, 8, 0.1, 0.0, None, seed)).update
    got = np.concatenate([result.arrays[name].numpy().ravel() for name, _ in trainer.layout])
    assert np.abs(update).max() > 0.01
    assert got == pytest.approx(weights + update, abs=1e-6)
    assert result.arrays["1.num_batches_tracked"].numpy() == sent["1.num_batches_tracked"].numpy()


def test_clients_report_every_metric_and_leave_out_an_accuracy_that_they_do_not_have() -> None:
    def numbers(context: Any) -> Any:
        features, _ = samples(context)
        return features, features.sum(axis=1, keepdims=True)

    _, result = Nodes(2, metric=["f1", "accuracy", "top2"]).start("fedavg+wfa", 1, federated_evaluate=True)
    assert {"f1", "accuracy", "top2", "loss", "num-examples"} == set(result.evaluate_metrics_clientapp[1])
    loss = lambda outputs, labels: ((outputs - labels) ** 2).mean(dim=1)  # noqa: E731
    fit = partial(torch.nn.Linear, 5, 1)
    fitting = Nodes(2, fit, numbers, loss=loss, metric=["mae", "accuracy"])
    _, result = fitting.start("fedavg+wfa", 1, initial=fit, federated_evaluate=True)
    assert {"mae", "loss", "num-examples"} == set(result.evaluate_metrics_clientapp[1])


def test_fedbalancer_learns_and_is_evaluated_by_the_clients() -> None:
    _, result = Nodes(3).start("fedbalancer", 6, federated_evaluate=True)
    found = [result.evaluate_metrics_clientapp[n]["accuracy"] for n in (0, 6)]
    assert found[1] > max(found[0], 0.8)


class Halves(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A linear layer on two named inputs, with outputs as transformers return them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 3)

    def forward(self, left: Any, right: Any) -> Any:
        return SimpleNamespace(logits=self.layer(torch.cat([left, right], dim=1)))


class Pairs(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    """A data set of torch whose items are dictionaries."""

    def __init__(self, context: Any) -> None:
        self.x, self.y = samples(context)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return {"left": self.x[row, :2], "right": self.x[row, 2:], "labels": self.y[row]}


def test_named_inputs_data_sets_and_a_forward_function_train_as_arrays_do() -> None:
    def named(context: Any) -> Any:
        x, y = samples(context)
        return {"left": torch.tensor(x[:, :2]), "right": x[:, 2:].tolist()}, y.tolist()

    def joined(items: Any) -> Any:
        rows = [np.concatenate([item["left"], item["right"]]) for item in items]
        return torch.tensor(np.stack(rows)), torch.tensor([item["labels"] for item in items])

    ways: list[Any] = [
        (Halves, named, {}),
        (Halves, Pairs, {}),
        (Halves, samples, {"forward": lambda model, x: model(x[:, :2], x[:, 2:]).logits}),
        (Halves, Pairs, {"collate_fn": joined, "forward": lambda model, x: model(x[:, :2], x[:, 2:])}),
    ]
    arrays = []
    for model, data, options in ways:
        result = Nodes(2, model=model, data=data, **options).start("fedavg+wfa", 2, initial=model)[1]
        arrays.append(result.arrays["layer.weight"].numpy())
    plain = Nodes(2, model=linear, backend="plain").start("fedavg+wfa", 2, initial=linear)[1]
    for found in arrays:
        assert found == pytest.approx(plain.arrays["weight"].numpy(), abs=1e-5)


def adapted() -> Any:
    """A frozen layer that is drawn at random, and a trained one."""
    return torch.nn.Sequential(torch.nn.Linear(5, 8).requires_grad_(False), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def test_only_trained_arrays_travel_and_give_what_the_simulators_trainer_gives() -> None:
    sent, result = Nodes(1, model=adapted).start("fedavg+wfa", 1, initial=adapted, as_arrays=trained_arrays)
    assert set(sent) == set(result.arrays) == {"2.weight", "2.bias"}
    x, y = samples(make_context(2, **{"partition-id": 0}))
    trainer = TorchTrainer(Task(clients={"client-0": (x, y)}, test=(x, y), model=adapted))
    weights = trainer.layout.join({name: array.numpy() for name, array in sent.items()})
    seed = integer_seed(0, "train", 1, "client-0")
    update = trainer.train(weights, ClientWork("client-0", np.arange(40), 10, 8, 0.1, 0.0, None, seed)).update
    assert trainer.layout.join({name: array.numpy() for name, array in result.arrays.items()}) == pytest.approx(
        weights + update, abs=1e-6
    )


def test_a_server_that_sends_frozen_parameters_is_told_how_to_start() -> None:
    message = Message(RecordDict({"arrays": ArrayRecord(adapted().state_dict())}), 2, "evaluate", ttl=100.0)
    with pytest.raises(BadData, match=r"differs from this client's in \('0.bias', \(8,\)\).*trained_arrays\(model\)"):
        client_app(adapted, samples)(message, make_context(2, **{"partition-id": 0}))


@pytest.mark.parametrize("name", ["Adam", "SGD with momentum", "RMSprop"])
def test_any_optimizer_of_torch_trains(name: str) -> None:
    """One round of one client is what the same optimizer makes of the same batches in a loop of torch's own."""
    kinds = {"SGD with momentum": partial(torch.optim.SGD, momentum=0.9)}
    make = kinds.get(name) or getattr(torch.optim, name)
    sent, result = Nodes(1, model=linear, optimizer=make).start("fedavg+wfa", 1, initial=linear)
    x, y = (torch.as_tensor(part) for part in samples(make_context(2, **{"partition-id": 0})))
    module = linear()
    module.load_state_dict({key: torch.tensor(array.numpy()) for key, array in sent.items()})
    optimizer = make(module.parameters(), lr=0.1)
    work = ClientWork("client-0", np.arange(40), 10, 8, 0.1, 0.0, None, integer_seed(0, "train", 1, "client-0"))
    for _, rows in batches(work):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    plain = Nodes(1, model=linear).start("fedavg+wfa", 1, initial=linear)[1]
    for key, tensor in module.state_dict().items():
        assert result.arrays[key].numpy() == pytest.approx(tensor.numpy(), abs=1e-5)
        assert np.abs(result.arrays[key].numpy() - plain.arrays[key].numpy()).max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw(weight_decay=0.1)"},
        {"accumulate": 3, "drop_last": True},
        {"optimizer": "sgd(momentum=0.9)", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_the_server_chooses_how_clients_train_as_in_the_simulator(options: dict[str, Any]) -> None:
    """Three rounds with a schedule; each is what the simulator's trainer makes of the same options."""
    settings = {**options, "schedule": "step(every=1,factor=0.5)"}
    sent, result = Nodes(1, model=linear).start("fedavg+wfa", 3, initial=linear, settings=settings, batch_size=12)
    x, y = samples(make_context(2, **{"partition-id": 0}))
    trainer = TorchTrainer(Task(clients={"client-0": (x, y)}, test=(x, y), model=linear))
    weights = np.concatenate([sent[name].numpy().ravel() for name, _ in trainer.layout])
    for number in (1, 2, 3):
        seed, training = integer_seed(0, "train", number, "client-0"), TrainOptions(**options)
        work = ClientWork("client-0", np.arange(40), 0, 12, 0.1 / 2 ** (number - 1), 0.0, None, seed, None, training)
        weights = weights + trainer.train(weights, replace(work, batches=2 * work.per_epoch)).update
    got = np.concatenate([result.arrays[name].numpy().ravel() for name, _ in trainer.layout])
    assert got == pytest.approx(weights, abs=1e-6)


def test_a_client_keeps_its_optimizers_state_as_in_the_simulator() -> None:
    settings = {"optimizer": "adam", "optimizer_state": "keep"}
    sent, result = Nodes(1, model=linear).start("fedavg+wfa", 3, initial=linear, settings=settings)
    x, y = samples(make_context(2, **{"partition-id": 0}))
    trainer = TorchTrainer(Task(clients={"client-0": (x, y)}, test=(x, y), model=linear))
    weights = np.concatenate([sent[name].numpy().ravel() for name, _ in trainer.layout])
    state: Any = {}
    for number in (1, 2, 3):
        seed = integer_seed(0, "train", number, "client-0")
        training = TrainOptions("adam", optimizer_state="keep")
        work = ClientWork("client-0", np.arange(40), 10, 8, 0.1, 0.0, None, seed, training=training, state=state)
        trained = trainer.train(weights, work)
        weights, state = weights + trained.update, trained.state
    got = np.concatenate([result.arrays[name].numpy().ravel() for name, _ in trainer.layout])
    assert got == pytest.approx(weights, abs=1e-6)


def test_an_optimizer_that_only_the_server_has_is_refused_by_name() -> None:
    with pytest.raises(BadSetting, match=r"client_app\(optimizer="):
        Nodes(1, model=linear).start("fedavg+wfa", 1, initial=linear, settings={"optimizer": "custom"})


def test_a_function_of_the_round_is_the_rate_on_flower() -> None:
    plain = Nodes(1, model=linear).start("fedavg+wfa", 2, initial=linear)[1]
    changed = Nodes(1, model=linear).start("fedavg+wfa", 2, initial=linear, learning_rate=lambda number: 0.1 / number)[
        1
    ]
    assert np.abs(changed.arrays["weight"].numpy() - plain.arrays["weight"].numpy()).max() > 1e-3


def test_an_optimizer_that_cannot_be_used_is_told() -> None:
    for make, said in (
        (torch.optim.LBFGS, "LBFGS"),
        (lambda parameters, lr: None, "NoneType"),
        (torch.nn.ReLU, "failed"),
    ):
        with pytest.raises(BadSetting, match=said):
            Nodes(1, optimizer=make).start("fedavg+wfa", 1)


def test_a_held_device_reports_its_own_speed() -> None:
    nodes = Nodes(1, hold=lambda context, round: DeviceDraw(0.02, 0.0, 0.0))
    nodes.start("fedavg+wfa", 1)
    report = nodes.replies[-1].content["metrics"]
    assert report["train-s"] >= 10 * 0.02


def test_another_model_than_the_servers_is_told() -> None:
    with pytest.raises(BadData, match="differs"):
        Nodes(1, model=lambda: torch.nn.Linear(5, 3)).start("fedavg+wfa", 1)


def test_the_server_cannot_take_the_noise_off() -> None:
    """A curious server knows the seed of its own orders, and every random stream that depends on it."""
    sigma, settings = 10.0, {"noise_factor": 10.0}
    exact = lows(0.0)
    noisy = lows(sigma, settings=settings)
    guesses = []
    for purpose in ("noise", "samples", "train", "torch", "compress"):
        for round in range(3):
            drawn = stream(0, purpose, round, "client-0").normal(0.0, sigma, size=5)
            guesses += [noisy - value for value in drawn]
    assert min(abs(guess - exact) for guess in guesses) > 1e-6
    assert len({lows(sigma, settings=settings) for _ in range(3)} | {noisy}) == 4


def lows(noise_factor: float, **options: Any) -> float:
    """LLow as the server gets it in the first round."""
    nodes = Nodes(1)
    nodes.start("fedavg+wfa", 1, **options)
    return float(nodes.replies[-1].content["metrics"]["loss-low"])


class SlowsDown(PhoneClock):
    """After five batches, each takes four times as long."""

    def computed(self, batches: float) -> None:
        super().computed(4 * batches if self.at_s >= 5 else batches)


@pytest.mark.parametrize(("name", "epochs"), [("prox+1t", 1.0), ("prox+1t+batches", 1.4)])
def test_a_client_that_is_stopped_reports_the_state_that_counts(name: str, epochs: float) -> None:
    """The sixth and seventh of ten batches are slow: one epoch of five counts under Prox, all seven with `+batches`."""
    x, y = samples(make_context(2, **{"partition-id": 0}))
    model = TorchModel(net, example=lambda: x[:8])
    policies, weights = method(name).client, model.initial_weights(0)
    order = make_order(epochs=2, batch_size=8, learning_rate=0.1, deadline_s=11.0)
    clock = SlowsDown(1.0)
    live = LiveRound(policies, order, "ann", 40, ClientMemory(), 1.0, budget_s=11.0, clock=clock, began_s=0.0)
    with model.training(weights, (x, y), live.work()) as training:
        found = live.train(training)
    counted = round(5 * epochs)
    assert (live.done, live.countable_batches(live.done)) == ((7, 7) if "batches" in name else (7, 5))
    wanted = model.train(weights, (x, y), live.work(counted))
    assert found is not None
    assert found.update == pytest.approx(wanted.update, abs=1e-6)
    assert (found.seen.tolist(), len(found.losses)) == (list(range(40)), 40)


def test_a_client_whose_time_is_up_before_it_could_look_says_so() -> None:
    """Its threshold needs losses that it does not have, and the way back alone takes longer than what is left."""
    context, policies = make_context(2, **{"partition-id": 0}), method("fedbalancer").client.to_json() or ""
    order = make_order(loss_threshold=0.5, deadline_s=1.0, epochs=2, batch_size=8)
    told = Instruction("client-0", order, 0.0, 0, 1.0, "run", "fedbalancer", policies)
    content = RecordDict({"arrays": ArrayRecord(net().state_dict()), "fedbalancer": told.record()})
    work = balanced(Message(content, 2, "train", ttl=100.0), context, size=40)
    assert len(work.select(forward=lambda: pytest.fail("looked for nothing"))) == 0
    of_torch = client_app(net, samples)(Message(content, 2, "train", ttl=100.0), context)
    for reply in (of_torch, work.reply(work.arrays, losses=np.zeros(0))):
        assert reply.content.config_records["fedbalancer"]["outcome"] == "stopped"
