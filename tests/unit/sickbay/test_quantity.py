"""The quantity reader and writer against Kubernetes' own answers, and at every limit of ours."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from sickbay.errors import InputError, QuantityError
from sickbay.quantity import (
    BINARY_CAP,
    MAX_TEXT_LENGTH,
    NANO_PER_UNIT,
    ZERO,
    Quantity,
    canonical_text,
    from_units,
    parse,
    parse_json_value,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "quantities.json").read_text(encoding="utf-8"))

# --- what Kubernetes reads and writes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quantity_format", "nano", "served", "value", "milli_value"), GOLDEN["accepted"], ids=ascii
)
def test_agrees_with_kubernetes_on_a_measured_text(text, quantity_format, nano, served, value, milli_value):
    """Amount, format, text and rounded values are those that Kubernetes' own library gave for this text."""
    quantity = parse(text)

    assert int(nano) == quantity.nano
    assert quantity_format == quantity.format
    assert served == quantity.canonical() == canonical_text(text)
    if value:
        assert int(value) == quantity.value()
        assert int(milli_value) == quantity.milli_value()


@pytest.mark.parametrize("text", GOLDEN["refused"], ids=ascii)
def test_refuses_what_kubernetes_refuses(text):
    """What Kubernetes' own library refused is refused here, alone and in an object."""
    with pytest.raises(QuantityError):
        parse(text)
    with pytest.raises(QuantityError, match=r"^status\.allocatable\['cpu'\]: "):
        parse_json_value(text, path="status.allocatable['cpu']")


@pytest.mark.parametrize(
    ("text", "nano", "served"),
    [
        ("0", 0, "0"),
        ("-0", 0, "0"),
        ("0Mi", 0, "0"),
        ("0e5", 0, "0"),
        ("1", 10**9, "1"),
        ("+3", 3 * 10**9, "3"),
        (".5", 5 * 10**8, "500m"),
        ("1.", 10**9, "1"),
        ("007", 7 * 10**9, "7"),
        ("0.1", 10**8, "100m"),
        ("100m", 10**8, "100m"),
        ("1000m", 10**9, "1"),
        ("1.500", 15 * 10**8, "1500m"),
        ("100n", 100, "100n"),
        ("1000n", 1000, "1u"),
        ("10000", 10**13, "10k"),
        ("1500k", 1500 * 10**12, "1500k"),
        ("1000M", 10**18, "1G"),
        ("129e6", 129 * 10**15, "129e6"),
        ("5E3", 5 * 10**12, "5e3"),
        ("12e4", 12 * 10**13, "120e3"),
        ("1e-3", 10**6, "1e-3"),
        ("5e0", 5 * 10**9, "5"),
        ("1E", 10**27, "1E"),
        ("12E", 12 * 10**27, "12E"),
        ("1Ki", 1024 * 10**9, "1Ki"),
        ("1024Mi", 2**30 * 10**9, "1Gi"),
        ("1.5Gi", 1536 * 2**20 * 10**9, "1536Mi"),
        ("0.5Gi", 2**29 * 10**9, "512Mi"),
        ("1.1Gi", 1181116006400 * 10**6, "1181116006400m"),
        ("-5Gi", -5 * 2**30 * 10**9, "-5Gi"),
        ("0.5Ki", 512 * 10**9, "512"),
        ("0.0005Ki", 512 * 10**6, "512m"),
        ("-0.0005Ki", -512 * 10**6, "-512m"),
        ("1.5Ki", 1536 * 10**9, "1536"),
        ("1000000Ki", 1024 * 10**15, "1000000Ki"),
        ("7Ei", 7 * 2**60 * 10**9, "7Ei"),
        ("389954383052800m", 389954383052800 * 10**6, "389954383052800m"),
    ],
)
def test_reads_the_amount_and_serves_the_canonical_text(text, nano, served):
    """An amount is read to the nano-unit and written as the largest suffix of its own family that loses nothing."""
    assert nano == parse(text).nano
    assert served == canonical_text(text)


