"""The policy: every window, limit and class that decides, in one validated, versioned, hashed document.

A policy is data. The YAML a person writes holds only what differs from the defaults; the canonical JSON of the whole document
is what is hashed, logged (``policy_changed``) and named by every decision. Each field states its unit in its name, and its
reason below. Reading a file is the caller's business: this module never touches a disk.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import yaml

from sickbay.errors import PolicyError

#: One year; no window of this document is meant to be longer, and a longer one is a slip of the unit.
_YEAR_MS: Final = 366 * 24 * 3_600_000

DurationMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_YEAR_MS)]
Factor: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=16)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the document; an unknown field is a typing error and refused."""


class UnknownPolicy(_Section, frozen=True, kw_only=True):
    """How long a device's health may be unknown."""

    #: Tolerance before new work is kept away. Ten times the kubelet's own 30 s (DefaultHealthTimeout), because kubelet
    #: evaluates that timeout late (kubernetes/kubernetes#140819) and a rolling plugin update takes minutes.
    window_ms: DurationMs = 300_000
    #: The window grows by this factor for each recent Unknown run: a device that comes and goes is noisy, not dying.
    backoff_factor: Factor = 2
    #: The window never exceeds one hour: a device that is silent this long is not serving anybody.
    window_max_ms: DurationMs = 3_600_000
    #: Unknown runs that ended within six hours count for the back-off, one working shift.
    backoff_memory_ms: DurationMs = 21_600_000
    #: Known again counts once it held 30 s, so that two plugin endpoints reporting in turns
    #: (kubernetes/kubernetes#140818) are one run and not a storm.
    hold_down_ms: DurationMs = 30_000
    #: A restricted device must be healthy for two minutes, four kubelet timeouts, before it takes work again.
    settle_ms: DurationMs = 120_000
    #: Whether a device that its driver does not monitor is restricted like one that fell silent. Off: nothing has changed on
    #: it, its health was never known (NVIDIA/k8s-device-plugin#1641).
    restrict_unmonitored: bool = False


class QuarantinePolicy(_Section, frozen=True, kw_only=True):
    """How long a faulty device stays out, at least and at most, before a person looks."""

    #: A fault that clears sooner than ten minutes is not yet cured.
    min_hold_ms: DurationMs = 600_000
    #: Each further fault in the flap window, and each failed step of the return, doubles the hold.
    hold_factor: Factor = 2
    #: The hold never exceeds one day: by then a person has been asked.
    hold_max_ms: DurationMs = 86_400_000
    #: An episode without new evidence for one day is extended and put up for review.
    lease_ms: DurationMs = 86_400_000
    #: Faults within an hour are flaps of one trouble.
    flap_window_ms: DurationMs = 3_600_000
    #: At this many faults in the flap window a person is asked.
    flap_limit: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 3
    #: Meanings of health words that Kubernetes may add (PermanentlyUnhealthy is announced); without an entry a new word is
    #: Unknown.
    health_words: dict[str, Literal["Healthy", "Unhealthy", "Unknown"]] = {}


class ReturnPolicy(_Section, frozen=True, kw_only=True):
    """The staged return: probe, canary, observation."""

    #: ``job`` when a prober is configured. ``none``: a longer observation instead, and every decision says so.
    prober: Literal["none", "job"] = "none"
    #: A probe that says nothing for 15 minutes has failed.
    probe_timeout_ms: DurationMs = 900_000
    #: A canary that says nothing for 30 minutes has failed.
    canary_timeout_ms: DurationMs = 1_800_000
    #: Observation after a passed probe and canary.
    observation_ms: DurationMs = 1_800_000
    #: Observation when nothing but the device's own word vouches for it: four times as long.
    observation_only_ms: DurationMs = 7_200_000
    #: Observation when the device came back with a plugin, kubelet or driver restart, which resets health without any test
    #: (NVIDIA/k8s-device-plugin#111).
    observation_after_restart_ms: DurationMs = 14_400_000
    #: Share of the observation after which new work comes again. Half: what passed a probe and a canary may still fail, and a
    #: device that nobody uses says nothing of its health, so the rest is observed in use. 100 for drivers that publish health.
    ramp_after_percent: Percent = 50


class NodeIncidentPolicy(_Section, frozen=True, kw_only=True):
    """When many devices have one cause."""

    #: All devices of a resource turning within one minute point to what they share.
    burst_ms: DurationMs = 60_000
    #: Fewer than three are a coincidence as easily as a cause.
    min_devices: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 3
    #: After the first of them is back the others get one minute; then each is judged alone.
    settle_ms: DurationMs = 60_000
    #: The kubelet computes node status every 10 s, so a plugin's end shows in Pods up to that, and a little more, earlier.
    lead_ms: DurationMs = 15_000
    #: A recovery this soon after the node, plugin or driver came back is the restart speaking.
    restart_grace_ms: DurationMs = 300_000


