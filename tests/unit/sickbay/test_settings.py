"""The variables SICKBAY_KAFKA_…: what they mean, and which one is named when it is wrong."""

from __future__ import annotations

import pytest

from sickbay.errors import InputError
from sickbay.settings import KafkaSettings, kafka_settings


def settings(**values):
    return kafka_settings({f"SICKBAY_KAFKA_{key}": value for key, value in values.items()})


def test_one_variable_is_enough():
    assert KafkaSettings(
        bootstrap="kafka.example:9092", security="ssl", prefix="sickbay", partitions=8, replication=3
    ) == settings(BOOTSTRAP="kafka.example:9092")


def test_every_variable_is_read():
    assert KafkaSettings(
        bootstrap="a.example:9092,b.example:9093",
        security="sasl_ssl",
        ca_file="ca.pem",
        cert_file="cert.pem",
        key_file="key.pem",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="sickbay",
        sasl_password_file="password",  # noqa: S106 - the name of a file
        prefix="east-1_b",
        partitions=12,
        replication=5,
    ) == settings(
        BOOTSTRAP=" a.example:9092 , b.example:9093 ",
        SECURITY="SASL_SSL",
        CA_FILE="ca.pem",
        CERT_FILE="cert.pem",
        KEY_FILE="key.pem",
        SASL_MECHANISM="scram-sha-256",
        SASL_USERNAME="sickbay",
        SASL_PASSWORD_FILE="password",  # noqa: S106 - the name of a file
        PREFIX="east-1_b",
        PARTITIONS="12",
        REPLICATION="5",
    )


def test_a_variable_that_is_empty_counts_as_not_set():
    assert settings(BOOTSTRAP="k.example:1") == settings(
        BOOTSTRAP="k.example:1", PARTITIONS="", REPLICATION=" ", CA_FILE=""
    )


def test_the_prefix_names_the_topics():
    assert "east.facts" == settings(BOOTSTRAP="k.example:1", PREFIX="east").topics.facts


@pytest.mark.parametrize(
    "bootstrap",
    [
        "localhost:9092",
        "LOCALHOST:9092",
        "127.0.0.1:9092",
        "127.8.9.1:1,localhost:2",
        "[::1]:9092",
        "::1:9092",
    ],
)
def test_this_machine_is_spoken_to_in_plain_text(bootstrap):
    assert "plaintext" == settings(BOOTSTRAP=bootstrap).security


@pytest.mark.parametrize(
    "bootstrap",
    [
        "kafka:9092",
        "10.0.0.1:9092",
        "localhost:9092,kafka:9092",
        "localhost.example.com:9092",
        "localhosts:9092",
        "127.example.com:9092",
        "127.0.0.1.example.com:9092",
        "::11:9092",
    ],
)
def test_every_other_machine_is_spoken_to_by_tls(bootstrap):
    """A name that begins like this machine's may be anybody's."""
    assert "ssl" == settings(BOOTSTRAP=bootstrap).security


def test_plain_text_to_another_machine_must_be_asked_for():
    assert "plaintext" == settings(BOOTSTRAP="kafka:9092", SECURITY="plaintext").security
    assert "ssl" == settings(BOOTSTRAP="localhost:9092", SECURITY="ssl").security


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("BOOTSTRAP", "", "is not set; give host:port"),
        ("BOOTSTRAP", "  ", "is not set; give host:port"),
        ("BOOTSTRAP", "kafka", "give host:port"),
        ("BOOTSTRAP", ":9092", "give host:port"),
        ("BOOTSTRAP", "kafka:", "give host:port"),
        ("BOOTSTRAP", "kafka:0", "give host:port"),
        ("BOOTSTRAP", "kafka:65536", "give host:port"),
        ("BOOTSTRAP", "kafka:٣", "give host:port"),
        ("BOOTSTRAP", "kafka:" + "9" * 5_000, "give host:port"),
        ("BOOTSTRAP", "kafka:9092,", "give host:port"),
        ("SECURITY", "sasl_plaintext", "give plaintext, ssl or sasl_ssl"),
        ("SECURITY", "sasl_ssl", "SICKBAY_KAFKA_SASL_USERNAME"),
        ("SASL_MECHANISM", "GSSAPI", "give SCRAM-SHA-512"),
        ("PREFIX", "a.b", "give letters, digits"),
        ("PREFIX", "-", "give letters, digits"),
        ("PREFIX", "nöde", "give letters, digits"),
        ("PREFIX", "x" * 101, "give letters, digits"),
        ("PARTITIONS", "0", "give a whole number from 1 to 1000"),
        ("PARTITIONS", "1001", "give a whole number from 1 to 1000"),
        ("PARTITIONS", "-1", "give a whole number from 1 to 1000"),
        ("PARTITIONS", "٣", "give a whole number from 1 to 1000"),
        ("PARTITIONS", "9" * 5_000, "give a whole number from 1 to 1000"),
        ("REPLICATION", "two", "give a whole number from 1 to 100"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_takes(key, value, remedy):
    with pytest.raises(InputError) as caught:
        settings(**{"BOOTSTRAP": "kafka.example:9092"} | {key: value})
    assert f"SICKBAY_KAFKA_{key}" in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("given", ["SASL_USERNAME", "SASL_PASSWORD_FILE"])
def test_a_user_needs_a_password_file_and_the_other_way_round(given):
    with pytest.raises(InputError, match=r"SASL_USERNAME or SICKBAY_KAFKA_SASL_PASSWORD_FILE is not set"):
        settings(BOOTSTRAP="kafka.example:9092", SECURITY="sasl_ssl", **{given: "x"})


def test_a_longest_prefix_is_taken():
    assert "x" * 100 == settings(BOOTSTRAP="k.example:1", PREFIX="x" * 100).prefix
