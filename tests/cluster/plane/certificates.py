"""A certificate authority of one cluster: every server's and every user's certificate."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=2)
EARLY = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs for one cluster. Its files lie in a directory of the cluster, and end with it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tpujob-test-cluster")
        own = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(True, 0), critical=True
        )
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, groups: Sequence[str] = (), addresses: Sequence[str] = (), folder: str = "") -> Pair:
        """Return files of a certificate for a user (its groups) or a server (its addresses), valid as both."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name, groups), key.public_key())
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA256())
        place = self.directory / (folder or name.replace(":", "-"))
        place.mkdir()
        pair = Pair(place / "tls.crt", place / "tls.key")
        pair.certificate.write_bytes(_pem(signed))
        _write_key(pair.key, key)
        return pair

    def service_account_key(self) -> Path:
        """Return the file of a key that signs the tokens of service accounts."""
        path = self.directory / "service-accounts.key"
        _write_key(path, rsa.generate_private_key(65537, 2048))
        return path

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLY)
            .not_valid_after(now + LIFE)
        )


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
