"""Secure aggregation: only sums are opened, clients may drop out at any stage, and everything unsafe is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from builders import make_order
from flower.fakegrid import make_context
from flower.phones import Phone, World, weights_of
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower import Strategy
from fedbalancer.flower import secure as secure_module
from fedbalancer.flower.compat import make_reply
from fedbalancer.flower.messages import FEDBALANCER, Instruction
from fedbalancer.flower.secure import (
    MASKED,
    STATE,
    SUM,
    SUMS_ONLY,
    SecureAggregation,
    SumFailed,
    answer_sum,
    decode_sum,
    hold_update,
    mask_of,
    open_sum,
)

SECRET = "fedbalancer[forward_pass=every,summary=secagg-histogram(noise_multiplier=3,least=3,clip=100)]"
Change = Callable[[str, str, RecordDict], RecordDict | None]
"""(stage, client, reply) -> what arrives; None for nothing."""


class Group:
    """Clients with an update each, and what the server sees of them."""

    def __init__(self, count: int = 5, parameters: int = 3, bits: int = 20) -> None:
        rng = np.random.default_rng(count)
        self.names = [f"c{number}" for number in range(count)]
        self.updates = {name: rng.normal(size=parameters).astype(np.float32) for name in self.names}
        self.counts = {name: (float(number), 7.0) for number, name in enumerate(self.names)}
        self.contexts = {name: make_context(number + 2) for number, name in enumerate(self.names)}
        self.parameters, self.bits = parameters, bits
        self.seen: list[tuple[str, str, RecordDict]] = []
        self.keys = {}
        for name in self.names:
            record = hold_update(self.contexts[name], self.instruction(name), self.updates[name], self.counts[name])
            self.keys[name] = (record["mask"], record["seal"])

    def instruction(self, client: str) -> Instruction:
        order = make_order(round=4)
        return Instruction(client, order, 1.0, 0, 1.0, "run", "m", "", sum_bits=self.bits, sum_clip=8.0)

    def answer(self, client: str, content: RecordDict) -> RecordDict:
        return answer_sum(make_reply(content, 2), self.contexts[client]).content

    def open(self, needed: int = 3, change: Change | None = None) -> Any:
        def ask(stage: str, requests: Mapping[str, RecordDict]) -> dict[str, RecordDict]:
            replies = {}
            for client, content in requests.items():
                reply: RecordDict | None = self.answer(client, content)
                if change is not None and reply is not None:
                    reply = change(stage, client, reply)
                if reply is not None:
                    replies[client] = reply
                    self.seen.append((stage, client, reply))
            return replies

        words, members = open_sum(self.keys, needed, "run", 4, 1 + self.parameters + 2, ask)
        return (*decode_sum(words, self.parameters, self.bits), members)

    def expected(self, members: Any) -> np.ndarray:
        return np.sum([self.updates[name].astype(np.float64) for name in members], axis=0)


class TestSum:
    """The protocol, without messages."""

    @pytest.mark.parametrize("count", [3, 5, 8])
    def test_the_sum_is_that_of_updates_and_counts(self, count: int) -> None:
        group = Group(count)
        clients, update, counts, members = group.open(count // 2 + 1 if count > 3 else 3)
        assert (clients, list(members)) == (count, group.names)
        assert update == pytest.approx(group.expected(members), abs=count * 2.0**-20)
        assert counts == (sum(range(count)), 7.0 * count)

    @pytest.mark.parametrize("gone", [{"share": ["c1"]}, {"mask": ["c1"]}, {"open": ["c1"]},
                                      {"share": ["c0"], "mask": ["c4"]}, {"mask": ["c0"], "open": ["c3"]},
                                      {"mask": ["c2", "c3"]}])  # fmt: skip
    def test_clients_that_drop_out_are_left_out_of_the_sum(self, gone: dict[str, list[str]]) -> None:
        group = Group(5)
        lost = {*gone.get("share", []), *gone.get("mask", [])}
        drop: Change = lambda stage, client, reply: None if client in gone.get(stage, []) else reply  # noqa: E731
        clients, update, _, members = group.open(3, drop)
        assert set(members) == set(group.names) - lost
        assert clients == len(members)
        assert update == pytest.approx(group.expected(members), abs=1e-5)

    @pytest.mark.parametrize("stage", ["share", "mask", "open"])
    def test_with_too_few_nothing_is_opened(self, stage: str) -> None:
        group = Group(5)
        with pytest.raises(SumFailed, match=r"2 clients .* and 3 are needed"):
            group.open(3, lambda at, client, reply: None if at == stage and client > "c1" else reply)

    def test_what_the_server_sees_of_one_client_does_not_depend_on_its_update(self) -> None:
        """Masked words of two very different updates are equally spread, and nothing else contains the update."""
        words = []
        for scale in (0.0, 5.0):
            group = Group(4, parameters=4000)
            group.updates["c1"] = np.full(4000, scale, dtype=np.float32)
            record = hold_update(group.contexts["c1"], group.instruction("c1"), group.updates["c1"], (0.0, 0.0))
            group.keys["c1"] = (record["mask"], record["seal"])
            group.open(3)
            masked = next(reply for stage, client, reply in group.seen if (stage, client) == ("mask", "c1"))
            words.append(masked.array_records[MASKED][MASKED].numpy())
            secret = group.contexts["c1"].state.config_records[STATE]
            assert "words" not in secret
            assert "mask-key" not in secret
        for each in words:
            share = each[1:4001].astype(np.float64) / 2**32
            assert abs(share.mean() - 0.5) < 0.03
            assert len(np.unique(each)) > 3990

    def test_masks_of_two_keys_have_nothing_in_common(self) -> None:
        one, other = (mask_of(bytes([number]) * 32, 1000) for number in (1, 2))
        assert len({*one.tolist(), *other.tolist()}) > 1990
        assert mask_of(bytes(32), 3).tolist() == mask_of(bytes(32), 5)[:3].tolist()

    @pytest.mark.parametrize("bad", ["vector", "share", "key"])
    def test_a_wrong_vector_or_share_never_becomes_a_sum(self, bad: str) -> None:
        def change(stage: str, client: str, reply: RecordDict) -> RecordDict | None:
            if client != "c0":
                return None if (bad, stage, client) == ("key", "mask", "c3") else reply
            if bad == "vector" and stage == "mask":
                other = reply.array_records[MASKED][MASKED].numpy() + np.uint32(9)
                reply.array_records[MASKED][MASKED] = type(reply.array_records[MASKED][MASKED])(other)
            if bad != "vector" and stage == "open":
                shares = list(reply.config_records[FEDBALANCER]["shares"])  # type: ignore[call-overload]
                reply.config_records[FEDBALANCER]["shares"] = [bytes(52) for _ in shares]
            return reply

        with pytest.raises(SumFailed, match=r"shares|sum is not"):
            Group(5).open(3, change)


class TestClientRefuses:
    """A server that wants more than the sum gets an error."""

    def request(self, stage: str, **values: Any) -> RecordDict:
        base = {"version": secure_module.VERSION, "run-key": "run", "round": 4, "stage": stage}
        return RecordDict({FEDBALANCER: ConfigRecord({**base, **values})})

    def sharing(self, group: Group, **changes: Any) -> RecordDict:
        mask_keys, seal_keys = ([group.keys[name][place] for name in group.names] for place in (0, 1))
        values = {"clients": group.names, "needed": 3, "mask-keys": mask_keys, "seal-keys": seal_keys}
        return self.request("share", **(values | changes))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"needed": 1}, "not safe"), ({"needed": 2}, "safe"), ({"clients": ["c0", "c1", "c2", "c3", "c3"]}, "sort"),
         ({"mask-keys": [b"x" * 32] * 5}, "replaced"), ({"round": 5}, "not follow"), ({"run-key": "b"}, "not follow")],
    )  # fmt: skip
    def test_groups_that_are_not_safe(self, changes: dict[str, Any], message: str) -> None:
        group = Group(5)
        with pytest.raises(BadSetting, match=message):
            group.answer("c0", self.sharing(group, **changes))

    def test_two_clients_with_one_key(self) -> None:
        group = Group(5)
        group.keys["c3"] = group.keys["c2"]
        with pytest.raises(BadSetting, match="same key"):
            group.answer("c0", self.sharing(group))

    @pytest.mark.parametrize("stage", ["mask", "open"])
    def test_a_stage_out_of_turn(self, stage: str) -> None:
        group = Group(5)
        with pytest.raises(BadSetting, match="does not follow"):
            group.answer("c0", self.request(stage, group=group.names, sealed=[], arrived=group.names))

    def test_a_second_opening_with_another_list(self) -> None:
        """Shares of the seed and of the key of the same client would open its vector."""
        group = Group(5)
        group.open(3)
        with pytest.raises(BadSetting, match="does not follow"):
            group.answer("c0", self.request("open", arrived=group.names[:3]))

    def test_a_sum_of_fewer_than_needed(self) -> None:
        group = Group(5)
        with pytest.raises(SumFailed):
            group.open(3, lambda stage, client, reply: None if stage == "mask" else reply)
        with pytest.raises(BadSetting, match="of which 3 are needed"):
            group.answer("c0", self.request("open", arrived=["c0", "c1"]))


class SecurePhone(Phone):
    """A phone that also answers the messages of a sum; `gone_at` is the stage at which it stops to answer."""

    def __init__(self, *arguments: Any, gone_at: str = "", **options: Any) -> None:
        super().__init__(*arguments, **{"batch_s": 0.05, **options})
        self.gone_at, self.asked, self.sent = gone_at, [], []  # type: ignore[var-annotated]

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        if message.metadata.message_type != SUM:
            replies = super().__call__(message, sent_s)
            self.sent += [reply for _, reply in replies]
            return replies
        stage = message.content.config_records[FEDBALANCER]["stage"]
        self.asked.append(stage)
        if stage == self.gone_at:
            return []
        try:
            reply = answer_sum(message, self.context)
        except BadSetting as error:
            reply = Message(Error(2, str(error)), reply_to=message)
        self.sent.append(reply)
        return [(sent_s + self.way_s, reply)]


class TestRun:
    """Whole runs of the strategy, behind a grid in memory."""

    @pytest.mark.parametrize("method", [SECRET, "fedavg+2t+silent"])
    def test_a_run_learns_and_no_update_or_histogram_of_a_client_is_sent(self, method: str) -> None:
        phones = [SecurePhone(number) for number in range(4)]
        world = World(*phones)
        result = world.start(6, method, epochs=8, secure_aggregation=True)
        assert weights_of(result) == pytest.approx(np.arange(1, 5), abs=0.5)
        assert len(world.of("sum opened")) == 6
        for reply in itertools.chain.from_iterable(phone.sent for phone in phones):
            arrays = {name: list(record) for name, record in reply.content.array_records.items() if record}
            assert arrays in ({}, {MASKED: [MASKED]})
            assert "released" not in dict(reply.content.metric_records.get("metrics", {}))

    def test_the_model_is_that_of_the_same_run_in_the_clear(self) -> None:
        secret, clear = World(*map(SecurePhone, range(4))), World(*(Phone(number, batch_s=0.05) for number in range(4)))
        first = secret.start(3, "fedavg+2t+silent", secure_aggregation=True)
        second = clear.start(3, "fedavg+2t+silent")
        assert weights_of(first) == pytest.approx(weights_of(second), abs=1e-5)

    def test_a_client_that_misses_the_deadline_is_in_no_sum_and_the_round_continues(self) -> None:
        phones = [*map(SecurePhone, range(4)), SecurePhone(4, change=lambda reply: None)]
        world = World(*phones)
        world.start(2, "fedavg+2t+silent", secure_aggregation=True)
        assert [each["clients"] for each in world.of("sum opened")] == [4, 4]
        assert phones[4].asked == []

    @pytest.mark.parametrize("stage", ["share", "mask", "open"])
    def test_a_client_that_drops_out_of_the_sum_loses_only_its_own_report(self, stage: str) -> None:
        world = World(*map(SecurePhone, range(4)), SecurePhone(4, gone_at=stage))
        settings = SecureAggregation(threshold=0.6, wait_s=20)
        result = world.start(2, "fedavg+2t+silent", secure_aggregation=settings)
        clients = [each["clients"] for each in world.of("sum opened")]
        assert clients[0] == (5 if stage == "open" else 4)
        assert not world.of("sum failed")
        assert np.isfinite(weights_of(result)).all()

    def test_a_sum_that_cannot_be_opened_is_a_round_without_reports(self) -> None:
        world = World(*map(SecurePhone, range(3)), SecurePhone(3, gone_at="mask"), SecurePhone(4, gone_at="mask"))
        strict = SecureAggregation(threshold=1.0, wait_s=20)
        world.start(1, "fedavg+2t+silent", secure_aggregation=strict)
        assert world.of("sum failed")[0]["why"] == "3 clients sent their vectors, and 5 are needed"
        assert set(world.of("round closed")[0]["missing"]) == {f"c{number}" for number in range(5)}

    def test_a_run_resumes_and_a_round_is_never_summed_twice(self, tmp_path: Path) -> None:
        phones = [SecurePhone(number) for number in range(4)]
        options = {"secure_aggregation": True, "run_key": "one", "checkpoint_dir": tmp_path, "eval_every": 1}

        class Killed(Exception):
            pass

        def dies(number: int, arrays: ArrayRecord) -> None:
            if number == 2:
                raise Killed

        with pytest.raises(Killed):
            World(*phones).start(4, "fedavg+2t+silent", evaluate_fn=dies, **options)
        world = World(*phones)
        world.start(5, "fedavg+2t+silent", **options)
        assert world.of("resumed")[0]["round"] == 1
        closed = {each["round"]: each["completed"] for each in world.of("round closed")}
        assert closed == {2: 0, 3: 4, 4: 4, 5: 4}

    def test_a_client_may_insist_and_mods_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SUMS_ONLY, "1")
        with pytest.raises(BadSetting, match="without secure aggregation"):
            World(*map(SecurePhone, range(3))).start(1, "fedavg+2t+silent")
        World(*map(SecurePhone, range(3))).start(1, "fedavg+2t+silent", secure_aggregation=True)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedbalancer", "LossStatistics sends each client's statistics"),
        ("fedavg+1t", "LossStatistics sends each client's statistics"),
        ("fedbalancer[forward_pass=every,summary=histogram]", "Histogram sends each client's"),
        ("fedavg+1t+silent+median", "Median needs each client's update"),
        ("fedavg+1t+silent+krum", "Krum needs each client's update"),
        ("fedavg+1t+silent+fedexp", "FedExP needs each client's update"),
        ("fedavg+1t+silent+late", "Joins counts reports that arrive after"),
        ("fedavg+1t+silent+quantised", "Quantised sends updates that cannot be added"),
        (
            "fedavg+1t+silent[aggregate=fedbalancer.privacy.central:PrivateMean(draws='system')]",
            "PrivateMean needs each",
        ),
        ("fedbalancer[forward_pass=every,summary=secagg-histogram(noise_multiplier=0)]", "with noise"),
    ],
)
def test_methods_that_need_more_than_a_sum_are_refused_by_name(method: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        Strategy(method, secure_aggregation=True)


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"least": 2}, {"threshold": 0.4}, {"clip": 0.0}, {"wait_s": 0.0}):
        with pytest.raises(BadSetting, match=next(iter(wrong))):
            SecureAggregation(**wrong)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="clients_per_round = 2"):
        Strategy("fedavg+1t+silent", clients_per_round=2, secure_aggregation=True)
    assert replace(SecureAggregation(), threshold=0.5).needed(9) == 5


def test_flowers_own_workflow_takes_no_strategy_of_the_message_api() -> None:
    from flwr.server.workflow import SecAggPlusWorkflow

    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(World(SecurePhone(0)).grid, make_context(1))  # type: ignore[arg-type]
    assert not hasattr(Strategy, "configure_fit")


def test_flowers_own_masks_have_a_seed_of_at_most_32_bits() -> None:
    """Why they are not used here: a server that has the masked vector can try all seeds."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    seed, folded = bytes(range(65, 97)), 0
    for place in range(0, 32, 4):
        folded ^= int.from_bytes(seed[place : place + 4], "little")
    plain = pseudo_rand_gen(seed, 2**32, [(50,)])[0]
    assert plain.tolist() == np.random.RandomState(folded).randint(0, 2**32 - 1, 50, dtype=np.int64).tolist()
