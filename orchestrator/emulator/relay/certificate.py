"""The certificate of the relay's TLS port, by an authority that is made for it: gcloud connects over TLS only.

The private keys stay in memory, but for the moment in which OpenSSL reads one from a file of the state directory.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from pathlib import Path

AUTHORITY = "relay-ca.pem"
VALID = datetime.timedelta(days=3650)


def make(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Return a new server's context for localhost, and the file with the authority that clients must trust."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        draft = x509.CertificateBuilder(named(AUTHORITY), named(subject), key.public_key(), x509.random_serial_number())
        draft = draft.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + VALID)
        for extension in (
            *extensions,
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        ):
            draft = draft.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            )
        return draft.sign(authority, hashes.SHA256())

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    uses = {
        name: name in ("key_cert_sign", "crl_sign")
        for name in (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        )
    }
    top = signed(AUTHORITY, authority, x509.BasicConstraints(ca=True, path_length=0), x509.KeyUsage(**uses))
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = signed(
        "localhost",
        key,
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    trusted = directory / AUTHORITY
    trusted.write_bytes(top.public_bytes(form.Encoding.PEM))
    secret = directory / f".relay.{os.getpid()}"
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(leaf.public_bytes(form.Encoding.PEM))
        file.write(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(secret)
    finally:
        secret.unlink()
    return context, trusted
