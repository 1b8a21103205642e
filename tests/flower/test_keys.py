"""`fedbalancer flower keys`: certificates that TLS accepts for the names of the SuperLink, and one key per node."""

from __future__ import annotations

import socket
import ssl
import tomllib
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.keys import write_keys


def connect(keys: Path, host: str) -> None:
    """Do the TLS handshake of a node that knows the SuperLink as `host`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "superlink.crt", keys / "superlink.key")
    here, there = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    thread = Thread(target=answer)
    thread.start()
    client = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        client.wrap_socket(here, server_hostname=host).close()
    finally:
        here.close()
        thread.join()


def test_nodes_trust_the_superlink_by_each_of_its_names_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, nodes=1, hosts=["superlink", "192.0.2.7"], port=9443)
    for host in ("superlink", "192.0.2.7", "localhost", "127.0.0.1"):
        connect(keys, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(keys, "superlink.example.org")
    link = tomllib.loads((keys / "flower" / "config.toml").read_text())["superlink"]
    assert link["here"] == {"address": "superlink:9443", "root-certificates": str(keys / "ca.crt")}


def test_every_node_has_its_own_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", nodes=3)
    seen = set()
    for number in (1, 2, 3):
        path = tmp_path / "keys" / f"node-{number}"
        private = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.public_key() == public
        seen.add(path.with_suffix(".pub").read_text())
    assert len(seen) == 3
    for name in ("ca.key", "superlink.key", "node-1"):
        assert oct((tmp_path / "keys" / name).stat().st_mode)[-3:] == "600"
    assert oct((tmp_path / "keys").stat().st_mode)[-3:] == "700"


@pytest.mark.parametrize("host", ["", "a b", "superlink:9443", "1.2.3", "-x", "x" * 254])
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadSetting, match="must be a host name or an IP address"):
        write_keys(tmp_path / "keys", hosts=[host])
    assert not (tmp_path / "keys").exists()


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", nodes=1)
    before = (tmp_path / "keys" / "node-1").read_bytes()
    with pytest.raises(BadSetting, match="not an empty folder"):
        write_keys(tmp_path / "keys", nodes=1)
    assert (tmp_path / "keys" / "node-1").read_bytes() == before
