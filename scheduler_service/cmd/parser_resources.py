"""The command line of hosts, pools, aggregates, groups and zones.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Any

from scheduler_service.cmd.parser_parts import (
    command,
    form,
    list_options,
    noun,
    pair,
    positive,
    uuid,
)


def inventory(nouns: Any) -> None:
    """Add ``inventory``."""
    verb = noun(nouns, 'inventory', 'hosts, pools, aggregates and so on')
    add = verb(
        'import', 'inventory:import_inventory', 'import a document', True
    )
    _source(add)
    _allow_missing_hosts(add)
    _replace(add)
    check = verb('check', 'inventory:check', 'check a document by itself')
    _document(check)
    diff = verb(
        'diff', 'inventory:diff', 'print what an import would change', True
    )
    _document(diff)
    _replace(diff)
    export = verb(
        'export', 'inventory:export', 'print everything as a document'
    )
    form(export, 'yaml')
    verb('show', 'inventory:show', 'print how many of each there are', True)


def _source(parser: Any) -> None:
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument(
        'file', nargs='?', help='YAML or JSON; - for standard input'
    )
    sources.add_argument(
        '--from-nodes',
        metavar='FILE',
        help='nodes of a cluster, as kubectl get nodes -o json prints them; '
        '- for standard input',
    )
    sources.add_argument(
        '--from-kubeconfig',
        metavar='FILE',
        help='nodes of the cluster whose API server this file names',
    )


def _document(parser: Any) -> None:
    parser.add_argument('file', help='YAML or JSON; - for standard input')
    _allow_missing_hosts(parser)


def _allow_missing_hosts(parser: Any) -> None:
    parser.add_argument(
        '--allow-missing-hosts',
        action='store_true',
        help='aggregates may name hosts that are not there yet',
    )


def _replace(parser: Any) -> None:
    parser.add_argument(
        '--replace',
        action='store_true',
        help='remove what is not in the document, but no server group that '
        'instances are members of',
    )


def pools(nouns: Any) -> None:
    """Add ``pool``."""
    verb = noun(nouns, 'pool', 'DNS pools')
    verb('list', 'resources:pools', 'list pools', True)
    create = verb('create', 'resources:create_pool', 'add a pool')
    create.add_argument('name', help='its name')
    create.add_argument('--id', type=uuid, help='a UUID; random if absent')
    create.add_argument(
        '--attribute',
        type=pair,
        action='append',
        metavar='KEY=VALUE',
        help='attribute of the pool; may be given several times',
    )
    change = verb('set', 'resources:set_pool', 'set or remove attributes')
    change.add_argument('pool', help='id or name')
    change.add_argument(
        'attribute',
        type=pair,
        nargs='+',
        metavar='KEY=VALUE|KEY=',
        help='attribute to set, or without a value to remove',
    )
    verb('delete', 'resources:delete_pool', 'remove a pool').add_argument(
        'pool', help='id or name'
    )


def hosts(nouns: Any) -> None:
    """Add ``host``."""
    verb = noun(nouns, 'host', 'compute hosts')
    listed = verb('list', 'resources:hosts', 'list hosts', True)
    listed.add_argument('--zone', help='only those of this zone')
    listed.add_argument(
        '--aggregate', help='only those of this one, by its id or name'
    )
    listed.add_argument(
        '--state',
        choices=('up', 'down'),
        help='only those that report, or do not',
    )
    listed.add_argument(
        '--status',
        choices=('enabled', 'disabled'),
        help='only those that may be selected, or may not',
    )
    listed.add_argument(
        '--name',
        metavar='PATTERN',
        help='only those with such a name; * stands for any text',
    )
    drain = verb(
        'drain',
        'capacity:drain',
        'print where the instances of a host could go',
        True,
    )
    drain.add_argument('host', help='its service host')
    drain.add_argument(
        '--plan',
        action='store_true',
        required=True,
        help='only print it: nothing is claimed or moved',
    )
    show = verb('show', 'resources:show_host', 'print a host')
    show.add_argument('host', help='its service host')
    form(show, 'yaml')
    verb('enable', 'resources:enable_host', 'enable a host').add_argument(
        'host', help='its service host'
    )
    disable = verb('disable', 'resources:disable_host', 'disable a host')
    disable.add_argument('host', help='its service host')
    disable.add_argument('--reason', help='shown by host list')
    verb(
        'remove',
        'resources:remove_host',
        'remove a host, also from its aggregates',
    ).add_argument('host', help='its service host')


def aggregates(nouns: Any) -> None:
    """Add ``aggregate``."""
    verb = noun(nouns, 'aggregate', 'host aggregates, and availability zones')
    verb('list', 'resources:aggregates', 'list aggregates', True)
    create = verb('create', 'resources:create_aggregate', 'add an aggregate')
    create.add_argument('name', help='its name')
    create.add_argument('--zone', help='its availability zone')
    create.add_argument(
        '--property',
        type=pair,
        action='append',
        metavar='KEY=VALUE',
        help='metadata of the aggregate; may be given several times',
    )
    change = verb('set', 'resources:set_aggregate', 'set or remove metadata')
    change.add_argument('aggregate', help='id or name')
    change.add_argument(
        'property',
        type=pair,
        nargs='+',
        metavar='KEY=VALUE|KEY=',
        help='metadata to set, or without a value to remove',
    )
    for word, run, what in (
        ('add-host', 'resources:add_to_aggregate', 'add hosts'),
        ('remove-host', 'resources:remove_from_aggregate', 'remove hosts'),
    ):
        hosts = verb(word, run, what)
        hosts.add_argument('aggregate', help='id or name')
        hosts.add_argument(
            'host', nargs='+', help='service host; one or several'
        )
    verb(
        'delete', 'resources:delete_aggregate', 'remove an aggregate'
    ).add_argument('aggregate', help='id or name')


def groups(nouns: Any) -> None:
    """Add ``server-group``."""
    verb = noun(
        nouns, 'server-group', 'groups of instances, together or apart'
    )
    verb('list', 'resources:groups', 'list server groups', True)
    create = verb('create', 'resources:create_group', 'add a server group')
    create.add_argument('name', help='its name')
    create.add_argument(
        '--policy',
        default='anti-affinity',
        choices=(
            'affinity',
            'anti-affinity',
            'soft-affinity',
            'soft-anti-affinity',
        ),
        help='where its instances go: to one host, or to different ones; '
        'soft: if it can be (default: anti-affinity)',
    )
    create.add_argument('--uuid', type=uuid, help='a UUID; random if absent')
    create.add_argument(
        '--project', help='whose instances may join; all if absent'
    )
    create.add_argument(
        '--max-server-per-host',
        type=positive,
        help='members per host, with the policy anti-affinity',
    )
    create.add_argument(
        '--member',
        type=uuid,
        action='append',
        default=[],
        help='uuid of an instance; may be given several times',
    )
    delete = verb('delete', 'resources:delete_group', 'remove a server group')
    delete.add_argument('uuid', help='of the group')


def capacity(nouns: Any) -> None:
    """Add ``capacity``."""
    added = command(
        nouns, 'capacity', 'how full the zones are, and what fits where'
    )
    added.set_defaults(run='capacity:capacity')
    list_options(added)
    added.add_argument('--zone', help='only this availability zone')
    added.add_argument(
        '--flavor',
        metavar='FILE|KEY=VALUE,...',
        help='how many more instances of it fit: a file with a flavor or a '
        'request, or for example vcpus=2,memory_mb=4096,root_gb=20',
    )
    added.add_argument(
        '--by',
        choices=('zone', 'host'),
        default='zone',
        help='with --flavor: count by zone or by host (default: zone)',
    )
