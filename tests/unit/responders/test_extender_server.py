"""The extender over HTTP: limits, refusals in one sentence, https; and the facts that it follows."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import ssl

import aiohttp
import pytest
import trustme
from extender_worlds import GPU, T0, Known, asking, custody, node, pod, unit, word
from prometheus_client import CollectorRegistry, generate_latest

import responders.extender.server as serving
from responders.extender.answers import Judge
from responders.extender.following import Facts, Recalled
from responders.extender.holdings import FACT_KINDS
from responders.extender.server import Certificate, ExtenderServer
from sickbay.cloudevents import INGEST_EPOCH, single
from sickbay.codec import encode, wrap_fact
from sickbay.errors import InputError, ServiceError
from sickbay.facts import Tick
from sickbay.operations.extend_metrics import ExtendMetrics
from sickbay.settings import kafka_settings


class Served:
    """A server over a node with one sick device of two, and what was counted."""

    def __init__(self, decide=None, certificate=None):
        known = Known().told(node(allocatable=2, capacity=2)).decided(custody(unit(1)))
        judge = Judge(known.holdings, closed=True)
        self.registry = CollectorRegistry()
        self.figures = ExtendMetrics(self.registry, lambda: None, lambda: True)
        decide = decide or (lambda asked: judge.answer(asked, T0, stale=False))
        self.server = ExtenderServer(decide, self.figures, host="127.0.0.1", port=0, certificate=certificate)

    async def post(self, *bodies, path="/filter", context=None):
        """Return status and text of each answer."""
        scheme = "https" if context else "http"
        async with self.server, aiohttp.ClientSession() as session:
            found = []
            for body in bodies:
                url = f"{scheme}://localhost:{self.server.port}{path}"
                async with session.post(url, data=body, ssl=context or False) as answer:
                    found.append((answer.status, await answer.text()))
            return found

    @property
    def metrics(self):
        return generate_latest(self.registry).decode()


def test_an_answer_is_what_kube_scheduler_reads_and_is_counted():
    served = Served()
    ((status, text),) = asyncio.run(served.post(asking({GPU: "2"})))
    assert status == 200
    assert list(json.loads(text)["FailedAndUnresolvableNodes"]) == ["n1"]
    assert 'sickbay_extend_answer_seconds_count{outcome="answered"} 1.0' in served.metrics
    assert 'sickbay_extend_nodes_total{mode="enforce",reason="unfit_devices"} 1.0' in served.metrics
    assert "sickbay_extend_behind_seconds +Inf" in served.metrics


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"Pod": 1, "NodeNames": []}'])
def test_what_is_no_question_is_refused_in_one_sentence(body):
    served = Served()
    ((status, text),) = asyncio.run(served.post(body))
    assert status == 400
    assert text.startswith("not ")
    assert text.count("\n") == 1
    assert 'outcome="refused"' in served.metrics


def test_an_error_of_the_program_is_told_without_a_traceback_and_the_next_question_is_answered(caplog):
    answers = iter([ZeroDivisionError("secret place")])

    def decide(asked):
        for error in answers:
            raise error
        return serving.Answer(asked.names)

    served = Served(decide)
    first, second = asyncio.run(served.post(asking(), asking()))
    assert first == (500, "the extender failed; its log says why\n")
    assert second[0] == 200
    assert "secret place" in caplog.text
    assert 'outcome="failed"' in served.metrics


def test_a_body_that_is_too_large_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(serving, "BODY_BYTES_MAX", 1 << 20)
    ((status, text),) = asyncio.run(Served().post(io.BytesIO(bytes(2 << 20))))
    assert (status, "nodeCacheCapable" in text) == (413, True)


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(serving, "BODY_S", 0.05)

    async def slow():
        served = Served()
        async with served.server as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            line = await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            await writer.wait_closed()
            return line

    assert b" 408 " in asyncio.run(slow())


def test_too_many_questions_at_once_are_turned_away_and_the_rest_is_answered(monkeypatch):
    monkeypatch.setattr(serving, "UNDER_WAY_MAX", 1)

    async def both():
        served = Served()
        async with served.server as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            await writer.drain()
            async with aiohttp.ClientSession() as session:
                for _ in range(100):  # until the first is under way
                    async with session.post(
                        f"http://127.0.0.1:{server.port}/filter", data=asking()
                    ) as answer:
                        busy = answer.status
                    if busy == 503:
                        break
                writer.close()
                await writer.wait_closed()
                for _ in range(100):
                    async with session.post(
                        f"http://127.0.0.1:{server.port}/filter", data=asking()
                    ) as answer:
                        later = answer.status
                    if later == 200:
                        break
        return busy, later

    assert asyncio.run(both()) == (503, 200)


def test_it_answers_https_and_takes_up_a_renewed_certificate(tmp_path):
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def issue():
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    first = issue()
    certificate = Certificate(str(cert), str(key))
    assert asyncio.run(Served(certificate=certificate).post(asking(), context=first))[0][0] == 200
    second = issue()
    certificate.refresh()
    assert asyncio.run(Served(certificate=certificate).post(asking(), context=second))[0][0] == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        asyncio.run(Served(certificate=certificate).post(asking(), context=first))


def test_a_certificate_that_cannot_be_used_is_refused_with_its_place(tmp_path):
    with pytest.raises(InputError, match=r"none\.crt"):
        Certificate(str(tmp_path / "none.crt"), str(tmp_path / "none.key"))


def test_an_address_that_is_taken_is_refused_with_the_remedy():
    async def twice():
        async with Served().server as server:
            other = ExtenderServer(None, None, host="127.0.0.1", port=server.port)
            async with other:
                pass

    with pytest.raises(InputError, match="--listen-port"):
        asyncio.run(twice())


# --- facts ---

SETTINGS = kafka_settings({"SICKBAY_KAFKA_BOOTSTRAP": "localhost:1", "SICKBAY_KAFKA_PARTITIONS": "2"})


class Record:
    topic = "sickbay.facts"

    def __init__(self, offset, fact, epoch=1):
        message = single(wrap_fact(fact))
        self.offset, self.value = offset, message.value
        self.headers = [*message.headers, *([(INGEST_EPOCH, b"%d" % epoch)] if epoch is not None else [])]


def test_a_recall_is_folded_before_what_follows_and_a_replaced_leader_is_not_believed():
    folded = []

    async def recall():
        known = [encode(wrap_fact(fact)) for fact in (node(), pod("a"), Tick(node="", observed_at_ms=T0))]
        return {0: Recalled([b"{", *known], 5, 2), 1: Recalled([], 0, -1)}

    async def go():
        facts = Facts(SETTINGS, recall, lambda *what: folded.append(what), FACT_KINDS)
        await facts._begin()
        old, new, none = Record(5, pod("b"), 1), Record(6, word(unit(1)), 3), Record(7, pod("c"), None)
        broken = Record(8, pod("d"), 3)
        broken.value = b"{"
        await facts._records(0, [old, new, none, broken, Record(9, pod("e"), 2)])
        return facts

    facts = asyncio.run(go())
    assert [(number, offset, fact.KIND) for number, offset, fact in folded] == [
        (0, 4, "node_observed"), (0, 4, "pod_observed"), (0, 4, "tick"), (0, 6, "device_health_observed"),
    ]  # fmt: skip
    assert (facts._positions, facts.refused) == ({0: 10, 1: 0}, 2)


def test_what_cannot_be_recalled_is_told_by_readiness_and_tried_again(monkeypatch):
    monkeypatch.setattr("responders.extender.following._PAUSE_S", 0.001)
    tries, thrice = itertools.count(1), asyncio.Event()

    async def recall():
        if next(tries) == 3:
            thrice.set()
        raise ServiceError("Kafka is away")

    async def go():
        facts = Facts(SETTINGS, recall, lambda *_: None, FACT_KINDS)
        task = asyncio.create_task(facts.run())
        await asyncio.wait_for(thrice.wait(), 10)
        task.cancel()
        await asyncio.wait({task})
        return facts

    facts = asyncio.run(go())
    assert facts.ready.problem() == "Kafka is away"
    assert not facts.caught_up.is_set()
