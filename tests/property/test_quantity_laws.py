"""Laws of quantities: one reading, one text for an amount, and arithmetic that is plain arithmetic."""

import re
from fractions import Fraction
from functools import partial
from math import ceil, floor

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sickbay.errors import QuantityError
from sickbay.quantity import (
    MAGNITUDE_LIMIT,
    MAX_TEXT_LENGTH,
    ZERO,
    Quantity,
    canonical_text,
    from_units,
    parse,
    parse_json_value,
)

#: No deadline: a slow machine is no fault of a law.
laws = settings(deadline=None)

MULTIPLIERS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip

digits = st.text("0123456789", max_size=12) | st.from_regex(r"[1-9]0{0,20}", fullmatch=True)
exponents = st.builds(
    "{}{}{}".format,
    st.sampled_from("eE"),
    st.sampled_from(["", "+", "-"]),
    st.integers(min_value=0, max_value=25),
)


@st.composite
def spellings(draw):
    """Any text of the grammar, inside the limits: (sign, digits, fraction or None, suffix)."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    whole = draw(digits)
    fraction = draw(st.none() | digits)
    if not whole and not fraction:
        whole = "0"
    return sign, whole, fraction, draw(st.sampled_from(sorted(MULTIPLIERS)) | exponents)


def written(spelling):
    sign, whole, fraction, suffix = spelling
    return f"{sign}{whole}{'' if fraction is None else '.' + fraction}{suffix}"


def naive_units(spelling):
    """Read a spelling by the documented grammar, slowly, with fractions alone."""
    sign, whole, fraction, suffix = spelling
    units = Fraction(0)
    for digit in whole:
        units = units * 10 + int(digit)
    for place, digit in enumerate(fraction or "", start=1):
        units += Fraction(int(digit), 10**place)
    if suffix[:1] in {"e", "E"} and suffix[1:] and suffix != "Ei":
        units *= Fraction(10) ** int(suffix[1:])
    else:
        units *= MULTIPLIERS[suffix]
    units = Fraction(ceil(units * 10**9), 10**9)
    if suffix.endswith("i"):
        units = min(units, Fraction(2**63 - 1))
    return -units if sign == "-" else units


texts = spellings().map(written)
quantities = texts.map(parse)


def answer(reader, value):
    """What a reader makes of a value: the quantity, or the text of its refusal."""
    try:
        return reader(value)
    except QuantityError as error:
        return str(error)


nano_units = st.integers(min_value=-(10**59) + 1, max_value=10**59 - 1)
computed = st.builds(
    Quantity, nano_units, st.sampled_from(["DecimalSI", "BinarySI", "DecimalExponent"])
) | st.builds(
    lambda whole, power: Quantity(whole * 1024**power * 10**9, "BinarySI"),
    st.integers(min_value=-(10**6), max_value=10**6),
    st.integers(min_value=0, max_value=8),
)


@laws
@given(spellings())
@example(("", "546", "875", "Ki"))
@example(("-", "8", None, "Ei"))
@example(("", "0", "000000000001", "Ki"))
def test_a_naive_reader_agrees(spelling):
    """The amount is the one that the documented grammar gives, rounded up to nano-units, capped for binary suffixes."""
    assert naive_units(spelling) == parse(written(spelling)).units


@laws
@given(texts)
@example("546.875Ki")
@example("9" * 50)
@example("-" + "9" * 40 + "." + "1" * 20)
@example("1" * 47 + "." + "1" * 16)
@example("-" + "1" * 48 + "." + "1" * 13)
@example("8Ei")
def test_the_canonical_text_reads_back_and_is_a_fixed_point(text):
    """parse(canonical(q)) == q, and the canonical text of a canonical text is itself."""
    served = parse(text).canonical()

    assert parse(text) == parse(served)
    assert served == canonical_text(served) == canonical_text(text)


@laws
@given(computed)
def test_a_computed_quantity_survives_its_text(quantity):
    """What was added up reads back from its text to the same amount, also beyond the cap of binary texts."""
    assert quantity == parse(quantity.canonical())
    assert quantity.canonical() == canonical_text(quantity.canonical())


@laws
@given(computed | quantities)
def test_the_canonical_text_is_plain_short_and_cannot_take_a_larger_suffix(quantity):
    """No fraction, no plus, no leading zero; the number before the suffix has no factor left that a suffix could take."""
    served = quantity.canonical()
    form = re.fullmatch(r"-?(0|[1-9][0-9]*)(e-?[1-9][0-9]*|[KMGTPE]i|[numkMGTPE]?)", served)

    assert form is not None
    assert len(served) <= MAX_TEXT_LENGTH
    if quantity.nano:
        assert int(form[1]) % (1024 if form[2].endswith("i") else 1000)


@laws
@given(quantities, quantities)
def test_order_and_equality_agree_with_fractions(left, right):
    """Quantities compare as their exact amounts do, and equal ones hash alike."""
    assert (left.units < right.units) == (left < right)
    assert (left.units <= right.units) == (left <= right)
    assert (left.units == right.units) == (left == right)
    assert (left.units > right.units) == (left > right)
    assert (left.units >= right.units) == (left >= right)
    assert left != right or hash(left) == hash(right)


@laws
@given(quantities, quantities, quantities)
def test_addition_is_plain_addition(first, second, third):
    """Commutative, associative, with a zero and an inverse, and equal to the sum of the fractions."""
    assert first + second == second + first
    assert (first + second) + third == first + (second + third)
    assert first == first + ZERO == ZERO + first
    assert ZERO == first - first == first + -first
    assert first - second == first + -second
    assert first.units + second.units == (first + second).units


@laws
@given(quantities, quantities, st.integers(min_value=-(2**63), max_value=2**63))
def test_multiplication_is_exact(left, right, factor):
    """A product is the product of the fractions, and becomes a quantity by rounding up to a nano-unit."""
    product = left.times(right)

    assert left.units * right.units == product == right.times(left)
    assert left.units * factor == left.times(factor)
    assert abs(product) <= abs(from_units(product).units) < abs(product) + Fraction(1, 10**9)
    assert 0 <= from_units(product).units * product


@laws
@given(quantities)
def test_whole_and_milli_units_round_away_from_zero(quantity):
    """value and milli_value are the ceiling of the magnitude, with the sign of the amount."""
    away = ceil if quantity.nano >= 0 else floor

    assert away(quantity.units) == quantity.value()
    assert away(quantity.units * 1000) == quantity.milli_value()


@settings(laws, max_examples=400)
@given(
    st.text(max_size=80)
    | st.text("0123456789.+-eEinumkKMGTP", max_size=80)
    | st.text("0123456789eE-", max_size=80)
)
@example("1e999999999999999999")
@example("9" * 80)
@example("-" * 80)
def test_any_text_is_read_or_refused(text):
    """Whatever the text, the answer is a quantity within the limits or a QuantityError of bounded length; nothing else."""
    read = answer(parse, text)

    if isinstance(read, Quantity):
        assert len(text) <= MAX_TEXT_LENGTH
        assert abs(read.units) < MAGNITUDE_LIMIT
        assert read == parse(canonical_text(text))
    else:
        assert read == answer(canonical_text, text)
        assert read.isascii()
        assert len(read) < 300


@laws
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda children: (
            st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3)
        ),
        max_leaves=4,
    )
)
def test_any_json_value_is_read_or_refused(value):
    """A decoded JSON value gives a quantity, or an error that begins with its path."""
    read = answer(partial(parse_json_value, path="a.b"), value)

    if isinstance(read, Quantity):
        assert isinstance(value, str) or (type(value) is int and value == read.units)
    else:
        assert read.startswith("a.b: ")
