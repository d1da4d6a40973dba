"""The stack's certificate: an authority that signs one server, its own key thrown away."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serving.local.home import write_atomically

HOST = "localhost"
VALID_DAYS = 90
# A client whose clock is behind still takes a certificate that was just made.
CLOCK_SKEW = timedelta(hours=1)


def write_certificate(folder: Path, now: datetime | None = None) -> None:
    """Put `ca.pem`, `server.pem` and `server.key` into the folder.

    Nobody can sign anything more with this authority, so trusting it means trusting this stack.
    """
    now = now or datetime.now(UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name("galley local stack")
    authority = (
        _certificate(name, name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    addresses = [
        x509.DNSName(HOST),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    server = (
        _certificate(_name(HOST), name, server_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    for file, certificate in (("ca.pem", authority), ("server.pem", server)):
        write_atomically(
            folder / file, certificate.public_bytes(serialization.Encoding.PEM).decode()
        )
    key = server_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_atomically(folder / "server.key", key.decode(), private=True)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
