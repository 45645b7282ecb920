"""One raw Kubernetes object in, what it says out: pure readers that hold no state.

They work on decoded JSON and never on typed client models, which drop or refuse fields across 1.36 and 1.37
(kubernetes-client/python, models generated for one version). They must not remember, compare or attribute: that is
``ingest.diff``. Only the fields named in ``sickbay.facts`` are kept; images, environment and foreign annotations never are.
"""

from __future__ import annotations

from ingest.observe.claims import ClaimObservation, claim_fingerprint, observe_claim
from ingest.observe.devices import DeviceObservation
from ingest.observe.fields import Identity, read_identity
from ingest.observe.nodes import (
    LeaseObservation,
    NodeObservation,
    node_fingerprint,
    observe_lease,
    observe_node,
)
from ingest.observe.pods import DeviceReport, PodObservation, health_word, observe_pod, pod_fingerprint
from ingest.observe.slices import SliceObservation, observe_slice, slice_fingerprint

__all__ = [
    "ClaimObservation",
    "DeviceObservation",
    "DeviceReport",
    "Identity",
    "LeaseObservation",
    "NodeObservation",
    "PodObservation",
    "SliceObservation",
    "claim_fingerprint",
    "health_word",
    "node_fingerprint",
    "observe_claim",
    "observe_lease",
    "observe_node",
    "observe_pod",
    "observe_slice",
    "pod_fingerprint",
    "read_identity",
    "slice_fingerprint",
]
