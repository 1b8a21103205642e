"""Settings: layers, ranges, and errors that help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.fields import field_meanings
from fedbalancer.core.settings import Settings, parse_assignments, read_config, resolve


class TestResolve:
    def test_defaults_are_the_papers(self) -> None:
        s = resolve()
        assert (s.batch_size, s.epochs, s.latency_samples, s.window_s) == (10, 5, 10, 20.0)
        assert s == Settings()

    def test_the_last_layer_wins(self) -> None:
        s = resolve({"w": 5, "lss": 0.1, "epochs": 2}, {"pace.w": 6, "pace": {"lss": 0.2}}, {"w": 7, "rounds": 3})
        assert (s.policies, s.epochs, s.rounds) == ({"w": 7, "lss": 0.2}, 2, 3)

    def test_a_later_layer_adds_to_the_slots_of_an_earlier_one(self) -> None:
        s = resolve({"deadline": "a:A", "work": "b:B"}, {"work": "c:C"})
        assert s.policies == {"deadline": "a:A", "work": "c:C"}
        assert resolve(s.model_dump()) == s

    def test_layers_are_not_changed(self) -> None:
        layers: list[dict[str, Any]] = [{"deadline": {"guard_s": 3}}, {"work": "c:C", "w": 3}]
        resolve(*layers)
        assert layers == [{"deadline": {"guard_s": 3}}, {"work": "c:C", "w": 3}]

    def test_settings_cannot_be_changed_afterwards(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            resolve().epochs = 3  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("key", "near"),
        [
            ("learning_rat", "learning_rate"),
            ("bach_size", "batch_size"),
            ("noise_facto", "noise_factor"),
            ("deadlin.guard_s", "deadline"),
        ],
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
            ("label_noise", 1, ">= 0 and < 1"),
            ("window_s", -0.1, ">= 0 and <= 1e+06"),
            ("learning_rate", 0, "> 0 and <= 1000"),
            ("batch_size", 0, ">= 1"),
            ("epochs", -3, ">= 1 and <= 1000"),
            ("clip_norm", 0, "> 0"),
            ("network_floor", 0, "> 0 and <= 1"),
        ],
    )
    def test_a_value_out_of_range_names_key_value_and_range(self, key: str, value: float, range_: str) -> None:
        with pytest.raises(BadSetting) as caught:
            resolve({key: value})
        assert f"setting {key} = {value!r}" in str(caught.value)
        assert range_ in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("key", ["learning_rate", "window_s", "clip_norm", "epochs"])
    def test_nan_and_infinity_are_refused(self, key: str, value: float) -> None:
        with pytest.raises(BadSetting, match=f"setting {key} = "):
            resolve({key: value})

    @pytest.mark.parametrize(
        ("key", "value"), [("rounds", "many"), ("rounds", 2.5), ("prox_mu", "x"), ("epochs", None), ("attacks", 3)]
    )
    def test_a_value_of_the_wrong_kind_is_refused(self, key: str, value: object) -> None:
        with pytest.raises(BadSetting, match=f"setting {key} = "):
            resolve({key: value})

    def test_a_choice_lists_what_there_is(self) -> None:
        with pytest.raises(BadSetting, match="sample_selection_deadline = 3 must be 1 or 2"):
            resolve({"sample_selection_deadline": 3})

    def test_every_problem_is_named(self) -> None:
        with pytest.raises(BadSetting, match=r"setting epochs = .*setting rounds = "):
            resolve({"epochs": 0, "rounds": 0})

    def test_every_setting_says_what_it_is(self) -> None:
        assert list(field_meanings(Settings)) == list(Settings.model_fields)


class TestParseAssignments:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("w=5", "w", 5),
            ("p=0.5", "p", 0.5),
            (" w = 5 ", "w", 5),
            ("save_exact_losses=false", "save_exact_losses", False),
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

    @pytest.mark.parametrize(
        "texts",
        [
            ["deadline.guard_s=3", "work = d:E"],
            ["deadline={guard_s=3}", "work=d:E"],
            ["deadline.guard_s=4", 'work="d:E"', "deadline.guard_s=3"],
        ],
    )
    def test_fields_and_policies_by_slot(self, texts: list[str]) -> None:
        assert parse_assignments(texts) == {"deadline.guard_s": 3, "work": "d:E"}

    @pytest.mark.parametrize("text", ["w", "=5", "", " =5"])
    def test_anything_else_must_look_like_key_value(self, text: str) -> None:
        with pytest.raises(BadSetting, match="key=value"):
            parse_assignments([text])

    def test_nan_gets_as_far_as_the_ranges(self) -> None:
        with pytest.raises(BadSetting, match="prox_mu = nan must be a number"):
            resolve(parse_assignments(["prox_mu=nan"]))


class TestReadConfig:
    def test_reads_toml(self, tmp_path: Path) -> None:
        path = tmp_path / "my.toml"
        path.write_text('w = 5\nlatency = "har"\n[deadline]\nguard_s = 3\n', encoding="utf-8")
        assert read_config(path) == {"w": 5, "latency": "har", "deadline": {"guard_s": 3}}

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
