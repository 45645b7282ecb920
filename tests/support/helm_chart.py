"""The Helm chart as text, made from the kustomize base: what differs between the two is named here, and nothing else can.

A value that an installation chooses is marked in the objects by a word that stands nowhere else, and the word is replaced by its
template expression once the objects are YAML.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

import yaml
from kustomization import DEPLOY, objects, sources

CHART: Final = DEPLOY / "chart"
NAMESPACE: Final = "sickbay"
VERIFICATION: Final = "sickbay-verification"
ROLES: Final = ("alert", "exclude", "extend", "verify", "move")
HEAD: Final = "# Made from deploy/base by `make chart`; change that, and never this.\n"

#: NetworkPolicy to the value that says whom it is about.
_PEERS: Final = {
    "reaches-kafka": "kafka",
    "reaches-postgresql": "postgresql",
    "reaches-apiserver": "apiserver",
    "reaches-receivers": "receivers",
    "asked-by-scheduler": "scheduler",
    "scraped": "monitoring",
}
_SECRETS: Final = {
    "sickbay-kafka": "kafka.secret",
    "sickbay-postgresql": "postgresql.secret",
    "sickbay-postgresql-migrator": "postgresql.migratorSecret",
}
_KAFKA_VARIABLES: Final = tuple(
    f"SICKBAY_KAFKA_{name}"
    for name in (
        "BOOTSTRAP", "SECURITY", "CA_FILE", "CERT_FILE", "KEY_FILE", "SASL_MECHANISM", "SASL_USERNAME", "SASL_PASSWORD_FILE",
        "PREFIX", "PARTITIONS", "REPLICATION",
    )
)  # fmt: skip


class ChartError(Exception):
    """The base holds something that the chart could not say."""


class _Words:
    """Words that stand for template expressions; each is one plain YAML scalar, or a part of one."""

    def __init__(self) -> None:
        self._expressions: list[str] = []

    def __call__(self, expression: str) -> str:
        self._expressions.append(expression)
        return f"CHOSEN{len(self._expressions) - 1:03d}X"

    def filled(self, text: str) -> str:
        return re.sub(r"CHOSEN(\d{3})X", lambda match: "{{ " + self._expressions[int(match[1])] + " }}", text)


def chart() -> dict[str, str]:
    """Return every file of the chart by its path in it. Raises ChartError."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text("utf-8"))["project"]
    files = {
        "Chart.yaml": HEAD
        + _dump(
            {
                "apiVersion": "v2",
                "name": "sickbay",
                "description": "Decides for each accelerator of a cluster whether it is fit for new work, and acts on it",
                "type": "application",
                "version": project["version"],
                "appVersion": project["version"],
                "kubeVersion": ">=1.36.0-0",
            }
        ),
        "values.yaml": _values(),
        "values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        "templates/NOTES.txt": _NOTES,
    }
    for source in sources("base"):
        kind, _, name = source.path.partition("/")
        name = "config.yaml" if name == "kustomization.yaml" else name
        files[f"templates/{'rbac-' if kind == 'rbac' else ''}{name}"] = _template(source.objects, name)
    return files


def _template(found: tuple[dict[str, Any], ...], name: str) -> str:
    documents = [text for obj in found if (text := _document(obj))]
    text = "---\n".join(documents)
    role = name.removeprefix("respond-").removesuffix(".yaml")
    if name.startswith("respond-"):
        if role not in ROLES:
            raise ChartError(f"{name}: the role {role} is not known to the chart")
        text = f"{{{{- if .Values.responders.{role}.enabled }}}}\n{text}{{{{- end }}}}\n"
    return HEAD + text


def _document(obj: dict[str, Any]) -> str:
    if "{{" in json.dumps(obj):
        raise ChartError(f"{obj['metadata']['name']}: braces would be a template in the chart")
    obj, words = copy.deepcopy(obj), _Words()
    name = obj["metadata"]["name"]
    if obj["kind"] == "Namespace":
        if name == NAMESPACE:
            return ""  # it is the release's own, which Helm makes or finds
        obj["metadata"]["name"] = words(".Values.verificationNamespace")
    if change := _CHANGES.get(obj["kind"]):
        change(obj, words)
    text = words.filled(_dump(_placed(obj, words)))
    if obj["kind"] == "PodDisruptionBudget":
        replicas = _values_of(name) + ".replicas"
        text = f"{{{{- if gt (int {replicas}) 1 }}}}\n{text}{{{{- end }}}}\n"
    return text


