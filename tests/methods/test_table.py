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
from fedbalancer.client.work import AllOrNothing, ForecastEpochs, WholeBatches, WholeEpochs
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.methods.names import check_name
from fedbalancer.methods.table import BASES, MODIFIERS, SLOTS, load_policy, method
from fedbalancer.server.aggregate import (
    QFFL,
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedNova,
    FedYogi,
    Krum,
    MajorityVote,
    Median,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)
from fedbalancer.server.clients import (
    ByLoss,
    FedCS,
    GroupFloor,
    LeastSelected,
    Oort,
    OverThresholdUtility,
    PowerOfChoice,
    Uniform,
)
from fedbalancer.server.deadline import (
    FirstReports,
    FixedDeadline,
    KthFastest,
    LearnedWork,
    PeakDeadline,
    UsefulWork,
    WaitForShare,
)
from fedbalancer.server.late import Boosted, Buffered, Joins, Lost
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
    "fedbuff": (Uniform(), EverySample(), WaitForShare(1.0), AllOrNothing()),
}
BALANCERS = {"fedbalancer", "oortbalancer", "canter"}
LATE: dict[str, Any] = {"fedbuff": Buffered(), "refl": Boosted(0.35)}


class TestTable:
    @pytest.mark.parametrize("name", TABLE)
    def test_each_method_is_its_row(self, name: str) -> None:
        composed = method(name)
        assert (composed.clients, composed.samples, composed.deadline, composed.work) == TABLE[name]
        ours = name == "canter"
        assert composed.aggregate == (ExtrapolatedMomentum() if ours else WeightedMean())
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
        silenced = {"+silent"} if name in {"oort", *BALANCERS} else set()
        parts = {modifier for modifier in MODIFIERS if modifier[0] == "-"}
        refused = silenced | (set() if name in BALANCERS else parts)
        refused -= {"-clients"} if name in {"oort", "refl"} else set()
        refused -= {"-samples"} if name == "sampleselection" else set()
        waits = isinstance(method(name).deadline, WaitForShare | FirstReports)
        refused -= {"-deadline"} if waits or "2t" in name or name == "timelyfl" else set()
        refused |= {"+late"} if name in LATE else set()
        refused |= {"+forecast"} if isinstance(method(name).work, AllOrNothing) else set()
        own_rule = not isinstance(method(name).samples, EverySample | OverThreshold)
        refused |= {"+trimmed", "+classfloor"} if own_rule else set()
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
        s = resolve({"prox_mu": 0.1, "fedbalancer_mu": 0.2})
        mu = {name: method(name, s).mu for name in TABLE}
        assert mu == dict.fromkeys(TABLE, 0.0) | {
            "prox+1t": 0.1, "prox+2t": 0.1, "sampleselection": 0.1, "fedbalancer": 0.2, "oortbalancer": 0.2,
            "canter": 0.2,
        }  # fmt: skip


