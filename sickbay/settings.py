"""How Kafka is reached, as the environment says it: data, not calls.

Secrets come from files, never from the environment or the command line, so that they stand in no process list and no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, Literal

import msgspec

from sickbay.errors import InputError
from sickbay.topics import PARTITIONS_DEFAULT, Topics

Security = Literal["plaintext", "ssl", "sasl_ssl"]

_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


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
        if not (_is_number(raw) and 1 <= int(raw) <= most):
            raise InputError(f"{name(key)} is {raw!r}; give a whole number from 1 to {most}")
        return int(raw)

    bootstrap = text("BOOTSTRAP")
    if not bootstrap:
        raise InputError(
            f"{name('BOOTSTRAP')} says where Kafka is and is not set; give host:port, several with commas"
        )
    hosts = [host.strip() for host in bootstrap.split(",")]
    if not all(map(_is_address, hosts)):
        raise InputError(f"{name('BOOTSTRAP')} is {bootstrap!r}; give host:port, several with commas")
    default = "plaintext" if all(map(_is_here, hosts)) else "ssl"
    security = text("SECURITY", default).lower()
    if security not in ("plaintext", "ssl", "sasl_ssl"):
        raise InputError(f"{name('SECURITY')} is {security!r}; give plaintext, ssl or sasl_ssl")
    if security == "sasl_ssl" and not (text("SASL_USERNAME") and text("SASL_PASSWORD_FILE")):
        raise InputError(
            f"{name('SECURITY')} is sasl_ssl, and {name('SASL_USERNAME')} or {name('SASL_PASSWORD_FILE')} is not set"
        )
    mechanism = text("SASL_MECHANISM", _MECHANISMS[0]).upper()
    if mechanism not in _MECHANISMS:
        raise InputError(f"{name('SASL_MECHANISM')} is {mechanism!r}; give {', '.join(_MECHANISMS)}")
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
        sasl_mechanism=mechanism,
        sasl_username=text("SASL_USERNAME"),
        sasl_password_file=text("SASL_PASSWORD_FILE"),
        prefix=prefix,
        partitions=whole("PARTITIONS", PARTITIONS_DEFAULT, 1_000),
        replication=whole("REPLICATION", 3, 100),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _is_address(host_and_port: str) -> bool:
    host, _, port = host_and_port.rpartition(":")
    return bool(host) and _is_number(port) and 1 <= int(port) <= 65_535


def _is_here(host_and_port: str) -> bool:
    """Whether it names this machine for certain: a name that merely begins so may be anybody's."""
    host = host_and_port.rpartition(":")[0].strip("[]")
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
