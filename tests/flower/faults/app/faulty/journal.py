"""The actions of a client on disk, where a later check finds it: also those of a client that was killed soon after."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message


class Journal:
    """The lines of one client. `script` in the node's configuration names the fault of every order in turn, separated
    by commas; after the last one the client is good."""

    def __init__(self, context: Context) -> None:
        config = context.node_config
        self.client, self.run = str(config["client-id"]), context.run_id
        self.file = Path(str(config["journal"])) / f"{self.client}.jsonl"
        self.script = [word for word in str(config.get("script", "")).split(",") if word]

    def begin(self, round: int) -> str:
        """Note that an order has come; the fault to commit."""
        done = self.file.read_text().count('"began"') if self.file.exists() else 0
        fault = self.script[done] if done < len(self.script) else "good"
        self.write("began", round, fault)
        return fault

    def sent(self, round: int, fault: str, reply: Message) -> None:
        """Note the report that is about to be sent, its weight and its update, or that there is none."""
        if not reply.content.array_records:
            self.write("stopped", round, fault)
            return
        metrics, (arrays,) = reply.content.metric_records["metrics"], reply.content.array_records.values()
        (vector,) = arrays.values()
        self.write("sent", round, fault, weight=metrics["num-examples"], update=vector.numpy().ravel().tolist())

    def write(self, what: str, round: int, fault: str, **more: Any) -> None:
        line = {
            "what": what,
            "client": self.client,
            "run": self.run,
            "round": round,
            "fault": fault,
        }
        with open(self.file, "a") as file:
            file.write(json.dumps({**line, "at_s": time.monotonic(), **more}) + "\n")
