"""Tests of certificates: their names, their CA, and the file modes of their keys."""

from __future__ import annotations

import json
from base64 import b64decode
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from local_cluster.certificates import Authority, ClusterKeys
from local_cluster.kubeconfig import write_kubeconfig


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def keys(tmp_path: Path) -> ClusterKeys:
    return ClusterKeys.create(tmp_path)


def test_each_is_signed_by_its_own_authority(keys: ClusterKeys) -> None:
    ca, etcd_ca = load(keys.ca.pair.certificate), load(keys.etcd_ca.pair.certificate)
    for pair in (keys.api_server, keys.admin, keys.controller_manager, keys.kwok):
        load(pair.certificate).verify_directly_issued_by(ca)
    load(keys.etcd.certificate).verify_directly_issued_by(etcd_ca)
    with pytest.raises(ValueError, match="Issuer"):
        load(keys.admin.certificate).verify_directly_issued_by(etcd_ca)


def test_the_api_server_s_names(keys: ClusterKeys) -> None:
    names = (
        load(keys.api_server.certificate)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_users_and_groups(tmp_path: Path) -> None:
    pair = Authority.create(tmp_path, "ca").issue("u", "ana", groups=("dev", "ops"))
    subject = load(pair.certificate).subject
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ana"]
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "dev",
        "ops",
    ]


def test_files_are_the_owner_s_alone_and_stay(keys: ClusterKeys, tmp_path: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert ClusterKeys.create(tmp_path) == keys
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kubeconfig_carries_its_credentials(keys: ClusterKeys, tmp_path: Path) -> None:
    path = write_kubeconfig(
        tmp_path / "k",
        cluster="c",
        server="https://127.0.0.1:1",
        ca=keys.ca.pair.certificate,
        user="u",
        pair=keys.admin,
    )
    user = json.loads(path.read_text())["users"][0]["user"]
    assert b64decode(user["client-certificate-data"]) == keys.admin.certificate.read_bytes()
    with pytest.raises(ValueError, match="either a certificate or a token"):
        write_kubeconfig(path, cluster="c", server="s", ca=keys.ca.pair.certificate, user="u")
