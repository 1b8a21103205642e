"""The same with TLS and authenticated SuperNodes: a certificate for loopback and a key for every client."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flower.faults.bed import Bed, wait_for

from fedbalancer.flower.federation import free_port


class SecureBed(Bed):
    """A federation with TLS in which a SuperNode must show a registered key."""

    def __init__(self, folder: Path, rounds: int, deadline_s: float, least: int) -> None:
        super().__init__(folder, rounds, deadline_s, least)
        self.certificate, self.certificate_key = self.folder / "server.pem", self.folder / "server.key"
        make_certificate(self.certificate, self.certificate_key)
        (Path(self.environment["FLWR_HOME"]) / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.certificate}"\n'
        )

    def link(self) -> None:
        self.start("superlink", [
            "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth",
            "--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.certificate_key),
            "--ssl-ca-certfile", str(self.certificate), "--disable-runtime-dependency-installation",
            "--database", str(self.folder / "link.db"),
        ])  # fmt: skip
        wait_for("the SuperLink", lambda: _listens(self.port))

    def node(self, client: str, script: str = "", clock_s: float = 0.0) -> None:
        key = self.folder / f"{client}.key"
        if not key.exists():
            make_key(key)
            self.flwr("supernode", "register", f"{key}.pub")
        self.start(client, [
            "flower-supernode", "--root-certificates", str(self.certificate), "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(free_port()), "--auth-supernode-private-key", str(key), "--node-config",
            self.config(client, script),
        ], self.surroundings(client, clock_s))  # fmt: skip

    def flwr(self, *words: str) -> None:
        done = subprocess.run(
            ["flwr", *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_key(path: Path) -> None:
    """A key pair for a SuperNode, in the formats of ssh-keygen."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    Path(f"{path}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def make_certificate(certificate: Path, key_file: Path) -> None:
    """A certificate of loopback that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=2))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
