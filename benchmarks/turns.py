"""Lightning's Trainer, one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer

from .contestants import Step

T = TypeVar("T")


class _FinishedError(Exception):
    """Ends a `fit` whose turns are over."""


class Turns(Callback):
    """
    The turns of a :func:`take_turns`. The trainer waits for them where a batch has arrived and nothing has been done
    with it.
    """

    def __init__(self, drive: Callable[[Turns], Any]):
        self._drive = drive
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._requests: SimpleQueue[tuple[Step | None, Future[None]] | None] = SimpleQueue()
        self._under_way: Future[None] | None = None
        self._driver: Future[Any] | None = None

    def step(self) -> None:
        """One whole iteration of the trainer's loop, from where it waits to where it waits again."""
        self._request(None)

    def other(self, function: Step) -> Step:
        """Somebody else's step, as the turn of it."""
        return lambda: self._request(function)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._driver is None:
            # Not earlier: a loader's workers are forked before this thread exists.
            self._driver = self._pool.submit(self._run_driver)
        self._answer()
        while (request := self._requests.get()) is not None:
            function, self._under_way = request
            if function is None:
                return  # the trainer's turn
            function()
            self._answer()
        raise _FinishedError

    def result(self) -> Any:
        """What the driver returned."""
        assert self._driver is not None
        self._pool.shutdown()
        return self._driver.result()

    def refuse(self, error: BaseException) -> None:
        """Nothing more is done for the driver: the trainer has ended before it."""
        self._answer(error)
        while self._driver is not None and (request := self._requests.get()) is not None:
            request[1].set_exception(error)
        self._pool.shutdown()

    def _run_driver(self) -> Any:
        try:
            return self._drive(self)
        finally:
            self._requests.put(None)

    def _request(self, function: Step | None) -> None:
        answer: Future[None] = Future()
        self._requests.put((function, answer))
        answer.result()

    def _answer(self, error: BaseException | None = None) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None and error is None:
            under_way.set_result(None)
        elif under_way is not None:
            under_way.set_exception(error)


def take_turns(fit: Callable[[Callback], object], drive: Callable[[Turns], T]) -> T:
    """
    Stop and go for a `trainer.fit`, and for what it is compared with. Both run in the calling thread, the latter inside
    of a callback; only `drive`, which says whose turn it is, runs in another. It is not the other way round since glibc
    has an arena of its own for each further thread, which returns memory to the system that the first one keeps: the
    same step takes longer there.

    :param fit: Calls `trainer.fit` with a callback among the trainer's. The trainer has no end of its own.
    :param drive: Calls :meth:`Turns.step`, which is one iteration of the loop, and what :meth:`Turns.other` returns.
        When it returns, `fit` ends, without another step.
    :return: What `drive` returns.
    """
    turns = Turns(drive)
    try:
        fit(turns)
        raise RuntimeError("The trainer came to its end before its turns did: give it more epochs.")
    except _FinishedError:
        return turns.result()
    except BaseException as error:
        turns.refuse(error)
        raise
