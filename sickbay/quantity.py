"""Kubernetes quantities, exact: a strict reader and a canonical writer that agree with the API server.

The server's rules are those of ``k8s.io/apimachinery`` v0.36 and v0.37, ``pkg/api/resource``: ``ParseQuantity`` and
``CanonicalizeBytes``. The helper of the Python client is no substitute: it takes "1K", "NaN" and " 1", and rounds
(kubernetes-client/python#2624). An amount is a whole number of nano-units; there is no float here, and there must be none.

What is deliberately not as in Go:

* A text without a digit (".", "+", "Ki") is refused. Go's scanner reads it as 0, against its own documented grammar;
  an amount that was not written is unknown, and unknown is never zero.
* Text longer than 64 characters, a written exponent beyond 64 and amounts from 10^50 are refused, so that hostile input
  costs nothing. Whatever ``canonical`` writes for an amount that was read fits these limits.
* A decimal amount beyond the suffix "E" is written with an exponent ("1000E" is "1e21"). Go up to 1.37 drops the power
  of ten and writes "1" (kubernetes/kubernetes#140459).
* The canonical text depends on amount and format alone, and is a fixed point. Go keeps some texts as they came ("1.441",
  "5E3", "+3") until it computes with them (kubernetes/kubernetes#138165). It writes a binary amount that 1024 does not
  divide without a suffix ("62.5Ki" as "64000"), and having read that again, as a decimal ("64k"); here it is "64k" at once.
* ``value`` and ``milli_value`` do not wrap around at 64 bits, and round negative amounts as Go says it does
  (kubernetes/kubernetes#138510).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from sickbay.errors import QuantityError

#: The family of suffix that an amount was written with, by Kubernetes' own names; it decides how it is written again.
Format: TypeAlias = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

NANO_PER_UNIT: Final = 10**9
NANO_PER_MILLI: Final = 10**6
#: Longest text that is read, in characters.
MAX_TEXT_LENGTH: Final = 64
#: Largest written exponent, by magnitude.
MAX_EXPONENT: Final = 64
#: Amounts that are read, in units, are below this in magnitude. That is at most 59 digits of nano-units, which fit
#: ``MAX_TEXT_LENGTH`` with the sign and the longest suffix ("e-9", "e48").
MAGNITUDE_LIMIT: Final = 10**50
#: Where Go caps an amount that is written with a binary suffix, in units, in either direction.
BINARY_CAP: Final = 2**63 - 1

#: A cluster has few distinct texts (request sizes, node shapes), each repeated in every Pod, slice and relist, and a hit
#: costs a twentieth of a parse. The bound holds the texts of some thousand nodes in about 6 MB for both caches.
_CACHE_ENTRIES: Final = 16_384
#: Longest extract of a refused text in an error, in characters.
_SHOWN_LENGTH: Final = 80

_DECIMAL_EXPONENTS: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
#: Position is the power of 1024.
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY_SHIFTS: Final = {suffix: 10 * power for power, suffix in enumerate(_BINARY_SUFFIXES) if suffix}

#: Sign, digits before and after the point, exponent or suffix. A text divides into these parts in one way only, so a
#: refusal costs no more than a match.
_QUANTITY: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")

_REMEDY: Final = (
    "write a number with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei) or exponent (e3), "
    "without spaces, as in 500m, 1.5Gi or 2e3"
)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount, and the family of suffix that it was written with.

    Equality, order and hash follow the amount alone: "0.5Gi", "512Mi" and "536870912" are one quantity. So compare
    quantities, never texts, and keep balances as quantities or nano-units: as in Go, a sum takes the format of its left
    side (of the right one when the left is zero), and so its text, not its amount, depends on the order of the terms.
    """

    #: The amount in nano-units.
    nano: int
    format: Format = field(default="DecimalSI", compare=False)

    def __add__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nano, self.format)

    def __str__(self) -> str:
        return self.canonical()

    @property
    def units(self) -> Fraction:
        """The amount in units (cores, bytes, devices), exact."""
        return Fraction(self.nano, NANO_PER_UNIT)

    def times(self, factor: Quantity | int) -> Fraction:
        """Return the exact product, in units.

        KEP-5517 multiplies a consumed capacity by a multiplier as unbounded decimals. Such a product can be finer than a
        nano-unit, so it is a fraction: sum first, and make a quantity of the sum with ``from_units``.
        """
        if isinstance(factor, Quantity):
            return Fraction(self.nano * factor.nano, NANO_PER_UNIT**2)
        return Fraction(self.nano * factor, NANO_PER_UNIT)

    def value(self) -> int:
        """Return whole units, rounded up: Go's ``Value``, what the scheduler counts memory and devices in.

        "Up" is away from zero, so -1.5 is -2.
        """
        return _divide_away_from_zero(self.nano, NANO_PER_UNIT)

    def milli_value(self) -> int:
        """Return whole milli-units, rounded up (away from zero): Go's ``MilliValue``, what the scheduler counts cpu in."""
        return _divide_away_from_zero(self.nano, NANO_PER_MILLI)

    def canonical(self) -> str:
        """Return the text that the API server serves for this amount and format.

        No fraction, the largest suffix that loses nothing, a sign only when negative: "0.1" is "100m", "1.5Gi" is
        "1536Mi", "5E3" is "5e3". Zero is "0". A binary amount that 1024 does not divide is written in decimal ("1.1Gi" is
        "1181116006400m"), and so is one beyond 2^63-1, which only a sum can reach and a reader would cap. Reading the
        text and writing it again changes nothing.
        """
        nano = self.nano
        if not nano:
            return "0"
        if self.format == "BinarySI":
            whole, rest = divmod(nano, NANO_PER_UNIT)
            if not rest and abs(whole) <= BINARY_CAP:
                power = ((whole & -whole).bit_length() - 1) // 10  # how often 1024 divides it
                if power:
                    return f"{whole >> 10 * power}{_BINARY_SUFFIXES[power]}"
        exponent = -9
        while not nano % 1000:  # at most a third of the digits
            nano //= 1000
            exponent += 3
        if self.format == "DecimalExponent":
            return f"{nano}e{exponent}" if exponent else f"{nano}"
        suffix = _DECIMAL_SUFFIXES.get(exponent)
        return f"{nano}e{exponent}" if suffix is None else f"{nano}{suffix}"


