"""Calls designate-central by its own CentralAPI; run in its environment.

Reads a call per line, ``{verb, roles, ...}`` as JSON, and writes what came
of it, ``{result: ...}`` or ``{error: {name, code, text}}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import designate.conf
from designate import context, objects, policy, rpc, utils
from designate.central import rpcapi


def main() -> None:
    utils.read_config('designate', sys.argv)
    policy.init()
    rpc.init(designate.conf.CONF)
    calls = Calls(rpcapi.CentralAPI())
    for line in sys.stdin:
        asked = json.loads(line)
        who = context.DesignateContext(
            user_id='u',
            project_id=asked.pop('project', 'p'),
            roles=asked.pop('roles', ['member', 'reader']),
        )
        verb: Callable[..., Any] = getattr(calls, asked.pop('verb'))
        answer: dict[str, Any]
        try:
            answer = {'result': verb(who, **asked)}
        except Exception as error:
            answer = {
                'error': {
                    'name': type(error).__name__.removesuffix('_Remote'),
                    'code': getattr(error, 'error_code', 500),
                    'text': str(error),
                }
            }
        print(f'ANSWER {json.dumps(answer)}', flush=True)


class Calls:
    """The calls that a test may make, with plain values."""

    def __init__(self, central: Any) -> None:
        self._central = central

    def ready(self, who: Any) -> int:
        """Return how many pools there are, unless it takes a second."""
        client = self._central.client.prepare(timeout=1)
        return len(client.call(who, 'find_pools'))

    def create_pool(self, who: Any, name: str, attributes: Any) -> str:
        """Add a pool with a name server and a key; return its id."""
        servers = [{'priority': 1, 'hostname': f'ns.{name}.example.'}]
        pool = objects.Pool(
            name=name,
            attributes=objects.PoolAttributeList.from_dict(attributes),
            ns_records=objects.PoolNsRecordList.from_list(servers),
        )
        created: str = self._central.create_pool(who, pool).id
        key = objects.TsigKey(
            name=f'{name}.key',
            algorithm='hmac-sha256',
            secret='c2VjcmV0',
            scope='POOL',
            resource_id=created,
        )
        self._central.create_tsigkey(who, key)
        return created

    def create_zone(self, who: Any, name: str, attributes: Any) -> Any:
        """Create a zone; return its id and that of its pool."""
        zone = objects.Zone(
            name=name,
            email='a@example.org',
            type='PRIMARY',
            attributes=objects.ZoneAttributeList.from_dict(attributes),
        )
        created = self._central.create_zone(who, zone)
        return {'id': created.id, 'pool_id': created.pool_id}

    def import_zone(self, who: Any, text: str, attributes: Any) -> str:
        """Start an import with attributes; return its id."""
        wanted = objects.ZoneAttributeList.from_dict(attributes)
        started = self._central.create_zone_import(who, text, wanted)
        begun: str = started.id
        return begun

    def imported(self, who: Any, import_id: str) -> Any:
        """Return how far an import is, and its zone's pool."""
        found = self._central.get_zone_import(who, import_id)
        pool = None
        if found.zone_id:
            pool = self._central.get_zone(who, found.zone_id).pool_id
        return {
            'status': found.status,
            'message': found.message,
            'pool_id': pool,
        }

    def set_attributes(self, who: Any, zone_id: str, attributes: Any) -> None:
        """Replace the attributes of a zone."""
        zone = self._central.get_zone(who, zone_id)
        zone.attributes = objects.ZoneAttributeList.from_dict(attributes)
        self._central.update_zone(who, zone)

    def move_zone(self, who: Any, zone_id: str) -> str:
        """Have a zone moved to the pool that is chosen; return its id."""
        self._central.pool_move_zone(who, zone_id, None)
        moved: str = self._central.get_zone(who, zone_id).pool_id
        return moved


if __name__ == '__main__':
    main()
