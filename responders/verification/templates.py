"""The operator's templates: one Job manifest for each step, and more special ones for a driver or resource.

Pure: the text of files goes in. What a template may do is its author's and the namespace's business (Pod Security judges the Pods);
refused is what Sickbay sets itself, and what would make a step say something else than it should.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec
import yaml

from responders.verification.steps import Step
from sickbay.errors import InputError

#: Annotations of a template.
DEVICE_CLASS: Final = "sickbay.dev/device-class"
ADMIN_ACCESS: Final = "sickbay.dev/admin-access"
#: The name of the claim in the Pod, and of the one request in the claim.
CLAIM: Final = "device"
#: Variables that every container is given.
VARIABLES: Final = ("SICKBAY_DEVICE", "SICKBAY_NODE", "SICKBAY_EPISODE")
#: A ConfigMap holds a megabyte, and a template is a page.
_TEXT_MAX: Final = 256 * 1024
_KINDS: Final = ("probe", "canary")
_SUFFIX: Final = ".yaml"
_DNS_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")

_JOB_SPEC: Final = frozenset({"template", "podFailurePolicy", "podReplacementPolicy"})
_SET_BY_US: Final = {
    "activeDeadlineSeconds": "staged_return.probe_timeout_ms and canary_timeout_ms of the policy say how long a step may take",
    "backoffLimit": "a step is tried once, and custody decides on the next attempt",
    "ttlSecondsAfterFinished": "Sickbay deletes its Jobs",
    "completions": "a step is one Pod",
    "parallelism": "a step is one Pod",
    "completionMode": "a step is one Pod",
    "suspend": "a step begins at once",
    "selector": "the Job controller makes it",
    "manualSelector": "the Job controller makes it",
}
_POD_SPEC_OURS: Final = {
    "nodeName": "Sickbay pins the Pod to the node by its affinity, so that the scheduler allocates the claim",
    "nodeSelector": "Sickbay pins the Pod to the node",
    "resourceClaims": f"Sickbay makes the claim `{CLAIM}`",
    "activeDeadlineSeconds": "staged_return.probe_timeout_ms and canary_timeout_ms of the policy say how long a step may take",
    "schedulingGates": "nobody would lift them",
}


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A template that was found good."""

    #: Name of its file.
    file: str
    #: Metadata of the Job: labels and annotations.
    labels: dict[str, str]
    annotations: dict[str, str]
    #: ``spec`` of the Job.
    spec: dict[str, Any]
    #: DeviceClass of the claim; empty where no claim is made.
    device_class: str = ""
    #: The claim asks for admin access: the device is shared with whoever holds it.
    admin_access: bool = False


class Templates(msgspec.Struct, frozen=True):
    """All templates, by file name."""

    by_file: dict[str, Template] = {}

    def of(self, step: Step) -> Template | None:
        """Return the template of a step: that of its driver or resource, else the general one."""
        return self.by_file.get(special_file(step)) or self.by_file.get(f"{step.kind}{_SUFFIX}")


def special_file(step: Step) -> str:
    """Return the file of the template that is for this driver or resource alone."""
    return f"{step.kind}.{step.driver.replace('/', '_')}{_SUFFIX}"


def read_templates(files: Mapping[str, str], place: str) -> Templates:
    """Read the templates of a directory, file name to text; ``place`` names it in errors.

    Raises InputError, naming the file and the remedy, for the first that cannot be used, and where there is none at all.
    """
    found = {}
    for file in sorted(files):
        kind, _, rest = file.removesuffix(_SUFFIX).partition(".")
        if not file.endswith(_SUFFIX) or kind not in _KINDS or (rest == "" and file != f"{kind}{_SUFFIX}"):
            raise InputError(
                f"{place}/{file}: no name of a template; write probe.yaml, canary.yaml, or probe.<driver>.yaml with `/` of a"
                " resource as `_`, and keep other files elsewhere"
            )
        found[file] = read_template(files[file], f"{place}/{file}", file)
    if not found:
        raise InputError(f"{place}: there is no template; put probe.yaml and canary.yaml there")
    return Templates(found)