def _placed(value: Any, words: _Words) -> Any:
    """Put namespaces of the release wherever those of the base are named."""
    if isinstance(value, dict):
        return {
            key: _namespace(each, words) if key == "namespace" else _placed(each, words)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_placed(each, words) for each in value]
    if isinstance(value, str):
        account = f"system:serviceaccount:{NAMESPACE}:"
        if account in value:
            return value.replace(account, f"system:serviceaccount:{words('.Release.Namespace')}:")
    return value


def _namespace(name: str, words: _Words) -> str:
    chosen = {NAMESPACE: ".Release.Namespace", VERIFICATION: ".Values.verificationNamespace"}.get(name)
    return words(chosen) if chosen else name


def _values_of(name: str) -> str:
    process = name.removeprefix("sickbay-")
    role = process.removeprefix("respond-")
    return f".Values.responders.{role}" if role != process else f".Values.{process}"


def _deployment(obj: dict[str, Any], words: _Words) -> None:
    if obj["spec"]["replicas"] > 1:
        obj["spec"]["replicas"] = words(f"int {_values_of(obj['metadata']['name'])}.replicas")
    # in the base a changed ConfigMap has another name; here it has another checksum
    obj["spec"]["template"]["metadata"]["annotations"] = {
        "checksum/config": words("list .Values.kafka.settings .Values.policy | toJson | sha256sum")
    }
    _pods(obj, words)


def _job(obj: dict[str, Any], words: _Words) -> None:
    # the template of a Job cannot be changed, so each revision has its own
    obj["metadata"]["name"] += f"-{words('.Release.Revision')}"
    _pods(obj, words)


def _pods(obj: dict[str, Any], words: _Words) -> None:
    spec = obj["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["image"] = words('printf "%s:%s" .Values.image.repository .Values.image.tag | quote')
    if more := _ARGUMENTS.get(obj["metadata"]["name"]):
        first = " ".join(map(_argument, container["args"]))
        container["args"] = words(f"concat (list {first}) {more} | toJson")
    for variable in container.get("env", ()):
        reference = variable["valueFrom"]["secretKeyRef"]
        reference["name"] = words(f".Values.{_SECRETS[reference['name']]} | quote")
    for volume in spec["volumes"]:
        if "secret" in volume and volume["secret"]["secretName"] in _SECRETS:
            volume["secret"]["secretName"] = words(
                f".Values.{_SECRETS[volume['secret']['secretName']]} | quote"
            )
    spec["imagePullSecrets"] = words(".Values.image.pullSecrets | toJson")


def _argument(given: str) -> str:
    option, _, value = given.partition("=")
    if value == VERIFICATION:
        return f'(printf "{option}=%s" .Values.verificationNamespace)'
    return json.dumps(given)


def _config_map(obj: dict[str, Any], words: _Words) -> None:
    match obj["metadata"]["name"]:
        case "sickbay-kafka":
            obj["data"] = words(".Values.kafka.settings | toJson")
        case "sickbay-policy":
            obj["data"]["policy.yaml"] = words("toYaml .Values.policy | quote")
        case "sickbay-exclusion-bounds":
            obj["data"]["noExecute"] = words(".Values.noExecute | toString | quote")
        case name:
            raise ChartError(f"the ConfigMap {name} is not known to the chart")


def _network_policy(obj: dict[str, Any], words: _Words) -> None:
    value = _PEERS.get(obj["metadata"]["name"])
    if value is None:
        return
    side, peers = ("egress", "to") if "egress" in obj["spec"] else ("ingress", "from")
    (rule,) = obj["spec"][side]
    # an empty list is everybody, as is none
    rule[peers] = words(f".Values.network.{value} | toJson")


_ARGUMENTS: Final[dict[str, str]] = {
    f"sickbay-respond-{role}": f".Values.responders.{role}.arguments" for role in ROLES
}
_CHANGES: Final[dict[str, Callable[[dict[str, Any], _Words], None]]] = {
    "Deployment": _deployment,
    "Job": _job,
    "ConfigMap": _config_map,
    "NetworkPolicy": _network_policy,
}


def _dump(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True)


# --- values ---------------------------------------------------------------------------------------------------------


def _of_base() -> dict[tuple[str, str], dict[str, Any]]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects("base")}