@pytest.mark.parametrize(
    ("text", "quantity_format"),
    [
        ("1", "DecimalSI"),
        ("1E", "DecimalSI"),
        ("1E3", "DecimalExponent"),
        ("1e3", "DecimalExponent"),
        ("1Ei", "BinarySI"),
        ("0Ki", "BinarySI"),
        ("1Ki", "BinarySI"),
        ("0.5Ki", "BinarySI"),
        ("0.0009765625Ki", "BinarySI"),
        ("0.0009Ki", "DecimalSI"),
        ("-0.0009Ki", "DecimalSI"),
    ],
)
def test_remembers_the_family_of_suffix(text, quantity_format):
    """The format follows the suffix; a binary amount between 0 and 1 becomes decimal."""
    assert quantity_format == parse(text).format


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0.0000000001", 1),
        ("3.001n", 4),
        ("0.9n", 1),
        ("1.1E-9", 2),
        ("1e-64", 1),
        ("0.000000000001Ki", 2),
        ("1.0000000001", 10**9 + 1),
        ("1.0000000000", 10**9),
        ("-0.0000000001", -1),
        ("-3.001n", -4),
    ],
)
def test_rounds_below_a_nano_unit_away_from_zero(text, nano):
    """Whoever asks for something gets something: what is finer than a nano-unit counts as one more."""
    assert nano == parse(text).nano


def test_caps_binary_amounts_and_no_others():
    """A binary amount stops at 2^63-1 in either direction; a decimal one keeps what it says."""
    cap = Quantity(BINARY_CAP * NANO_PER_UNIT)

    assert cap == parse("8Ei") == parse("9223372036854775807Ki") == parse(f"{'9' * 62}Ei")
    assert -cap == parse("-8Ei")
    assert "9223372036854775807" == canonical_text("8Ei")
    assert 7 * 2**60 == parse("7Ei").value()
    assert 2**63 == parse("9223372036854775808").value()
    assert 12 * 10**18 == parse("12E").value()


def test_writes_decimal_amounts_beyond_the_last_suffix_with_an_exponent():
    """Past E there is no suffix; the power of ten is kept, in a form that reads back to the same amount."""
    assert "1e21" == canonical_text("1000E")
    assert "-10e21" == canonical_text("-10000E")
    assert "999E" == canonical_text("999E")
    assert parse("1000E") == parse("1e21")


def test_a_binary_amount_that_1024_does_not_divide_has_one_text():
    """The text is what is served after a second reading as well, so it does not change when it is read again."""
    assert "64k" == canonical_text("62.5Ki") == canonical_text("64k")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["+", "-", ".", "+.", "-.", "m", "Ki", ".Gi", "E", "e3", "E5", "+k", "-Mi"])
def test_refuses_a_text_without_a_digit(text):
    """An amount that was not written is unknown, never zero."""
    with pytest.raises(QuantityError, match="no digit"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "NaN", "inf", "1_000", " 1", "1 ", "1\n", "\u0661\u0662", "1K", "1ki", "6 GiB", "1e", "1ni", "0.1mi",
     "1e-3Ki", "1.1.1", "0x10", "1,5", "1e1.5", "1e 5", "1\x00", "--1", "1Zi", "\ud800"],
)  # fmt: skip
def test_refuses_what_is_not_a_quantity_and_says_what_is(text):
    """The error names the text in printable ASCII and how to write it right."""
    with pytest.raises(QuantityError) as caught:
        parse(text)

    message = str(caught.value)
    assert message.startswith(ascii(text))
    assert "as in 500m, 1.5Gi or 2e3" in message
    assert message.isascii()
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e65", "exponent out of range"),
        ("1e-65", "exponent out of range"),
        ("1e1000000", "exponent out of range"),
        ("0e9999999999999999999", "exponent out of range"),
        ("1e51", "too large"),
        ("1e50", "too large"),
        ("-1e50", "too large"),
        ("1" * 51, "too large"),
        ("1" * (MAX_TEXT_LENGTH + 1), "65 characters"),
        ("1" * 1_000_000, "1000000 characters"),
        ("\u00e9" * 1_000_000, "1000000 characters"),
        ("0" * 65, "65 characters"),
        ("1e" + "9" * 100_000, "100002 characters"),
    ],
    ids=range(13),
)
def test_refuses_hostile_sizes_before_computing_with_them(text, reason):
    """A huge text or exponent is refused by its size, in a short error; computing with it would never end."""
    with pytest.raises(QuantityError, match=reason) as caught:
        parse(text)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["9" * 50, "-" + "9" * 50, "9.99e49", "0" * 64, "1e-64", "1e49"])
def test_reads_up_to_the_limits(text):
    """Each limit is exact: the last value inside is read, and its canonical text is read again."""
    assert parse(text) == parse(canonical_text(text))


