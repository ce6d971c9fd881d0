"""The daemon's own certificate and the key of its tokens: made once, kept privately. Who calls from another machine
is given the certificate beforehand: pods for the gateway, `bireme node` for the door of telemetry.

Not a public authority's: they trust exactly this certificate and no other, so its names do not matter.
Invariant: neither key leaves its file, which only the daemon's user can read.
"""

from __future__ import annotations

import datetime
import os
import secrets
from pathlib import Path

_BEGINS, _ENDS = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_LIFETIME = datetime.timedelta(days=3650)


def ensure_certificate(file: Path) -> str:
    """The public part, as PEM; `file` holds it together with its key and is made when it is not there."""
    if not file.exists():
        _make(file)
    text = file.read_text(encoding="ascii")
    return text[text.index(_BEGINS) : text.index(_ENDS) + len(_ENDS)] + "\n"


def ensure_key(file: Path) -> bytes:
    """The key of all tokens of one kind; made when it is not there."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        made = secrets.token_bytes(32)
        file.touch(mode=0o600)
        file.write_bytes(made)
        return made


def _make(file: Path) -> None:
    from cryptography import x509  # late: an extra, which only who makes one needs
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bireme")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as opened:
        opened.write(certificate.public_bytes(serialization.Encoding.PEM) + secret)