class BreakerPolicy(_Section, frozen=True, kw_only=True):
    """When so much turns bad at once that the cause is ours, or the cluster's."""

    #: Sliding window; long enough for a kubelet timeout to reach every node.
    window_ms: DurationMs = 300_000
    #: It takes more than three devices whatever the share.
    floor: Count = 3
    #: And more than a tenth of the known ones: hardware does not fail together.
    ratio_percent: Percent = 10
    #: It closes after ten minutes below the threshold, unless more than that are still Unknown.
    quiet_ms: DurationMs = 600_000


class MovePolicy(_Section, frozen=True, kw_only=True):
    """Moves of workloads off quarantined devices."""

    #: Off: decisions are made only when an operator wants them.
    enabled: bool = False
    #: One mover's time for one attempt; longer than a checkpoint of a large job.
    lease_ms: DurationMs = 900_000
    #: After three attempts a person is asked.
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    #: Moves at once on a node, so that a node's storage and network keep serving what stays.
    per_node: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    #: Moves at once in the cluster: five workloads that start again at one time are a load that storage takes.
    cluster: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 5
    #: Evictions an hour in the cluster: more than sixty is no repair but an outage of our own making.
    cluster_per_hour: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 60
    #: A mover that finds the cluster's limits reached gives its lease back, and asks again after a minute.
    defer_ms: Annotated[int, msgspec.Meta(ge=1_000, le=_YEAR_MS)] = 60_000
    #: Priority of the tenants, by namespace: among the moves of a node that wait, the highest goes first, then the Pod's own
    #: priority. A namespace that is not named has 0.
    tenant_priority: dict[str, int] = {}
    #: How long one hook of a workload may take; a checkpoint of a large model writes for minutes. The end of the lease ends it.
    hook_timeout_ms: DurationMs = 180_000
    #: How long a replacement may take to be ready on a fit device, image and start included, while the lease runs. By default
    #: two hooks and this fit a lease.
    replacement_timeout_ms: DurationMs = 480_000


#: ``off``: nothing is done. ``observe``: what would be done is shown and has no effect. ``enforce``: it has its effect.
Effect: TypeAlias = Literal["off", "observe", "enforce"]
NodeClass: TypeAlias = Literal["canary", "stable"]


class ExclusionRule(_Section, frozen=True, kw_only=True):
    """What is done about the devices of some drivers or node classes. An empty selector selects all; the first match counts."""

    driver: str = ""
    #: As ``ledger.canary_label`` tells it.
    node_class: Literal["canary", "stable", ""] = ""
    #: ``evict`` is ``enforce`` for restricted devices and while a breaker is open, and ends the Pods on the device otherwise.
    mode: Literal["off", "observe", "enforce", "evict"]


class ExclusionPolicy(_Section, frozen=True, kw_only=True):
    """Device taints: what keeps new work off a DRA device."""

    #: Observe: the taint has the effect None, which Kubernetes takes as a dry run (KEP-5055).
    mode: Literal["off", "observe", "enforce", "evict"] = "observe"
    #: Another mode for some drivers or node classes, so that an effect can begin on the canary class.
    rules: tuple[ExclusionRule, ...] = ()
    #: Taint rules in the cluster: every scheduler and every claim reads all of them.
    rules_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    #: Taint rules made in one minute: a rack that fails at once is taken in, a fleet is not.
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 60
    #: Repairs of one rule that somebody else changed, in an hour; then a person is asked (A15 of the fault catalogue).
    repairs_per_hour: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    #: A rule is read back once more after ten seconds: the scheduler may have been at work when it came (KEP-5055).
    confirm_after_ms: DurationMs = 10_000


class ExtenderRule(_Section, frozen=True, kw_only=True):
    """What the scheduler extender does on some node classes or for some resources. The first match counts."""

    #: A device-plugin resource or a DRA driver; empty for all.
    driver: str = ""
    node_class: Literal["canary", "stable", ""] = ""
    mode: Effect


class ExtenderPolicy(_Section, frozen=True, kw_only=True):
    """The scheduler extender: what removes nodes for device plugins, holds and exact amounts."""

    #: Observe: what would be removed is counted and logged, and every node passes.
    mode: Effect = "observe"
    #: Another mode for some resources, drivers or node classes.
    rules: tuple[ExtenderRule, ...] = ()
    #: What is answered while the extender cannot know: ``open`` lets every node pass, ``closed`` none that asks for something of ours.
    when_stale: Literal["open", "closed"] = "open"
    #: Its view is stale when it is this far behind: twelve ticks, and longer than a rebalance.
    stale_after_ms: DurationMs = 60_000