def values() -> dict[str, Any]:
    """Return the values by default: what the base says."""
    base = _of_base()

    def replicas(name: str) -> dict[str, int]:
        count = base["Deployment", f"sickbay-{name}"]["spec"]["replicas"]
        return {"replicas": count} if count > 1 else {}

    def peers(name: str) -> list[Any]:
        spec = base["NetworkPolicy", name]["spec"]
        (rule,) = spec.get("egress") or spec["ingress"]
        found: list[Any] = rule.get("to", rule.get("from", []))
        return found

    image = base["Deployment", "sickbay-work"]["spec"]["template"]["spec"]["containers"][0]["image"]
    repository, _, tag = image.partition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullSecrets": []},
        "verificationNamespace": VERIFICATION,
        "kafka": {"settings": base["ConfigMap", "sickbay-kafka"]["data"], "secret": "sickbay-kafka"},
        "postgresql": {"secret": "sickbay-postgresql", "migratorSecret": "sickbay-postgresql-migrator"},
        "ingest": replicas("ingest"),
        "work": replicas("work"),
        "project": replicas("project"),
        "responders": {
            role: {"enabled": True, **replicas(f"respond-{role}"), "arguments": []} for role in ROLES
        },
        "policy": yaml.safe_load(base["ConfigMap", "sickbay-policy"]["data"]["policy.yaml"]),
        "noExecute": base["ConfigMap", "sickbay-exclusion-bounds"]["data"]["noExecute"] == "true",
        "network": {value: peers(name) for name, value in _PEERS.items()},
    }


_TOLD: Final = {
    "image": "The image of every process.",
    "verificationNamespace": "Where probes and canaries run; a namespace of their own, made by the chart.",
    "kafka": "The variables of docs/live.md, and the Secret whose files stand in /etc/sickbay/kafka.",
    "postgresql": "Secrets with the key `url`: of the projector's role, and of the role that may change the schema.",
    "ingest": "Replicas take turns.",
    "work": "Replicas share the partitions.",
    "project": "Replicas share the partitions.",
    "responders": "Which run, and what their command line has besides. What they may do stands in the policy.",
    "policy": "The policy document (docs/policy.md). Observe-only by default.",
    "noExecute": "Whether the API server lets Sickbay end Pods by a taint rule; the policy must say `evict` too.",
    "network": "Peers of the NetworkPolicies, as `to` and `from` take them; an empty list is everybody on the policy's ports.",
}


def _values() -> str:
    return HEAD + "".join(f"\n# {_TOLD[key]}\n" + _dump({key: value}) for key, value in values().items())


def _schema() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1}
    peers = {"type": "array", "items": {"type": "object"}}

    def closed(**properties: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": False,
            "required": sorted(properties),
            "properties": properties,
        }

    count = {"type": "integer", "minimum": 1, "maximum": 100}
    arguments = {"type": "array", "items": {"type": "string", "pattern": "^--"}}
    given = values()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **closed(
            image=closed(
                repository=text, tag=text, pullSecrets={"type": "array", "items": closed(name=text)}
            ),
            verificationNamespace={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
            kafka=closed(
                settings={
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["SICKBAY_KAFKA_BOOTSTRAP"],
                    "properties": {name: {"type": "string"} for name in _KAFKA_VARIABLES},
                },
                secret=text,
            ),
            postgresql=closed(secret=text, migratorSecret=text),
            ingest=closed(replicas=count),
            work=closed(replicas=count),
            project=closed(replicas=count),
            responders=closed(
                **{
                    role: closed(
                        enabled={"type": "boolean"},
                        arguments=arguments,
                        **({"replicas": count} if "replicas" in found else {}),
                    )
                    for role, found in given["responders"].items()
                }
            ),
            policy={"type": "object", "required": ["version"]},
            noExecute={"type": "boolean"},
            network=closed(**dict.fromkeys(given["network"], peers)),
        ),
    }


_NOTES: Final = """Sickbay watches and decides; what it does about it stands in the policy (`policy`), which only observes by default.

Pods here pass the Pod Security Standard `restricted`. Let the namespace ask for it:
  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=restricted
"""
