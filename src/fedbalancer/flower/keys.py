"""Certificates and keys of a federation: a certificate authority, the SuperLink's certificate and a key per node."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbalancer.core.errors import BadSetting

LOOPBACK = ("localhost", "127.0.0.1")
"""Names that every certificate of a SuperLink has."""
PEM, PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


def write_keys(folder: Path, *, nodes: int = 3, hosts: Sequence[str] = (), port: int = 9092, days: int = 365) -> None:
    """Write the certificates and keys of a federation.

    The folder gets `ca.crt` and `ca.key`, `superlink.crt` and `superlink.key`, `node-1`, `node-1.pub`, ... in the
    format that Flower expects, and `flower/config.toml`, with which `flwr` finds the SuperLink.

    Args:
        folder: A new or empty folder.
        nodes: Number of nodes.
        hosts: Host names and addresses of the SuperLink, besides those of loopback. `flwr` uses the first one.
        port: Port of the SuperLink.
        days: Days until the certificates expire.

    Raises:
        BadSetting: The folder is not empty, or a host is neither a name nor an address.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadSetting(f"{folder} exists and is not an empty folder; choose another one, so that no key is replaced")
    names = [_general_name(host) for host in dict.fromkeys((*LOOPBACK, *hosts))]
    (folder / "flower").mkdir(parents=True)
    folder.chmod(0o700)
    valid = timedelta(days=days)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    _write_private(folder / "ca.key", ca_key, PRIVATE.PKCS8)
    _write_private(folder / "superlink.key", server_key, PRIVATE.PKCS8)
    (folder / "ca.crt").write_bytes(_authority(ca_key, valid).public_bytes(PEM))
    (folder / "superlink.crt").write_bytes(_server(server_key, ca_key, names, valid).public_bytes(PEM))
    for number in range(1, nodes + 1):
        _write_node(folder, number)
    host = hosts[0] if hosts else LOOPBACK[1]
    link = f'address = "{_bracketed(host)}:{port}"\nroot-certificates = "{folder.resolve() / "ca.crt"}"\n'
    (folder / "flower" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{link}')


def _general_name(host: str) -> x509.GeneralName:
    """Return a host name or an address as a certificate names it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host) or host.replace(".", "").isdigit():
        raise BadSetting(f"--host {host!r} must be a host name or an IP address, without a port")
    return x509.DNSName(host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: str, key: ec.EllipticCurvePrivateKey, valid: timedelta) -> x509.CertificateBuilder:
    """Return a certificate builder with the fields that all certificates share."""
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name("fedbalancer CA"))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + valid)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage: a CA signs only certificates, a server only the handshake."""
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority(key: ec.EllipticCurvePrivateKey, valid: timedelta) -> x509.Certificate:
    builder = _certificate("fedbalancer CA", key, valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(own, critical=False).sign(key, hashes.SHA384())


def _server(
    key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey, names: Sequence[x509.GeneralName],
    valid: timedelta,
) -> x509.Certificate:  # fmt: skip
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = _certificate("SuperLink", key, valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.add_extension(signer, critical=False).sign(ca_key, hashes.SHA384())


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key to a file that only its owner can read, from the first byte."""
    data = key.private_bytes(PEM, form, serialization.NoEncryption())
    with open(path, "wb", opener=lambda file, flags: os.open(file, flags, 0o600)) as out:
        out.write(data)


def _write_node(folder: Path, number: int) -> None:
    """Write a node's key pair in SSH format, which Flower expects; P-384 is one of the supported curves."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(folder / f"node-{number}", key, PRIVATE.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"node-{number}.pub").write_bytes(public)
