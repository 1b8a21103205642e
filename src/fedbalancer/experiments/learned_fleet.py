"""Learns a fleet from a run folder: how fast every device computed, how fast its network was, and when it answered.

`learn` fits a `Fleet` to a recording, and `LearnedFleet.write` writes the fleet, a description of how it was learned,
and a picture of measured and fitted seconds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import write_json
from fedbalancer.core.randomness import stream
from fedbalancer.experiments.recording import ABSENT, ANSWERED, Recording, read_recording
from fedbalancer.experiments.unanswered import orders_missed_by_lateness, with_expected_network
from fedbalancer.simulation.devices import Device, Fleet
from fedbalancer.simulation.devices.trace_files import DAY_S
from fedbalancer.store.contents import read_events

FORMAT = "learned fleet 1"
PRIOR_ROUNDS = 5
"""Weight of the whole fleet's relative deviation in a device's own, in rounds."""
FEW_ROUNDS = 3
"""A device with fewer measured rounds is reported as hardly known."""
LONGEST_LIST = 2000
"""Most online slots of a device in a period."""
HOUR_S = 3600.0
BAND = 1.645
"""Half the width of a 90% band of a normal distribution, in standard deviations."""
CLASSES = ("slow", "mid", "fast")
DESCRIBED = {
    "format": str, "fleet_sha256": str, "window_s": int | float, "seconds": int | float, "rounds": int, "notes": list,
    "measured_rounds": dict,
}  # fmt: skip
"""Fields of a description that forecasts read, with their types."""


@dataclass(frozen=True, eq=False)
class LearnedFleet:
    """A fleet that was learned from a run.

    Args:
        fleet: The devices that were measured.
        devices: A row per client: `client`, `rounds` (measured rounds), `source` (rounds, greeting or nothing),
            `asked`, `answered`, `samples`, and mean and deviation of what was measured.
        recording: What it was learned from.
        notes: What is not known, in sentences.
        by: device or class.
    """

    fleet: Fleet
    devices: pl.DataFrame
    recording: Recording
    notes: tuple[str, ...]
    by: str = "device"

    @property
    def coverage(self) -> dict[str, float | None]:
        """Share of measured values in the fitted 90% band of their device, by column."""
        return {name: band_coverage(self.fleet, self.recording.clients, name) for name in MEASURED}

    def to_json(self) -> dict[str, Any]:
        """Return how the fleet was learned, as plain values."""
        record = self.recording
        return {
            "format": FORMAT,
            "fleet_sha256": self.fleet.digest,
            "run": str(record.folder.absolute()),
            "method": record.manifest.get("method"),
            "task": (record.manifest.get("task") or {}).get("name"),
            "clients_per_round": record.manifest.get("settings", {}).get("clients_per_round"),
            "by": self.by,
            "rounds": record.rounds.height,
            "seconds": float(record.seconds.sum()),
            "window_s": record.window_s(),
            "overhead_s": record.overhead_s,
            "down_bytes": record.down_bytes,
            "up_bytes": record.up_bytes,
            "batch_size": record.batch_size,
            "in_90_band": self.coverage,
            "measured_rounds": dict(zip(self.devices["client"], self.devices["rounds"], strict=True)),
            "devices": self.devices.to_dicts(),
            "notes": list(self.notes),
        }

    def write(self, path: Path) -> list[Path]:
        """Write the fleet, its description beside it (`NAME.learned.json`), and a picture (`NAME.png`).

        Args:
            path: A file that ends in .csv or .parquet.

        Returns:
            The written files.

        Raises:
            BadSetting: If the name of the file ends otherwise.
        """
        from fedbalancer.reporting.plotting import plot_learned_fleet, write_figure

        writers = {".csv": self.fleet.to_csv, ".parquet": self.fleet.to_parquet}
        if path.suffix.lower() not in writers:
            raise BadSetting(f"--out {path} must end in .csv or .parquet")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSetting(f"--out {path} cannot be written: {error.strerror}") from error
        writers[path.suffix.lower()](path)
        write_json(description_path(path), self.to_json())
        figure = plot_learned_fleet(self.fleet, self.recording.clients, path.name)
        return [path, description_path(path), write_figure(figure, path.with_suffix(".png"))]


MEASURED = {"batch_s": "std_s", "down_mbit_s": "down_std_mbit_s", "up_mbit_s": "up_std_mbit_s"}
"""Fitted means of a device and the names of their deviations."""


def description_path(path: Path) -> Path:
    """Return the path of the description of a learned fleet.

    Args:
        path: The file of the fleet.
    """
    return path.with_suffix(".learned.json")


def read_description(path: Path | None, fleet: Fleet) -> dict[str, Any] | None:
    """Return how the fleet of a file was learned; None if it was not learned, or changed since.

    Args:
        path: The file of the fleet.
        fleet: Its content.
    """
    if path is None or not description_path(path).is_file():
        return None
    try:
        content = json.loads(description_path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{description_path(path)} is damaged ({error}); delete it, or learn again") from error
    fields = content if isinstance(content, dict) else {}
    if any(not isinstance(fields.get(name), kind) for name, kind in DESCRIBED.items()):
        raise RunFolderError(f"{description_path(path)} does not describe a learned fleet; delete it, or learn again")
    return fields if fields["format"] == FORMAT and fields["fleet_sha256"] == fleet.digest else None


def learn(
    folder: Path | str, *, rounds: int | None = None, by: str = "device", count: int | None = None
) -> LearnedFleet:
    """Learn a fleet from a run.

    A device's means are those of its measured rounds. Its deviations are pooled with those of the whole fleet, because
    a few rounds are too few to measure one. A device that never completed a round has the speed that its greeting
    measured; without one it is left out, and its client gets a measured device that is drawn. An order without an
    answer counts with the network that the server expected; a device is offline only for what lateness does not
    explain.

    Args:
        folder: The run folder.
        rounds: Learn from the first rounds only. Default: all.
        by: device (one device per client) or class (devices that are drawn from the slow, mid and fast thirds).
        count: Number of devices with by="class". Default: the number of measured clients.

    Returns:
        The fleet and how it was learned.

    Raises:
        RunFolderError: If nothing was measured.

    Example:
        >>> import fedbalancer as fb, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> result = fb.run("synthetic", "fedavg+wfa", users=8, rounds=4, timing_only=True, out=folder, overwrite=True)
        >>> learn(folder).fleet
        Fleet(8 devices)
    """
    if by not in ("device", "class"):
        raise BadSetting(f"by = {by!r} must be device or class")
    if count is not None and (by != "class" or count < 1):
        raise BadSetting(f"count = {count} needs by = 'class' and must be at least 1")
    record = read_recording(folder, rounds)
    answers = _answers(record)
    table = with_expected_network(record, _device_table(record, answers))
    pooled = {name: _relative_deviation(record.clients, name) for name in MEASURED}
    rows = [row for row in table.iter_rows(named=True) if row["batch_s"] is not None]
    if not rows:
        raise RunFolderError(f"{record.folder}: no client reported how long it trained, so no device can be learned")
    split = math.sqrt(2) if record.splits_evenly else 1.0  # two independent halves deviate more than their sum
    typical = _typical_network(table, pooled, split)
    devices = [_device(row, pooled, record.batch_size, split, typical) for row in rows]
    classes, tags = _classes(record, devices), _tags(record.folder)
    devices = [replace(device, device_class=classes[device.id], tags=tags.get(device.id, "")) for device in devices]
    late = orders_missed_by_lateness(record, table, pooled["down_mbit_s"])
    slots, period_s = _online_slots(record, answers, late)
    devices = [replace(device, online=slots.get(device.id)) for device in devices]
    if by == "class":
        devices = _draw_by_class(devices, count or len(devices))
    return LearnedFleet(Fleet(devices, period_s), table, record, tuple(_notes(record, table, answers)), by)


def _device_table(record: Recording, answers: pl.DataFrame) -> pl.DataFrame:
    """Return one row per client with the means and deviations of its measurements."""
    speeds = [pl.col(name).mean() for name in MEASURED]
    deviations = [pl.col(name).std().alias(deviation) for name, deviation in MEASURED.items()]
    counted = pl.col("batch_s").count().alias("rounds")
    samples = pl.col("samples").max()
    table = record.clients.group_by("client", maintain_order=True).agg(counted, samples, *speeds, *deviations)
    asked = answers.group_by("client", maintain_order=True).agg(asked=pl.len(), answered=pl.col("answered").sum())
    table = table.join(asked, on="client", how="left")
    known = pl.DataFrame(
        [(client, batch_s, size) for client, (batch_s, size, _) in record.ledger.items()],
        schema={"client": pl.String, "greeted_s": pl.Float64, "size": pl.Int64}, orient="row",
    )  # fmt: skip
    table = table.join(known, on="client", how="full", coalesce=True)
    measured = pl.when(pl.col("rounds") > 0).then(pl.lit("rounds"))
    source = measured.when(pl.col("greeted_s").is_not_null()).then(pl.lit("greeting")).otherwise(pl.lit("nothing"))
    return table.with_columns(
        source=source, batch_s=pl.coalesce("batch_s", "greeted_s"), samples=pl.coalesce("size", "samples"),
        rounds=pl.col("rounds").fill_null(0), asked=pl.col("asked").fill_null(0),
        answered=pl.col("answered").fill_null(0),
    ).drop("greeted_s", "size").sort("client")  # fmt: skip


def _relative_deviation(clients: pl.DataFrame, name: str) -> float:
    """Return the deviation between the rounds of one device as a share of its mean, over all devices."""
    grouped = clients.filter(pl.col(name).is_not_null()).group_by("client", maintain_order=True).agg(
        mean=pl.col(name).mean(), variance=pl.col(name).var(), count=pl.len()
    ).filter(pl.col("count") > 1)  # fmt: skip
    if not grouped.height:
        return 0.0
    shares, weights = (grouped["variance"] / grouped["mean"] ** 2).to_numpy(), grouped["count"].to_numpy() - 1
    return float(math.sqrt(float(shares @ weights) / float(weights.sum())))


def _device(
    row: Mapping[str, Any],
    pooled: Mapping[str, float],
    batch_size: int,
    split: float,
    typical_network: Mapping[str, float],
) -> Device:
    fitted: dict[str, Any] = {}
    for name, deviation in MEASURED.items():
        if row[name] is None:
            continue
        own = (row[deviation] or 0.0) / row[name]
        degrees = max(row["rounds"] - 1, 0)
        share = math.sqrt((degrees * own**2 + PRIOR_ROUNDS * pooled[name] ** 2) / (degrees + PRIOR_ROUNDS))
        fitted |= {name: row[name], deviation: row[name] * share * (1.0 if name == "batch_s" else split)}
    if "down_mbit_s" not in fitted or "up_mbit_s" not in fitted:
        fitted = {name: value for name, value in fitted.items() if "mbit" not in name}
        fitted |= typical_network if row["source"] == "greeting" else {}
    return Device(id=row["client"], batch_size=batch_size, **fitted)


def _typical_network(table: pl.DataFrame, pooled: Mapping[str, float], split: float) -> dict[str, float]:
    """Return the median network of the measured devices; empty if none was measured."""
    medians = {name: table[name].median() for name in ("down_mbit_s", "up_mbit_s")}
    if None in medians.values():
        return {}
    means = {name: float(value) for name, value in medians.items()}  # type: ignore[arg-type]
    return means | {MEASURED[name]: mean * pooled[name] * split for name, mean in means.items()}


def _classes(record: Recording, devices: Sequence[Device]) -> dict[str, str]:
    """Return the class of every device: the recorded one, else the third of the fleet by seconds per batch."""
    path = record.folder / "population.parquet"
    if path.is_file():
        known = pl.read_parquet(path, glob=False)
        recorded = dict(zip(known["client"], known["device"], strict=True))
        if all(recorded.get(device.id) for device in devices):
            return {device.id: recorded[device.id] for device in devices}
    order = sorted(devices, key=lambda device: (-(device.batch_s or 0.0), device.id))
    return {device.id: CLASSES[place * len(CLASSES) // len(order)] for place, device in enumerate(order)}


def _tags(folder: Path) -> dict[str, str]:
    """Return the last tags of every client, as the log of a Flower run names them."""
    named = [event for event in read_events(folder) if event["event"] in ("client introduced", "tags changed")]
    return {
        str(event["client"]): "+".join(tag for tag in event["tags"] if isinstance(tag, str))
        for event in named
        if "client" in event and isinstance(event.get("tags"), list)
    }


def _answers(record: Recording) -> pl.DataFrame:
    """Return who was asked when, and who answered without a pause."""
    answered = pl.col("outcome").is_in(ANSWERED) & (pl.col("paused_s") <= 0)
    known = record.clients.filter(pl.col("outcome").is_in([*ANSWERED, *ABSENT]))
    offset_s = (record.started - datetime(1970, 1, 5, tzinfo=UTC)).total_seconds()  # a Monday
    if record.is_simulated:
        offset_s = 0.0
    return known.select("client", "round", "start_s", answered=answered).with_columns(
        hour=((pl.col("start_s") + offset_s) % DAY_S // HOUR_S).cast(pl.Int64)
    )


def _online_slots(
    record: Recording, answers: pl.DataFrame, late: Mapping[str, float]
) -> tuple[dict[str, list[tuple[float, float]]], float | None]:
    """Return the online intervals of the devices that missed a round, and their period.

    Orders that were missed for lack of time (`late`) count as answered. Time is divided into slots of about a round. A
    device is online in a slot with its share of answers, times the share of the slot's hour of the day relative to the
    whole day, if the run lasted a day or longer. The draws depend on the client's id only.
    """
    if answers["answered"].all():
        return {}, None
    lasted_s = float(record.rounds["end_s"].max())  # type: ignore[arg-type]
    period_s = DAY_S * (7 if lasted_s > DAY_S else 1)
    slot_s = max(float(np.median(record.seconds)), period_s / LONGEST_LIST)
    starts = np.arange(0.0, period_s, slot_s)
    overall = min((float(answers["answered"].sum()) + sum(late.values())) / answers.height, 1.0)
    by_hour = np.ones(24)
    if lasted_s >= DAY_S:
        hourly = answers.group_by("hour").agg(answered=pl.col("answered").sum(), asked=pl.len())
        share = (hourly["answered"] + PRIOR_ROUNDS * overall) / (hourly["asked"] + PRIOR_ROUNDS)
        by_hour[hourly["hour"].to_numpy()] = share.to_numpy() / overall
    slots: dict[str, list[tuple[float, float]]] = {}
    for client, answered, asked in answers.group_by("client", maintain_order=True).agg(
        pl.col("answered").sum(), pl.len()
    ).sort("client").iter_rows():  # fmt: skip
        there = min(answered + late.get(client, 0.0), asked)
        if there > asked - 0.5 and (by_hour == 1).all():
            continue
        share = (there + 2 * overall) / (asked + 2)
        chance = np.clip(share * by_hour[(starts % DAY_S // HOUR_S).astype(np.int64)], 0.0, 1.0)
        drawn = stream(0, "learned online slots", 0, client).random(len(starts)) < chance
        slots[client] = [(float(start), float(min(start + slot_s, period_s))) for start in starts[drawn]]
    return slots, period_s


def _draw_by_class(devices: Sequence[Device], count: int) -> list[Device]:
    """Draw devices whose means are spread as those of their class, on a logarithmic scale."""
    drawn = []
    for number in range(count):
        rng = stream(0, "learned class", number)
        like = devices[int(rng.integers(len(devices)))]
        group = [device for device in devices if device.device_class == like.device_class]
        values: dict[str, Any] = {}
        for name, deviation in MEASURED.items():
            logs = [math.log(getattr(device, name)) for device in group if getattr(device, name) is not None]
            own = getattr(like, name)
            if own is None or not logs:
                continue
            spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
            mean = math.exp(statistics.fmean(logs) + spread * float(rng.standard_normal()))
            values |= {name: mean, deviation: getattr(like, deviation) / own * mean}
        if ("down_mbit_s" in values) != ("up_mbit_s" in values):
            values = {name: value for name, value in values.items() if "mbit" not in name}
        identity = f"{like.device_class}-{number:0{len(str(count))}d}"
        drawn.append(
            Device(
                id=identity,
                device_class=like.device_class,
                batch_size=like.batch_size,
                online=like.online,
                tags=like.tags,
                **values,
            )
        )
    return drawn


def _notes(record: Recording, table: pl.DataFrame, answers: pl.DataFrame) -> list[str]:
    """Return what is not known, in sentences."""
    notes = []
    unknown = table.filter(pl.col("source") == "nothing").height
    greeted = table.filter(pl.col("source") == "greeting").height
    few = table.filter((pl.col("source") == "rounds") & (pl.col("rounds") < FEW_ROUNDS)).height
    if unknown:
        notes.append(f"{unknown} of {table.height} clients never completed a round and are left out: their clients get "
                     "a measured device that is drawn, which may be faster than they are")  # fmt: skip
    if greeted:
        expected = all(
            record.ledger[client][2] > 0 for client in table.filter(pl.col("source") == "greeting")["client"]
        )
        network = "what the server expected" if expected else "the median of the others"
        notes.append(f"{greeted} of {table.height} clients never completed a round; their speed is that of their "
                     f"greeting, and their network is {network}")  # fmt: skip
    if few:
        notes.append(f"{few} of {table.height} clients completed fewer than {FEW_ROUNDS} rounds")
    missing = record.clients.filter(pl.col("outcome").is_in(ABSENT)).height
    if missing:
        notes.append(f"{missing} of {record.clients.height} orders were never answered; the seconds of these rounds "
                     "are not known, so devices may be slower than learned")  # fmt: skip
    if not record.is_simulated and answers["hour"].n_unique() < 24:
        notes.append(f"{answers['hour'].n_unique()} of 24 hours of the day were observed")
    return notes


def band_coverage(fleet: Fleet, clients: pl.DataFrame, name: str) -> float | None:
    """Return the share of measured values in the fitted 90% band of their device.

    Args:
        fleet: The fleet.
        clients: The measurements.
        name: Column of the measurements: batch_s, down_mbit_s or up_mbit_s.
    """
    fitted = {device.id: (getattr(device, name), getattr(device, MEASURED[name])) for device in fleet.devices}
    inside = [
        abs(value - fitted[client][0]) <= BAND * fitted[client][1] + 1e-9 * value
        for client, value in clients.select("client", name).drop_nulls().iter_rows()
        if fitted.get(client, (None,))[0] is not None
    ]
    return float(np.mean(inside)) if inside else None


def vary(fleet: Fleet, measured_rounds: Mapping[str, int], seed: int) -> Fleet:
    """Return a fleet whose means differ from the learned ones as much as their measurement may be wrong.

    The mean of n rounds has the standard error of a round divided by the square root of n. The draws depend on the seed
    and the device.

    Args:
        fleet: The learned fleet.
        measured_rounds: Number of measured rounds by device; a device that is missing counts as measured once.
        seed: The seed.
    """

    def varied(device: Device) -> Device:
        rng = stream(seed, "learned fleet", 0, device.id)
        changes: dict[str, Any] = {}
        for name, deviation in MEASURED.items():
            mean, own = getattr(device, name), getattr(device, deviation)
            error = float(rng.standard_normal())
            if mean is not None and own:
                share = own / mean / math.sqrt(max(measured_rounds.get(device.id, 1), 1))
                factor = math.exp(share * error)
                changes |= {name: mean * factor, deviation: own * factor}
        return replace(device, **changes)

    return Fleet([varied(device) for device in fleet.devices], fleet.period_s)
