"""Close connections that only stay: one that sends no whole request or takes nothing of an answer in time,
and the oldest of too many.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0  # for the line and the headers of a request
STUCK_SECONDS = 60.0  # in which a reader takes something of an answer
MOST_OPEN = 400  # connections; a process may usually open 1,024 files


class HttpConnection(H11Protocol):
    """uvicorn's connection, which by itself waits without an end for a whole request and for a reader."""

    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        self._watch()
        if len(self.connections) > MOST_OPEN:
            self._close_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._stop_waiting()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        self._seen = self.cycle
        self._timer: asyncio.TimerHandle = self.loop.call_later(REQUEST_SECONDS, self._close_if_unasked)

    def _close_if_unasked(self) -> None:
        if self.cycle is self._seen and not self.is_answering:
            self.transport.close()
        else:
            self._watch()

    def _wait_for_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(STUCK_SECONDS, self._give_up, left)

    def _stop_waiting(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()

    def _give_up(self, left: int) -> None:
        """Break an answer off of which nothing was taken; a slow reader has as long again."""
        if self.transport.get_write_buffer_size() < left:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _close_oldest(self) -> None:
        """Close the connection that was opened first, if possible one that is waiting for a request."""
        opened = [one for one in self.connections if isinstance(one, HttpConnection) and one is not self]
        oldest = min(opened, key=lambda one: (one.is_answering, one.since), default=None)
        if oldest is not None:
            self.connections.discard(oldest)
            oldest.transport.close()
