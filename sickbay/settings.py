"""How Kafka is reached, as the environment says it: data, not calls.

Secrets come from files, never from the environment or the command line, so that they stand in no process list and no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from sickbay.errors import InputError
from sickbay.topics import PARTITIONS_DEFAULT, Topics

Security = Literal["plaintext", "ssl", "sasl_ssl"]

_LOOPBACK: Final = ("127.", "localhost", "[::1]", "::1")


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Kafka is and how to speak to it."""

    #: ``host:port,host:port``.
    bootstrap: str
    security: Security = "ssl"
    #: PEM files.
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    #: ``SCRAM-SHA-512``, ``SCRAM-SHA-256`` or ``PLAIN``; used with ``sasl_ssl``.
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password_file: str = ""
    prefix: str = "sickbay"
    partitions: int = PARTITIONS_DEFAULT
    replication: int = 3

    @property
    def topics(self) -> Topics:
        """The topics of this installation."""
        return Topics(self.prefix)


def kafka_settings(environment: Mapping[str, str]) -> KafkaSettings:
    """Read the ``SICKBAY_KAFKA_…`` variables.

    Without ``SICKBAY_KAFKA_SECURITY`` a broker on this machine is spoken to in plain text, any other by TLS. Raises InputError
    naming the variable and what it takes.
    """
    name = "SICKBAY_KAFKA_{}".format

    def text(key: str, default: str = "") -> str:
        return environment.get(name(key), default).strip()

    def whole(key: str, default: int, most: int) -> int:
        raw = text(key)
        if not raw:
            return default
        if not (raw.isascii() and raw.isdigit() and 1 <= int(raw) <= most):
            raise InputError(f"{name(key)} is {raw!r}; give a whole number from 1 to {most}")
        return int(raw)

    bootstrap = text("BOOTSTRAP")
    if not bootstrap:
        raise InputError(
            f"{name('BOOTSTRAP')} says where Kafka is and is not set; give host:port, several with commas"
        )
    hosts = [host.strip() for host in bootstrap.split(",")]
    if not all(host.rpartition(":")[2].isdigit() and host.rpartition(":")[0] for host in hosts):
        raise InputError(f"{name('BOOTSTRAP')} is {bootstrap!r}; give host:port, several with commas")
    default = "plaintext" if all(host.startswith(_LOOPBACK) for host in hosts) else "ssl"
    security = text("SECURITY", default).lower()
    if security not in ("plaintext", "ssl", "sasl_ssl"):
        raise InputError(f"{name('SECURITY')} is {security!r}; give plaintext, ssl or sasl_ssl")
    if security == "sasl_ssl" and not (text("SASL_USERNAME") and text("SASL_PASSWORD_FILE")):
        raise InputError(
            f"{name('SECURITY')} is sasl_ssl, and {name('SASL_USERNAME')} or {name('SASL_PASSWORD_FILE')} is not set"
        )
    prefix = text("PREFIX", "sickbay")
    if (
        not (prefix and prefix.isascii() and prefix.replace("-", "").replace("_", "").isalnum())
        or len(prefix) > 100
    ):
        raise InputError(f"{name('PREFIX')} is {prefix!r}; give letters, digits, - and _, 100 at most")
    return KafkaSettings(
        bootstrap=",".join(hosts),
        security=security,  # type: ignore[arg-type]  # checked above
        ca_file=text("CA_FILE"),
        cert_file=text("CERT_FILE"),
        key_file=text("KEY_FILE"),
        sasl_mechanism=text("SASL_MECHANISM", "SCRAM-SHA-512"),
        sasl_username=text("SASL_USERNAME"),
        sasl_password_file=text("SASL_PASSWORD_FILE"),
        prefix=prefix,
        partitions=whole("PARTITIONS", PARTITIONS_DEFAULT, 1_000),
        replication=whole("REPLICATION", 3, 100),
    )
