"""Deciding again under another policy: exactly the differences that examples/README.md promises, and nothing written."""

from __future__ import annotations

import pytest
from cli import EXAMPLES, example, misused, ok, refused, verified

STRICTER = EXAMPLES / "policies" / "stricter.yaml"
LAXER = EXAMPLES / "policies" / "laxer.yaml"
GPU_3 = "dra:gpu.nvidia.com/gpu-a1/gpu-3"
GPU_4 = "dra:gpu.nvidia.com/gpu-a2/gpu-4"


def at(time):
    return f"2026-07-01T{time}.000Z"


def told(text):
    """What one side of a difference says, by field."""
    return dict(part.split(" ", 1) for part in text.split(", ") if part)


def differences(policy, *arguments):
    done = ok("what-if", example("one-card"), "--policy", policy, *arguments, "-o", "json")
    return [
        (row["change"], row["device_id"], row["what"], told(row["base"]), told(row["other"]))
        for row in done.json_lines()
    ]


def test_the_stricter_policy_holds_longer_and_restricts_and_moves():
    """The hold ends at 09:05:00, the card is still observed at the end, the silent card is restricted, and the workload moves."""
    found = differences(STRICTER)
    (episode,) = [
        (base, other)
        for change, device, what, base, other in found
        if (change, device, what) == ("moves", GPU_3, "episode")
    ]
    (doubt,) = [
        (base, other)
        for change, device, what, base, other in found
        if (change, device, what) == ("moves", GPU_4, "unknown run")
    ]
    planned = [
        other
        for change, device, what, _, other in found
        if (change, device, what) == ("appears", GPU_3, "move")
    ]
    assert len(found) == 2 + len(planned)
    assert (
        {
            "return_at": at("08:15:00"),
            "observing_at": at("08:15:00"),
            "closed_at": at("10:15:00"),
            "outcome": "returned",
        },
        {"return_at": at("09:05:00"), "observing_at": at("09:05:00")},
    ) == episode
    assert (
        {"ended": at("11:14:30"), "restricted": "0"},
        {"ended": at("11:16:00"), "restricted": "1"},
    ) == doubt
    assert {("finetune-0", at("08:20:00"), "workload_gone")} == {
        (move["pod"], move["finished_at"], move["outcome"]) for move in planned
    }
    assert [at("08:05:00")] == sorted(move["planned_at"] for move in planned)


def test_the_laxer_policy_lets_the_card_back_sooner():
    """Observation begins when the taint is gone, and the card is released at 08:40:00; nothing else differs."""
    assert [
        (
            "moves",
            GPU_3,
            "episode",
            {"return_at": at("08:15:00"), "observing_at": at("08:15:00"), "closed_at": at("10:15:00")},
            {"return_at": at("08:10:00"), "observing_at": at("08:10:00"), "closed_at": at("08:40:00")},
        )
    ] == differences(LAXER)


def test_a_policy_differs_from_itself_in_nothing():
    """The same policy on both sides gives no difference, in words."""
    assert [] == differences(STRICTER, "--base-policy", STRICTER)
    assert (
        "no episode"
        in ok("what-if", example("node-level"), "--policy", LAXER, "--until", "2026-07-01T08:01:00Z").out
    )


@pytest.mark.parametrize("version", ["default", "other"])
def test_a_program_finds_both_sides_under_fixed_names(tmp_path, version):
    """Also when both policies have one version: their hashes tell them apart, for people too."""
    policy = tmp_path / "p.yaml"
    policy.write_text(f"version: {version}\nledger:\n  rebuild_settle_ms: 60000\n", encoding="utf-8")
    asked = ("what-if", example("double-count"), "--policy", policy)
    (row, *_) = ok(*asked, "-o", "json").json_lines()
    assert [
        "change", "node", "device_id", "what", "base", "other",
        "base_policy", "base_policy_hash", "other_policy", "other_policy_hash",
    ] == list(row)  # fmt: skip
    assert ("default", version) == (row["base_policy"], row["other_policy"])
    assert row["base_policy_hash"] != row["other_policy_hash"]
    assert list(row) == list(ok(*asked, "-o", "csv").csv_rows()[0])
    text = " ".join(ok(*asked).out.split())
    assert f"under {version} ({row['other_policy_hash']})" in text


def test_nothing_is_written(copy_of, tmp_path):
    """No store is read or made, not even the one that the environment names."""
    store = copy_of("one-card")
    before = verified(store)
    folder = tmp_path / "empty"
    folder.mkdir()
    done = ok(
        "what-if",
        example("one-card"),
        "--policy",
        STRICTER,
        "-o",
        "csv",
        cwd=folder,
        env={"SICKBAY_DB": str(store)},
    )
    assert {"moves", "appears"} == {row["change"] for row in done.csv_rows()}
    assert ([], before) == (list(folder.iterdir()), verified(store))


def test_a_recording_or_a_policy_is_required():
    """What is missing is named, and a missing policy file says what to give."""
    assert "Missing option '--policy'" in misused("what-if", example("one-card"))
    assert "none.yaml: cannot be read" in refused(
        "what-if", example("one-card"), "--policy", "none.yaml", code=2
    )
