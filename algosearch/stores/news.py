"""`News`: what others have written on a server, heard from its stream and gathered."""

from __future__ import annotations

import asyncio
import random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from algosearch.stores.trouble import Hindrance

if TYPE_CHECKING:
    from algosearch.stores.link import Link

LAGS: Final = 10
"""Between two looks at the news, on average, in what a call takes longer than usual: a server that a thousand ranks
keep busy answers late, and is asked less often for it."""
USUAL_S: Final = 0.002
"""What a call may take on a quiet network."""
LONGEST_GATHER_S: Final = 1.0
"""The longest that this makes of it."""
NEWS_S: Final = 0.25
"""How long `changes` waits for the first news."""


class News:
    """Of one handle, from one opening on.

    Args:
        stream: its key.
        writer: who this is: what it wrote itself is no news.
        news_s: as `NEWS_S`.
    """

    def __init__(self, stream: str, writer: str, *, news_s: float) -> None:
        self.missed = False
        """There may be news that were never heard."""
        self._stream = stream
        self._writer = writer.encode()
        self._news_s = news_s
        self._after = "0-0"
        """What was last heard."""
        self._heard_at = 0.0

    async def begin(self, link: Link) -> None:
        """What was announced before is no news."""
        try:
            last: Any = await link.do(lambda client: client.xrevrange(self._stream, count=1))
        except Hindrance:
            self.missed = True
        else:
            self._after = last[0][0].decode("ascii", "replace") if last else "0-0"

    async def heard(self, link: Link) -> bool | frozenset[str]:
        """The digests that others wrote since; True if that cannot be known. The first news is waited for, `NEWS_S` at
        most; between two looks pass some `LAGS`."""
        pause_s = min(max(0.0, link.lag_s - USUAL_S) * LAGS, LONGEST_GATHER_S)
        await asyncio.sleep(self._heard_at + pause_s * random.uniform(0.5, 1.5) - monotonic())
        if self.missed:  # of another server, maybe, whose clock is behind: what comes now would seem old
            await self.begin(link)
        wait_s, deadline = self._news_s, monotonic() + self._news_s
        digests: set[str] = set()
        while not digests and not self.missed and wait_s > 0:
            try:
                self._after, entries = await link.wait_for_news(self._stream, self._after, wait_s)
            except Hindrance:
                break
            others = [digest for entry in entries for writer, digest in entry.items() if writer != self._writer]
            digests.update(digest.decode("ascii", "replace") for digest in others)
            wait_s = deadline - monotonic()
        self._heard_at = monotonic()
        missed, self.missed = self.missed, False
        return missed or frozenset(digests)
