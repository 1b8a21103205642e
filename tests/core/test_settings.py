"""Settings: layers, ranges, and errors that help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.settings import Settings, parse_assignments, read_config, resolve


class TestResolve:
    def test_defaults_are_the_papers(self) -> None:
        s = resolve()
        assert (s.batch_size, s.epochs, s.latency_samples, s.window_s) == (10, 5, 10, 20.0)
        assert (s.w, s.lss, s.dss, s.p, s.noise_factor) == (20, 0.05, 0.05, 1.0, 0.0)
        assert s == Settings()

    def test_the_last_layer_wins(self) -> None:
        s = resolve({"w": 5, "lss": 0.1, "epochs": 2}, {"w": 6, "lss": 0.2}, {"w": 7})
        assert (s.w, s.lss, s.epochs, s.dss) == (7, 0.2, 2, 0.05)

    def test_a_later_layer_adds_to_the_slots_of_an_earlier_one(self) -> None:
        s = resolve({"slots": {"deadline": "a:A", "work": "b:B"}}, {"slots": {"work": "c:C"}})
        assert s.slots == {"deadline": "a:A", "work": "c:C"}

    def test_layers_are_not_changed(self) -> None:
        layers: list[dict[str, Any]] = [{"slots": {"deadline": "a:A"}}, {"slots": {"work": "c:C"}, "w": 3}]
        resolve(*layers)
        assert layers == [{"slots": {"deadline": "a:A"}}, {"slots": {"work": "c:C"}, "w": 3}]

    def test_settings_cannot_be_changed_afterwards(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            resolve().w = 3  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("key", "near"),
        [("learning_rat", "learning_rate"), ("bach_size", "batch_size"), ("noise_facto", "noise_factor")],
    )
    def test_an_unknown_key_suggests_the_nearest(self, key: str, near: str) -> None:
        with pytest.raises(UnknownName, match=f"unknown setting '{key}'; did you mean {near}"):
            resolve({key: 1})

    def test_a_key_like_no_other_lists_them_all(self) -> None:
        with pytest.raises(UnknownName, match=r"known: .*batch_size.*window_s"):
            resolve({"zzzzzz": 1})

    @pytest.mark.parametrize(
        ("key", "value", "range_"),
        [
            ("w", 0, ">= 1"),
            ("p", 0.4, ">= 0.5 and <= 1"),
            ("p", 1.1, ">= 0.5 and <= 1"),
            ("lss", -0.1, ">= 0 and <= 1"),
            ("learning_rate", 0, "> 0 and <= 1000"),
            ("batch_size", 0, ">= 1"),
            ("epochs", -3, ">= 1 and <= 1000"),
            ("clip_norm", 0, "> 0"),
            ("smartpc_share", 0, "> 0 and <= 1"),
            ("noise_factor", -1, ">= 0"),
        ],
    )
    def test_a_value_out_of_range_names_key_value_and_range(self, key: str, value: float, range_: str) -> None:
        with pytest.raises(BadSetting) as caught:
            resolve({key: value})
        assert f"setting {key} = {value!r}" in str(caught.value)
        assert f"allowed: {range_}" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("key", ["learning_rate", "p", "window_s", "clip_norm", "noise_factor", "guard_s", "w"])
    def test_nan_and_infinity_are_refused(self, key: str, value: float) -> None:
        with pytest.raises(BadSetting, match=f"setting {key} = "):
            resolve({key: value})

    @pytest.mark.parametrize(
        ("key", "value"), [("w", "many"), ("w", 2.5), ("p", "x"), ("epochs", None), ("slots", "a")]
    )
    def test_a_value_of_the_wrong_kind_is_refused(self, key: str, value: object) -> None:
        with pytest.raises(BadSetting, match=f"setting {key} = "):
            resolve({key: value})

    def test_a_choice_lists_what_there_is(self) -> None:
        with pytest.raises(BadSetting, match="'round' or 'cumulative'"):
            resolve({"loss_history": "sometimes"})

    def test_every_problem_is_named(self) -> None:
        with pytest.raises(BadSetting, match=r"setting p = .*setting w = |setting w = .*setting p = "):
            resolve({"p": 0, "w": 0})

    def test_every_setting_says_what_it_is(self) -> None:
        assert [name for name, field in Settings.model_fields.items() if not field.description] == []


class TestParseAssignments:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("w=5", "w", 5),
            ("p=0.5", "p", 0.5),
            (" w = 5 ", "w", 5),
            ("normalise_utility=false", "normalise_utility", False),
            ("latency=har", "latency", "har"),
            ('latency="har"', "latency", "har"),
            ("clip_norm=none", "clip_norm", None),
            ("availability=off", "availability", None),
            ("availability=a=b.json", "availability", "a=b.json"),
            ("latency=", "latency", ""),
        ],
    )
    def test_values_are_toml_or_plain_text(self, text: str, key: str, value: object) -> None:
        found = parse_assignments([text])
        assert found == {key: value}
        assert type(found[key]) is type(value)

    def test_the_last_of_a_key_wins(self) -> None:
        assert parse_assignments(["w=1", "w=2"]) == {"w": 2}

    def test_slots_are_gathered(self) -> None:
        found = parse_assignments(["slots.deadline=a.b:C", "slots.work = d:E"])
        assert found == {"slots": {"deadline": "a.b:C", "work": "d:E"}}

    @pytest.mark.parametrize(
        "given",
        [
            ["slots.work=d:E", "slots.deadline=a.b:C"],
            ['slots={work="d:E"}', "slots.deadline=a.b:C"],
            ["slots.deadline=a.b:C", 'slots={work="d:E"}'],
            ['slots.deadline="a.b:C"', "slots.work=x:Y", "slots.work=d:E"],
        ],
    )
    def test_every_form_of_a_slot_adds_to_the_others(self, given: list[str]) -> None:
        assert parse_assignments(given)["slots"] == {"deadline": "a.b:C", "work": "d:E"}

    @pytest.mark.parametrize("text", ["w", "=5", "", " =5"])
    def test_anything_else_must_look_like_key_value(self, text: str) -> None:
        with pytest.raises(BadSetting, match="key=value"):
            parse_assignments([text])

    @pytest.mark.parametrize("text", ["slots=a:B", "slots=none", "slots=3"])
    def test_slots_need_a_name(self, text: str) -> None:
        with pytest.raises(BadSetting, match="must name a slot"):
            parse_assignments([text, "slots.work=d:E"])

    def test_nan_gets_as_far_as_the_ranges(self) -> None:
        with pytest.raises(BadSetting, match="finite"):
            resolve(parse_assignments(["p=nan"]))


class TestReadConfig:
    def test_reads_toml(self, tmp_path: Path) -> None:
        path = tmp_path / "my.toml"
        path.write_text('w = 5\nlatency = "har"\n[slots]\ndeadline = "a:B"\n', encoding="utf-8")
        assert read_config(path) == {"w": 5, "latency": "har", "slots": {"deadline": "a:B"}}

    def test_the_working_folder_is_looked_at_and_need_not_have_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert read_config(None) == {}
        (tmp_path / "fedbalancer.toml").write_text("w = 9\n", encoding="utf-8")
        assert read_config(None) == {"w": 9}

    @pytest.mark.parametrize("content", [b"w = = 5", b"w 5", b"\xff\xfe"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "my.toml"
        path.write_bytes(content)
        with pytest.raises(BadSetting, match=r"my\.toml is not valid TOML"):
            read_config(path)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(RunFolderError, match=r"cannot read .*nowhere\.toml"):
            read_config(tmp_path / "nowhere.toml")
