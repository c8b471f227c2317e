"""What the engine says of its own state: once, when it changes."""

from __future__ import annotations

import logging

from scheduler_service import errors
from scheduler_service.engine.health import Health

LOG = logging.getLogger(__name__)
# A batch that takes longer is worth a word.
_SLOW_S = 1.0


class Sayings:
    """Tells the log and the counters what the engine suffers from.

    :param most: how many requests may wait
    :ivar is_away: whether the database did not answer when last asked
    """

    def __init__(self, health: Health, most: int) -> None:
        self._health = health
        self._most = most
        self.is_away = False

    def took(self, seconds: float) -> None:
        """Say whether the database lets batches pass in good time."""
        if seconds > _SLOW_S:
            self._health.suffer('database', f'a batch took {seconds:.1f} s')
        else:
            self._health.well('database')

    def waiting(self, count: int) -> None:
        """Say whether more waits than is soon done."""
        if count > self._most // 2:
            text = f'{count} of {self._most} requests wait'
            self._health.suffer('inbox', text)
        else:
            self._health.well('inbox')

    def away(self, error: errors.StoreUnavailable) -> None:
        """Say that the database does not answer."""
        if not self.is_away:
            LOG.error('%s; waiting for it', error)
            self._health.count('database_lost')
        self.is_away = True
        self._health.suffer('database', 'the database does not answer')

    def back(self) -> None:
        """Say that the database answers again, if it did not."""
        if self.is_away:
            LOG.warning('The database is back')
            self._health.well('database')
        self.is_away = False
