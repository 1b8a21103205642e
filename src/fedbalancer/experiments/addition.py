"""Add seeds and methods to a comparison that exists: only the missing runs are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import readable
from fedbalancer.data import Task
from fedbalancer.experiments.consistency import RunRecord, find_differences, list_some, read_records
from fedbalancer.experiments.plan import ComparisonPlan, seed_numbers
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.spec import RunSpec, move_policies_into_names
from fedbalancer.experiments.trust import check_trusted, code_of, remember
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.table import Method
from fedbalancer.store import ComparisonFile

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