class TestSettingsReachTheSlots:
    def test_fedbalancer(self) -> None:
        s = resolve(
            {
                "p": 0.7, "w": 7, "lss": 0.1, "dss": 0.2, "noise_factor": 0.3, "loss_history": "cumulative",
                "utility_samples": "all", "forward_pass": "every", "deadline_grid": "continuous",
                "deadline_counts": "over", "deadline_gate": 0.4, "deadline_gate_clients": 3, "guard_s": 4.0,
                "alpha": 2.0, "exploration": 0.8, "exploration_decay": 0.9, "exploration_min": 0.1,
                "utility_clip": 0.6, "utility_cutoff": 0.5, "normalise_utility": False,
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
        s = resolve({"smartpc_share": 0.5, "sample_selection_deadline": 2, "noise_factor": 0.3})
        assert method("fedavg+spc", s).deadline == WaitForShare(0.5)
        assert method("sampleselection", s).deadline == FixedDeadline(2)
        oort = LossStatistics(0.3, over_samples="selected")
        assert all(method(name, s).summary == (oort if name == "oort" else LossStatistics(0.3)) for name in BASES)

    def test_oort(self) -> None:
        s = resolve(
            {
                "oort_alpha": 1.0, "exploration": 0.8, "exploration_decay": 0.9, "exploration_min": 0.1,
                "utility_clip": 0.6, "utility_cutoff": 0.5, "oort_overcommit": 1.5, "oort_pacer_window": 7,
                "oort_pacer_start": 20.0, "oort_pacer_delta": 6.0, "oort_blacklist": 10, "p": 0.8,
            }
        )  # fmt: skip
        assert method("oort", s).clients == Oort(1.0, 0.8, 0.9, 0.1, 0.6, 0.5, 1.5, 7, 20.0, 6.0, 10)
        assert method("oortbalancer", s).samples == OverThresholdBatch(0.8)

    def test_modifiers(self) -> None:
        s = resolve(
            {
                "candidates": 3.0, "qffl_q": 0.5, "server_eta": 0.2, "server_beta_1": 0.8, "server_beta_2": 0.9,
                "server_tau": 0.1, "server_momentum": 0.7, "server_momentum_eta": 0.6, "trim_share": 0.1,
                "krum_malicious": 0.3, "krum_keep": 2, "structured_rank": 9, "mask_share": 0.4, "subsample_share": 0.3,
                "quantised_bits": 4, "drop_keep": 0.05, "vote_step": 0.01, "p": 0.9,
            }
        )  # fmt: skip
        composed: dict[str, dict[str, Any]] = {
            "+powerofchoice": {"clients": PowerOfChoice(3.0)},
            "+fedcs": {"clients": FedCS(3.0)},
            "+groupfloor": {"clients": GroupFloor(method("fedbalancer", s).clients)},
            "+late": {"late": Joins()},
            "+learned": {"deadline": LearnedWork(), "summary": LossesBySteps()},
            "+qffl": {"aggregate": QFFL(0.5)},
            "+momentum": {"aggregate": ServerMomentum(0.7, 0.6)},
            "+fedadam": {"aggregate": FedAdam(0.2, 0.8, 0.9, 0.1)},
            "+fedyogi": {"aggregate": FedYogi(0.2, 0.8, 0.9, 0.1)},
            "+fedadagrad": {"aggregate": FedAdagrad(0.2, 0.1)},
            "+fedexp": {"aggregate": FedExP()},
            "+fednova": {"aggregate": FedNova()},
            "+averaged": {"model_average": AveragedModel()},
            "+median": {"aggregate": Median()},
            "+trimmedmean": {"aggregate": TrimmedMean(0.1)},
            "+krum": {"aggregate": Krum(0.3, 2)},
            "+structured": {"compress": LowRank(9)},
            "+mask": {"compress": RandomMask(0.4)},
            "+subsample": {"compress": Subsample(0.3)},
            "+quantised": {"compress": Quantised(4)},
            "+graddrop": {"compress": GradientDropping(0.05)},
            "+signsgd": {"compress": SignSGD(), "aggregate": MajorityVote(0.01)},
            "+randomsamples": {"samples": RandomSamples()},
            "-samples": {"samples": EverySample(), "threshold": NoThreshold()},
            "-deadline": {"deadline": FixedDeadline(1)},
            "-clients": {"clients": Uniform()},
            "+batches": {"work": WholeBatches()},
            "+forwardpass": {"forward_pass": "every"},
            "+forecast": {"work": ForecastEpochs()},
            "+trimmed": {"samples": Trimmed(0.9)},
            "+classfloor": {"samples": ClassFloor(0.9)},
        }
        assert set(composed) == set(MODIFIERS) - {"+silent", "+robust"}, "these two are in tests of their own"
        for modifier, slots in composed.items():
            name = f"fedbalancer{modifier}"
            assert method(name, s) == replace(method("fedbalancer", s).with_policies(**slots), name=name)


class TestModifiers:
    def test_silent_exchanges_the_summary_where_nobody_needs_losses(self) -> None:
        assert method("prox+1t+silent").summary == Silent()

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("fedbalancer+silent", "OverThresholdUtility steers by the clients' losses, which Silent does not release"),
            ("fedavg+1t+qffl+silent", "QFFL steers by"),
            ("oort+silent", "Oort steers by"),
            ("prox+1t+powerofchoice+silent", "PowerOfChoice steers by"),
            ("fedbalancer-clients+silent", "(InterpolatedThreshold|RatioControl) steers by"),
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
        s = Settings(slots={"deadline": "fedbalancer.server.deadline:WaitForShare"})
        assert method("fedbalancer", s).deadline == WaitForShare()
        assert method("fedbalancer", s, deadline=FixedDeadline(1)).deadline == FixedDeadline(1)

    def test_an_unknown_slot_suggests_the_nearest(self) -> None:
        with pytest.raises(UnknownName, match="unknown slot 'deadlin'; did you mean deadline"):
            method("fedbalancer", deadlin=FixedDeadline(1))
        with pytest.raises(UnknownName, match="unknown slot 'deadlin'; did you mean deadline"):
            method("fedbalancer", Settings(slots={"deadlin": "a:B"}))

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
        with pytest.raises(BadSetting, match="is that of a method of its own"):
            method("fedbalancer", name="fedavg+1t")
        with pytest.raises(BadSetting, match="no slash"):
            method("fedbalancer", name="a/b")

    def test_what_is_no_policy_is_refused_and_its_base_is_named(self) -> None:
        class Incomplete:
            def plan(self, setup: object, state: object, cohort: object) -> tuple[float, int]:
                return 60.0, 1

        with pytest.raises(BadSetting, match=r"derive Incomplete from fedbalancer\.core\.contracts\.DeadlinePolicy"):
            method("fedbalancer", deadline=Incomplete())
        with pytest.raises(BadSetting, match=r"is a class; give a policy made from it: FixedDeadline\(\)"):
            method("fedbalancer", deadline=FixedDeadline)


class TestLoadPolicy:
    def test_a_class_is_made_without_arguments(self) -> None:
        assert load_policy("deadline", "fedbalancer.server.deadline.waiting:WaitForShare") == WaitForShare()

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
            ("fedbalancer.server.deadline.peak:PeakState", "cannot be made without arguments"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line_with_slot_and_path(self, path: str, message: str) -> None:
        with pytest.raises(BadSetting) as caught:
            load_policy("deadline", path)
        assert str(caught.value).startswith(f"slots.deadline = {path!r}")
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
        assert str(caught.value) == f"slots.deadline = 'broken_policy:Mine': {message}"

    def test_an_unknown_slot_suggests_the_nearest(self) -> None:
        with pytest.raises(UnknownName, match="did you mean deadline"):
            load_policy("dedline", "a:B")


class TestBrackets:
    def test_settings_in_brackets_go_over_those_given(self) -> None:
        composed = method("fedbalancer[w=5,p=.75]", resolve({"w": 7, "lss": 0.2}))
        assert composed.pace == RatioControl(5, 0.2, 0.05)
        assert composed.samples == OverThreshold(0.75)
        assert composed.name == "fedbalancer[w=5,p=.75]"
        assert composed.settings == {"w": 5, "p": 0.75}

    def test_they_reach_modifiers(self) -> None:
        assert method("fedavg+1t+momentum[server_momentum=.5]").aggregate == ServerMomentum(0.5)

    def test_two_spellings_are_equal_methods(self) -> None:
        assert method("fedbalancer[p=0.75, w=5]") == method("fedbalancer[w=5,p=.75]")

    @pytest.mark.parametrize("deadline", [".5T", "1.5T"])
    def test_fedavg_and_prox_with_a_deadline_of_their_own(self, deadline: str) -> None:
        fixed = FixedDeadline(float(deadline[:-1]))
        for family in ("fedavg", "prox"):
            name = f"{family}[deadline={deadline}]"
            like = method(f"{family}+1t").with_policies(deadline=fixed)
            assert method(name) == replace(like, name=name, settings={"slots": {"deadline": deadline}})

    def test_without_one_they_are_no_method(self) -> None:
        for name in ("fedavg", "prox", "fedavg+momentum", "prox[epochs=2]"):
            with pytest.raises(BadSetting, match=re.escape(f"method '{name}' cannot run: it has no deadline")):
                method(name)
        assert method("fedavg", deadline=FixedDeadline(3)).deadline == FixedDeadline(3)
        assert method("fedavg", Settings(slots={"deadline": "wait"})).deadline == WaitForShare()

    def test_a_slot_in_brackets_goes_over_the_settings_and_an_argument_over_both(self) -> None:
        s = Settings(slots={"deadline": "wait", "samples": "EverySample"})
        assert method("fedbalancer[deadline=3T]", s).deadline == FixedDeadline(3)
        assert method("fedbalancer[deadline=3T]", s).samples == EverySample()
        assert method("fedbalancer[deadline=3T]", s, deadline=FixedDeadline(4)).deadline == FixedDeadline(4)

    def test_what_does_not_go_together_is_refused(self) -> None:
        with pytest.raises(BadSetting, match=r"cannot run: .* Silent does not release"):
            method("fedbalancer[summary=Silent]")
