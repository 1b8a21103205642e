"""The table of methods: each base as a composition of policies.

A method name is a base, modifiers, and settings in brackets: `fedavg+1t`, `fedbalancer+qffl`, `fedbalancer-deadline`,
`fedbalancer[w=5,p=.75]`, `fedbalancer[clients.alpha=2]`, `fedavg[deadline=.5T]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedbalancer.client.parts import DroppedUpdate, FedRolex, HeteroFL, LastLayers
from fedbalancer.client.samples import HighestLoss, OverThreshold, OverThresholdBatch
from fedbalancer.client.summary import LossStatistics
from fedbalancer.client.training import MIFA, CachedTraining, FedDyn, Scaffold
from fedbalancer.client.work import RepeatedEpochs, WholeBatches, WholeEpochs
from fedbalancer.core.contracts import SLOTS, Aggregator, DeadlinePolicy, LocalTraining
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.methods.composition import Method, check_composition, setup_of, with_local_statistics
from fedbalancer.methods.fields import check_settings_used, has_field, split_address, with_fields
from fedbalancer.methods.modifiers import MODIFIERS, WRAPPING
from fedbalancer.methods.names import MethodName, check_name, parse_method_name, with_choices
from fedbalancer.methods.policy_registry import check_policy_type, load_policy, make_policy
from fedbalancer.server.aggregate import (
    CalibratedMean,
    DelayAdaptive,
    ExtrapolatedMomentum,
    FedDynServer,
    FedYogi,
    MIFAServer,
    ScaffoldServer,
)
from fedbalancer.server.clients import ByLoss, Dependable, LeastSelected, Oort, OverThresholdUtility, Pisces
from fedbalancer.server.deadline import (
    BoundedStaleness,
    FirstReports,
    FixedDeadline,
    KthFastest,
    PeakDeadline,
    RankedByGradient,
    UsefulWork,
    WaitForShare,
)
from fedbalancer.server.late import ArrivalGroups, Boosted, Buffered, Mixed, Timed
from fedbalancer.server.model_average import AveragedModel
from fedbalancer.server.pace import RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold

__all__ = ["BASES", "FAMILIES", "MODIFIERS", "SLOTS", "Method", "load_policy", "method", "setup_of"]


class Undecided(WaitForShare):
    """Deadline of a base that needs one in brackets."""

    def refuses(self, method: Method) -> str:
        """Explain how to choose a deadline."""
        return "it has no deadline; add one, as in fedavg+1t, fedavg[deadline=.5T], or fedavg+wfa, which waits for all"


def _fedavg(deadline: DeadlinePolicy) -> Method:
    return Method("fedavg").with_policies(deadline=deadline)


def _prox(deadline: DeadlinePolicy, s: Settings) -> Method:
    return _fedavg(deadline).with_policies(work=WholeEpochs(), mu=s.prox_mu)


def _sample_selection(s: Settings) -> Method:
    return _prox(FixedDeadline(s.sample_selection_deadline), s).with_policies(samples=HighestLoss())


def _fedbalancer() -> Method:
    return Method("fedbalancer").with_policies(
        clients=OverThresholdUtility(),
        samples=OverThreshold(),
        deadline=PeakDeadline(),
        work=WholeEpochs(),
        threshold=InterpolatedThreshold(),
        pace=RatioControl(),
    )


def _canter() -> Method:
    """FedBalancer's sample selection with our other policies (docs/methods/canter.md).

    Rounds are short, so the pace is adapted every 5 rounds. A quarter of the samples is below the threshold: a model
    that never trains on samples with low losses forgets them.
    """
    return _fedbalancer().with_policies(
        clients=ByLoss(),
        deadline=UsefulWork(),
        samples=OverThreshold(p=0.75),
        work=WholeBatches(),
        pace=RatioControl(w=5),
        aggregate=ExtrapolatedMomentum(),
        model_average=AveragedModel(),
    )


def _oort() -> Method:
    summary = LossStatistics(over_samples="selected")
    return Method("oort").with_policies(clients=Oort(), deadline=FirstReports(), summary=summary, epoch_batches=1)


def _oortbalancer() -> Method:
    clients = OverThresholdUtility(alpha=Oort.alpha)
    return _fedbalancer().with_policies(clients=clients, samples=OverThresholdBatch(), epoch_batches=1)


def _timelyfl() -> Method:
    return _fedavg(KthFastest()).with_policies(work=WholeBatches(), part=LastLayers())


def _refl() -> Method:
    return _fedavg(WaitForShare(0.8)).with_policies(clients=LeastSelected(), late=Boosted())


def _pyramidfl() -> Method:
    return Method("pyramidfl").with_policies(
        clients=Oort(),
        deadline=RankedByGradient(),
        work=RepeatedEpochs(),
        part=DroppedUpdate(),
        summary=LossStatistics(over_samples="selected"),
        aggregate=FedYogi(),
    )


def _asynchronous(**policies: Any) -> Method:
    return _fedavg(WaitForShare()).with_policies(**policies)


def _pisces() -> Method:
    summary = LossStatistics(over_samples="selected")
    return _fedavg(BoundedStaleness()).with_policies(clients=Pisces(), late=Timed(), summary=summary)


def _corrected(train: LocalTraining, aggregate: Aggregator) -> Method:
    return _fedavg(FixedDeadline(1)).with_policies(train=train, aggregate=aggregate)


BASES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg+1t": ("FedAvg, fixed deadline T", lambda s: _fedavg(FixedDeadline(1))),
    "fedavg+2t": ("FedAvg, fixed deadline 2 T", lambda s: _fedavg(FixedDeadline(2))),
    "fedavg+spc": ("FedAvg, SmartPC: waits for 80% of the reports", lambda s: _fedavg(WaitForShare(0.8))),
    "fedavg+wfa": ("FedAvg, waits for all", lambda s: _fedavg(WaitForShare())),
    "prox+1t": ("Prox, partial epochs, deadline T", lambda s: _prox(FixedDeadline(1), s)),
    "prox+2t": ("Prox, partial epochs, deadline 2 T", lambda s: _prox(FixedDeadline(2), s)),
    "sampleselection": ("highest losses, large clients cut at the 80th percentile", _sample_selection),
    "oort": ("Oort: clients by utility and speed, one batch per epoch", lambda s: _oort()),
    "fedbalancer": ("sample selection and adaptive deadlines", lambda s: _fedbalancer()),
    "canter": ("ours: short rounds by useful work, momentum, averaged model", lambda s: _canter()),
    "oortbalancer": ("FedBalancer with Oort's one batch per epoch", lambda s: _oortbalancer()),
    "timelyfl": ("TimelyFL: as many epochs or layers as fit the k-th fastest client's epoch", lambda s: _timelyfl()),
    "refl": ("REFL: late reports count, rarely selected clients first", lambda s: _refl()),
    "fedbuff": (
        "FedBuff: asynchronous, one step per buffer of reports",
        lambda s: _asynchronous(late=Buffered()),
    ),
    "fedasync": (
        "FedAsync: asynchronous, every report is mixed into the model",
        lambda s: _asynchronous(late=Mixed(), mu=0.005),
    ),
    "ca2fl": (
        "CA2FL: asynchronous, calibrated by every client's last update",
        lambda s: _asynchronous(late=Buffered(power=0.0), aggregate=CalibratedMean()),
    ),
    "fadas": (
        "FADAS: asynchronous, AMSGrad whose step adapts to delays",
        lambda s: _asynchronous(late=Buffered(power=0.0), aggregate=DelayAdaptive()),
    ),
    "pisces": ("Pisces: asynchronous, clients by utility and staleness", lambda s: _pisces()),
    "fedcompass": (
        "FedCompass: local steps by speed, so that clients arrive in groups",
        lambda s: _asynchronous(late=ArrivalGroups()),
    ),
    "flude": (
        "FLUDE: dependable clients, which continue interrupted training",
        lambda s: _fedavg(FixedDeadline(1)).with_policies(clients=Dependable(), train=CachedTraining()),
    ),
    "heterofl": (
        "HeteroFL: slower clients train fewer channels",
        lambda s: _fedavg(FixedDeadline(1)).with_policies(part=HeteroFL()),
    ),
    "fedrolex": (
        "FedRolex: fewer channels, others in every round",
        lambda s: _fedavg(FixedDeadline(1)).with_policies(part=FedRolex()),
    ),
    "pyramidfl": ("PyramidFL: Oort's clients fill their time and send a share of their update", lambda s: _pyramidfl()),
    "scaffold": ("SCAFFOLD: control variates against client drift", lambda s: _corrected(Scaffold(), ScaffoldServer())),
    "feddyn": ("FedDyn: dynamic regularisation of every client's loss", lambda s: _corrected(FedDyn(), FedDynServer())),
    "mifa": ("MIFA: the latest update of every client, however old", lambda s: _corrected(MIFA(), MIFAServer())),
}
"""Every base: its title, and the function that composes it."""

FAMILIES: dict[str, tuple[str, Callable[[Settings], Method]]] = {
    "fedavg": ("FedAvg with a deadline in brackets: fedavg[deadline=.5T]", lambda s: _fedavg(Undecided())),
    "prox": ("Prox with a deadline in brackets: prox[deadline=.5T]", lambda s: _prox(Undecided(), s)),
}
"""Bases that need a deadline to be a method."""


def method(base: str, settings: Settings | None = None, *, name: str | None = None, **slots: Any) -> Method:
    """Compose a method by its name.

    Args:
        base: Base, modifiers and settings in brackets. Settings in brackets take precedence over `settings`.
        settings: Settings of the run. Default: the defaults.
        name: Name of the method in tables and folders. Default: `base` and the replaced slots.
        **slots: Policies, or values such as `mu`, that replace those of the method.

    Returns:
        The method.

    Raises:
        UnknownName: If a base, modifier, slot or field does not exist.
        BadSetting: If a value is not allowed or the policies do not work together.

    Example:
        >>> method("fedavg+1t", deadline=FixedDeadline(1.5)).name
        'fedavg+1t[deadline=FixedDeadline(multiple=1.5)]'
        >>> method("fedbalancer[p=0.75, w=5]").name, method("fedbalancer", clients=ByLoss(), name="mine").name
        ('fedbalancer[w=5,p=.75]', 'mine')
        >>> method("fedbalancer[clients.alpha=2]").clients.alpha
        2.0
    """
    parsed = parse_method_name(base)
    composed = _compose(parsed, settings)
    check_settings_used(settings or Settings(), [composed])
    choices = {slot: _check_choice(slot, choice) for slot, choice in slots.items()}
    label = with_choices(parsed, choices) if name is None else _check_unused_name(name)
    composed = replace(composed.with_policies(**choices), name=label)
    check_composition(composed)
    return composed


def method_of_run(name: str, settings: Settings) -> Method:
    """Compose a method by its name for a run that may be one of several with the same settings.

    Like `method`, except that settings of fields that the method does not have are ignored.
    """
    composed = _compose(parse_method_name(name), settings)
    check_composition(composed)
    return composed


def check_method_name(name: str) -> None:
    """Check a method name before its task is loaded.

    Policies of the user's own package may be importable only when the task is loaded, so they are not checked.

    Raises:
        UnknownName: If a base, modifier or field does not exist.
        BadSetting: If a value in brackets is not allowed.
    """
    parsed = parse_method_name(name)
    own = {slot for slot, text in parsed.slots.items() if ":" in text.partition("(")[0]}
    slots = {slot: text for slot, text in parsed.slots.items() if slot not in own}
    fields = {key: value for key, value in parsed.fields.items() if split_address(key)[0] not in own}
    _compose(replace(parsed, fields=fields, slots=slots), None)


def _compose(parsed: MethodName, settings: Settings | None) -> Method:
    """Compose base and modifiers, then whole policies, then fields of policies: first of the settings, then of the
    brackets."""
    resolved = resolve(settings.model_dump() if settings is not None else {}, parsed.settings)
    composed = _compose_stem(parsed.stem, resolved)
    texts = {slot: resolved.policies[slot] for slot in SLOTS if slot in resolved.policies}
    policies = {slot: make_policy(slot, text) for slot, text in {**texts, **parsed.slots}.items()}
    composed = replace(composed.with_policies(**policies), name=str(parsed), settings=parsed.settings)
    shared = {key: value for key, value in resolved.policies.items() if key not in SLOTS and has_field(composed, key)}
    composed = with_fields(composed, shared, "setting ")
    composed = with_fields(composed, parsed.fields, f"method {str(parsed)!r}: ")
    return with_local_statistics(composed, resolved)


def _check_choice(slot: str, choice: Any) -> Any:
    """Return what a user puts into a slot, if it fits; values such as `mu` are not checked."""
    if slot not in SLOTS:
        return choice
    return check_policy_type(slot, getattr(choice, "__name__", type(choice).__name__), choice)


def _check_unused_name(name: str) -> str:
    check_name(name)
    if name in BASES:
        raise BadSetting(f"name={name!r} is the name of another method; choose another, as in name='mine'")
    return name


def _compose_stem(stem: str, settings: Settings) -> Method:
    """Compose a base with its modifiers."""
    base, modifiers = _split_modifiers(stem)
    result = replace({**FAMILIES, **BASES}[base][1](settings), name=base)  # the name that error messages use
    for modifier in sorted(modifiers, key=lambda each: WRAPPING.index(each) if each in WRAPPING else -1):
        title, apply = MODIFIERS[modifier]
        before, result = result, apply(result)
        if modifier.startswith("-") and result == before:
            raise BadSetting(f"method {stem!r}: {base} is {title.partition(':')[0]} anyway")
    return result


def _split_modifiers(stem: str) -> tuple[str, list[str]]:
    """Split a name without brackets into its base and its modifiers."""
    bases = {**FAMILIES, **BASES}
    base = _longest_prefix(stem, bases)
    if base is None:
        raise UnknownName("method", stem, bases)
    modifiers: list[str] = []
    rest = stem[len(base) :]
    while rest:
        modifier = _longest_prefix(rest, MODIFIERS)
        if modifier is None and base in FAMILIES:  # fedavg+3t is not fedavg with a modifier
            raise UnknownName("method", stem, BASES)
        if modifier is None:
            raise UnknownName(f"modifier in method {stem!r}:", rest, MODIFIERS)
        modifiers.append(modifier)
        rest = rest[len(modifier) :]
    return base, modifiers


def _longest_prefix(text: str, names: Mapping[str, Any]) -> str | None:
    """Return the longest name that the text starts with and that ends where the text or a modifier ends."""
    for name in sorted(names, key=len, reverse=True):
        if text == name or (text.startswith(name) and text[len(name)] in "+-"):
            return name
    return None