def test_shows_at_most_eighty_characters_of_a_refused_text():
    """A short text is shown whole, a long or heavily escaped one is cut and marked."""
    with pytest.raises(QuantityError) as whole:
        parse("x" * 64)
    with pytest.raises(QuantityError) as escaped:
        parse("\U0001f600" * 64)
    with pytest.raises(QuantityError) as long:
        parse("x" * 500)

    assert str(whole.value).startswith(f"'{'x' * 64}' is not")
    assert str(escaped.value).startswith("'\\U0001f600")
    assert 80 == str(escaped.value).index(" is not a quantity")
    assert "..." == str(escaped.value)[77:80]
    assert f"'{'x' * 76}... has 500" in str(long.value)


def test_a_refused_text_stays_refused():
    """A refusal is not remembered as an answer."""
    for _ in range(2):
        with pytest.raises(QuantityError):
            canonical_text("1K")


def test_a_quantity_error_is_an_input_error():
    """Callers that report what is wrong with an input need to catch one class; exit code 2."""
    with pytest.raises(InputError) as caught:
        parse("1K")

    assert 2 == caught.value.exit_code
    assert isinstance(caught.value, ValueError)


# --- decoded JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "served"), [("1.5Gi", "1536Mi"), (3, "3"), (0, "0"), (-2, "-2"), (2000, "2k"), ("1.5", "1500m")]
)
def test_reads_json_strings_and_integers(value, served):
    """The API's schema allows a string or a number; an integer is read exactly."""
    assert served == parse_json_value(value, path="spec").canonical()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0.1, "decode such numbers as text"),
        (float("nan"), "decode such numbers as text"),
        (None, "not null"),
        (True, "not bool"),
        ([], "not list"),
        ({"a": 1}, "not dict"),
        (b"1", "not bytes"),
        (10**50, "167 bits"),
        (-(10**50), "167 bits"),
        (10**100_000, "too large"),
        ("1K", "not a quantity"),
    ],
    ids=range(11),
)
def test_refuses_other_json_values_by_their_path(value, reason):
    """The error begins with the place in the object, so that one bad value is refused alone."""
    path = "status.allocatable['example.com/a']"

    with pytest.raises(QuantityError, match=reason) as caught:
        parse_json_value(value, path=path)

    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 300


# --- amounts ---------------------------------------------------------------------------------------------------------


def test_equal_amounts_are_one_key_whatever_their_spelling():
    """Equality and hash go by amount, so a change of spelling is no change."""
    assert {parse("0.5Gi")} == {parse("512Mi"), parse("536870912"), parse("536870912000m")}
    assert parse("1") != parse("1n")
    assert parse("1") != 1


def test_order_goes_by_amount():
    """Quantities sort by amount across formats; with anything else they do not compare."""
    amounts = [parse(text) for text in ("1Gi", "1G", "-1", "1e3", "0", "999", "1Ki")]

    assert ["-1", "0", "999", "1e3", "1Ki", "1G", "1Gi"] == [str(amount) for amount in sorted(amounts)]
    assert parse("1k") <= parse("1e3") < parse("1Ki")
    with pytest.raises(TypeError):
        sorted([parse("1"), 1])


def test_a_quantity_cannot_be_changed():
    """Cached answers are shared, so nobody may write to them."""
    with pytest.raises(AttributeError):
        parse("1").nano = 2
    assert not hasattr(parse("1"), "__dict__")