#: Nothing, of no unit; the start of a sum.
ZERO: Final = Quantity(0)


def parse(text: str) -> Quantity:
    """Read a quantity as the API server does.

    An amount finer than a nano-unit is rounded up to the next one, away from zero, so that nothing asked for becomes
    nothing. A binary amount is capped at 2^63-1 units in either direction ("8Ei"); a decimal one is not ("12E"). A
    binary amount between 0 and 1 counts as decimal.

    Raises ``QuantityError``, naming the text and the remedy, for everything that Kubernetes refuses and for what the
    module's limits exclude. Blanks are refused too, though Go trims them around a JSON string.
    """
    return _parse(text)


def canonical_text(text: str) -> str:
    """Return ``parse(text).canonical()``, remembered. Raises ``QuantityError`` as ``parse`` does."""
    return _canonical_text(text)


def parse_json_value(value: object, *, path: str) -> Quantity:
    """Read a quantity from a decoded JSON value: a string, or an integer.

    A number with a fraction or an exponent must arrive as its own text, since a float has lost it already. ``null``
    is refused: what is absent is unknown, and the caller leaves it out.

    Raises ``QuantityError`` that begins with ``path``, the place of the value in its object.
    """
    if isinstance(value, str):
        try:
            return _parse(value)
        except QuantityError as error:
            raise QuantityError(f"{path}: {error}") from None
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= MAGNITUDE_LIMIT:
            raise QuantityError(
                f"{path}: an integer of {value.bit_length()} bits is too large; stay below 10^50"
            )
        return Quantity(value * NANO_PER_UNIT)
    if isinstance(value, float):
        raise QuantityError(
            f"{path}: {value!r} was decoded as a float, which is not exact; "
            "decode such numbers as text (msgspec: float_hook=str)"
        )
    found = "null" if value is None else type(value).__name__
    raise QuantityError(f"{path}: a quantity is a string or an integer, not {found}; {_REMEDY}")


def from_units(units: Fraction | int, quantity_format: Format = "DecimalSI") -> Quantity:
    """Make a quantity of an exact amount in units, rounded up to a nano-unit (away from zero) as ``parse`` does.

    Unlike in ``parse``, a binary amount is not capped: Go caps what it reads, not what it computes.
    """
    return Quantity(
        _divide_away_from_zero(units.numerator * NANO_PER_UNIT, units.denominator), quantity_format
    )


@lru_cache(maxsize=_CACHE_ENTRIES)
def _parse(text: str) -> Quantity:
    if len(text) > MAX_TEXT_LENGTH:
        raise QuantityError(
            f"quantity {_shown(text)} has {len(text)} characters; write at most {MAX_TEXT_LENGTH}"
        )
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{_shown(text)} is not a quantity; {_REMEDY}")
    sign, whole, decimals, exponent_text, suffix = match.groups("")
    digits = whole + decimals
    if not digits:
        raise QuantityError(f"{_shown(text)} has no digit and so is not a quantity; {_REMEDY}")
    magnitude = int(digits)
    quantity_format: Format = "DecimalSI"
    exponent = 0
    if exponent_text:
        quantity_format = "DecimalExponent"
        exponent = int(exponent_text)
        if abs(exponent) > MAX_EXPONENT:
            raise QuantityError(
                f"quantity {_shown(text)} has an exponent out of range; stay between -{MAX_EXPONENT} and {MAX_EXPONENT}"
            )
    elif suffix in _BINARY_SHIFTS:
        quantity_format = "BinarySI"
        magnitude <<= _BINARY_SHIFTS[suffix]
    else:
        exponent = _DECIMAL_EXPONENTS[suffix]

    scale = exponent - len(decimals) + 9
    nano = magnitude * 10**scale if scale >= 0 else _divide_away_from_zero(magnitude, 10**-scale)
    if quantity_format == "BinarySI":
        nano = min(nano, BINARY_CAP * NANO_PER_UNIT)
        if 0 < nano < NANO_PER_UNIT:
            quantity_format = "DecimalSI"
    elif nano >= MAGNITUDE_LIMIT * NANO_PER_UNIT:
        raise QuantityError(f"quantity {_shown(text)} is too large; stay below 10^50")
    return Quantity(-nano if sign == "-" else nano, quantity_format)


@lru_cache(maxsize=_CACHE_ENTRIES)
def _canonical_text(text: str) -> str:
    return _parse(text).canonical()


def _divide_away_from_zero(dividend: int, divisor: int) -> int:
    """Divide by a positive divisor; what is left over counts as one more."""
    return -(-dividend // divisor) if dividend > 0 else dividend // divisor


def _shown(text: str) -> str:
    """Return the text as an ASCII literal of bounded length, fit for a log line."""
    literal = ascii(text[:_SHOWN_LENGTH])
    return literal if len(literal) <= _SHOWN_LENGTH else f"{literal[: _SHOWN_LENGTH - 3]}..."
