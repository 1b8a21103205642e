"""Files of fleets: CSV and Parquet with one line per device, and the tables `[devices]` of TOML files.

Columns: `device` (required), the other fields of `Device`, and `period_s`, which is the same in all lines. In a CSV
file, `online` is a list such as `0-21600 79200-86400` (seconds) or `22:00-06:00` (hours and minutes of a day), `never`,
or empty for always.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from inspect import signature
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.files import write_bytes, write_text
from fedbalancer.simulation.devices.fleet import Device, Fleet, Interval
from fedbalancer.simulation.devices.trace_files import DAY_S

ID, PERIOD, ONLINE, NEVER = "device", "period_s", "online", "never"
COLUMNS = (ID, *(each.name for each in fields(Device) if each.name != "id"), PERIOD)
"""The columns of a file."""
TEXTS = (ID, "model", "device_class", "tags")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)")
MODEL_METHODS = ("expected_network_s", "sample_batch_s", "draw")
_KINDS = ("synthetic", "paper", "fedscale", "flash", "list")
Row = tuple[str, Mapping[str, Any]]
"""Place of a device in a file, and its values by column."""


def csv_rows(path: Path) -> Iterator[Row]:
    """Read the rows of a CSV file.

    Args:
        path: The file.

    Raises:
        BadData: If the file is invalid; the message names line and column.
        MissingData: If there is no such file.
    """
    try:
        text = _read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not UTF-8 text: {error}") from error
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(path, header)
        for cells in reader:
            where = f"line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise BadData(f"{path}, {where} has {len(cells)} cells, but the header has {len(header)} columns")
            yield where, dict(_csv_values(f"{path}, {where}", zip(header, cells, strict=True)))
    except csv.Error as error:
        raise BadData(f"{path}, line {reader.line_num}: {error}") from error


def parquet_rows(path: Path) -> Iterator[Row]:
    """Read the rows of a Parquet file.

    Args:
        path: The file.

    Raises:
        BadData: If the file is invalid; the message names row and column.
        MissingData: If there is no such file.
    """
    import polars as pl

    data = _read(path)
    try:
        frame = pl.read_parquet(BytesIO(data))
    except Exception as error:  # polars raises errors of many types
        raise BadData(f"{path} is not a valid Parquet file: {str(error).splitlines()[0]}") from error
    _check_columns(path, frame.columns)
    for number, row in enumerate(frame.iter_rows(named=True)):
        yield f"row {number}", _parquet_row(path, number, row)


def write_csv(fleet: Fleet, path: Path) -> None:
    """Write a fleet to a CSV file. Numbers are exact."""
    rows, columns = _file_rows(fleet)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(name, row[name]) if row.get(name) is not None else "" for name in columns])
    write_text(path, text.getvalue())


def write_parquet(fleet: Fleet, path: Path) -> None:
    """Write a fleet to a Parquet file."""
    import polars as pl

    rows, columns = _file_rows(fleet)
    special: dict[str, Any] = {"batch_size": pl.Int64, ONLINE: pl.List(pl.List(pl.Float64))}
    schema = {name: pl.String if name in TEXTS else special.get(name, pl.Float64) for name in columns}
    values = {name: [row.get(name) for row in rows] for name in columns}
    buffer = BytesIO()
    pl.DataFrame(values, schema=schema).write_parquet(buffer)
    write_bytes(path, buffer.getvalue())


def read_fleet(path: Path) -> Fleet:
    """Read a fleet from a CSV or Parquet file.

    Args:
        path: The file.

    Raises:
        BadSetting: If the name of the file ends in neither .csv nor .parquet.
    """
    readers: dict[str, Callable[[Path], Fleet]] = {".csv": Fleet.from_csv, ".parquet": Fleet.from_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise BadSetting(f"devices = {str(path)!r} must be a file that ends in .csv or .parquet, or paper")
    return reader(path)


def fleet_of_table(table: Mapping[str, Any], folder: Path = Path()) -> Fleet:
    """Return the fleet of a table `[devices]`: a `file`, or a `kind` with the options of its constructor.

    Args:
        table: The table. A `sha256` is the digest that the fleet must have.
        folder: The folder to which paths are relative.

    Raises:
        BadSetting: If the table has unknown or missing keys, or invalid values.
        BadData: If the fleet does not have the digest.
    """
    options = dict(table)
    digest = options.pop("sha256", None)
    fleet = _make(options, folder)
    if digest is not None and fleet.digest != digest:
        place = next((str(table[key]) for key in ("file", "devices", "traces") if isinstance(table.get(key), str)), "")
        raise BadData(
            f"the fleet {place or 'of this run'} has changed: its content has the SHA-256 {fleet.digest[:12]}…, the "
            f"run started with {str(digest)[:12]}…; restore the file, or start the run again"
        )
    return fleet


def _make(options: dict[str, Any], folder: Path) -> Fleet:
    kind = options.pop("kind", None)
    if ("file" in options) == (kind is not None):
        raise BadSetting(f"[devices] needs file or kind ({', '.join(_KINDS[:-1])}), and not both")
    if kind is None:
        file = options.pop("file")
        if options or not isinstance(file, str):
            unknown = next(iter(options), "file")
            raise BadSetting(f"[devices] with a file has no other keys, and the file is a text; got {unknown!r}")
        return read_fleet(folder / Path(file).expanduser())
    if kind not in _KINDS:
        raise UnknownName("kind of devices", str(kind), _KINDS[:-1])
    if kind == "list":
        return Fleet([Device(**row) for row in options.get("devices", ())], options.get("period_s"))
    make = getattr(Fleet, {"fedscale": "from_fedscale", "flash": "from_flash"}.get(kind, kind))
    for key in ("devices", "availability", "traces", "speeds", "models"):
        if isinstance(options.get(key), str):
            options[key] = folder / options[key]
    known = signature(make).parameters
    for key in options:
        if key not in known:
            raise UnknownName(f"key in [devices] with kind = {kind!r}", key, known)
    try:
        fleet: Fleet = make(**options)
    except TypeError as error:
        raise BadSetting(f"[devices] with kind = {kind!r}: {str(error).partition('() ')[2] or error}") from error
    return fleet


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingData(f"there is no fleet file {path}") from error
    except OSError as error:
        raise BadData(f"cannot read the fleet file {path}: {error.strerror}") from error


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    names = list(columns)
    if len(names) == 1 and re.search("[;\t|]", names[0]):
        raise BadData(f"{path}, line 1: the header is one column, {names[0]!r}; separate columns by commas")
    for name in names:
        if name not in COLUMNS:
            raise BadData(f"{path}, header: {UnknownName('column', name, COLUMNS)}")
        if names.count(name) > 1:
            raise BadData(f"{path}, header: column {name} appears twice")
    if ID not in names:
        raise BadData(
            f"{path}, header: there is no column {ID}; the first line names the columns: {', '.join(COLUMNS)}"
        )


def _csv_values(where: str, cells: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        text = cell.strip()
        if name == ID:
            yield name, cell
        elif text:
            yield name, _parse(where, name, text)


def _parse(where: str, name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    if name == ONLINE:
        return [] if text == NEVER else [_interval(where, part) for part in re.split(r"[;\s]+", text) if part]
    try:
        return int(text) if name == "batch_size" else float(text)
    except ValueError:
        right = "a whole number" if name == "batch_size" else "a number such as 0.25"
        raise BadData(f"{where}, column {name}: {text!r} must be {right}") from None


def _interval(where: str, text: str) -> Interval:
    parts = text.split("-")
    try:
        if len(parts) != 2:
            raise ValueError
        start, end = (_seconds(part) for part in parts)
    except ValueError:
        raise BadData(
            f"{where}, column {ONLINE}: {text!r} must be start-end in seconds (0-21600) or in hours (22:00-06:00)"
        ) from None
    return start, end


def _seconds(text: str) -> float:
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return float(text)
    hours, minutes = int(clock[1]), int(clock[2])
    if hours * 60 + minutes > 24 * 60 or minutes > 59:
        raise ValueError
    return 3600.0 * hours + 60.0 * minutes


def _over_midnight(intervals: Iterable[Interval]) -> list[Interval]:
    """Split intervals that end before they start, such as 22:00-06:00, at the end of the day."""
    split: list[Interval] = []
    for start, end in intervals:
        if end < start < DAY_S:
            split += [(start, DAY_S), *([(0.0, end)] if end > 0 else [])]
        else:
            split.append((start, end))
    return split


def _parquet_row(path: Path, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in row.items() if value is not None}
    where = f"{path}, row {number}"
    if ID not in values:
        raise BadData(f"{where}, column {ID}: the id is missing")
    values[ID] = str(values[ID])
    if isinstance(values.get(ONLINE), str):
        values[ONLINE] = _parse(where, ONLINE, values[ONLINE].strip())
    return values


def make_devices(path: Path, rows: Iterable[Row]) -> tuple[list[Device], float | None]:
    """Make the devices of a file, and return the period that all of them have.

    Args:
        path: The file, for errors.
        rows: Its rows.

    Raises:
        BadData: If a row is invalid, or rows contradict each other.
    """
    devices: list[Device] = []
    places: dict[str, str] = {}
    period_s: float | None = None
    for where, row in rows:
        values = dict(row)
        period = values.pop(PERIOD, None)
        if period is not None and period_s not in (None, period):
            raise BadData(f"{path}, {where}, column {PERIOD}: {period} differs from {period_s}; all lines must agree")
        period_s = period if period is not None else period_s
        device = _device(f"{path}, {where}", values)
        if device.id in places:
            raise BadData(f"{path}, {where}, column {ID}: {device.id!r} appears in {places[device.id]} already")
        places[device.id] = where
        devices.append(device)
    if not devices:
        raise BadData(f"{path} has no devices; add a line per device below the header")
    try:
        return devices, Fleet(devices, period_s).period_s
    except (BadData, BadSetting) as error:
        raise BadData(f"{path}, column {ONLINE}: {error}") from error


def _device(where: str, values: dict[str, Any]) -> Device:
    try:
        if values.get(ONLINE):
            values[ONLINE] = _over_midnight(values[ONLINE])
        return Device(id=values.pop(ID), **values)
    except BadData as error:
        raise BadData(f"{where}, column {error}") from error
    except (TypeError, ValueError) as error:
        raise BadData(f"{where}, column {ONLINE}: intervals must be pairs of numbers") from error


def _file_rows(fleet: Fleet) -> tuple[list[dict[str, Any]], list[str]]:
    if not fleet.devices:
        raise BadSetting(
            "Fleet.paper() has no list of devices: its phones are drawn for every client; nothing to write"
        )
    rows = [{ID if key == "id" else key: value for key, value in device.to_row().items()} for device in fleet.devices]
    for row in rows:
        if fleet.has_online:
            row[PERIOD] = fleet.period_s
    used = {key for row in rows for key in row}
    return rows, [name for name in COLUMNS if name in used]


def _cell(name: str, value: Any) -> str:
    if name == ONLINE:
        return " ".join(f"{start!r}-{end!r}" for start, end in value) or NEVER
    return value if isinstance(value, str) else repr(value)


def resolve_devices(devices: Any) -> Any:
    """Return the devices of a run from what a user passes.

    Args:
        devices: A `Fleet`, a CSV or Parquet file, "paper", a table as in `[devices]`, an object with the methods of
            `DeviceModel`, or a function of (clients, seed) that returns one; None for none.

    Returns:
        A `Fleet`, the object, the function, or None.

    Raises:
        BadSetting: If it is none of these.
    """
    if devices is None or isinstance(devices, Fleet) or is_device_model(devices):
        return devices
    if isinstance(devices, Mapping):
        return fleet_of_table(devices)
    if isinstance(devices, str | Path):
        return Fleet.paper() if str(devices) == "paper" else read_fleet(Path(devices).expanduser())
    if callable(devices):
        return devices
    if isinstance(devices, list | tuple):
        raise BadSetting(f"devices is a {type(devices).__name__}; make a fleet of it: fb.Fleet(devices)")
    raise BadSetting(
        f"devices = {devices!r} must be a Fleet, a .csv or .parquet file, a table, an object with the methods "
        f"{', '.join(MODEL_METHODS)}, or a function of (clients, seed) that returns such an object"
    )


def is_device_model(value: Any) -> bool:
    """Return whether an object has the methods of a `DeviceModel`."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in MODEL_METHODS)


def is_availability(value: Any) -> bool:
    """Return whether an object has the methods of an `Availability`."""
    return all(callable(getattr(value, name, None)) for name in ("is_available", "elapsed_s"))
