"""The test cluster's own certificate authority: one call per identity, one kubeconfig per role. Uses `openssl`.

In Kubernetes a client certificate's common name is the user and its organisations are the groups.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes_cluster.processes import run

_DAYS = "30"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


class Authority:
    """Keys lie in `folder`, readable by us alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._request = ("openssl", "req", "-x509", "-days", _DAYS, "-config", str(folder / "openssl.cnf"))
        (folder / "openssl.cnf").write_text("[req]\ndistinguished_name=name\n[name]\n")  # without Debian's extensions
        self.pair = Pair(folder / "ca.crt", folder / "ca.key")
        constraint = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        run(*self._request, "-subj", "/CN=bireme-test", *constraint, *_KEY, *_files(self.pair))

    def issue(self, user: str, groups: tuple[str, ...] = (), addresses: tuple[str, ...] = ()) -> Pair:
        """A client certificate, and with `addresses` a server's too."""
        name = user.replace(":", "-").replace("/", "-")
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        if pair.certificate.exists():
            return pair
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        extended = [
            "basicConstraints=critical,CA:FALSE",
            "extendedKeyUsage=clientAuth" + (",serverAuth" * bool(addresses)),
        ]
        if addresses:
            extended.append("subjectAltName=" + ",".join(f"IP:{one}" for one in addresses) + ",DNS:localhost")
        asked = [part for extension in extended for part in ("-addext", extension)]
        signer = ("-CA", str(self.pair.certificate), "-CAkey", str(self.pair.key))
        run(*self._request, "-subj", subject, *asked, *signer, *_KEY, *_files(pair))
        return pair

    def signing_key(self) -> Path:
        """Of service-account tokens."""
        key = self.folder / "service-accounts.key"
        if not key.exists():
            run("openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", str(key))
        return key

    def kubeconfig(self, server: str, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A file with which `user` reaches the API server. It names the key's file, which must stay where it is."""
        pair = self.issue(user, groups)
        path = pair.certificate.with_suffix(".kubeconfig")
        path.write_text(json.dumps(kubeconfig(server, self.pair.certificate, user, pair)))
        path.chmod(0o600)
        return path


def kubeconfig(server: str, authority: Path, user: str, pair: Pair) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": user, "user": {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }


def _files(pair: Pair) -> tuple[str, ...]:
    return ("-keyout", str(pair.key), "-out", str(pair.certificate))
