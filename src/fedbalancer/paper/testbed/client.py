"""The client app of an emulated phone: trains for real, and answers when the phone would.

What a phone does in a round is worked out on the phone's own clock, on which a batch takes what it takes there. The
training itself is done at once, and only as far as it counts; then the app pauses until the phone's report would have
arrived. A machine keeps up as long as all real work of a round fits into the phone's time for the round. What is beyond
that is the lag, which the phone writes down; the clock of the bed stands still meanwhile, unless it is in real time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import ArrayLike

from fedbalancer.core.contracts import DeviceModel, Draw
from fedbalancer.core.types import ClientWork, FloatArray, TrainResult, Weights
from fedbalancer.flower.client import LocalRound, balanced, introduce
from fedbalancer.flower.compat import ClientApp, Context, Message
from fedbalancer.flower.messages import round_of
from fedbalancer.paper.testbed.plan import BedPlan

TRAVEL_S = 0.25
"""Seconds of this machine that a report takes from the app to the server. In real time the app answers so much earlier;
else the clock waits for it."""


def order_name(round: int, client: str) -> str:
    """By what name a client's order of a round holds the clock of the bed."""
    return f"{round} {client}"


def _nap(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@dataclass
class PhoneClock:
    """The clock of a phone on which a batch takes `batch_s`: it goes on only by what the phone computes."""

    batch_s: float
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    def computed(self, batches: float) -> None:
        self.at_s += batches * self.batch_s


class PhoneTrainer(Protocol):
    """What a phone trains with: torch, or a model file."""

    def prepare(self) -> None: ...
    def losses(self, weights: Weights, client: str) -> FloatArray: ...
    def train(self, weights: Weights, work: ClientWork) -> TrainResult: ...


@dataclass(frozen=True, eq=False)
class EmulatedPhone:
    """One client of the bed. Where the network is real (`--netns`) only the training takes a pause."""

    client: str
    plan: BedPlan
    devices: DeviceModel
    trainer: PhoneTrainer
    model_bytes: int

    def loaded_app(self) -> ClientApp:
        """The app, when all that it needs is ready: only a fork of its own may do that, since torch starts threads."""
        self.trainer.prepare()
        return self.app()

    def app(self) -> ClientApp:
        """The app that the runner of this phone keeps."""
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
        return self.plan.loaded.clients[self.client][1]

    def train(self, message: Message, context: Context) -> Message:
        """One round of the phone."""
        plan, began, round = self.plan, time.monotonic(), round_of(message)
        order_s = max(time.time() - message.metadata.created_at, 0.0)  # one machine, one clock
        draw = self.devices.draw(self.client, round, self.model_bytes, self.model_bytes)
        clock = PhoneClock(draw.batch_s)
        work = balanced(message, context, size=self.size, clock=clock, labels=self._labels)
        name, bed = order_name(round, self.client), plan.clock()
        sent_s = bed.now_s() - (order_s * plan.speed if plan.in_real_time else 0.0)
        reply = self._worked(work)
        due_s = clock.at_s + (0.0 if plan.netns else draw.download_s + draw.upload_s)
        real_s = order_s + time.monotonic() - began + TRAVEL_S
        ahead_s = TRAVEL_S * plan.speed if plan.in_real_time and not plan.netns else 0.0
        bed.promise(name, sent_s + due_s)
        bed.wait(sent_s + due_s - ahead_s, _nap)
        bed.hold(name)  # until the server has the report
        arrives_s = bed.now_s() + ahead_s - sent_s
        self._write_down(work, draw, clock, order_s=order_s, real_s=real_s, arrives_s=arrives_s)
        return reply

    def _worked(self, work: LocalRound) -> Message:
        """The reply. How far the phone gets is known from its clock, so that only what counts is trained."""
        weights = work.weights()
        work.select(forward=lambda: self.trainer.losses(weights, self.client))
        for _ in work.batches():
            pass
        batches = work.live.countable_batches(work.done)
        return work.report(self.trainer.train(weights, work.live.work(batches)) if batches else None)

    def _batch_s(self, context: Context, batch_size: int, count: int) -> Sequence[float]:
        return [float(seconds) for seconds in self.devices.sample_batch_s(self.client, count)]

    def _write_down(
        self, work: LocalRound, draw: Draw, clock: PhoneClock, order_s: float, real_s: float, arrives_s: float
    ) -> None:
        """What the phone did, in its own seconds: what its recording says, when the order came (`order_s`), when the
        report was made (`real_s`) and when it arrives, and by how much the machine was too slow (`lag_s`)."""
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
