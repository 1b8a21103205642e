"""The files in deploy/ are valid, and name commands, options and files that exist. No container is built or started."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "fedbalancer.yaml").read_text()))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def unit_command(unit: Path) -> str:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return str(line)


def containers() -> Iterator[dict[str, Any]]:
    for document in KUBERNETES:
        if document["kind"] == "StatefulSet":
            yield from document["spec"]["template"]["spec"]["containers"]


def commands() -> dict[str, list[str]]:
    """Every command line of the deployment."""
    found = {name: service["command"] for name, service in COMPOSE["services"].items() if "command" in service}
    for container in containers():
        words = [*container["command"], *container.get("args", [])]
        found[f"kubernetes {container['name']}"] = shlex.split(words[2])[1:] if words[0] == "sh" else words
    found |= {
        unit.name: [Path(word).name if "/bin/" in word else word for word in shlex.split(unit_command(unit))]
        for unit in UNITS
    }
    return found


def helps(program: str) -> str:
    command = [Path(sys.executable).parent / program, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_the_options_of_flower_exist(program: str) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    known = helps(program)
    lines = {name: words for name, words in commands().items() if words[0] == program}
    assert len(lines) >= 3
    for name, words in lines.items():
        for option in {word.partition("=")[0] for word in words if word.startswith("--")}:
            assert f"{option} " in known or f"{option}]" in known or f"{option}\n" in known, (name, option)


def test_the_submitters_use_our_command() -> None:
    from typer.main import get_command

    from fedbalancer.cli.app import app

    submit = get_command(app).commands["flower"].commands["submit"]  # type: ignore[attr-defined]
    options = {name for parameter in submit.params for name in parameter.opts}
    lines = [words for words in commands().values() if words[0] == "fedbalancer"]
    assert len(lines) == 3
    for words in lines:
        assert words[1:3] == ["flower", "submit"]
        assert {word for word in words if word.startswith("--")} <= options


def test_tls_and_node_keys_are_on_everywhere() -> None:
    for name, words in commands().items():
        text = " ".join(words)
        assert "--insecure" not in text
        if words[0] == "flower-superlink":
            assert {"--ssl-keyfile", "--enable-supernode-auth", "--database"} <= set(re.findall(r"--[\w-]+", text)), (
                name
            )
        if words[0] == "flower-supernode":
            assert "--auth-supernode-private-key" in text, name
            assert "--root-certificates" in text, name


def test_the_volumes_and_files_of_the_composition_exist() -> None:
    named, local = set(), set()
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            (local if source.startswith(".") else named).add(source)
        for name in service.get("depends_on", {}):
            assert "healthcheck" in COMPOSE["services"][name]
    assert named == set(COMPOSE["volumes"])
    existing = {source for source in local if source.startswith("../") or source.endswith(".toml")}
    assert len(existing) == 3
    link = tomllib.loads((DEPLOY / "compose" / "flower.toml").read_text())["superlink"]
    assert link[link["default"]] == {"address": "superlink:9443", "root-certificates": "/keys/ca.crt"}
    assert all((DEPLOY / "compose" / source).is_file() for source in existing)
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["alerts.yml"]
    assert scraped["scrape_configs"][0]["job_name"] == "fedbalancer", "the alert FedBalancerServerDown names the job"


def test_compose_accepts_the_composition() -> None:
    """`config` needs no engine. It resolves anchors and paths, and checks every key."""
    compose = ["docker", "compose"]
    if which("docker") is None or subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        pytest.skip("needs docker compose")
    command = [*compose, "-f", str(DEPLOY / "compose" / "compose.yaml"), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr
    resolved = json.loads(done.stdout)["services"]
    assert resolved.keys() == COMPOSE["services"].keys()
    for name, words in {name: service["command"] for name, service in resolved.items() if name != "prometheus"}.items():
        assert words == COMPOSE["services"][name]["command"]


def test_a_read_only_container_gets_files_by_mounts() -> None:
    """Compose copies inline `configs` and `secrets` into a container, which the engine refuses if it is read-only."""
    for name, service in COMPOSE["services"].items():
        assert not (service.get("read_only") and service.keys() & {"configs", "secrets"}), name


@pytest.mark.parametrize(
    "document", KUBERNETES, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_the_manifests_match_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    version = (
        sorted(validate.api_versions(), key=lambda text: [int(part) for part in text.split(".")])[-1]
        if hasattr(validate, "api_versions")
        else validate.latest_version()
    )
    validate.validate(document, version, strict=True)


def test_the_manifests_refer_to_each_other() -> None:
    by_kind: dict[str, set[str]] = {}
    for document in KUBERNETES:
        by_kind.setdefault(document["kind"], set()).add(document["metadata"]["name"])
    labels = {d["spec"]["template"]["metadata"]["labels"]["app"] for d in KUBERNETES if d["kind"] == "StatefulSet"}
    for document in KUBERNETES:
        if document["kind"] == "NetworkPolicy":
            assert document["spec"]["podSelector"]["matchLabels"]["app"] in labels
        if document["kind"] == "StatefulSet":
            assert document["spec"]["serviceName"] in by_kind["Service"]
            pod = document["spec"]["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            claims = {claim["metadata"]["name"] for claim in document["spec"]["volumeClaimTemplates"]}
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert mounted == volumes | claims
    probes = {"startupProbe", "readinessProbe", "livenessProbe"}
    assert any(probes <= container.keys() for container in containers())


def test_prometheus_accepts_its_files_and_every_alert_fires(tmp_path: Path) -> None:
    if which("promtool") is None:
        pytest.skip("needs promtool, which is part of Prometheus")
    for source in (*(DEPLOY / "prometheus").glob("*.yml"), ROOT / "tests" / "store" / "alerts_test.yml"):
        (tmp_path / source.name).write_text(source.read_text())
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run(["promtool", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout + done.stderr
    alerts = re.findall(r"alert: (\w+)", (tmp_path / "alerts.yml").read_text())
    tested = (tmp_path / "alerts_test.yml").read_text()
    assert [name for name in alerts if f'alertname="{name}", alertstate="firing"' not in tested] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    if which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for each in UNITS:  # they require each other
        text = re.sub(r"/opt/fedbalancer/bin/[\w-]+", str(program), each.read_text())
        (tmp_path / each.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    problems = [line for line in done.stderr.splitlines() if str(tmp_path) in line or unit.name in line]
    assert problems == [], done.stderr


def test_the_image_installs_extras_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = set(re.findall(r"'\.\[([\w,]+)\]'", text)[0].split(","))
    assert {"flower", "telemetry"} <= extras <= EXTRAS.keys()
    copied = re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)
    assert all((ROOT / source).exists() for line in copied for source in line.split())
