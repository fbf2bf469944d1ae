"""`algosearch verify`: run the best of stored records again on this machine's devices, and repair what has aged."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from algosearch.cli.filters import select
from algosearch.cli.options import Device, Json, Store, Verbose
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.units import duration, run_time
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE
from algosearch.errors import AlgosearchError, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from algosearch.cli.contents import Entry
    from algosearch.cli.places import Place
    from algosearch.cli.progress import Tally
    from algosearch.search import Searcher, Verdict

_AT_ONCE: Final = 64
"""Records under way: enough for every device to have the next one ready."""
_REASONS_SHOWN: Final = 10
_AGED: Final = ("drifted", "beaten", "failed")
_LEFT_ALONE: Final = ("foreign", "uncovered")
_MOST_PERCENT: Final = 1000.0

What = Annotated[str | None, typer.Argument(metavar="FILTER", help="Only these records; as show takes it.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="Search afresh what has aged, and replace it by a record of a new generation.")
]
Tolerance = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="A time that differs by more from the stored one is a drift. [default: 10]"),
]


def verify(
    what: What = None,
    repair: Repair = False,
    tolerance: Tolerance = None,
    device: Device = None,
    store: Store = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Run the best of stored records again, beside their nearest rivals, and tell what has become of them.

    Records that were made in another environment than that of this machine's devices are named and left alone.
    """
    from algosearch.cli.contents import read_contents
    from algosearch.cli.devices import find_device
    from algosearch.cli.places import place_of

    began = perf_counter()
    relative = _relative(tolerance)
    terminal = Terminal()
    with terminal.logging(verbose=verbose):
        if device is not None:
            find_device(device)
        place = place_of(store)
        contents = read_contents(terminal, place)
    with terminal.logging(verbose=verbose), Stop() as stop:
        found = select(contents, what)
        run = _Run(found.entries, repair=repair, tolerance=relative)
        if found.entries:
            run.carry_out(terminal, place, device, lambda: stop.signum is not None)
        if json:
            seconds = round(perf_counter() - began, 3)
            write_json(run.as_object(contents.location, seconds=seconds, interrupted=stop.signum is not None))
        if contents.nothing is not None:
            terminal.say(contents.nothing)
            return DONE
        if not found.entries:
            terminal.say(f"none of the {len(contents.entries)} records in {contents.location} matches")
            return INCOMPLETE
        run.tell(terminal, perf_counter() - began, results=not json)
        if stop.signum is not None:
            terminal.say(f"interrupted: {run.left} of {len(found.entries)} records are not verified")
            return BY_SIGNAL + stop.signum
        return run.code


def _relative(percent: float | None) -> float:
    from algosearch.search.verification import TOLERANCE

    if percent is None:
        return TOLERANCE
    if not 0 < percent <= _MOST_PERCENT:  # also of what is no number
        raise InvalidSetting("--tolerance", percent, f"must be above 0, and at most {_MOST_PERCENT:.0f} per cent")
    return percent / 100


