"""Create certificates and keys for a federation on this machine.

Writes to `keys/`: a certificate authority, the SuperLink's certificate for loopback, a key pair for every node, and a
configuration that lets `flwr` find the SuperLink.

For real devices, use the SuperLink's host name instead of loopback, create each node's key on the node (only the public
key leaves it), and keep `ca.key` offline.
"""

import argparse
import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)
PRIVATE = serialization.PrivateFormat
PEM = serialization.Encoding.PEM


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate(subject: str, key: ec.EllipticCurvePrivateKey, issuer: str) -> x509.CertificateBuilder:
    """Return a certificate builder with the fields that all certificates share."""
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer)).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
    return made.not_valid_after(now + VALID)


def usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage: a CA signs only certificates, a server only the handshake."""
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    made = certificate("example CA", key, "example CA")
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage(signs=True), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(key, hashes.SHA384())


def server(key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    made = certificate("SuperLink", key, "example CA")
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectAlternativeName(here), critical=False)
    made = made.add_extension(usage(signs=False), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return made.add_extension(signer, critical=False).sign(ca_key, hashes.SHA384())


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: PRIVATE) -> None:
    """Write a private key to a file that only its owner can read, from the first byte."""
    data = key.private_bytes(PEM, form, serialization.NoEncryption())
    with open(path, "wb", opener=lambda file, flags: os.open(file, flags, 0o600)) as out:
        out.write(data)


def write_node(folder: Path, number: int) -> None:
    """Write a node's key pair in SSH format, which Flower expects; P-384 is one of the supported curves."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_key(folder / f"node-{number}", key, PRIVATE.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"node-{number}.pub").write_bytes(public)


def main(folder: Path, nodes: int, port: int) -> None:
    (folder / "flower").mkdir(parents=True)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    write_key(folder / "ca.key", ca_key, PRIVATE.PKCS8)
    write_key(folder / "superlink.key", server_key, PRIVATE.PKCS8)
    (folder / "ca.crt").write_bytes(authority(ca_key).public_bytes(PEM))
    (folder / "superlink.crt").write_bytes(server(server_key, ca_key).public_bytes(PEM))
    for number in range(1, nodes + 1):
        write_node(folder, number)
    link = f'address = "127.0.0.1:{port}"\nroot-certificates = "{folder.resolve() / "ca.crt"}"\n'
    (folder / "flower" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{link}')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, default=Path("keys"))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--port", type=int, default=9443)
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} already exists; choose another --folder or delete it")
    main(given.folder, given.nodes, given.port)
    print(f"wrote the keys of the SuperLink and {given.nodes} nodes to {given.folder}")
