"""A dump holds rows and positions together, so what is restored goes on where the dump was taken."""

from __future__ import annotations

import subprocess

import psycopg
import pytest
import sqlalchemy as sa
from log_scenarios import every_kind
from postgresql import binaries, server

from projections import schema
from projections.engine import Store
from projections.verify import verify_log


def test_a_restored_store_goes_on_from_its_own_positions(tmp_path):
    """Dumped in the middle and restored: the same digests, guarded as before; a redelivery from the start ends as a clean run."""
    log, source, target = every_kind().records, server().empty(), server().empty()
    schema.upgrade(source, with_roles=True)
    with Store.open(source, create=True, partitions=4) as store:
        store.write(log[:30])
        dumped = store.digests()
        dump = tmp_path / "sickbay.dump"
        tools = binaries()
        for command in (
            [tools / "pg_dump", "--format=custom", f"--file={dump}", source],
            [tools / "pg_restore", "--exit-on-error", "--clean", "--if-exists", f"--dbname={target}", dump],
        ):
            subprocess.run(command, check=True, timeout=60)
        store.write(log)
        whole = store.digests()
    with Store.open(target) as restored:
        assert dumped == restored.digests()
        assert 30 == restored.write(log).skipped
        assert whole == restored.digests()
        with restored.reading() as connection:
            assert len(log) == sum(verify_log(connection).values())
    with psycopg.connect(target) as connection, pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute("SET session_replication_role = replica; TRUNCATE sickbay.event_log")
    secured = server().execute(
        "SELECT relname FROM pg_class WHERE relforcerowsecurity ORDER BY 1",
        database=sa.make_url(target).database,
    )
    assert [("move",), ("tenant_namespace",)] == [
        row for row in secured if row[0] in {"move", "tenant_namespace"}
    ]
    for url in (source, target):
        server().drop(url)
