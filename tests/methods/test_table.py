"""The table of methods: what each name is made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    NoCompression,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.client.parts import DroppedUpdate, FedRolex, HeteroFL, LastLayers
from fedbalancer.client.samples import (
    ClassFloor,
    EverySample,
    HighestLoss,
    OverThreshold,
    OverThresholdBatch,
    RandomSamples,
    Trimmed,
)
from fedbalancer.client.summary import LossesBySteps, LossStatistics, Silent
from fedbalancer.client.training import WholeModel
from fedbalancer.client.work import AllOrNothing, ForecastEpochs, RepeatedEpochs, WholeBatches, WholeEpochs
from fedbalancer.core.errors import BadSetting, FedBalancerError, UnknownName
from fedbalancer.core.settings import resolve
from fedbalancer.methods.fields import check_settings_used, describe_settings
from fedbalancer.methods.names import check_name
from fedbalancer.methods.policy_registry import policy_fields
from fedbalancer.methods.table import (
    BASES,
    MODIFIERS,
    SLOTS,
    check_method_name,
    load_policy,
    method,
    method_of_run,
)
from fedbalancer.server.aggregate import (
    QFFL,
    AutoRate,
    CalibratedMean,
    DelayAdaptive,
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedDynServer,
    FedExP,
    FedNova,
    FedYogi,
    Krum,
    MajorityVote,
    Median,
    MIFAServer,
    ScaffoldServer,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)
from fedbalancer.server.clients import (
    ByLoss,
    Dependable,
    FedCS,
    GroupFloor,
    LeastSelected,
    Oort,
    OverThresholdUtility,
    Pisces,
    PowerOfChoice,
    Uniform,
)
from fedbalancer.server.deadline import (
    BoundedStaleness,
    FirstReports,
    FixedDeadline,
    KthFastest,
    LearnedWork,
    PeakDeadline,
    RankedByGradient,
    UsefulWork,
    WaitForShare,
)
from fedbalancer.server.late import ArrivalGroups, Boosted, Buffered, Joins, Lost, Mixed, Timed
from fedbalancer.server.model_average import AveragedModel, LastModel
from fedbalancer.server.pace import ConstantPace, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, NoThreshold

TABLE: dict[str, tuple[Any, Any, Any, Any]] = {
    "fedavg+1t": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "fedavg+2t": (Uniform(), EverySample(), FixedDeadline(2), AllOrNothing()),
    "fedavg+spc": (Uniform(), EverySample(), WaitForShare(0.8), AllOrNothing()),
    "fedavg+wfa": (Uniform(), EverySample(), WaitForShare(1.0), AllOrNothing()),
    "prox+1t": (Uniform(), EverySample(), FixedDeadline(1), WholeEpochs()),
    "prox+2t": (Uniform(), EverySample(), FixedDeadline(2), WholeEpochs()),
    "sampleselection": (Uniform(), HighestLoss(), FixedDeadline(1), WholeEpochs()),
    "oort": (Oort(), EverySample(), FirstReports(), AllOrNothing()),
    "fedbalancer": (OverThresholdUtility(), OverThreshold(1.0), PeakDeadline(), WholeEpochs()),
    "canter": (ByLoss(), OverThreshold(0.75), UsefulWork(), WholeBatches()),
    "oortbalancer": (OverThresholdUtility(alpha=2.0), OverThresholdBatch(1.0), PeakDeadline(), WholeEpochs()),
    "timelyfl": (Uniform(), EverySample(), KthFastest(0.5, 1.0), WholeBatches()),
    "refl": (LeastSelected(), EverySample(), WaitForShare(0.8), AllOrNothing()),
    **dict.fromkeys(
        ("fedbuff", "fedasync", "ca2fl", "fadas", "fedcompass"),
        (Uniform(), EverySample(), WaitForShare(1.0), AllOrNothing()),
    ),
    "pisces": (Pisces(), EverySample(), BoundedStaleness(), AllOrNothing()),
    "flude": (Dependable(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "heterofl": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "fedrolex": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "pyramidfl": (Oort(), EverySample(), RankedByGradient(), RepeatedEpochs()),
    "scaffold": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "feddyn": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
    "mifa": (Uniform(), EverySample(), FixedDeadline(1), AllOrNothing()),
}
DRIFT: dict[str, Any] = {"scaffold": ScaffoldServer(), "feddyn": FedDynServer(), "mifa": MIFAServer()}
PARTS: dict[str, Any] = {
    "timelyfl": LastLayers(),
    "heterofl": HeteroFL(),
    "fedrolex": FedRolex(),
    "pyramidfl": DroppedUpdate(),
}
AGGREGATIONS = (
    "+qffl", "+momentum", "+fedadam", "+fedyogi", "+fedadagrad", "+fedexp", "+fednova", "+median", "+trimmedmean",
    "+krum", "+signsgd",
)  # fmt: skip
COMPRESSIONS = ("+structured", "+mask", "+subsample", "+quantised", "+graddrop", "+signsgd")
BALANCERS = {"fedbalancer", "oortbalancer", "canter"}
LATE: dict[str, Any] = {
    "fedbuff": Buffered(), "fedasync": Mixed(), "ca2fl": Buffered(power=0.0), "fadas": Buffered(power=0.0),
    "pisces": Timed(), "refl": Boosted(0.35), "fedcompass": ArrivalGroups(),
}  # fmt: skip
AGGREGATE: dict[str, Any] = {
    "canter": ExtrapolatedMomentum(), "pyramidfl": FedYogi(), "ca2fl": CalibratedMean(), "fadas": DelayAdaptive(),
}  # fmt: skip


class TestTable:
    @pytest.mark.parametrize("name", TABLE)
    def test_each_method_is_its_row(self, name: str) -> None:
        composed = method(name)
        assert (composed.clients, composed.samples, composed.deadline, composed.work) == TABLE[name]
        ours = name == "canter"
        assert composed.aggregate == (DRIFT | AGGREGATE).get(name, WeightedMean())
        assert composed.part == PARTS.get(name, WholeModel())
        assert composed.train.is_plain == (name not in DRIFT)
        assert composed.model_average == (AveragedModel() if ours else LastModel())
        assert (composed.compress, composed.late, composed.name) == (NoCompression(), LATE.get(name, Lost()), name)

    def test_every_base_is_in_the_table(self) -> None:
        assert set(TABLE) == set(BASES)

    def test_oort_and_oortbalancer_train_one_batch_an_epoch(self) -> None:
        assert {name for name in TABLE if method(name).epoch_batches == 1} == {"oort", "oortbalancer"}
        assert all(method(name).epoch_batches is None for name in set(TABLE) - {"oort", "oortbalancer"})

    def test_the_balancers_alone_move_threshold_and_pace(self) -> None:
        for name in TABLE:
            composed = method(name)
            adaptive = name in BALANCERS
            assert composed.threshold == (InterpolatedThreshold() if adaptive else NoThreshold())
            window = 5 if name == "canter" else 20
            assert composed.pace == (RatioControl(window, 0.05, 0.05) if adaptive else ConstantPace())

    @pytest.mark.parametrize("name", BASES)
    def test_each_registered_method_has_a_description_and_takes_every_modifier_that_makes_sense(
        self, name: str
    ) -> None:
        assert BASES[name][0]
        silenced = {"+silent"} if name in {"oort", "pisces", "pyramidfl", *BALANCERS} else set()
        parts = {modifier for modifier in MODIFIERS if modifier[0] == "-"}
        refused = silenced | (set() if name in BALANCERS else parts)
        refused -= {"-clients"} if name in {"oort", "pisces", "pyramidfl", "refl", "flude"} else set()
        refused -= {"-samples"} if name == "sampleselection" else set()
        waits = isinstance(method(name).deadline, WaitForShare | FirstReports)
        refused -= {"-deadline"} if waits or "2t" in name or name in ("timelyfl", "pisces", "pyramidfl") else set()
        refused |= {"+late"} if name in LATE else set()
        asynchronous = method(name).late.rule() == "counts"
        refused |= {"+autorate", "+auto"} if name in DRIFT or asynchronous or not method(name).part.is_whole else set()
        refused |= {"+forecast"} if isinstance(method(name).work, AllOrNothing | RepeatedEpochs) else set()
        own_rule = not isinstance(method(name).samples, EverySample | OverThreshold)
        refused |= {"+trimmed", "+classfloor"} if own_rule else set()
        if name == "fedcompass":
            refused |= {"+batches", "+qffl", "+fednova"}
        if name == "flude":
            refused |= {*COMPRESSIONS, "+late", "+auto"}
        if name in DRIFT:
            refused |= {*AGGREGATIONS, "+robust"}
        elif not method(name).part.is_whole:
            refused |= {*AGGREGATIONS, *COMPRESSIONS} - {"+momentum", "+fedadam", "+fedyogi", "+fedadagrad"}
        for modifier in MODIFIERS:
            if modifier not in refused:
                assert method(name + modifier).name == name + modifier
            else:
                with pytest.raises(BadSetting, match=re.escape(name)):
                    method(name + modifier)

    @pytest.mark.parametrize("name", BASES)
    def test_every_slot_holds_a_policy_of_its_kind(self, name: str) -> None:
        composed = method(name)
        for slot, protocol in SLOTS.items():
            assert isinstance(getattr(composed, slot), protocol)

    def test_the_proximal_term_is_prox_and_sampleselections(self) -> None:
        mu = {name: method(name, resolve({"prox_mu": 0.1})).mu for name in TABLE}
        assert mu == dict.fromkeys(TABLE, 0.0) | {
            "prox+1t": 0.1, "prox+2t": 0.1, "sampleselection": 0.1, "fedasync": 0.005,
        }  # fmt: skip
        assert method("fedbalancer[mu=.2]").mu == 0.2


class TestSettingsReachTheSlots:
    def test_fedbalancer(self) -> None:
        s = resolve(
            {
                "p": 0.7, "w": 7, "lss": 0.1, "dss": 0.2, "noise_factor": 0.3, "threshold.history": "cumulative",
                "summary.utility_samples": "all", "forward_pass": "every",
                "deadline": {"grid": "continuous", "counts": "over", "gate": 0.4, "gate_clients": 3, "guard_s": 4.0},
                "clients.alpha": 2.0, "clients.exploration": 0.8, "clients.exploration_decay": 0.9,
                "clients.exploration_min": 0.1, "clients.clip": 0.6, "clients.cutoff": 0.5, "clients.normalise": False,
            }
        )  # fmt: skip
        composed = method("fedbalancer", s)
        assert composed.samples == OverThreshold(0.7)
        assert composed.pace == RatioControl(7, 0.1, 0.2)
        assert composed.threshold == InterpolatedThreshold("cumulative")
        assert composed.summary == LossStatistics(0.3, "all")
        assert composed.deadline == PeakDeadline("over", "continuous", 0.4, 3, 4.0)
        assert composed.clients == OverThresholdUtility(2.0, 0.8, 0.9, 0.1, 0.6, 0.5, False)
        assert composed.forward_pass == "every"

    def test_the_others(self) -> None:
        s = resolve({"sample_selection_deadline": 2, "noise_factor": 0.3})
        assert method("fedavg+spc[deadline.share=.5]").deadline == WaitForShare(0.5)
        assert method("sampleselection", s).deadline == FixedDeadline(2)
        oort = LossStatistics(0.3, over_samples="selected")
        assert all(
            method(name, s).summary == (oort if name in ("oort", "pisces", "pyramidfl") else LossStatistics(0.3))
            for name in BASES
        )

    def test_oort(self) -> None:
        s = resolve(
            {
                "clients": {
                    "alpha": 1.0, "exploration": 0.8, "exploration_decay": 0.9, "exploration_min": 0.1,
                    "clip": 0.6, "cutoff": 0.5, "overcommit": 1.5, "pacer_window": 7,
                    "pacer_start": 20.0, "pacer_delta": 6.0, "blacklist": 10,
                }
            }
        )  # fmt: skip
        assert method("oort", s).clients == Oort(1.0, 0.8, 0.9, 0.1, 0.6, 0.5, 1.5, 7, 20.0, 6.0, 10)
        assert method("oortbalancer[p=.8]").samples == OverThresholdBatch(0.8)
        assert method("oortbalancer").clients == OverThresholdUtility(alpha=2.0)

    def test_auto_keeps_a_compression_that_was_chosen_and_finds_one_rate_only(self) -> None:
        assert method("canter+mask+auto").compress == method("canter+auto+mask").compress == RandomMask()
        assert method("canter+auto[compress.bits=2]").compress == Quantised(2)
        with pytest.raises(BadSetting, match="both find the learning rate"):
            method("canter+auto+autorate")

    def test_modifiers(self) -> None:
        composed: dict[str, dict[str, Any]] = {
            "+powerofchoice[clients.candidates=3]": {"clients": PowerOfChoice(3.0)},
            "+fedcs[clients.candidates=3]": {"clients": FedCS(3.0)},
            "+groupfloor": {"clients": GroupFloor(method("fedbalancer").clients)},
            "+late": {"late": Joins()},
            "+learned": {"deadline": LearnedWork(), "summary": LossesBySteps()},
            "+qffl[aggregate.q=.5]": {"aggregate": QFFL(0.5)},
            "+momentum[aggregate.beta=.7,aggregate.eta=.6]": {"aggregate": ServerMomentum(0.7, 0.6)},
            "+fedadam[aggregate.eta=.2,aggregate.tau=.1]": {"aggregate": FedAdam(0.2, tau=0.1)},
            "+fedyogi[aggregate.beta_1=.8,aggregate.beta_2=.9]": {"aggregate": FedYogi(0.01, 0.8, 0.9)},
            "+fedadagrad[aggregate.eta=.2,aggregate.tau=.1]": {"aggregate": FedAdagrad(0.2, 0.1)},
            "+fedexp": {"aggregate": FedExP()},
            "+fednova": {"aggregate": FedNova()},
            "+averaged": {"model_average": AveragedModel()},
            "+autorate[aggregate.spread=2]": {"aggregate": AutoRate(spread=2.0), "summary": LossesBySteps()},
            "+auto": {"aggregate": AutoRate(), "summary": LossesBySteps(), "compress": Quantised(4)},
            "+median": {"aggregate": Median()},
            "+trimmedmean[aggregate.beta=.1]": {"aggregate": TrimmedMean(0.1)},
            "+krum[aggregate.keep=2,aggregate.malicious=.3]": {"aggregate": Krum(0.3, 2)},
            "+structured[compress.rank=9]": {"compress": LowRank(9)},
            "+mask[compress.share=.4]": {"compress": RandomMask(0.4)},
            "+subsample[compress.share=.3]": {"compress": Subsample(0.3)},
            "+quantised[compress.bits=4]": {"compress": Quantised(4)},
            "+graddrop[compress.share=.05]": {"compress": GradientDropping(0.05)},
            "+signsgd[aggregate.step=.01]": {"compress": SignSGD(), "aggregate": MajorityVote(0.01)},
            "+randomsamples": {"samples": RandomSamples()},
            "-samples": {"samples": EverySample(), "threshold": NoThreshold()},
            "-deadline": {"deadline": FixedDeadline(1)},
            "-clients": {"clients": Uniform()},
            "+batches": {"work": WholeBatches()},
            "+forwardpass": {"forward_pass": "every"},
            "+forecast": {"work": ForecastEpochs()},
            "+trimmed[p=.9]": {"samples": Trimmed(0.9)},
            "+classfloor[p=.9]": {"samples": ClassFloor(0.9)},
        }
        assert {modifier.partition("[")[0] for modifier in composed} == set(MODIFIERS) - {"+silent", "+robust"}, (
            "these two are in tests of their own"
        )
        for modifier, slots in composed.items():
            name = f"fedbalancer{modifier}"
            assert method(name) == replace(method("fedbalancer").with_policies(**slots), name=name)


class TestModifiers:
    def test_silent_exchanges_the_summary_where_nobody_needs_losses(self) -> None:
        assert method("prox+1t+silent").summary == Silent()

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("fedbalancer+silent", "OverThresholdUtility needs the clients' losses, which Silent does not release"),
            ("fedavg+1t+qffl+silent", "QFFL needs the clients' losses"),
            ("oort+silent", "Oort needs the clients' losses"),
            ("prox+1t+powerofchoice+silent", "PowerOfChoice needs the clients' losses"),
            ("fedbalancer-clients+silent", "(InterpolatedThreshold|RatioControl) needs the clients' losses"),
            ("fedavg+1t+signsgd+median", "SignSGD .* MajorityVote"),
        ],
    )
    def test_what_does_not_go_together_is_refused_with_a_sentence(self, name: str, why: str) -> None:
        with pytest.raises(BadSetting, match=f"method '{re.escape(name)}' cannot run: .*{why}"):
            method(name)

    def test_a_policy_of_ones_own_may_refuse(self) -> None:
        class Picky(WaitForShare):
            def refuses(self, method: Any) -> str | None:
                return "Picky wants prox" if method.mu == 0 else None

        with pytest.raises(BadSetting, match="cannot run: Picky wants prox"):
            method("fedavg+1t", deadline=Picky())
        assert method("fedavg+1t", deadline=Picky(), mu=0.5).mu == 0.5

    @pytest.mark.parametrize(
        ("name", "why"),
        [("fedavg+1t-samples", "without sample selection"), ("prox+1t-deadline", "without deadline control"),
         ("oort-samples", "without sample selection"), ("fedavg+wfa-clients", "without client selection")],
    )  # fmt: skip
    def test_what_is_not_there_cannot_be_left_out(self, name: str, why: str) -> None:
        with pytest.raises(BadSetting, match=f"{re.escape(name)}.* is {why} anyway"):
            method(name)

    def test_batches_exchanges_the_work(self) -> None:
        assert method("fedbalancer+batches") == replace(
            method("fedbalancer").with_policies(work=WholeBatches()), name="fedbalancer+batches"
        )

    def test_forwardpass_makes_a_fresh_list_every_round(self) -> None:
        assert method("fedbalancer+forwardpass").forward_pass == "every"
        assert method("fedbalancer").forward_pass == "first"

    def test_modifiers_add_up_in_any_order(self) -> None:
        one, other = method("prox+1t+batches+forwardpass"), method("prox+1t+forwardpass+batches")
        assert replace(one, name="") == replace(other, name="")
        assert (one.work, one.forward_pass) == (WholeBatches(), "every")

    @pytest.mark.parametrize(
        ("name", "hint"),
        [("fedbalancer+batch", r"\+batches"), ("fedavg+1t+forwardpas", r"\+forwardpass"), ("fedbalancer+", "known")],
    )
    def test_an_unknown_one_names_the_method_and_the_nearest(self, name: str, hint: str) -> None:
        with pytest.raises(UnknownName, match=rf"unknown modifier in method '{name.replace('+', '.')}'.*{hint}"):
            method(name)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "near"), [("fedbalancr", "fedbalancer"), ("fedavgg", r"fedavg"), ("prox+3t", r"prox\+[12]t")]
    )
    def test_an_unknown_method_suggests_the_nearest(self, name: str, near: str) -> None:
        with pytest.raises(UnknownName, match=f"unknown method .* did you mean .*{near}"):
            method(name)

    def test_a_name_like_no_other_lists_them_all(self) -> None:
        with pytest.raises(UnknownName, match=r"known: .*fedavg.*sampleselection"):
            method("")


class TestSlots:
    def test_any_slot_is_replaced(self) -> None:
        composed = method("fedbalancer", deadline=FixedDeadline(3), clients=Uniform(), mu=0.5)
        assert (composed.deadline, composed.clients, composed.mu) == (FixedDeadline(3), Uniform(), 0.5)
        assert composed.samples == OverThreshold(1.0)

    def test_a_slot_is_named_in_the_settings_and_an_argument_wins(self) -> None:
        s = resolve({"deadline": "fedbalancer.server.deadline:WaitForShare"})
        assert method("fedbalancer", s).deadline == WaitForShare()
        assert method("fedbalancer", s, deadline=FixedDeadline(1)).deadline == FixedDeadline(1)

    def test_an_unknown_slot_suggests_the_nearest(self) -> None:
        with pytest.raises(UnknownName, match="unknown slot 'deadlin'; did you mean deadline"):
            method("fedbalancer", deadlin=FixedDeadline(1))

    def test_a_method_with_other_choices_is_not_plainly_called_by_its_base(self) -> None:
        assert method("fedavg+1t", deadline=FixedDeadline(2)).name == "fedavg+1t[deadline=FixedDeadline(multiple=2)]"
        assert method("fedavg+1t", mu=0.5).name == "fedavg+1t[mu=.5]"
        assert method("fedbalancer[w=5]", clients=Uniform()).name == "fedbalancer[w=5,clients=Uniform]"

        class Longer(WaitForShare):
            def __repr__(self) -> str:
                return "as long as /it/ takes"

        assert method("fedavg+1t", deadline=Longer()).name == "fedavg+1t[deadline=Longer]"

    def test_many_choices_make_no_name_that_is_too_long_for_a_folder(self) -> None:
        plain = method("fedbalancer")
        composed = method("fedavg+1t", **{slot: getattr(plain, slot) for slot in SLOTS})
        assert composed.name.startswith("fedavg+1t[clients=own,samples=own,")
        check_name(composed.name)

    def test_a_name_of_ones_own_is_taken_unless_it_is_another_methods(self) -> None:
        assert method("fedbalancer", deadline=FixedDeadline(2), name="mine").name == "mine"
        with pytest.raises(BadSetting, match="is the name of another method"):
            method("fedbalancer", name="fedavg+1t")
        with pytest.raises(BadSetting, match="no slash"):
            method("fedbalancer", name="a/b")

    def test_what_is_no_policy_is_refused_and_its_base_is_named(self) -> None:
        class Incomplete:
            def plan(self, setup: object, state: object, cohort: object) -> tuple[float, int]:
                return 60.0, 1

        with pytest.raises(BadSetting, match=r"derive Incomplete from fedbalancer\.core\.contracts\.DeadlinePolicy"):
            method("fedbalancer", deadline=Incomplete())
        with pytest.raises(BadSetting, match=r"is a class; pass an object of it: FixedDeadline\(\)"):
            method("fedbalancer", deadline=FixedDeadline)


class TestLoadPolicy:
    def test_a_class_is_made_without_arguments(self) -> None:
        assert load_policy("deadline", "fedbalancer.server.deadline.baselines:WaitForShare") == WaitForShare()

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("no_such_package:Deadline", "No module named 'no_such_package'"),
            ("fedbalancer.server.deadline:NoSuch", "has no attribute 'NoSuch'"),
            ("fedbalancer.server.deadline", "must look like package.module:Class"),
            ("", "must look like package.module:Class"),
            (":Deadline", "Empty module name"),
            (".relative:Deadline", "relative import"),
            (
                "fedbalancer.server.clients:Uniform",
                "for that slot: derive Uniform from fedbalancer.core.contracts.DeadlinePolicy",
            ),
            ("fedbalancer.server.deadline.peak:PeakState", "cannot be created without arguments"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line_with_slot_and_path(self, path: str, message: str) -> None:
        with pytest.raises(BadSetting) as caught:
            load_policy("deadline", path)
        assert str(caught.value).startswith(f"deadline = {path!r}")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("def plan(:\n", "SyntaxError: invalid syntax (broken_policy.py, line 1)"),
            ("import dataclass\n", "No module named 'dataclass'"),
            ("first = second\n", "NameError: name 'second' is not defined"),
        ],
    )
    def test_a_module_that_cannot_be_loaded_is_one_line(
        self, source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_policy.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(BadSetting) as caught:
            load_policy("deadline", "broken_policy:Mine")
        assert str(caught.value) == f"deadline = 'broken_policy:Mine': {message}"

    def test_an_unknown_slot_suggests_the_nearest(self) -> None:
        with pytest.raises(UnknownName, match="did you mean deadline"):
            load_policy("dedline", "a:B")


class TestBrackets:
    def test_settings_in_brackets_go_over_those_given(self) -> None:
        composed = method("fedbalancer[w=5,p=.75]", resolve({"w": 7, "lss": 0.2}))
        assert composed.pace == RatioControl(5, 0.2, 0.05)
        assert composed.samples == OverThreshold(0.75)
        assert composed.name == "fedbalancer[w=5,p=.75]"
        assert composed.settings == {}
        assert method("fedbalancer[epochs=2,w=5]").settings == {"epochs": 2}

    def test_they_reach_modifiers(self) -> None:
        assert method("fedavg+1t+momentum[aggregate.beta=.5]").aggregate == ServerMomentum(0.5)

    def test_two_spellings_are_equal_methods(self) -> None:
        assert method("fedbalancer[p=0.75, w=5]") == method("fedbalancer[w=5,p=.75]")

    @pytest.mark.parametrize("deadline", [".5T", "1.5T"])
    def test_fedavg_and_prox_with_a_deadline_of_their_own(self, deadline: str) -> None:
        fixed = FixedDeadline(float(deadline[:-1]))
        for family in ("fedavg", "prox"):
            name = f"{family}[deadline={deadline}]"
            like = method(f"{family}+1t").with_policies(deadline=fixed)
            assert method(name) == replace(like, name=name)

    def test_without_one_they_are_no_method(self) -> None:
        for name in ("fedavg", "prox", "fedavg+momentum", "prox[epochs=2]"):
            with pytest.raises(BadSetting, match=re.escape(f"method '{name}' cannot run: it has no deadline")):
                method(name)
        assert method("fedavg", deadline=FixedDeadline(3)).deadline == FixedDeadline(3)
        assert method("fedavg", resolve({"deadline": "wait"})).deadline == WaitForShare()

    def test_a_slot_in_brackets_goes_over_the_settings_and_an_argument_over_both(self) -> None:
        s = resolve({"deadline": "wait", "samples": "EverySample"})
        assert method("fedbalancer[deadline=3T]", s).deadline == FixedDeadline(3)
        assert method("fedbalancer[deadline=3T]", s).samples == EverySample()
        assert method("fedbalancer[deadline=3T]", s, deadline=FixedDeadline(4)).deadline == FixedDeadline(4)

    def test_what_does_not_go_together_is_refused(self) -> None:
        with pytest.raises(BadSetting, match=r"cannot run: .* Silent does not release"):
            method("fedbalancer[summary=Silent]")


class TestFields:
    def test_a_field_of_a_wrapped_policy_has_the_address_of_the_slot(self) -> None:
        robust = method("fedbalancer+robust[clients.alpha=2,clients.times=2,deadline.guard_s=20]")
        assert (robust.clients.inner.alpha, robust.clients.times, robust.deadline.inner.guard_s) == (2.0, 2.0, 20.0)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("fedbalancer[clients.alhpa=2]", "field of OverThresholdUtility .*'alhpa'; did you mean alpha"),
            ("fedavg+1t[w=5]", "slot pace is ConstantPace|unknown field of ConstantPace"),
            ("fedavg+1t[clients.alpha=2]", "the policy in slot clients is Uniform, which has no fields to set"),
            ("fedbalancer[summary=Histogram,noise_factor=1]", "field of Histogram .*'noise_factor'"),
            ("fedbalancer+robust[clients.inner=Uniform]", "'inner'"),
            ("fedbalancer[w=0]", r"method 'fedbalancer\[w=0\]': w = 0 must be a whole number >= 1"),
            ("fedbalancer[w=2.5]", "w = 2.5 must be a whole number"),
            ("fedbalancer[w=many]", "w = 'many' must be"),
            ("fedbalancer[w=true]", "w = True must be"),
            ("fedbalancer[p=nan]", "p = nan must be a number >= 0.5 and <= 1"),
            ("fedbalancer[p=1.1]", "p = 1.1 must be a number >= 0.5 and <= 1"),
            ("fedbalancer[deadline.guard_s=inf]", "guard_s = inf must be"),
            ("fedbalancer[threshold.history=sometimes]", "must be round or cumulative"),
            ("fedbalancer[clients.normalise=2]", "must be true or false"),
            ("fedbalancer[forward_pass=never]", "must be first or every"),
            ("fedbalancer[mu=-1]", "mu = -1 must be a number >= 0"),
        ],
    )
    def test_what_is_wrong_names_policy_value_and_range(self, name: str, message: str) -> None:
        with pytest.raises(FedBalancerError, match=message) as caught:
            method(name)
        assert "\n" not in str(caught.value)
        with pytest.raises(FedBalancerError):
            check_method_name(name)

    def test_settings_of_a_comparison_change_the_methods_that_have_the_field(self) -> None:
        s = resolve({"w": 5, "clients.alpha": 1})
        assert method_of_run("fedbalancer", s).pace == RatioControl(5)
        assert method_of_run("canter", s).pace == RatioControl(5)
        assert method_of_run("fedavg+1t", s) == method("fedavg+1t")
        check_settings_used(s, [method("fedavg+1t"), method("fedbalancer")])
        with pytest.raises(FedBalancerError, match=r"setting clients\.alpha"):
            check_settings_used(s, [method("fedavg+1t"), method("canter")])
        with pytest.raises(UnknownName, match="unknown field of ConstantPace in setting w"):
            method("fedavg+1t", s)

    def test_the_settings_of_a_task_do_not_change_what_canter_fixes(self) -> None:
        canter = method_of_run("canter", resolve({"epochs": 2, "prox_mu": 0.5}))
        assert (canter.pace, canter.samples, canter.mu) == (RatioControl(5), OverThreshold(0.75), 0.0)

    def test_brackets_take_precedence_over_settings(self) -> None:
        assert method("fedbalancer[clients.alpha=3]", resolve({"clients.alpha": 1})).clients.alpha == 3.0

    def test_the_manifest_has_every_field(self) -> None:
        described = describe_settings(resolve({"epochs": 2}), method("fedbalancer+robust[w=7]"))
        assert described["epochs"] == 2
        assert described["clients"] == "CappedParticipation of OverThresholdUtility"
        assert (described["w"], described["clients.alpha"], described["mu"]) == (7, 0.5, 0.0)
        assert describe_settings(resolve(), method("oort"))["clients.blacklist"] == "inf"

    def test_every_field_of_a_policy_is_listed_with_default_and_range(self) -> None:
        rows = {(row["policy"], row["key"]): row for row in policy_fields()}
        assert rows["RatioControl", "w"]["default"] == 20
        assert rows["RatioControl", "w"]["allowed"] == "a whole number >= 1 and <= 1e+06"
        assert rows["PeakDeadline", "deadline.grid"]["allowed"] == "integer or continuous"
        assert rows["", "forward_pass"]["allowed"] == "first or every"
