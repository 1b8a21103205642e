"""Options that several commands share."""

from __future__ import annotations

import pytest

from fedbalancer.cli.options import parse_seeds
from fedbalancer.core.errors import BadSetting


def test_seeds_are_how_many_or_which() -> None:
    assert parse_seeds("2") == (0, 1)
    assert parse_seeds("10..12") == (10, 11, 12)
    assert parse_seeds("7, 3") == (7, 3)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "3..2", "1,1", "x", "1..", "..4", "1.5", "-2..1", "0..99999", "0..1" + 30 * "0", "1" + 30 * "0"],
)
def test_anything_else_is_one_clear_line(text: str) -> None:
    with pytest.raises(BadSetting, match="must be a number"):
        parse_seeds(text)
