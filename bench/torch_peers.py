"""PyTorch as a peer, and what it does to choose: for benches that import it only in a process of its own."""

from __future__ import annotations

from typing import Final

TRIES: Final[dict[str, int | None]] = {"torch_benchmark": 10, "torch_benchmark_all": 0, "torch_heuristic": None}
"""Plans that its benchmark tries for each problem (`torch.backends.cudnn.benchmark_limit`): 10 is its default, 0 stands
for all that there are; None: it takes the heuristics' first."""


def set_up(who: str) -> None:
    """Let PyTorch, in this process, be this one of the peers."""
    import torch

    tries = TRIES[who]
    torch.backends.cudnn.benchmark = tries is not None
    if tries is not None:
        torch.backends.cudnn.benchmark_limit = tries
