"""The examples' clients run in the tests' own process, as those of tests/flower do."""

from __future__ import annotations

from flower.conftest import _app_process  # noqa: F401