class AlertPolicy(_Section, frozen=True, kw_only=True):
    """Who is told, and how often."""

    #: What has one cause comes within so long: a breaker opens at the tick after the storm.
    group_wait_ms: DurationMs = 15_000
    #: Alertmanager takes an alert that is not repeated for ended (resolve_timeout, five minutes).
    resend_ms: Annotated[int, msgspec.Meta(ge=1_000, le=_YEAR_MS)] = 60_000
    #: Whether a suspect device is told: nothing is wrong with it yet, and most are known again within the window.
    suspects: bool = False


class RespondPolicy(_Section, frozen=True, kw_only=True):
    """What responders do. Observe-only by default: each effect is switched on here, per driver or node class."""

    #: Taint rules for DRA devices.
    exclusion: ExclusionPolicy = ExclusionPolicy()
    #: Nodes for device plugins, holds and exact amounts.
    extender: ExtenderPolicy = ExtenderPolicy()
    #: People and programs that are told.
    alerts: AlertPolicy = AlertPolicy()


class DriverHealthRule(_Section, frozen=True, kw_only=True):
    """How one driver publishes health in its slices. Exactly one of the three selectors is set."""

    driver: str
    taint_key: str = ""
    taint_key_prefix: str = ""
    #: Qualified attribute name.
    attribute: str = ""
    #: For a taint: what its presence means when its effect keeps work away (NoSchedule, NoExecute).
    #: ``unmonitored`` holds for any effect.
    means: Literal["unhealthy", "unmonitored", "unschedulable", "ignore"] = "unhealthy"
    #: For an attribute: texts (or ``true``/``false``) that mean healthy; any other value means unhealthy.
    healthy_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a rule that selects nothing or more than one thing."""
        if sum(map(bool, (self.taint_key, self.taint_key_prefix, self.attribute))) != 1:
            raise ValueError("set exactly one of taint_key, taint_key_prefix, attribute")


_DRIVER_HEALTH: Final = (
    # kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/device_health.go
    DriverHealthRule(driver="gpu.nvidia.com", taint_key="gpu.nvidia.com/xid"),
    DriverHealthRule(driver="gpu.nvidia.com", taint_key="gpu.nvidia.com/gpu-lost"),
    DriverHealthRule(driver="gpu.nvidia.com", taint_key="gpu.nvidia.com/unmonitored", means="unmonitored"),
    # intel/intel-resource-drivers-for-kubernetes, cmd/kubelet-gpu-plugin/node_state.go, doc/gaudi/USAGE.md
    DriverHealthRule(driver="gpu.intel.com", taint_key_prefix="HealthIssues-"),
    DriverHealthRule(driver="gpu.intel.com", attribute="gpu.intel.com/health", healthy_values=("Healthy",)),
    DriverHealthRule(driver="gaudi.intel.com", attribute="gaudi.intel.com/healthy", healthy_values=("true",)),
)


class ReadingPolicy(_Section, frozen=True, kw_only=True):
    """How objects are read where the API leaves it to the driver."""

    #: Attributes that name a NUMA node, best first; the standard one always wins (KEP-6072).
    numa_attributes: tuple[str, ...] = (
        "resource.kubernetes.io/numaNode",
        "dra.net/numaNode",
        "dra.cpu/numaNodeID",
        "dra.cpu/numaNode",
        "dra.memory/numaNode",
        "gpu.nvidia.com/numa",
        "cpu.example.com/numaNodeID",
    )
    #: Whether a decimal text may name a NUMA node.
    numa_from_text: bool = False
    #: Labels of Nodes that are kept besides those under ``sickbay.dev/``: a canary class may be told by another label.
    node_labels: tuple[str, ...] = ()


class LedgerPolicy(_Section, frozen=True, kw_only=True):
    """Whose rules the derived book follows, and what makes new claims wait."""

    #: ``1.36`` and ``1.37`` foresee what that scheduler counts, its known under-counts included; ``exact`` is what is used.
    emulate: Literal["1.36", "1.37", "exact"] = "exact"
    #: A newer generation that stays incomplete this long makes the effective one stale: twice the 30 s that a kubelet waits
    #: before it wipes the slices of a driver that went away (defaultWipingDelay).
    slice_stale_ms: DurationMs = 60_000
    #: After a driver's restart all must be well this long before new claims come: one kubelet wiping delay.
    rebuild_settle_ms: DurationMs = 30_000
    #: After a watch gap the other resource types get this long to show what was missed: three probes of a quiet watch.
    recheck_ms: DurationMs = 30_000
    #: A difference younger than this is under way: Pod, claim and slice are three watches, and a driver republishes in seconds.
    drift_grace_ms: DurationMs = 30_000
    #: Which differences hold a node. Explained ones are known and named; an unexplained one means that a number is wrong.
    hold_on_drift: Literal["unexplained", "any", "never"] = "unexplained"
    #: Nodes with this label, and one of ``canary_values``, are the canary class.
    canary_label: str = "sickbay.dev/rollout"
    #: Several values may be canaries: rollouts go in waves.
    canary_values: tuple[str, ...] = ("canary",)
    #: Promotion: this long without an unexplained difference on the canary class; one day sees every daily job.
    promotion_window_ms: DurationMs = 86_400_000
    #: Promotion: so many rebuilds, of a driver that restarted or a gate that was closed, must have gone well.
    promotion_drills: Count = 1
    #: Promotion: nine holds in ten end within this time, so that claims do not wait longer.
    pending_goal_ms: DurationMs = 120_000


class Policy(_Section, frozen=True, kw_only=True):
    """The whole document."""

    #: Chosen by its author; two documents with one version and different hashes are told apart by the hash.
    version: str = "default"
    #: Facts that come later than this behind the newest are recorded, counted and alerted, and not acted on: ten minutes
    #: outlast a broker's fail-over and a paused ingester.
    lateness_horizon_ms: DurationMs = 600_000
    unknown: UnknownPolicy = UnknownPolicy()
    quarantine: QuarantinePolicy = QuarantinePolicy()
    staged_return: ReturnPolicy = ReturnPolicy()
    node_incident: NodeIncidentPolicy = NodeIncidentPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    moves: MovePolicy = MovePolicy()
    driver_health: tuple[DriverHealthRule, ...] = _DRIVER_HEALTH
    reading: ReadingPolicy = ReadingPolicy()
    ledger: LedgerPolicy = LedgerPolicy()
    respond: RespondPolicy = RespondPolicy()

    def canonical(self) -> str:
        """Return the canonical JSON of the whole document, defaults included."""
        return msgspec.json.encode(self, order="sorted").decode()

    def hash(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of the canonical JSON."""
        return sha256(self.canonical().encode()).hexdigest()[:16]


