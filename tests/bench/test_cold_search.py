"""What `bench/cold_search.py` makes of its samples, on the CPU."""

import argparse
from typing import Any

import cold_search
import pytest

OURS = dict.fromkeys(
    ("ops", "final", "listed", "tried", "picked_ms", "first_ms", "search_s", "library_s", "open_s", "whole_s"), 1
)


@pytest.mark.parametrize("ledger", [True, False])
def test_where_the_time_goes_is_looked_at_unless_it_is_left_out(ledger: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def elsewhere(who: str, *what: object, code_cache: str) -> dict[str, Any]:
        asked.append(who)
        return {"wall_s": float(len(asked)), "ledger": {"build_s": 3.0}} | OURS

    monkeypatch.setattr(cold_search, "_elsewhere", elsewhere)
    options = argparse.Namespace(times=3, peer_times=1, peers=["xla_4"], ledger=ledger, code_cache="kept")
    figures, raw = dict[str, Any](), dict[str, Any]()
    cold_search._add_case(figures, raw, "vit_b16_1_fp16_nhwc", ("vit_b16", "fp16_nhwc", 1), options)
    assert asked == ["ours", "xla_4", "ours", "ours", *["ledger"] * ledger]
    assert list(raw["vit_b16_1_fp16_nhwc"]) == ["ours", "xla_4", *["ledger"] * ledger]
    assert (figures["vit_b16_1_fp16_nhwc_ours_s"], figures["vit_b16_1_fp16_nhwc_xla_4_s"]) == (3.0, 2.0)
    assert figures.get("vit_b16_1_fp16_nhwc_ledger_build_s") == (3.0 if ledger else None)
