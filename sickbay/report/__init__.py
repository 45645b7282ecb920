"""The report: one incident as one HTML page that needs nothing but a browser.

Values in, text out: ``model`` says what a page shows, ``page`` writes it. Nothing here asks a store, reads a clock or knows the
command line, so that equal models give equal bytes. Nothing on the page may reach for the network, and no word of the cluster may
become markup (docs/cli.md, ``report``).
"""

from __future__ import annotations

from sickbay.report.model import (
    Alert,
    Balance,
    Bar,
    Device,
    Drift,
    Episode,
    Evidence,
    LedgerNode,
    Mark,
    Node,
    Parked,
    Phase,
    Policy,
    Position,
    Refused,
    Report,
    Verdict,
)
from sickbay.report.page import render

__all__ = [
    "Alert",
    "Balance",
    "Bar",
    "Device",
    "Drift",
    "Episode",
    "Evidence",
    "LedgerNode",
    "Mark",
    "Node",
    "Parked",
    "Phase",
    "Policy",
    "Position",
    "Refused",
    "Report",
    "Verdict",
    "render",
]
