"""What a driver says where it makes no connection, as errors of ours.

Stateless; any thread may call it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from scheduler_service import errors


@contextlib.contextmanager
def translated(dialect: Any) -> Iterator[None]:
    """Translate what the driver raises inside.

    A file that is missing, such as that of a CA, counts as a server that does
    not answer: it may be there later.

    :param dialect: of SQLAlchemy, with its driver
    :raises ConfigurationError: the URL has parameters that the driver does
        not take
    """
    driver = dialect.loaded_dbapi
    try:
        yield
    except (driver.ProgrammingError, TypeError) as fault:
        raise errors.ConfigurationError(
            '[database] connection: the driver does not take it: '
            + ' '.join(str(fault).split())
        ) from None
    except OSError as fault:
        raise driver.OperationalError(str(fault)) from fault
