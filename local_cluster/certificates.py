"""The keys and certificates of one cluster, made when it starts and gone with it.

Two authorities, as kubeadm has them: one for the API server and its clients, one for etcd alone, so
that no client of the API server can read the store behind its back. P-256 keys: made in a
millisecond, where RSA takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = timedelta(days=3650)
CLOCK_SKEW = timedelta(hours=1)
SERVING_NAMES = (
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, both PEM files; the key is readable by its owner alone."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that lives in two files and issues into the same folder."""

    pair: KeyPair

    @classmethod
    def create(cls, folder: Path, name: str) -> Authority:
        """Make a new one, or take the one that is there: a cluster that is started again keeps its own."""
        pair = _pair(folder, name)
        if not pair.certificate.is_file():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"muster local cluster {name}")])
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            certificate = (
                _builder(subject, subject, key.public_key())
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(usage, critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .sign(key, hashes.SHA256())
            )
            _write_pair(pair, key, certificate)
        return cls(pair)

    def issue(
        self, name: str, common_name: str, groups: Sequence[str] = (), serves: Sequence[str] = ()
    ) -> KeyPair:
        """A client certificate for a user with groups; with `serves`, one that also serves those names."""
        pair = _pair(self.pair.certificate.parent, name)
        if pair.certificate.is_file():
            return pair
        authority = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self.pair.key.read_bytes(), password=None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise TypeError(
                f"{self.pair.key} holds no elliptic-curve key: remove the cluster and start it anew"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = (
            _builder(subject, authority.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
        )
        if serves:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(n) for n in serves]), critical=False
            )
        _write_pair(pair, key, builder.sign(signer, hashes.SHA256()))
        return pair


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """All that the four components need. Files in one folder, made once."""

    folder: Path
    ca: Authority
    etcd_ca: Authority
    api_server: KeyPair
    controller_manager: KeyPair
    etcd: KeyPair
    kwok: KeyPair
    admin: KeyPair
    service_account_key: Path
    service_account_public: Path

    @classmethod
    def create(cls, folder: Path) -> ClusterKeys:
        """Return the keys of a cluster in this folder, made if they are missing."""
        ca, etcd_ca = Authority.create(folder, "ca"), Authority.create(folder, "etcd-ca")
        private, public = folder / "service-account.key", folder / "service-account.pub"
        if not public.is_file():
            _write_service_account_key(private, public)
        return cls(
            folder=folder,
            ca=ca,
            etcd_ca=etcd_ca,
            api_server=ca.issue("api-server", "kube-apiserver", serves=SERVING_NAMES),
            controller_manager=ca.issue(
                "controller-manager", "system:kube-controller-manager", serves=("localhost", "127.0.0.1")
            ),
            # etcd's own peer and its one client, the API server, share one: they are the same owner's
            etcd=etcd_ca.issue("etcd", "etcd", serves=("localhost", "127.0.0.1")),
            kwok=ca.issue("kwok", "kwok", groups=("system:masters",), serves=("localhost", "127.0.0.1")),
            admin=ca.issue("admin", "local-cluster-admin", groups=("system:masters",)),
            service_account_key=private,
            service_account_public=public,
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID_FOR)
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(folder: Path, name: str) -> KeyPair:
    return KeyPair(folder / f"{name}.crt", folder / f"{name}.key")


def _write_pair(pair: KeyPair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """The certificate last: it is the sign that the pair is complete."""
    write_private(pair.key, _pem(key))
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _write_service_account_key(private: Path, public: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(private, _pem(key))
    encoded = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_private(public, encoded)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # kube-controller-manager reads a service-account key in this older form, not in PKCS #8
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file in one step; no other user can read it at any moment."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    partial.rename(path)