def policy_from_document(document: str) -> Policy:
    """Read back what ``Policy.canonical`` wrote.

    Raises PolicyError when the document does not fit this build.
    """
    try:
        return msgspec.json.decode(document, type=Policy)
    except msgspec.MsgspecError as error:
        raise PolicyError(f"policy document: {error}") from error


def policy_from_yaml(text: str, *, place: str) -> Policy:
    """Read a policy that a person wrote; ``place`` names it in errors.

    Raises PolicyError with the path of the offending field and what is allowed there.
    """
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PolicyError(f"{place}: not YAML: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise PolicyError(f"{place}: expected a mapping of policy fields, found {type(document).__name__}")
    try:
        policy = msgspec.convert(document, type=Policy)
    except (msgspec.ValidationError, ValueError) as error:
        raise PolicyError(f"{place}: {error}; docs/policy.md lists every field with its unit") from error
    _check(policy, place)
    return policy


def _check(policy: Policy, place: str) -> None:
    """Refuse documents whose fields contradict one another."""
    pairs = (
        ("unknown.window_ms", policy.unknown.window_ms, "unknown.window_max_ms", policy.unknown.window_max_ms),
        ("quarantine.min_hold_ms", policy.quarantine.min_hold_ms, "quarantine.hold_max_ms", policy.quarantine.hold_max_ms),
        ("quarantine.min_hold_ms", policy.quarantine.min_hold_ms, "quarantine.lease_ms", policy.quarantine.lease_ms),
        (
            "staged_return.observation_ms", policy.staged_return.observation_ms,
            "staged_return.observation_only_ms", policy.staged_return.observation_only_ms,
        ),
        ("ledger.rebuild_settle_ms", policy.ledger.rebuild_settle_ms, "lateness_horizon_ms", policy.lateness_horizon_ms),
        ("ledger.slice_stale_ms", policy.ledger.slice_stale_ms, "lateness_horizon_ms", policy.lateness_horizon_ms),
        ("ledger.recheck_ms", policy.ledger.recheck_ms, "lateness_horizon_ms", policy.lateness_horizon_ms),
        ("ledger.drift_grace_ms", policy.ledger.drift_grace_ms, "lateness_horizon_ms", policy.lateness_horizon_ms),
    )  # fmt: skip
    for low_name, low, high_name, high in pairs:
        if low > high:
            raise PolicyError(f"{place}: {low_name} ({low}) must not exceed {high_name} ({high})")
    label = policy.ledger.canary_label
    if not label.startswith("sickbay.dev/") and label not in policy.reading.node_labels:
        raise PolicyError(
            f"{place}: ledger.canary_label ({label}) is kept of no Node; name it in reading.node_labels too"
        )
    for name, value in (
        ("unknown.window_ms", policy.unknown.window_ms),
        ("quarantine.lease_ms", policy.quarantine.lease_ms),
        ("quarantine.min_hold_ms", policy.quarantine.min_hold_ms),
    ):
        if value < 1000:
            raise PolicyError(f"{place}: {name} is {value} ms; it must be at least one second (1000)")
