"""The alerting rules as Prometheus reads them: each fires on what it is about, and none on a Sickbay that is well."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from kustomization import DEPLOY

pytestmark = pytest.mark.promtool
RULES = DEPLOY / "monitoring" / "rules.yaml"
PROMTOOL = DEPLOY.parent / ".cache" / "deploy-tools" / "promtool"
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]]

#: An hour of a Sickbay that is well: two replicas of ingest, one of which leads, and two of a responder.
WELL = {
    'sickbay_ingest_leader{instance="i-0"}': "1x60",
    'sickbay_ingest_leader{instance="i-1"}': "0x60",
    'sickbay_ingest_watch_age_seconds{instance="i-0",resource="pods"}': "30x60",
    # it waits to take over, and watches nothing
    'sickbay_ingest_watch_age_seconds{instance="i-1",resource="pods"}': "0+60x60",
    'sickbay_work_behind_seconds{partition="0"}': "1x60",
    "sickbay_view_staleness_seconds": "2x60",
    "sickbay_ingest_parked_total": "3x60",
    "sickbay_work_parked_total": "0x60",
    "sickbay_project_parked_total": "0x60",
    'sickbay_work_breaker_open{scope="cluster"}': "0x60",
    'sickbay_devices{phase="in_service"}': "97x60",
    'sickbay_devices{phase="suspect"}': "3x60",
    'sickbay_work_decisions_total{kind="quarantine_review_due"}': "4x60",
    'sickbay_drifts_standing{cause="not_counted"}': "5x60",
    'sickbay_respond_effects_total{job="r",effect="create",outcome="applied"}': "0+1x60",
    'sickbay_respond_leader{instance="r-0"}': "1x60",
    'sickbay_respond_leader{instance="r-1"}': "0x60",
    'sickbay_build_info{instance="r-0",process="respond-exclude"}': "1x60",
    'sickbay_build_info{instance="r-1",process="respond-exclude"}': "1x60",
}
#: Alert to what is otherwise then.
ILL = {
    "SickbayWatchSilent": {'sickbay_ingest_watch_age_seconds{instance="i-0",resource="pods"}': "0+60x60"},
    "SickbayNobodyWatches": {'sickbay_ingest_leader{instance="i-0"}': "0x60"},
    "SickbayWorkBehind": {'sickbay_work_behind_seconds{partition="0"}': "0+60x60"},
    "SickbayViewStale": {"sickbay_view_staleness_seconds": "0+60x60"},
    "SickbayParked": {"sickbay_ingest_parked_total": "0+1x60"},
    "SickbayBreakerOpen": {'sickbay_work_breaker_open{scope="cluster"}': "1x60"},
    "SickbayUnknownStorm": {'sickbay_devices{phase="suspect"}': "40x60"},
    "SickbayQuarantineReviewDue": {'sickbay_work_decisions_total{kind="quarantine_review_due"}': "0+1x60"},
    "SickbayLedgerDrift": {'sickbay_drifts_standing{cause="unexplained"}': "1x60"},
    "SickbayResponderFailing": {
        'sickbay_respond_effects_total{job="r",effect="create",outcome="refused"}': "0+1x60"
    },
    "SickbayResponderIdle": {'sickbay_respond_leader{instance="r-0"}': "0x60"},
}


def firing(tmp_path, series, alert):
    """Whether an alert fires after an hour of these series; promtool compares what it finds with none."""
    file = tmp_path / "test.yaml"
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "50m", "alertname": alert, "exp_alerts": []}],
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = called("test", "rules", str(file))
    told = done.stdout + done.stderr
    assert done.returncode == 0 or f'Labels:{{alertname="{alert}"' in told, told
    return done.returncode != 0


def called(*arguments):
    assert PROMTOOL.exists(), "promtool is not in .cache: `make deploy-tools` builds it (it needs Go 1.26)"
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_prometheus_takes_the_rules():
    done = called("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_a_rule_fires_on_what_it_is_about_and_not_where_all_is_well(tmp_path, alert):
    assert not firing(tmp_path, WELL, alert)
    assert firing(tmp_path, WELL | ILL[alert], alert)


def test_an_ingest_that_is_not_there_at_all_is_missed(tmp_path):
    series = {name: values for name, values in WELL.items() if "sickbay_ingest_" not in name}
    assert firing(tmp_path, series, "SickbayNobodyWatches")


def test_a_watch_is_silent_only_for_who_leads_it(tmp_path):
    """The replica that waits has heard nothing for an hour, and rightly so."""
    series = {name: values for name, values in WELL.items() if 'instance="i-1"' in name}
    assert not firing(tmp_path, series, "SickbayWatchSilent")
