"""Parses the arguments of messages: size and depth first, then types.

Stateless; used by the polling thread and by the redelivery thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.model import documents


class ArgumentParser:
    """Turns arguments into typed documents.

    :ivar max_bytes: the most that arguments may take, encoded as JSON
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def parse(self, args: Any, kind: type[Any]) -> Any:
        """Return the arguments as an object of *kind*.

        :raises PayloadTooLarge: too many bytes, or nested too deeply
        :raises InvalidRequest: with the place and what was expected there
        """
        try:
            text = msgspec.json.encode(args)
        except (TypeError, ValueError, RecursionError) as fault:
            documents.check_depth(args)
            raise errors.InvalidRequest(f'cannot be read: {fault}') from None
        if text.count(b'{') + text.count(b'[') > documents.MAX_DEPTH:
            documents.check_depth(args)
        size = len(text)
        if size > self.max_bytes:
            raise errors.PayloadTooLarge(
                f'{size} bytes, at most {self.max_bytes} are allowed',
                size=size,
                limit=self.max_bytes,
            )
        return documents.arguments(args, kind)
