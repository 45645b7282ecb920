"""Names under which responders know their own objects, and others know them: labels, annotations, the key of the taint."""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "sickbay.dev/"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
#: Which installation made an object: the prefix of its topics. Objects of another one are not ours to touch.
INSTALLATION: Final = f"{DOMAIN}installation"
EPISODE: Final = f"{DOMAIN}episode"
NODE: Final = f"{DOMAIN}node"
#: Of the taint that keeps others off a device; the claims of probe and canary tolerate it.
TAINT_KEY: Final = f"{DOMAIN}quarantine"
