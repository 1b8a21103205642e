"""Add seeds and methods to a comparison, and merge comparison folders of the same task and settings into a new one."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.core.files import LOCK, TEMPORARY_SUFFIX, FolderLock, readable, sync_directory
from fedbalancer.data import Task
from fedbalancer.experiments.consistency import RunRecord, find_differences, find_mixtures, list_some, read_records
from fedbalancer.experiments.plan import ComparisonPlan, seed_numbers
from fedbalancer.experiments.progress import Key
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec, move_policies_into_names
from fedbalancer.experiments.trust import check_trusted, code_of, remember
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.table import Method
from fedbalancer.reporting import Comparison, write_report
from fedbalancer.store import COMPARISON, ComparisonFile, check_free
from fedbalancer.store.contents import FILES, MODEL, POPULATION, find_damaged_files, make_folder, refuse_links

RULES = ("task", "variant", "scale", "rounds", "extend", "rule", "targets", "metric")
"""Fields of comparison.json that must be equal."""
OWN = (COMPARISON, "summary.json", "table.md", "report.html", "figures", LOCK)
"""Files of a comparison folder besides its methods."""
TABLES = ("rounds.parquet", "evals.parquet", "clients.parquet")


@dataclass(frozen=True)
class Merged:
    """A merged comparison.

    Args:
        comparison: Its scores.
        folder: Its folder.
        missing: Method and seed of the runs that no source has, or none that is done.
        mixtures: What differs in versions, processors or kernels.
    """

    comparison: Comparison
    folder: Path
    missing: tuple[Key, ...]
    mixtures: tuple[str, ...]


def merge(
    folders: Sequence[Path | str], out: Path | str, *, overwrite: bool = False, mixed: bool = False
) -> Comparison:
    """Merge comparison folders of one task, with the same settings and budgets, into a new folder.

    The sources do not change. The new folder is complete: `report`, `dashboard`, `resume` and `compare --add` accept
    it. If methods and seeds do not form a full grid, `resume` runs what is missing.

    Args:
        folders: Folders that `compare` wrote.
        out: The new folder.
        overwrite: Replace a comparison that exists in the new folder.
        mixed: Accept runs with different versions of packages, processors or kernels. Their results may differ in the
            last digits from those of one machine.

    Returns:
        The scores of the merged comparison.

    Raises:
        RunFolderError: If a folder holds no comparison, or the folders conflict. The message names each conflict.

    >>> import tempfile
    >>> import fedbalancer as fb
    >>> at = tempfile.mkdtemp()
    >>> for seed in (0, 1):
    ...     _ = fb.compare("synthetic", ["fedavg+1t"], [seed], users=8, rounds=2, extend=1, jobs=1, out=f"{at}/{seed}")
    >>> table = fb.merge([f"{at}/0", f"{at}/1"], f"{at}/both")
    >>> [score.seed for score in table.seeds]
    [0, 1]
    """
    return merge_folders(folders, out, overwrite=overwrite, mixed=mixed).comparison


def merge_folders(
    folders: Sequence[Path | str], out: Path | str, *, overwrite: bool = False, mixed: bool = False
) -> Merged:
    """Merge comparison folders, as `merge` does, and return what is missing or mixed besides the scores.

    Args:
        folders: The sources.
        out: The new folder.
        overwrite: Replace a comparison that exists in the new folder.
        mixed: Accept different versions, processors and kernels.

    Raises:
        RunFolderError: If a folder holds no comparison, or the folders conflict.
    """
    sources, out = [Path(folder) for folder in folders], Path(out)
    _check_places(sources, out)
    check_free(out, overwrite, COMPARISON)
    with _locked(sources):
        files = {source: ComparisonFile.read(source) for source in sources}
        for source, file in files.items():
            refuse_links(source, *file.methods)
        records = [record for source, file in files.items() for record in read_records(source, file)]
        mixtures = find_mixtures(records)
        conflicts = [*_rule_conflicts(files), *find_differences(records), *([] if mixed else mixtures)]
        chosen, clashes = _choose(records)
        if conflicts or clashes:
            advice = "; use --mixed to accept it" if conflicts and conflicts == mixtures and not clashes else ""
            raise RunFolderError(f"the folders cannot be merged: {list_some([*conflicts, *clashes])}{advice}")
        merged = _join(list(files.values()))
        _write(out, merged, chosen)
    comparison = write_report(out).comparison
    assert comparison is not None  # only a single run has no scores
    done = {key for key, record in chosen.items() if _is_done(record)}
    missing = [(method, seed) for seed in merged.seeds for method in merged.methods if (method, seed) not in done]
    return Merged(comparison, out, tuple(missing), tuple(mixtures))


def _check_places(sources: Sequence[Path], out: Path) -> None:
    places = [source.resolve() for source in sources]
    if not places:
        raise BadSetting("merge needs the folder of at least one comparison")
    if len(set(places)) < len(places):
        raise BadSetting(f"a folder appears twice: {', '.join(map(str, sources))}")
    if any(out.resolve() == place or place in out.resolve().parents for place in places):
        raise BadSetting(f"{out} is one of the merged folders or inside one; choose another --out")


@contextmanager
def _locked(sources: Sequence[Path]) -> Iterator[None]:
    """Lock the sources, so that no run is copied while it is written. A folder that is read-only has no writer."""
    with ExitStack() as stack:
        for source in sources:
            if source.is_dir() and os.access(source, os.W_OK):
                stack.callback(FolderLock(source).release)
        yield


def _rule_conflicts(files: Mapping[Path, ComparisonFile]) -> list[str]:
    """Return what differs between the comparison.json of the sources."""
    (first, base), *others = files.items()
    conflicts = [
        f"{name} is {getattr(base, name)} in {first}, {getattr(file, name)} in {source}"
        for source, file in others
        for name in RULES
        if getattr(file, name) != getattr(base, name)
    ]
    budgets: dict[int, tuple[Path, float]] = {}
    for source, file in files.items():
        for seed, budget_s in file.budgets_s.items():
            where, known_s = budgets.setdefault(seed, (source, budget_s))
            if known_s != budget_s:
                conflicts.append(f"the budget of seed {seed} is {known_s:g} s in {where}, {budget_s:g} s in {source}")
    return conflicts


def _choose(records: Sequence[RunRecord]) -> tuple[dict[Key, RunRecord], list[str]]:
    """Choose one record per method and seed, and return the runs that clash.

    A run that is done is preferred. Of two that are done, one may have run longer to reach a target, and is then
    preferred; they clash if they differ up to the end of the shorter one.
    """
    chosen: dict[Key, RunRecord] = {}
    clashes = []
    for record in records:
        key = record.method, record.seed
        if _is_done(record) and (damaged := find_damaged_files(record.path, record.manifest)):
            clashes.append(f"{record.path} is damaged ({', '.join(damaged)})")
            continue
        other = chosen.setdefault(key, record)
        if other is record or not _is_done(record):
            continue
        if not _is_done(other):
            chosen[key] = record
        elif (longer := _longer(other, record)) is None:
            clashes.append(f"{record.method} seed {record.seed} differs between {other.source} and {record.source}")
        else:
            chosen[key] = longer
    return chosen, clashes


def _is_done(record: RunRecord) -> bool:
    return record.manifest.get("status") == "done"


def _longer(first: RunRecord, second: RunRecord) -> RunRecord | None:
    """Return the run that continues the other one, or the first of two equal ones; None if they differ."""
    sums = [record.manifest.get(FILES) or {} for record in (first, second)]
    if sums[0] and sums[0] == sums[1]:
        return first
    if sums[0].get(POPULATION) != sums[1].get(POPULATION):
        return None
    long, short = sorted((first, second), key=lambda record: -_read(record, TABLES[0]).height)
    if _read(long, TABLES[0]).height == _read(short, TABLES[0]).height and sums[0].get(MODEL) != sums[1].get(MODEL):
        return None
    for table in TABLES:
        ours, theirs = _read(long, table), _read(short, table)
        if not ours.head(theirs.height).equals(theirs):
            return None
    return long


def _read(record: RunRecord, table: str) -> pl.DataFrame:
    return pl.read_parquet(record.path / table, glob=False)


def _join(files: Sequence[ComparisonFile]) -> ComparisonFile:
    """Return the comparison with the methods, seeds and budgets of all."""
    return replace(
        files[0],
        methods=tuple(dict.fromkeys(method for file in files for method in file.methods)),
        seeds=tuple(sorted({seed for file in files for seed in file.seeds})),
        budgets_s={seed: budget_s for file in files for seed, budget_s in sorted(file.budgets_s.items())},
        spec=files[0].spec if all(file.spec for file in files) else {},
    )


def _write(out: Path, file: ComparisonFile, chosen: Mapping[Key, RunRecord]) -> None:
    """Copy the runs to a temporary folder, and give it its name when all of it is on the disk."""
    make_folder(out.parent)
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        temporary.mkdir()
        for (method, seed), record in chosen.items():
            ignored = shutil.ignore_patterns(LOCK, f"*{TEMPORARY_SUFFIX}")
            target = temporary / method / f"seed-{seed}"
            shutil.copytree(record.path, target, ignore=ignored, copy_function=_copy_synced)
        file.write(temporary)
        _replace_folder(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_synced(source: str, target: str) -> str:
    shutil.copy2(source, target)
    if os.name == "posix":  # elsewhere a file that is open for reading cannot be synced
        with open(target, "rb") as file:
            os.fsync(file.fileno())
    return target


def _replace_folder(new: Path, out: Path) -> None:
    """Rename the new folder. Files of others in the folder that it replaces are kept."""
    old = new.with_name(new.name.replace(TEMPORARY_SUFFIX, f"-old{TEMPORARY_SUFFIX}"))
    if out.exists():
        written = {*OWN, *(ComparisonFile.read(out).methods if (out / COMPARISON).is_file() else ())}
        os.rename(out, old)
        for other in [path for path in old.iterdir() if path.name not in written]:
            os.rename(other, new / other.name)
    os.rename(new, out)
    sync_directory(out.parent)
    shutil.rmtree(old, ignore_errors=True)


ADDED = "what is added"


def plan_addition(
    folder: Path,
    file: ComparisonFile,
    task: str | Task | None,
    methods: Sequence[str | Method],
    seeds: int | Sequence[int],
    options: Mapping[str, Any],
    rules: Mapping[str, Any],
) -> ComparisonPlan:
    """Plan a comparison with all methods and seeds of a folder, and further ones.

    Args:
        folder: The folder of the comparison.
        file: The content of its comparison.json.
        task: The task. None: the folder's.
        methods: Methods to add, and the `Method` objects of the folder.
        seeds: Seeds to add.
        options: Options of all runs. Those left out are the folder's; the others must be equal.
        rules: `extend`, `rule` and `targets`; None, or equal to the folder's.

    Raises:
        BadSetting: If something differs from the folder's, or an object is missing.
        UntrustedCode: If the folder names code that is not trusted.
    """
    _check_rules(folder, file, rules)
    records = read_records(folder, file)
    base, added = _base(folder, file, task, options, methods)
    names = _join_methods(file, records, added)
    plan = ComparisonPlan.make(
        base, names, (*dict.fromkeys([*file.seeds, *seed_numbers(seeds)]),), file.extend, file.rule, file.targets
    )
    _check_same(folder, file, plan, records)
    remember(code_of(plan.base, plan.methods))
    return plan


def _base(
    folder: Path, file: ComparisonFile, task: str | Task | None, options: Mapping[str, Any],
    methods: Sequence[str | Method],
) -> tuple[RunSpec, list[str | Method]]:  # fmt: skip
    """Return what all runs have in common, and the methods to add under their full names."""
    if file.spec:
        before = RunSpec.from_json(file.spec)
        check_trusted(code_of(before, file.methods))
    elif task is None:
        raise BadSetting(f"{folder} was started with a Task or Method object; pass its task to fedbalancer.compare")
    else:
        before = RunSpec(task=task)
    given = dict(options)
    settings = {**before.overrides, **(given.pop("settings", None) or {})}
    if (rounds := given.pop("rounds", None)) is not None:
        settings["rounds"] = rounds
    elif not file.spec and file.rounds is not None:
        settings.setdefault("rounds", file.rounds)
    first = methods[0] if methods else before.method
    spec = replace(before, **given, task=before.task if task is None else task, method=first, settings=settings)
    return move_policies_into_names(spec, methods) if methods else (spec, [])


def _join_methods(
    file: ComparisonFile, records: Sequence[RunRecord], added: Sequence[str | Method]
) -> list[str | Method]:
    """Return the methods of the folder, then the new ones."""
    by_name: dict[str, str | Method] = {_name(method): method for method in added}
    objects = {record.method for record in records if (record.manifest.get("spec") or {}).get("method") is None}
    missing = [name for name in file.methods if name in objects and isinstance(by_name.get(name, name), str)]
    if missing:
        raise BadSetting(f"these methods of the folder are Method objects; pass them in methods: {', '.join(missing)}")
    return [by_name.get(name, name) for name in dict.fromkeys([*file.methods, *by_name])]


def _name(method: str | Method) -> str:
    return canonical_name(method) if isinstance(method, str) else method.name


def _check_rules(folder: Path, file: ComparisonFile, rules: Mapping[str, Any]) -> None:
    for name, value in rules.items():
        stored = getattr(file, name)
        if value is not None and readable(value) != readable(stored):
            raise BadSetting(
                f"{name} is {readable(stored)} in {folder}, {readable(value)} in {ADDED}; leave the option out"
            )


def _check_same(folder: Path, file: ComparisonFile, plan: ComparisonPlan, records: Sequence[RunRecord]) -> None:
    """Check that the runs of the plan have the task, the settings and the budgets of the runs that exist."""
    specs = {spec.key: spec for spec in plan.specs}
    planned = [_planned(plan, specs[record.method, record.seed]) for record in records]
    differences = find_differences([*records, *planned])
    differences += [
        f"the budget of seed {seed} is {budget_s:g} s in {folder}, {plan.budgets_s[seed]:g} s in {ADDED}"
        for seed, budget_s in file.budgets_s.items()
        if not differences and seed in plan.budgets_s and plan.budgets_s[seed] != budget_s
    ]
    if differences:
        raise BadSetting(f"{list_some(differences)}; all runs of a comparison need the same, or another --out")


def _planned(plan: ComparisonPlan, spec: RunSpec) -> RunRecord:
    manifest = spec.manifest(plan.task, *resolve_spec(spec, plan.task))
    return RunRecord(ADDED, spec.method_name, spec.seed, plan.budgets_s[spec.seed], readable(manifest))
