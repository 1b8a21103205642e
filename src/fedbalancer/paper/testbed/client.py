"""The client app of an emulated phone: it trains for real and replies when the recorded phone would.

What a phone does in a round is computed on the phone's own clock, on which a batch takes the recorded seconds. The app
trains only the batches that count, at full speed, and then pauses until the phone's report would have arrived. The
machine keeps up as long as the real work of a round fits into the phone's time for the round. The excess is the lag,
which the phone logs; the test bed's clock stops meanwhile, except in real time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import ArrayLike

from fedbalancer.core.interfaces import DeviceModel, Draw
from fedbalancer.core.types import ClientWork, FloatArray, TrainResult, Weights
from fedbalancer.flower.client import LocalRound, balanced
from fedbalancer.flower.compat import ClientApp, Context, Message
from fedbalancer.flower.introduction import introduce
from fedbalancer.flower.messages import round_of
from fedbalancer.paper.testbed.plan import BedPlan

TRAVEL_S = 0.25
"""Seconds of this machine that a report travels from the app to the server. In real time the app replies this much
earlier; otherwise the clock waits."""


def order_name(round_number: int, client: str) -> str:
    """Return the name under which a client's order of a round holds the test bed's clock.

    Args:
        round_number: The round.
        client: The client.
    """
    return f"{round_number} {client}"


def _nap(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@dataclass
class PhoneClock:
    """A phone's clock: it advances only by what the phone computes.

    Args:
        batch_s: Seconds per batch.
        at_s: The time of the clock.
    """

    batch_s: float
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    def computed(self, batches: float) -> None:
        self.at_s += batches * self.batch_s


class PhoneTrainer(Protocol):
    """The trainer of a phone: PyTorch, or a model file."""

    def prepare(self) -> None: ...
    def losses(self, weights: Weights, client: str) -> FloatArray: ...
    def train(self, weights: Weights, work: ClientWork) -> TrainResult: ...


@dataclass(frozen=True, eq=False)
class EmulatedPhone:
    """One client of the test bed. With a shaped network (`--netns`) it pauses for the training only.

    Args:
        client: Name of the client.
        plan: Plan of the test bed.
        devices: Recorded or modelled latencies.
        trainer: Trains the client's samples.
        model_bytes: Bytes of the model on the wire.
    """

    client: str
    plan: BedPlan
    devices: DeviceModel
    trainer: PhoneTrainer
    model_bytes: int

    def loaded_app(self) -> ClientApp:
        """Prepare the trainer and return the app; only in the phone's own fork, because torch starts threads."""
        self.trainer.prepare()
        return self.app()

    def app(self) -> ClientApp:
        """Return the app that this phone's process keeps."""
        app = ClientApp()
        introduce(app, lambda context: self.size, batch_s=self._batch_s)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            return self.train(message, context)

        return app

    @property
    def size(self) -> int:
        return int(self.plan.loaded.sizes[self.client])

    def _labels(self) -> ArrayLike:
        labels: ArrayLike = self.plan.loaded.labels(self.client)
        return labels

    def train(self, message: Message, context: Context) -> Message:
        """Train one round and reply when the phone would."""
        plan, began, round_number = self.plan, time.monotonic(), round_of(message)
        order_s = max(time.time() - message.metadata.created_at, 0.0)  # one machine, one clock
        draw = self.devices.draw(self.client, round_number, self.model_bytes, self.model_bytes)
        clock = PhoneClock(draw.batch_s)
        work = balanced(message, context, size=self.size, clock=clock, labels=self._labels)
        name, bed = order_name(round_number, self.client), plan.clock()
        sent_s = bed.now_s() - (order_s * plan.speed if plan.in_real_time else 0.0)
        reply = self._train(work)
        due_s = clock.at_s + (0.0 if plan.netns else draw.download_s + draw.upload_s)
        real_s = order_s + time.monotonic() - began + TRAVEL_S
        ahead_s = TRAVEL_S * plan.speed if plan.in_real_time and not plan.netns else 0.0
        bed.promise(name, sent_s + due_s)
        bed.wait(sent_s + due_s - ahead_s, _nap)
        bed.hold(name)  # until the server has the report
        arrives_s = bed.now_s() + ahead_s - sent_s
        self._log(work, draw, clock, order_s=order_s, real_s=real_s, arrives_s=arrives_s)
        return reply

    def _train(self, work: LocalRound) -> Message:
        """Train the batches that count, as the phone's clock predicts, and return the reply."""
        weights = work.weights()
        work.select(forward=lambda: self.trainer.losses(weights, self.client))
        for _ in work.batches():
            pass
        batches = work.live.countable_batches(work.done)
        return work.report(self.trainer.train(weights, work.live.work(batches)) if batches else None)

    def _batch_s(self, context: Context, batch_size: int, count: int) -> Sequence[float]:
        return [float(seconds) for seconds in self.devices.sample_batch_s(self.client, count)]

    def _log(
        self, work: LocalRound, draw: Draw, clock: PhoneClock, order_s: float, real_s: float, arrives_s: float
    ) -> None:
        """Log the phone's round in its own seconds: the recorded times, when the order arrived (`order_s`), when the
        report was finished (`real_s`), when it arrives, and by how much the machine was too slow (`lag_s`)."""
        speed, live = self.plan.speed, work.live
        row: dict[str, Any] = {
            "round": work.order.round, "client": self.client, "download_s": draw.download_s, "batch_s": draw.batch_s,
            "upload_s": draw.upload_s, "batches": live.done, "samples": len(live.indices), "busy_s": clock.at_s,
            "forward_s": live.forward_s, "order_s": order_s * speed, "real_s": real_s * speed,
            "arrives_s": arrives_s,
            "lag_s": max(real_s * speed - (draw.download_s + clock.at_s + draw.upload_s), 0.0),
        }  # fmt: skip
        folder: Path = self.plan.phone_logs(work.instruction.method)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{self.client}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