@pytest.mark.parametrize(
    ("left", "right", "total", "difference"),
    [
        ("1Gi", "512Mi", "1536Mi", "512Mi"),
        ("100m", "900m", "1", "-800m"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("1Gi", "0", "1Gi", "1Gi"),
        ("1Gi", "1k", "1073742824", "1073740824"),
        ("1e3", "1k", "2e3", "0"),
        ("0Mi", "1k", "1k", "-1k"),
    ],
)
def test_adds_and_subtracts_exactly_in_the_format_of_the_left_side(left, right, total, difference):
    """As in Go: a sum is exact and takes the format of its left side, or of the right one when the left is zero."""
    assert total == str(parse(left) + parse(right))
    assert difference == str(parse(left) - parse(right))


def test_arithmetic_with_anything_else_fails():
    """A bare number has no unit; it is not mixed in by accident."""
    with pytest.raises(TypeError):
        parse("1") + 1
    with pytest.raises(TypeError):
        parse("1") - 1


def test_a_binary_sum_beyond_the_cap_keeps_its_amount():
    """A sum may pass 2^63-1; it is then written in decimal, since a binary text would be capped when read."""
    total = parse("4Ei") + parse("4Ei")

    assert 2**63 == total.value()
    assert "9223372036854775808" == total.canonical()
    assert total == parse(total.canonical())
    assert "-9223372036854775808" == (-total).canonical()
    assert "4Ei" == (total - parse("4Ei")).canonical()


def test_zero_starts_a_sum_of_any_format():
    """The sum of nothing is zero, and zero leaves the format of what follows alone."""
    assert "0" == str(sum([], ZERO))
    assert "3Gi" == str(sum([parse("1Gi"), parse("2Gi")], ZERO))


def test_multiplies_exactly():
    """KEP-5517: consumed amount times multiplier, as exact as unbounded decimals, even finer than a nano-unit."""
    assert Fraction(16) == parse("8").times(parse("2"))
    assert Fraction(2**34) == parse("8Gi").times(2)
    assert Fraction(1, 10**18) == parse("1n").times(parse("1n"))
    assert Fraction(-3, 2) == parse("-1500m").times(1)
    assert "16Gi" == str(from_units(parse("8Gi").times(2), parse("8Gi").format))


@pytest.mark.parametrize(
    ("units", "nano"),
    [
        (3, 3 * 10**9),
        (Fraction(1, 3), 333333334),
        (Fraction(-1, 3), -333333334),
        (Fraction(1, 10**18), 1),
        (0, 0),
    ],
)
def test_makes_a_quantity_of_exact_units(units, nano):
    """Rounded up to a nano-unit, away from zero, as a reader of its text would."""
    assert nano == from_units(units).nano


def test_units_are_exact():
    """A quantity as a fraction of units loses nothing."""
    assert Fraction(5905580032, 5) == parse("1.1Gi").units
    assert Fraction(1, 10**7) == parse("100n").units


@pytest.mark.parametrize(
    ("text", "value", "milli_value"),
    [
        ("0", 0, 0),
        ("1", 1, 1000),
        ("1n", 1, 1),
        ("100n", 1, 1),
        ("0.1m", 1, 1),
        ("1500m", 2, 1500),
        ("1.0001", 2, 1001),
        ("63770m", 64, 63770),
        ("389954383052800m", 389954383053, 389954383052800),
        ("9223372036854775807", BINARY_CAP, BINARY_CAP * 1000),
        ("-1500m", -2, -1500),
        ("-1n", -1, -1),
    ],
)
def test_rounds_up_to_whole_and_milli_units(text, value, milli_value):
    """What the scheduler counts: cpu in milli-units, the rest in units, rounded away from zero, without a 64-bit limit."""
    assert value == parse(text).value()
    assert milli_value == parse(text).milli_value()


# --- numbered cases --------------------------------------------------------------------------------------------------


@pytest.mark.case("C43")
def test_c43_equal_amounts_in_different_spellings_are_one_amount():
    """1.1Gi and 1181116006400m are the same 1181116006.4 bytes; 100m of memory is a tenth of a byte; no float anywhere."""
    assert Fraction(11811160064, 10) == parse("1.1Gi").units == parse("1181116006400m").units
    assert canonical_text("1.1Gi") == canonical_text("1181116006400m")
    assert Fraction(1, 10) == parse("0.1").units == parse("100m").units
    assert canonical_text("0.1") == canonical_text("100m")
    assert 0 == (parse("1.1Gi") - parse("1181116006400m")).nano


@pytest.mark.case("C44")
def test_c44_reads_back_what_it_writes_and_refuses_each_illegal_value_alone():
    """The texts come back unchanged; illegal values are refused by path, and the legal one beside them is read."""
    for text in ("9223372036854775807", "100n", "389954383052800m"):
        assert text == canonical_text(text)
    assert parse("1.1Gi") == parse(canonical_text("1.1Gi"))
    allocatable = {
        "cpu": "2",
        "a": "1K",
        "b": "6 GiB",
        "c": "",
        "d": "1e",
        "e": "NaN",
        "f": "1_000",
        "g": "0x10",
    }

    read, refused = {}, []
    for name, value in allocatable.items():
        try:
            read[name] = parse_json_value(value, path=f"status.allocatable['{name}']")
        except QuantityError as error:
            refused.append(str(error).split(": ", 1)[0])

    assert {"cpu": Quantity(2 * NANO_PER_UNIT)} == read
    assert [f"status.allocatable['{name}']" for name in "abcdefg"] == refused
