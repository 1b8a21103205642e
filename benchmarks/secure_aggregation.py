"""Measure secure aggregation on a real Flower federation: rounds with it, against the same rounds without.

    python benchmarks/secure_aggregation.py [--rounds 10] [--repeats 3] [--out DIR]

A SuperLink and five SuperNodes run on loopback. Runs with and without `secure_aggregation` alternate: the same method,
clients, model and seed. The ratio is that of the median seconds of a round; its interval is a bootstrap over rounds.
The cost of the cryptography alone is measured without Flower, for models of several sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.flower.compat import Context, RecordDict, make_reply
from fedbalancer.flower.federation import Federation
from fedbalancer.flower.messages import Instruction
from fedbalancer.flower.secure import SecureAggregation, answer_sum, hold_update, open_sum

APP = Path(__file__).parent.parent / "tests" / "flower" / "app"
CLIENTS = 5
METHOD = "fedavg+2t+silent"


def run(secure: bool, rounds: int, folder: Path) -> pl.DataFrame:
    """Return the rounds of one run."""
    manifest = folder / "runs" / "first" / "manifest.json"
    with Federation(folder / "federation", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number in range(CLIENTS):
            environment = {"FEDBALANCER_CLIENT_FOLDER": str(folder / f"client{number}")}
            federation.supernode(f"node{number}", f"partition-id={number}", environment)
        config = f'folder="{folder / "runs"}" key="first" method="{METHOD}" rounds={rounds} clients={CLIENTS}'
        federation.run(APP, "--run-config", f"{config} secure={str(secure).lower()}")
        while not (manifest.exists() and json.loads(manifest.read_text())["status"] != "running"):
            time.sleep(1.0)
    return pl.read_parquet(manifest.parent / "rounds.parquet")


def interval(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the medians, and its bootstrap interval of 95%."""
    rng = np.random.default_rng(0)
    draws = [np.median(rng.choice(values, len(values))) / np.median(rng.choice(base, len(base))) for _ in range(4000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.median(values) / np.median(base)), float(low), float(high)


def measure_cryptography(parameters: int, clients: int, lost: int) -> dict[str, float]:
    """Return the processor seconds of one sum: of a client, and of the server."""
    settings = SecureAggregation()
    spent, asked = dict.fromkeys(range(clients), 0.0), [0.0]
    contexts = [Context(run_id=1, node_id=n, node_config={}, state=RecordDict(), run_config={}) for n in range(clients)]
    update, keys = np.random.default_rng(0).normal(size=parameters).astype(np.float32), {}
    for number, context in enumerate(contexts):
        began = time.process_time()
        record = hold_update(context, _instruction(number, settings, clients), update, ())
        spent[number] += time.process_time() - began
        keys[f"c{number:03}"] = (record["mask"], record["seal"])

    def ask(stage: str, requests: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
        replies = {}
        for client, content in requests.items():
            number = int(client[1:])
            if stage == "mask" and number < lost:
                continue
            began = time.process_time()
            replies[client] = answer_sum(make_reply(content, 2), contexts[number]).content
            spent[number] += time.process_time() - began
            asked[0] += time.process_time() - began
        return replies

    began = time.process_time()
    open_sum(keys, settings.needed(clients), "run", 1, parameters + 1, ask)  # type: ignore[arg-type]
    server_s = time.process_time() - began - asked[0]
    return {"client_s": float(np.mean([spent[n] for n in range(lost, clients)])), "server_s": server_s}


def _instruction(number: int, settings: SecureAggregation, clients: int) -> Instruction:
    from fedbalancer.core.types import Order

    order, bits = Order(1, 0.0, 60.0, 1, 10, 0), settings.bits(clients)
    return Instruction(f"c{number:03}", order, 60.0, 0, 1.0, "run", "m", "", sum_bits=bits, sum_clip=settings.clip)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="folder for results.json")
    given = parser.parse_args()
    result: dict[str, Any] = {"rounds": given.rounds, "repeats": given.repeats, "cryptography": []}
    for parameters, clients, lost in ((100_000, 5, 0), (100_000, 5, 1), (1_000_000, 5, 0), (100_000, 20, 0)):
        cost = measure_cryptography(parameters, clients, lost)
        result["cryptography"].append({"parameters": parameters, "clients": clients, "lost": lost, **cost})
        print(f"{parameters} parameters, {clients} clients, {lost} lost: {cost}", flush=True)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    completed: dict[bool, list[int]] = {False: [], True: []}
    for repeat in range(given.repeats):
        for secure in (False, True):
            folder = Path(tempfile.mkdtemp(prefix=f"secure-{repeat}-"))
            rounds = run(secure, given.rounds, folder)
            seconds[secure] += (rounds["end_s"] - rounds["start_s"]).to_list()[1:]  # the first waits for clients
            completed[secure] += rounds["completed"].to_list()[1:]
            print(f"repeat {repeat}, secure {secure}: {seconds[secure][-given.rounds + 1 :]}", flush=True)
    ratio, low, high = interval(seconds[True], seconds[False])
    result |= {
        "seconds": {"without": seconds[False], "with": seconds[True]},
        "completed": {"without": float(np.mean(completed[False])), "with": float(np.mean(completed[True]))},
        "median_s": {"without": float(np.median(seconds[False])), "with": float(np.median(seconds[True]))},
        "ratio": ratio, "interval": [low, high],
    }  # fmt: skip
    print(f"seconds per round: {result['median_s']}; ratio {ratio:.2f} (95% CI {low:.2f}-{high:.2f})")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
