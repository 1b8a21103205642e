"""A real Prometheus scrapes a run: it finds the metrics, evaluates the alerts, and answers the dashboard's queries."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from shutil import which
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra telemetry is not installed")

from tests_for_ports import free_port

import fedbalancer as fb
from fedbalancer.store.telemetry import Telemetry

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 60.0
