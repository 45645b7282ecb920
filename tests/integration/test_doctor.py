"""`sickbay doctor` on Kafka and a store, with no cluster to be had; with one it is in tests/cluster/test_permissions.py."""

from __future__ import annotations

import json

from cli import ok, run
from ports import free_port


def examined(settings, folder, store):
    """Return exit code and what was found, by kind, beside an API server that is not there."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        ),
        encoding="utf-8",
    )
    done = run(
        "doctor", "--kubeconfig", str(kubeconfig), "--db", str(store), "--output", "json",
        env={
            "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
            "SICKBAY_KAFKA_PREFIX": settings.prefix,
            "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
            "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
        },
    )  # fmt: skip
    states = {}
    for row in done.json_lines():
        states.setdefault(row["what"], set()).add(row["state"])
    return done.code, states


def test_a_cluster_that_cannot_be_reached_keeps_nothing_back_of_kafka_and_the_store(kafka_ready, tmp_path):
    ok("migrate", "--db", tmp_path / "store.db")
    assert examined(kafka_ready, tmp_path, tmp_path / "store.db") == (
        7,
        {"version": {"failed"}, "topic": {"ok"}, "store": {"ok"}},
    )


def test_topics_that_were_not_made_and_a_store_that_is_not_there_failed(kafka_settings, tmp_path):
    assert examined(kafka_settings, tmp_path, tmp_path / "none.db") == (
        7,
        {"version": {"failed"}, "topic": {"failed"}, "store": {"failed"}},
    )