class _Run:
    """Records under verification, and what came of them."""

    def __init__(self, entries: Sequence[Entry], *, repair: bool, tolerance: float) -> None:
        self._entries = entries
        self._repair = repair
        self._tolerance = tolerance
        self._verdicts: dict[str, Verdict] = {}
        """By digest."""
        self._errors: dict[str, AlgosearchError] = {}
        """The same of what could not be decided, since a backend broke."""
        self._doing = ""
        """The problem of the latest verdict, for the progress."""

    @property
    def left(self) -> int:
        """How many are undecided."""
        return len(self._entries) - len(self._verdicts) - len(self._errors)

    @property
    def code(self) -> int:
        """The exit code: whether all is as it should be, and something was looked at."""
        looked_at = [verdict for verdict in self._verdicts.values() if verdict.finding not in _LEFT_ALONE]
        aged = any(verdict.finding in _AGED and not verdict.repaired for verdict in looked_at)
        return INCOMPLETE if self._errors or aged or not looked_at else DONE

    def carry_out(self, terminal: Terminal, place: Place, device: str | None, ended: Callable[[], bool]) -> None:
        """Verify all of them, or until `ended()`."""
        import anyio

        anyio.run(self._carry_out, terminal, place, device, ended)

    async def _carry_out(self, terminal: Terminal, place: Place, device: str | None, ended: Callable[[], bool]) -> None:
        import anyio

        from algosearch.cli.progress import TICK_S, Tally, progress
        from algosearch.search import open_searcher
        from algosearch.settings import MEMORY

        waiting = list(reversed(self._entries))
        # Without repair nothing is written, so that the store is not even opened for it.
        store = place.location if self._repair else MEMORY
        async with open_searcher(store=store, devices=None if device is None else (device,)) as searcher:
            with progress(terminal) as bar:
                tally = Tally(bar, len(self._entries))

                async def work() -> None:
                    while waiting:
                        await self._verify_one(searcher, waiting.pop(), tally)

                async def watch() -> None:
                    while not ended():
                        tally.count(self._doing, done=0)
                        await anyio.sleep(TICK_S)
                    terminal.say("stopping")
                    tasks.cancel_scope.cancel()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watch)
                    async with anyio.create_task_group() as workers:
                        for _ in range(min(_AT_ONCE, len(waiting))):
                            workers.start_soon(work)
                    tasks.cancel_scope.cancel()

    async def _verify_one(self, searcher: Searcher, entry: Entry, tally: Tally) -> None:
        try:
            verdict = await searcher.verify(entry.record, tolerance=self._tolerance, repair=self._repair)
        except AlgosearchError as error:
            self._errors[entry.digest] = error
        else:
            self._verdicts[entry.digest] = verdict
        self._doing = entry.problem
        tally.count(self._doing)

    def as_object(self, store: str, *, seconds: float, interrupted: bool) -> dict[str, Any]:
        """For `--json`; the verdicts in the order of the store."""
        import msgspec

        return {
            "store": store,
            "records": len(self._entries),
            "findings": self._findings(),
            "repaired": self._repaired,
            "unanswered": self.left,
            "seconds": seconds,
            "interrupted": interrupted,
            "verdicts": [{**msgspec.structs.asdict(verdict), "drift": verdict.drift} for verdict in self._in_order()],
            "failures": [
                {"problem": entry.problem, "reason": str(self._errors[entry.digest])}
                for entry in self._entries
                if entry.digest in self._errors
            ],
        }

    def tell(self, terminal: Terminal, seconds: float, *, results: bool) -> None:
        """The verdicts for people: those that say something each, the others by number."""
        from algosearch.cli.pages import SHORT
        from algosearch.cli.tables import facts, table

        rows = [
            (
                verdict.digest[:SHORT],
                verdict.problem,
                verdict.finding + (", repaired" if verdict.repaired else ""),
                verdict.algorithm or "",
                "" if verdict.stored_us is None else run_time(verdict.stored_us),
                "" if verdict.now_us is None else run_time(verdict.now_us),
                verdict.reason,
            )
            for verdict in self._in_order()
            if verdict.finding != "steady" and verdict.finding not in _LEFT_ALONE
        ]
        if rows:
            columns = ("key", "problem", "finding", "algorithm", "stored", "now", "reason")
            terminal.present(table(*columns, numbers=("stored", "now"), rows=rows), "", results=results)
        for entry in self._entries:
            if entry.digest in self._errors:
                terminal.say(f"error: {self._errors[entry.digest]}", style="red")
        left_alone = Counter(
            f"{verdict.finding}: {verdict.reason}"
            for verdict in self._verdicts.values()
            if verdict.finding in _LEFT_ALONE
        )
        more = len(left_alone) - _REASONS_SHOWN
        drifts = sorted(abs(verdict.drift) for verdict in self._verdicts.values() if verdict.drift is not None)
        lines = [
            ("records", str(len(self._entries))),
            *((finding, str(number)) for finding, number in self._findings().items()),
            ("repaired", str(self._repaired) if self._repair else ""),
            ("drift", f"{drifts[len(drifts) // 2]:.1%} in the median, {drifts[-1]:.1%} at most" if drifts else ""),
            ("time", duration(seconds)),
        ]
        terminal.present(
            facts(line for line in lines if line[1]),
            *(f"left alone {number}, {reason}" for reason, number in left_alone.most_common(_REASONS_SHOWN)),
            *([f"left alone for {more} more reasons, which --json lists"] if more > 0 else []),
            results=results,
        )

    @property
    def _repaired(self) -> int:
        return sum(verdict.repaired for verdict in self._verdicts.values())

    def _findings(self) -> dict[str, int]:
        return dict(Counter(verdict.finding for verdict in self._in_order()).most_common())

    def _in_order(self) -> list[Verdict]:
        return [self._verdicts[entry.digest] for entry in self._entries if entry.digest in self._verdicts]
