"""A real control plane for tests: etcd, kube-apiserver, kube-scheduler and kube-controller-manager on the loopback interface.

``make control-plane`` builds the programs from their Go modules into ``.cache/control-plane``; certificates and data are thrown
away with the folder. There are no kubelets: ``kubelets.py`` plays them. Every process ends with the one that started it.
"""

from __future__ import annotations

import atexit
import ctypes
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import trustme
from ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
#: The versions of Kubernetes that are built: those with a module file.
VERSIONS: Final = tuple(
    sorted(
        file.stem.removeprefix("kubernetes-")
        for file in (ROOT / "tests" / "cluster" / "controlplane").glob("kubernetes-*.mod")
    )
)
COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
WAIT_S: Final = 90
ADMIN: Final = "system:masters"

#: What a version must be told so that it has everything that Sickbay reads; 1.37 has the rest by default.
GATES: Final[dict[str, dict[str, bool]]] = {
    "1.36": {"DRANodeAllocatableResources": True, "DRADeviceTaintRules": True},
    "1.37": {"DRANodeAllocatableResources": True},
}
RUNTIME_CONFIG: Final[dict[str, tuple[str, ...]]] = {"1.36": ("resource.k8s.io/v1beta2=true",), "1.37": ()}
#: The controllers that have a say in what the tests look at.
CONTROLLERS: Final = (
    "resourceclaim-controller", "device-taint-eviction-controller", "taint-eviction-controller", "node-lifecycle-controller",
    "garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "clusterrole-aggregation-controller",
    "disruption-controller", "job-controller", "replicaset-controller", "validatingadmissionpolicy-status-controller", "pod-garbage-collector-controller",
)  # fmt: skip


class NoControlPlaneError(Exception):
    """There is no control plane and no way to start one; a test without it fails, and is never skipped."""


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body.get('message', body) if isinstance(body, dict) else body}")
        self.status = status
        self.body = body