def read_template(text: str, place: str, file: str) -> Template:
    """Read one template. Raises InputError, naming the place and the remedy."""
    if len(text) > _TEXT_MAX:
        raise InputError(f"{place}: more than {_TEXT_MAX} characters; a template is one Job")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).split())[:300]
        raise InputError(f"{place}: not one YAML document: {told}") from error
    reader = _Reader(place)
    job = reader.mapping(document, "the document")
    if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
        reader.refuse("kind", "it must be one Job of batch/v1")
    reader.only(job, {"apiVersion", "kind", "metadata", "spec"}, "")
    labels, annotations = reader.metadata(job.get("metadata", {}), "metadata")
    ours = {key: value for key, value in annotations.items() if key.startswith("sickbay.dev/")}
    if unknown := sorted(ours.keys() - {DEVICE_CLASS, ADMIN_ACCESS}):
        reader.refuse(
            f"metadata.annotations.{unknown[0]}", f"unknown; there are {DEVICE_CLASS} and {ADMIN_ACCESS}"
        )
    device_class, admin = ours.get(DEVICE_CLASS, ""), ours.get(ADMIN_ACCESS, "false")
    if DEVICE_CLASS in ours and not (_DNS_NAME.fullmatch(device_class) and len(device_class) <= 253):
        reader.refuse(f"metadata.annotations.{DEVICE_CLASS}", "it must be the name of a DeviceClass")
    if admin not in ("true", "false"):
        reader.refuse(f"metadata.annotations.{ADMIN_ACCESS}", 'it must be "true" or "false"')
    if admin == "true" and not device_class:
        reader.refuse(f"metadata.annotations.{ADMIN_ACCESS}", f"it is for claims, which need {DEVICE_CLASS}")
    spec = reader.mapping(job.get("spec"), "spec")
    for name in spec:
        if name in _SET_BY_US:
            reader.refuse(f"spec.{name}", f"leave it out: {_SET_BY_US[name]}")
    reader.only(spec, _JOB_SPEC, "spec.")
    uses = reader.pod(reader.mapping(spec.get("template"), "spec.template"), "spec.template")
    if device_class and not uses:
        reader.refuse(
            "spec.template.spec.containers",
            f"with {DEVICE_CLASS} a container must have `resources.claims: [{{name: {CLAIM}}}]`, else none gets the device",
        )
    if uses and not device_class:
        reader.refuse(
            "spec.template.spec.containers",
            f"a container has the claim `{CLAIM}`; name its DeviceClass by the annotation {DEVICE_CLASS}",
        )
    return Template(
        file=file,
        labels=labels,
        annotations={key: value for key, value in annotations.items() if key not in ours},
        spec=spec,
        device_class=device_class,
        admin_access=admin == "true",
    )


class _Reader:
    """Refuses what cannot be used, and says where it stands."""

    def __init__(self, place: str) -> None:
        self._place = place

    def refuse(self, path: str, why: str) -> NoReturn:
        raise InputError(f"{self._place}: {path}: {why}")

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.refuse(path, "it must be a mapping")
        return value

    def only(self, value: Mapping[str, Any], known: frozenset[str] | set[str], path: str) -> None:
        for name in value:
            if name not in known:
                self.refuse(f"{path}{name}", f"leave it out; there may be {', '.join(sorted(known))}")

    def metadata(self, value: Any, path: str) -> tuple[dict[str, str], dict[str, str]]:
        metadata = self.mapping(value, path)
        self.only(metadata, {"name", "labels", "annotations"}, f"{path}.")
        texts = []
        for part in ("labels", "annotations"):
            found = self.mapping(metadata.get(part) or {}, f"{path}.{part}")
            for key, text in found.items():
                if not isinstance(text, str):
                    self.refuse(f"{path}.{part}.{key}", "it must be a text; put it in quotes")
            texts.append(dict(found))
        for key in texts[0]:
            if key.startswith("sickbay.dev/") or key == "app.kubernetes.io/managed-by":
                self.refuse(f"{path}.labels.{key}", "leave it out: Sickbay finds its own objects by it")
        return texts[0], texts[1]

    def pod(self, template: dict[str, Any], path: str) -> bool:
        """Judge a Pod template, and return whether a container uses the claim."""
        self.only(template, {"metadata", "spec"}, f"{path}.")
        _, annotations = self.metadata(template.get("metadata") or {}, f"{path}.metadata")
        if ours := [key for key in annotations if key.startswith("sickbay.dev/")]:
            self.refuse(
                f"{path}.metadata.annotations.{ours[0]}",
                "annotations for Sickbay belong to the Job's metadata",
            )
        path = f"{path}.spec"
        spec = self.mapping(template.get("spec"), path)
        for name, why in _POD_SPEC_OURS.items():
            if name in spec:
                self.refuse(f"{path}.{name}", f"leave it out: {why}")
        if "nodeAffinity" in self.mapping(spec.get("affinity") or {}, f"{path}.affinity"):
            self.refuse(f"{path}.affinity.nodeAffinity", "leave it out: Sickbay pins the Pod to the node")
        if spec.get("restartPolicy") != "Never":
            self.refuse(f"{path}.restartPolicy", "it must be Never: a step that failed has failed")
        uses = False
        for part in ("containers", "initContainers"):
            listed = spec.get(part, [])
            if not isinstance(listed, list) or (part == "containers" and not listed):
                self.refuse(f"{path}.{part}", "it must be a list of containers")
            for number, each in enumerate(listed):
                uses |= self._container(
                    self.mapping(each, f"{path}.{part}[{number}]"), f"{path}.{part}[{number}]"
                )
        return uses

    def _container(self, container: dict[str, Any], path: str) -> bool:
        for name in ("name", "image"):
            if not isinstance(container.get(name), str) or not container[name]:
                self.refuse(f"{path}.{name}", "it must be there")
        listed = container.get("env") or []
        if not isinstance(listed, list):
            self.refuse(f"{path}.env", "it must be a list")
        for each in listed:
            if self.mapping(each, f"{path}.env").get("name") in VARIABLES:
                self.refuse(f"{path}.env", f"leave {each['name']} out: Sickbay sets it")
        resources = self.mapping(container.get("resources") or {}, f"{path}.resources")
        claims = resources.get("claims") or []
        if not isinstance(claims, list) or any(each != {"name": CLAIM} for each in claims) or len(claims) > 1:
            self.refuse(f"{path}.resources.claims", f"it must be [{{name: {CLAIM}}}]")
        return bool(claims)
