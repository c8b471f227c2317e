"""A database that can be read and not written, such as a standby."""

import time

import pytest
import sqlalchemy as sa

from tests.support import clouds
from tests.support.documents import CONTEXT
from tests.support.waiting import wait_until

TINY = {'memory_mb': 1}
DAEMONS = 2

END_SESSIONS = (
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
    'WHERE datname = current_database() AND pid <> pg_backend_pid()'
)


def become(url: str, read_only: str) -> None:
    """Have all sessions end, and new ones be read-only or not."""
    engine = sa.create_engine(url, isolation_level='AUTOCOMMIT')
    with engine.connect() as conn:
        conn.exec_driver_sql('SET default_transaction_read_only = off')
        conn.exec_driver_sql(
            f'ALTER DATABASE {engine.url.database} '
            f'SET default_transaction_read_only = {read_only}'
        )
        conn.exec_driver_sql(END_SESSIONS)
    engine.dispose()


@pytest.mark.broker
@pytest.mark.db
def test_requests_wait_and_do_not_circle_while_nothing_can_be_written(
    postgresql, quorum_bus
):
    """A quorum queue drops what comes back too often: see its limit here."""
    limit = '[oslo_messaging_rabbit]\nrabbit_quorum_delivery_limit = 3\n'
    with clouds.cloud(
        postgresql[1], quorum_bus, daemons=DAEMONS, extra=limit
    ) as cloud:
        cloud.bring({'hosts': [{'host': 'a', 'memory_mb': 999_999}]})
        asking = cloud.client()
        asking.select_destinations(CONTEXT, {'flavor': TINY})
        url = cloud.store.engine.url.render_as_string(hide_password=False)
        become(url, 'on')
        try:
            sent = {
                asking.select_destinations_cast(CONTEXT, {'flavor': TINY})[
                    'instance_uuids'
                ][0]
                for _ in range(20)
            }
            cloud.wait_for('Degraded: database unreachable', DAEMONS)
            end = time.monotonic() + 6
            while time.monotonic() < end:
                # Somebody answers all the time.
                told = asking.ping(CONTEXT)
                assert told['database'] == 'away'
                time.sleep(0.1)
            assert 'is read-only' in str(told['degraded'])
        finally:
            become(url, 'off')
        wait_until(lambda: sent <= set(cloud.allocated()))
        # A database that can be read is not back before it can be written.
        cloud.wait_for('Database reachable again', DAEMONS)
        assert cloud.said('Degraded: database unreachable') == DAEMONS
        assert cloud.said('Database reachable again') == DAEMONS