class Api:
    """A plain client of the API server, for what tests do by themselves: one connection for each thread, JSON in and out."""

    def __init__(self, port: int, context: ssl.SSLContext, token: str = "") -> None:
        self._port, self._context, self._token = port, context, token
        self._local = threading.local()
        self._open: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._open:
            connection.close()

    def request(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str
    ) -> Any:
        """Send a request and return what came back. Raises ApiError, and OSError when nobody is there."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"} | ({"Content-Type": kind} if data else {})
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        url = path + (f"?{urlencode(query)}" if query else "")
        for last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, url, data, headers)
                answer = connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                # an idle connection may have been closed meanwhile; nothing was carried out then
                if last or not isinstance(error, ConnectionError | ssl.SSLEOFError):
                    raise
        try:
            found = json.loads(text)
        except ValueError:
            found = text.decode("utf-8", "replace")
        if answer.status >= 300:
            raise ApiError(answer.status, found)
        return found

    def _connection(self) -> http.client.HTTPSConnection:
        found = getattr(self._local, "connection", None)
        if found is None:
            found = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=self._context)
            self._local.connection = found
            self._open.append(found)
        return found

    def get(self, path: str, **query: str) -> Any:
        return self.request("GET", path, **query)

    def create(self, path: str, body: Any) -> Any:
        return self.request("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Any, kind: str = "application/merge-patch+json") -> Any:
        return self.request("PATCH", path, body, kind=kind)

    def delete(self, path: str, **options: Any) -> Any:
        return self.request("DELETE", path, options or None)

    def items(self, path: str, **query: str) -> list[Any]:
        """Return the objects of a list."""
        return self.get(path, **query)["items"]


#: The kernel ends a process with the thread that started it, so one that stays starts them all.
_starter: Final = ThreadPoolExecutor(1, "control-plane")


class Part:
    """One process of the control plane."""

    def __init__(self, name: str, program: Path, folder: Path, arguments: Sequence[str]) -> None:
        self.name, self._program, self.arguments = name, program, list(arguments)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} is running already"
        _starter.submit(self._start).result(WAIT_S)

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), *self.arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self._log.parent)},
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it only asks the kernel for a signal
            )  # fmt: skip

    def stop(self) -> None:
        """Stop it in good order."""
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if how is not signal.SIGKILL:
            # an API server waits a minute for those who watch it
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
        process.wait(WAIT_S)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Certificates:
    """A certificate authority of its own, what it issued, and the key that signs tokens of service accounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self.authority = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.authority))
        self.server = self._write("server", self._authority.issue_cert("127.0.0.1", "localhost"))
        self.tokens = self._write("tokens", self._authority.issue_cert("tokens"))
        self._clients: dict[tuple[str, str], tuple[Path, Path]] = {}

    def client(self, name: str, group: str = "") -> tuple[Path, Path]:
        """Return certificate and key of a user."""
        if (name, group) not in self._clients:
            # Go refuses a certificate that names no host at all
            issued = self._authority.issue_cert(
                "client.invalid", common_name=name, organization_name=group or None
            )
            self._clients[name, group] = self._write(f"client-{len(self._clients)}", issued)
        return self._clients[name, group]

    def _write(self, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key


class ControlPlane:
    """One cluster without kubelets. ``gates`` go over those that its version needs; ``components`` says what is started."""

    def __init__(
        self,
        version: str,
        *,
        gates: Mapping[str, bool] | None = None,
        runtime_config: Sequence[str] | None = None,
        components: Sequence[str] = COMPONENTS,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sickbay-cluster-"))
        self._owner = os.getpid()
        atexit.register(self.remove)
        self.certificates = Certificates(self.folder)
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        self._components, self._more = tuple(components), dict(arguments or {})
        self._apis: list[Api] = []
        self.version = ""
        self.parts: dict[str, Part] = {}
        self.become(version, gates=gates, runtime_config=runtime_config)
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        context.load_cert_chain(*self.certificates.client("admin", ADMIN))
        self.admin = Api(self.port, context)
        self._apis.append(self.admin)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def become(
        self,
        version: str,
        *,
        gates: Mapping[str, bool] | None = None,
        runtime_config: Sequence[str] | None = None,
    ) -> None:
        """Be of this version from the next start on, with the same data: what an upgrade of a control plane is."""
        assert not any(part.running for part in self.parts.values()), "stop it before"
        programs = ROOT / ".cache" / "control-plane" / version
        if not (programs / "etcd").exists():
            raise NoControlPlaneError(
                f"no control plane of {version} in .cache: `make control-plane` builds it (it needs Go 1.26)"
            )
        self.version = version
        chosen = GATES[version] | dict(gates or {})
        flags = {
            "etcd": self._etcd(),
            "kube-apiserver": self._apiserver(chosen, runtime_config or RUNTIME_CONFIG[version]),
            "kube-controller-manager": self._controllers(chosen),
            "kube-scheduler": self._scheduler(chosen),
        }
        for name in self._components:
            self.parts[name] = Part(
                name, programs / name, self.folder, [*flags[name], *self._more.get(name, ())]
            )

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            "--name=default", f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--unsafe-no-fsync", "--log-level=warn",
        ]  # fmt: skip

    def _apiserver(self, gates: Mapping[str, bool], runtime_config: Sequence[str]) -> list[str]:
        certificate, key = self.certificates.server
        _, tokens = self.certificates.tokens
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", f"--secure-port={self.port}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--client-ca-file={self.certificates.authority}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={tokens}",
            f"--service-account-signing-key-file={tokens}", "--authorization-mode=RBAC", "--profiling=false",
            # Pods without a service account of their own need no token; nobody runs them
            "--disable-admission-plugins=ServiceAccount",
            *_gates(gates), *([f"--runtime-config={','.join(runtime_config)}"] if runtime_config else []),
        ]  # fmt: skip

    def _controllers(self, gates: Mapping[str, bool]) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig(self.folder / 'controllers.yaml', user='system:kube-controller-manager')}",
            "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials", f"--controllers={','.join(CONTROLLERS)}", "--kube-api-qps=500",
            "--kube-api-burst=1000",
            # kubelets that are played renew their Leases only where a test is about it
            "--node-monitor-grace-period=1h", *_gates(gates),
        ]  # fmt: skip

    def _scheduler(self, gates: Mapping[str, bool]) -> list[str]:
        configuration = self.folder / "scheduler.json"
        kubeconfig = self.kubeconfig(self.folder / "scheduler.yaml", user="system:kube-scheduler")
        configuration.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
                    # a Pod that waits is tried again soon, and every node is looked at
                    "podInitialBackoffSeconds": 1,
                    "podMaxBackoffSeconds": 1,
                    "percentageOfNodesToScore": 100,
                }
            ),
            encoding="utf-8",
        )
        return [f"--config={configuration}", "--secure-port=0", *_gates(gates)]

    def start(self) -> None:
        """Start everything and wait until it serves. Raises NoControlPlaneError with its log when it does not."""
        for part in self.parts.values():
            part.start()
            if part.name == "kube-apiserver":
                self.wait()

    def wait(self) -> None:
        """Wait until the API server is ready."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            with suppress(OSError, ApiError, http.client.HTTPException):
                self.admin.get("/readyz")
                # made a moment after it is ready, and Leases of nodes go there
                self.admin.get("/api/v1/namespaces/kube-node-lease")
                return
            if not all(self.parts[name].running for name in ("etcd", "kube-apiserver")):
                break
            time.sleep(0.1)
        told = "\n".join(self.parts[name].log[-3_000:] for name in ("etcd", "kube-apiserver"))
        self.remove()
        raise NoControlPlaneError(f"the control plane did not start: {told}")

    def stop(self) -> None:
        """Stop everything, the last that was started first."""
        for part in reversed(self.parts.values()):
            part.stop()

    def restart(self, name: str, *, kill: bool = False) -> None:
        """Restart one part, after a crash or in good order."""
        part = self.parts[name]
        part.end(signal.SIGKILL if kill else signal.SIGTERM)
        part.start()
        if name in {"etcd", "kube-apiserver"}:
            self.wait()

    def remove(self) -> None:
        """End it and take everything away; a forked child that ends leaves it alone."""
        if os.getpid() != self._owner:
            return
        for api in self._apis:
            api.close()
        for part in reversed(self.parts.values()):
            part.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.remove)

    def kubeconfig(
        self,
        path: Path,
        *,
        user: str = "admin",
        group: str = ADMIN,
        token_file: Path | None = None,
        port: int | None = None,
    ) -> str:
        """Write a kubeconfig of a user by certificate, or by a token file, and return its path."""
        certificate, key = self.certificates.client(user, group if user == "admin" else "")
        by_certificate = {"client-certificate": str(certificate), "client-key": str(key)}
        who = {"tokenFile": str(token_file)} if token_file else by_certificate
        cluster = {
            "server": f"https://127.0.0.1:{port or self.port}",
            "certificate-authority": str(self.certificates.authority),
        }
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": user, "user": who}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            ),
            encoding="utf-8",
        )
        return str(path)

    def token(self, namespace: str, account: str, seconds: int = 3600) -> str:
        """Return a token of a service account; the API server gives none that lasts less than ten minutes."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.admin.create(path, asked)["status"]["token"])

    def as_account(self, namespace: str, account: str) -> Api:
        """Return a client that is this service account and nobody else."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        self._apis.append(Api(self.port, context, self.token(namespace, account)))
        return self._apis[-1]

    # --- what happens to etcd ---

    def compact(self) -> None:
        """Forget the history of etcd up to now: an older version is then gone (410)."""
        revision = int(self._etcd_call("kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd_call("kv/compaction", {"revision": str(revision), "physical": True})

    def _etcd_call(self, method: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=30)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def back_up(self) -> Path:
        """Return a copy of etcd's data, made while it stands still."""
        self.parts["kube-apiserver"].stop()
        self.parts["etcd"].stop()
        copy = self.folder / f"backup-{time.monotonic_ns()}"
        shutil.copytree(self.folder / "etcd", copy)
        self.parts["etcd"].start()
        self.parts["kube-apiserver"].start()
        self.wait()
        return copy

    def restore(self, copy: Path) -> None:
        """Go back to a copy, without raising the revision, as a careless restore does: versions go back (W4)."""
        self.parts["kube-apiserver"].stop()
        self.parts["etcd"].stop()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(copy, self.folder / "etcd")
        self.parts["etcd"].start()
        self.parts["kube-apiserver"].start()
        self.wait()


def _gates(gates: Mapping[str, bool]) -> list[str]:
    told = ",".join(f"{name}={'true' if on else 'false'}" for name, on in sorted(gates.items()))
    return [f"--feature-gates={told}"] if told else []
