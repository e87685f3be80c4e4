"""Who may talk to the API server: the components' own kubeconfigs, and those made for tests and programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from local_cluster.api import Api, ApiUnreachable
from local_cluster.certificates import KeyPair
from local_cluster.components import Context
from local_cluster.kubeconfig import write_kubeconfig
from local_cluster.patience import Guard

TOKEN_LIFETIME_S = 24 * 3600
POLL_EVERY_S = 0.05


def write_component_kubeconfigs(context: Context) -> None:
    """The administrator's, kube-controller-manager's and kwok's."""
    layout, keys = context.layout, context.keys
    for path, user, pair in (
        (layout.admin_kubeconfig, "admin", keys.admin),
        (layout.kubeconfig("kube-controller-manager"), "kube-controller-manager", keys.controller_manager),
        (layout.kubeconfig("kwok"), "kwok", keys.kwok),
    ):
        _write(context, path, user, pair=pair)


def for_user(context: Context, name: str, groups: Sequence[str]) -> Path:
    """A kubeconfig with a client certificate of a user in these groups."""
    file_name = context.layout.kubeconfig("-".join(["user", name, *groups]))
    pair = context.keys.ca.issue(file_name.stem, name, groups)
    return _write(context, file_name, name, pair=pair)


def for_service_account(context: Context, api: Api, service_account: str) -> Path:
    """A kubeconfig with a token of `namespace/name`."""
    token = token_for(api, service_account)
    return _write(context, context.layout.kubeconfig(service_account), service_account, token=token)


def token_for(api: Api, service_account: str) -> str:
    """A bearer token of `namespace/name`; both are created when they are missing, without any rights."""
    namespace, _, name = service_account.partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"service account {service_account!r}: write it as namespace/name")
    create_namespace(api, namespace)
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.create(accounts, {"metadata": {"name": name}})
    answer = api.post(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": TOKEN_LIFETIME_S}})
    return str(answer["status"]["token"])


def create_namespace(api: Api, name: str) -> None:
    """Create a namespace and wait for its default service account: before that it takes no pods."""
    if api.find(f"/api/v1/namespaces/{name}") is None:
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    guard = Guard()
    while not _has_default_account(api, name):
        if guard.over:
            raise TimeoutError(f"namespace {name} has no default service account after {guard.whole_s:.0f} s")
        time.sleep(POLL_EVERY_S)


def _has_default_account(api: Api, namespace: str) -> bool:
    try:
        return api.find(f"/api/v1/namespaces/{namespace}/serviceaccounts/default") is not None
    except ApiUnreachable:  # just restarted: asked again until the deadline
        return False


def _write(
    context: Context, path: Path, user: str, pair: KeyPair | None = None, token: str | None = None
) -> Path:
    return write_kubeconfig(
        path,
        cluster=context.layout.root.name,
        server=context.url("kube-apiserver"),
        ca=context.keys.ca.pair.certificate,
        user=user,
        pair=pair,
        token=token,
    )
