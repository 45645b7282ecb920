"""Every error that a user or a caller can meet.

SickbayError
├── InputError            what was given is wrong; the text names the place and the remedy
│   ├── QuantityError         not a Kubernetes quantity
│   ├── PolicyError           a policy document that cannot be used
│   ├── RecordingError        a recording, or one line of it, that cannot be read
│   └── ObjectError           a Kubernetes object that cannot be decoded
├── CodecError            stored bytes that cannot become an event
│   ├── UnknownEventError     a kind that this build does not know
│   ├── UnsupportedSchemaError  a schema version newer than this build
│   └── MergeError            facts and answers in Kafka that do not belong together
├── StoreError            the database cannot be used (missing, read-only, full, other schema)
│   ├── UnavailableError      not now: it went away, is locked or is busy; the same again may do
│   └── FencedError           another projector moved the position that this one writes from
├── ServiceError          Kafka or the API server cannot be reached, refuses, or is not as it must be
├── VerifyError           the log and what was derived from it disagree
└── NotFoundError         a device, episode or view that does not exist

Each class carries the process exit code that the command line uses for it (README, "Exit codes").
"""

from __future__ import annotations


class SickbayError(Exception):
    """The root of the tree; never raised itself."""

    exit_code = 1


class InputError(SickbayError):
    """Something given by a user or a cluster is wrong."""

    exit_code = 2


class QuantityError(InputError, ValueError):
    """A text that Kubernetes would not accept as a quantity."""


class PolicyError(InputError):
    """A policy document that cannot be used."""


class RecordingError(InputError):
    """A recording, or one line of it, that cannot be read."""


class ObjectError(InputError):
    """A Kubernetes object, or a part of it, that cannot be decoded."""


class CodecError(SickbayError):
    """Stored bytes that cannot become an event."""

    exit_code = 4


class UnknownEventError(CodecError):
    """An event kind that this build does not know."""


class UnsupportedSchemaError(CodecError):
    """An event written by a newer build; read it with that build."""


class MergeError(CodecError):
    """Facts and answers in Kafka that do not belong together."""


class StoreError(SickbayError):
    """The database cannot be used."""

    exit_code = 5


class UnavailableError(StoreError):
    """The database went away, is locked or is busy: the same again, a little later, may do."""


class FencedError(StoreError):
    """Another projector moved the position that this one writes from; nothing was written."""


class ServiceError(SickbayError):
    """Kafka or the API server cannot be reached, refuses, or is not as it must be."""

    exit_code = 7


class VerifyError(SickbayError):
    """The log and what was derived from it disagree."""

    exit_code = 6


class NotFoundError(InputError):
    """A device, episode or view that does not exist."""
