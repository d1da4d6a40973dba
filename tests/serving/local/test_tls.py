"""The stack's certificate is trusted by who trusts its authority, for loopback and for a while."""

import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from serving.local.tls import VALID_DAYS, write_certificate

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def handshake(folder: Path, host: str, *, cafile: Path) -> str | None:
    """A TLS handshake in memory; the protocol that was agreed on."""
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=cafile),
    )
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours.version()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_who_trusts_the_authority_trusts_the_server_on_loopback(tmp_path: Path, host: str) -> None:
    write_certificate(tmp_path)
    assert handshake(tmp_path, host, cafile=tmp_path / "ca.pem") == "TLSv1.3"


def test_another_host_name_is_not_trusted(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "example.org", cafile=tmp_path / "ca.pem")


def test_another_stacks_authority_vouches_for_nothing_here(tmp_path: Path) -> None:
    for name in ("here", "there"):
        write_certificate(tmp_path / name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "here", "localhost", cafile=tmp_path / "there" / "ca.pem")


def test_it_holds_for_its_days_and_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    write_certificate(tmp_path, NOW)
    for name in ("ca.pem", "server.pem"):
        certificate = x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        assert certificate.not_valid_before_utc < NOW
        assert (certificate.not_valid_after_utc - NOW).days == VALID_DAYS
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600


def test_the_authority_can_sign_nothing_more_since_its_key_is_kept_nowhere(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ca.pem", "server.pem", "server.key"}
