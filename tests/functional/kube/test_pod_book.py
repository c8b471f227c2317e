"""What pods take of hosts stands in the store, whoever binds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from scheduler_service import errors
from scheduler_service.cmd import manage
from scheduler_service.kube import adapter, verbs
from scheduler_service.kube.node_reader import NodeReader
from scheduler_service.kube.nodes import HostKeeper, NodeSink
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_reader import PodReader
from scheduler_service.kube.pod_use import PodSink, PodUse
from scheduler_service.store.claims import claim_queries, pod_claims
from scheduler_service.store.claims.pod_claims import PodClaim
from scheduler_service.store.connection import Store
from scheduler_service.store.writing import aggregates
from tests.support import kube
from tests.support.http_client import HttpClient
from tests.support.json_server import JsonHandler, JsonServer
from tests.support.servers import free_port
from tests.support.services import started
from tests.support.stores import (
    audit_findings,
    claim_on,
    claim_state,
    import_inventory,
    load_snapshot,
    new_claim,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

FPGA, CLASS = 'example.com/fpga', 'CUSTOM_EXAMPLE_COM_FPGA'
NODES = NodeReader('d', {}, ())


class Watcher:
    """A daemon that follows a cluster, and writes when it is told to."""

    def __init__(
        self,
        store: Store,
        name: str = 'one',
        unseen: float = 9.0,
        of_hosts: bool = True,
    ):
        self.book = PodBook(store, unseen, of_hosts)
        self.keeper = HostKeeper(store, name, NodeSink(NODES), self.book)
        self.sink = PodSink(
            PodUse(0.0), PodReader('d', shared=of_hosts), self.book
        )

    def write(self, *nodes: Any) -> None:
        assert self.keeper.leads()
        self.keeper.write(
            {one['metadata']['name']: NODES.read(one) for one in nodes}
        )


def pod(name: str, node: str = 'n1', cpu: str = '1', fpgas: int = 1) -> Any:
    made = kube.pod(
        name,
        {'cpu': cpu, 'memory': '1Mi'},
        {FPGA: str(fpgas)} if fpgas else {},
    )
    made['metadata'].update(uid=name, namespace='shop')
    made['spec']['nodeName'] = node
    return msgspec.Raw(msgspec.json.encode(made))


def node(name: str = 'n1', **size: str) -> Any:
    return kube.node(name, {FPGA: '2', 'cpu': '8', **size})


def used(store: Store, name: str = CLASS) -> list[int]:
    found: list[int] = load_snapshot(store).hosts.resources[name].used.tolist()
    return found


def claims(store: Store) -> dict[str, tuple[str, str]]:
    with store.reading() as conn:
        listed = claim_queries.listing(conn)
    return {row['request_id']: (row['host'], row['state']) for row in listed}


def test_the_book_is_what_the_watch_shows(make_store):
    store = make_store()
    watcher = Watcher(store)
    watcher.sink.replace([pod('a'), pod('b'), pod('c', fpgas=2)])
    watcher.write(node(), node('n2'))
    # What is seen is a fact, whether there is room or not.
    assert used(store) == [4, 0]
    assert claims(store) == dict.fromkeys(
        ('shop/a', 'shop/b', 'shop/c'), ('n1', 'confirmed')
    )
    watcher.sink.remove(pod('c', fpgas=2))
    watcher.sink.put(pod('d', 'n2'))
    watcher.write(node(), node('n2'))
    assert used(store) == [2, 1]
    # A list without them; a node that went, and came again.
    watcher.sink.replace([pod('a')])
    watcher.write(node(), node('n2'))
    assert claims(store) == {'shop/a': ('n1', 'confirmed')}
    watcher.write(node('n2'))
    assert claims(store) == {}
    # Nothing of it stays behind.
    assert used(store) == [0]
    watcher.write(node(), node('n2'))
    assert claims(store) == {'shop/a': ('n1', 'confirmed')}
    assert not audit_findings(store)


def test_pods_take_what_an_aggregate_offers(make_store):
    """Until nodes offer it themselves, or it is offered no more."""
    store = make_store()
    watcher = Watcher(store)
    size = {'cpu': '8'}
    nodes = [kube.node('n1', size), kube.node('n2', size)]
    offers = {'id': 7, 'name': 'rack', 'hosts': ['n1', 'n2'],
              'resources': {CLASS: {'total': 4}}}  # fmt: skip
    watcher.sink.replace([pod('a'), pod('b', 'n2', fpgas=2)])
    watcher.write(*nodes)
    assert CLASS not in load_snapshot(store).hosts.resources
    import_inventory(store, {'aggregates': [offers]})
    watcher.write(*nodes)
    assert used(store) == [3, 3]
    watcher.write(node(), nodes[1])
    assert used(store) == [1, 2]
    watcher.write(*nodes)
    watcher.sink.remove(pod('a'))
    watcher.write(*nodes)
    assert used(store) == [2, 2]
    assert not audit_findings(store)
    store.write(lambda writer: aggregates.remove(writer, [7]))
    watcher.write(*nodes)
    assert not audit_findings(store)


def test_what_aggregates_offer_is_claimed_wherever_hosts_are_kept(make_store):
    """And what nodes offer no more, where it was before."""
    store = make_store()
    first, second = Watcher(store), Watcher(store, 'two', of_hosts=False)
    nodes = [kube.node('n1', {'cpu': '8'}), node('n2')]
    offers = {'id': 7, 'hosts': ['n1', 'n2'],
              'resources': {CLASS: {'total': 4}}}  # fmt: skip
    import_inventory(store, {'aggregates': [offers]})
    for watcher in (first, second):
        watcher.sink.replace([pod('a', fpgas=3), pod('b', 'n2')])
    first.write(*nodes)
    assert (used(store), used(store, 'VCPU')) == ([3, 1], [1, 1])
    first.keeper._lease.give_up()
    second.write(*nodes)
    assert (used(store), used(store, 'VCPU')) == ([3, 0], [0, 0])
    assert claims(store) == {'shop/a': ('n1', 'confirmed')}
    second.sink.remove(pod('a', fpgas=3))
    second.write(*nodes)
    assert claims(store) == {}
    assert not audit_findings(store)


def test_a_store_that_was_restored_gets_the_book_again(make_store):
    store = make_store()
    watcher = Watcher(store)
    watcher.sink.replace([pod('a'), pod('b')])
    watcher.write(node())
    store.write(lambda writer: pod_claims.release(writer, ['a']))
    old = PodClaim('old', 'shop/old', 'n1', 'n1', {CLASS: 1})
    store.write(lambda writer: pod_claims.confirm(writer, [old]))
    watcher.book._looked_at = 0.0
    for _ in range(2):
        watcher.write(node())
    assert set(claims(store)) == {'shop/a', 'shop/b'}
    assert used(store) == [2]


def test_a_book_that_was_away_ends_like_one_that_was_not(make_store):
    store = make_store()
    first, second = Watcher(store), Watcher(store, 'two')
    for watcher in (first, second):
        watcher.sink.replace([pod('a'), pod('b')])
    first.write(node())
    first.keeper._lease.give_up()
    for watcher in (first, second):
        watcher.sink.remove(pod('a'))
        watcher.sink.put(pod('c', cpu='2'))
    second.write(node())
    assert set(claims(store)) == {'shop/b', 'shop/c'}
    assert (used(store), used(store, 'VCPU')) == ([2], [3])
    second.keeper._lease.give_up()
    first.sink.remove(pod('b'))
    first.write(node())
    assert (used(store), used(store, 'VCPU')) == ([1], [2])
    assert not audit_findings(store)


def test_parts_of_processors_are_rounded_up_for_all_together(make_store):
    store = make_store()
    watcher = Watcher(store)
    watcher.sink.replace(
        [pod(f'p{n}', cpu='300m', fpgas=0) for n in range(10)]
    )
    watcher.write(node())
    assert (used(store, 'VCPU'), used(store, 'MEMORY_MB')) == ([3], [10])
    watcher.sink.put(pod('q', cpu='1m', fpgas=0))
    watcher.write(node())
    assert used(store, 'VCPU') == [4]
    watcher.sink.remove(pod('p3', fpgas=0))
    watcher.write(node())
    assert used(store, 'VCPU') == [3]
    assert len(claims(store)) == 10
    assert not audit_findings(store)


def test_a_claim_ends_whose_pod_is_never_seen(make_store):
    store = make_store()
    watcher = Watcher(store, unseen=-1.0)
    watcher.sink.replace([])
    watcher.write(node())
    host = int(load_snapshot(store).hosts.ids[0])
    place = {'host_id': host, 'host': 'n1', 'node': 'n1'}
    for name, kind in (('a', 'pod'), ('b', 'pod'), ('vm', 'instance')):
        write_claims(
            store,
            new_claim(
                load_snapshot(store), 1, consumer=name, kind=kind, **place
            ),
        )
    watcher.sink.put(pod('b'))
    watcher.book._looked_at = 0.0
    # Not while it cannot be seen.
    watcher.sink.set_lost(True)
    watcher.write(node())
    assert claim_state(store, 'a') == 'claimed'
    watcher.sink.set_lost(False)
    watcher.write(node())
    assert claim_state(store, 'a') is None
    assert claim_state(store, 'b') == 'confirmed'
    assert claim_state(store, 'vm') == 'claimed'
    assert not audit_findings(store)


class Cluster(JsonServer):
    """A stand-in for an API server: nodes, pods, and bindings.

    :ivar loses: whether it binds, and does not say so
    :ivar refuses: whether it binds nothing
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(_Api)
        self.nodes = {f'n{number}': node(f'n{number}') for number in
                      range(nodes)}  # fmt: skip
        self.pods: dict[str, Any] = {}
        self.gone: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.loses = self.refuses = False

    def add(self, name: str, **how: Any) -> Any:
        """Add a pod without a node."""
        made = msgspec.json.decode(pod(name, node='', **how))
        made['metadata']['resourceVersion'] = '1'
        self.pods[name] = made
        return made

    def remove(self, name: str) -> None:
        self.gone[name] = self.pods.pop(name)

    def bound(self, node_name: str) -> list[str]:
        return [
            name
            for name, one in self.pods.items()
            if one['spec']['nodeName'] == node_name
        ]


class _Api(JsonHandler):
    def do_POST(self) -> None:
        asked, cluster = self.asked(), self.server
        name, chosen = asked['metadata']['name'], asked['target']['name']
        with cluster.lock:
            spec = cluster.pods[name]['spec']
            if cluster.refuses:
                self.say(403, {'message': 'not allowed'})
            elif spec['nodeName']:
                self.say(409, {'message': 'already bound'})
            else:
                spec['nodeName'] = chosen
                if cluster.loses:
                    self.close_connection = True
                else:
                    self.say(201, {})

    def do_GET(self) -> None:
        path, cluster = self.path.partition('?')[0], self.server
        kind = path.rsplit('/', 1)[-1]
        if kind == 'nodes':
            found, gone = [*cluster.nodes.values()], []
        elif kind == 'pods':
            found = [
                one
                for one in [*cluster.pods.values()]
                if bool(one['spec']['nodeName']) != ('nominated' in self.path)
            ]
            gone = [*cluster.gone.values()]
        else:
            self.say(200, cluster.pods[kind])
            return
        if 'watch=true' not in self.path:
            metadata = {'resourceVersion': '1'}
            self.say(200, {'metadata': metadata, 'items': found})
            return
        events = [{'type': 'ADDED', 'object': one} for one in found]
        events += [{'type': 'DELETED', 'object': one} for one in gone]
        text = b''.join(msgspec.json.encode(one) + b'\n' for one in events)
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(nodes=2)
    with made.running():
        yield made


@pytest.fixture
def daemons(make_store, cluster) -> Iterator[Any]:
    """Give a function that starts daemons of one store."""
    store, running = make_store(), []

    def start(count: int = 1, **more: Any) -> list[HttpClient]:
        for _ in range(count):
            port = free_port()
            service = started(
                store,
                '',
                http__bind_port=port,
                kubernetes__enabled=True,
                extender__api_server=cluster.url,
                **more,
            )
            running.append((service, HttpClient(service, port)))
            wait_until(lambda: running[-1][1].send('GET', '/readyz')[0] == 200)
        wait_until(lambda: len(load_snapshot(store).hosts) == 2)
        return [client for _, client in running]

    start.store = store
    yield start
    for service, client in running:
        client.close()
        service.stop()


def bind(client: HttpClient, name: str, node_name: str) -> str:
    asked = {'PodName': name, 'PodNamespace': 'shop', 'PodUID': name,
             'Node': node_name}  # fmt: skip
    caller = HttpClient(client.service, client.port)
    status, answer = caller.send('POST', '/extender/bind', asked)
    caller.close()
    assert status == 200
    return str(answer['Error'])


def test_two_daemons_never_bind_three_pods_where_two_fit(cluster, daemons):
    clients = daemons(2)
    for number in range(16):
        cluster.add(f'p{number}')

    def try_both(number: int) -> str:
        # No daemon knows the pod: it asks the API server.
        client = clients[number % 2]
        return bind(client, f'p{number}', f'n{number // 2 % 2}')

    with ThreadPoolExecutor(8) as threads:
        errors_ = list(threads.map(try_both, range(16)))
    assert [len(cluster.bound(name)) for name in ('n0', 'n1')] == [2, 2]
    refused = [error for error in errors_ if error]
    assert len(refused) == 12
    assert all('free_resources' in error for error in refused), refused
    store = daemons.store
    assert used(store) == [2, 2]
    wait_until(
        lambda: {state for _, state in claims(store).values()} == {'confirmed'}
    )
    # Again: it is bound there already.
    [name, _] = cluster.bound('n0')
    assert bind(clients[0], name, 'n0') == ''
    cluster.remove(name)
    wait_until(lambda: sorted(used(store)) == [1, 2])
    assert not audit_findings(store)


def test_a_bind_waits_until_the_claims_of_pods_that_are_gone_end(
    cluster, daemons, monkeypatch
):
    [client] = daemons()
    for name in ('a', 'b', 'c', 'd'):
        cluster.add(name)
    assert [bind(client, name, 'n0') for name in ('a', 'b')] == ['', '']
    store, write = daemons.store, PodBook.write
    is_confirmed = {
        'shop/a': ('n0', 'confirmed'),
        'shop/b': ('n0', 'confirmed'),
    }
    wait_until(lambda: claims(store) == is_confirmed)
    held, looked = threading.Event(), threading.Event()
    monkeypatch.setattr(
        PodBook, 'write', lambda *args: held.is_set() or write(*args)
    )
    wait = PodBook.wait_released

    def seen(*args: Any) -> bool:
        looked.set()
        return wait(*args)

    monkeypatch.setattr(PodBook, 'wait_released', seen)
    held.set()
    cluster.remove('a')
    asked = {'Pod': cluster.pods['c'], 'NodeNames': ['n0']}
    wait_until(
        lambda: client.send('POST', '/extender/filter', asked)[1]['NodeNames']
    )
    with ThreadPoolExecutor(1) as threads:
        bound = threads.submit(bind, client, 'c', 'n0')
        assert looked.wait(LIMIT_S)
        held.clear()
        # Has the book written.
        cluster.pods['d']['spec']['nodeName'] = 'n1'
        assert bound.result() == ''
    assert cluster.bound('n0') == ['b', 'c']
    wait_until(lambda: used(store) == [2, 1])
    # Where no claim ends it is refused.
    monkeypatch.setattr(verbs, '_RELEASE_S', 0.1)
    looked.clear()
    held.set()
    cluster.remove('b')
    cluster.add('e')
    asked['Pod'] = cluster.pods['e']
    wait_until(
        lambda: client.send('POST', '/extender/filter', asked)[1]['NodeNames']
    )
    assert '0 free' in bind(client, 'e', 'n0')
    assert looked.is_set()
    held.clear()


def test_a_binding_that_fails_leaves_no_claim(cluster, daemons):
    [client] = daemons()
    cluster.add('a')
    cluster.refuses = True
    assert 'not allowed' in bind(client, 'a', 'n0')
    assert claims(daemons.store) == {}
    assert used(daemons.store) == [0, 0]
    cluster.refuses = False
    # The API server binds it, and its answer is lost.
    cluster.loses = True
    assert bind(client, 'a', 'n0') == ''
    wait_until(
        lambda: claims(daemons.store) == {'shop/a': ('n0', 'confirmed')}
    )
    assert not audit_findings(daemons.store)


def test_a_pod_that_is_being_bound_is_not_bound_by_another_call(
    cluster, daemons, monkeypatch
):
    [client] = daemons()
    cluster.add('a')
    began, go_on = threading.Event(), threading.Event()
    bind_claimed = verbs.PodBinder._bind_claimed

    def late(*args: Any) -> None:
        began.set()
        assert go_on.wait(LIMIT_S)
        bind_claimed(*args)

    monkeypatch.setattr(verbs.PodBinder, '_bind_claimed', late)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(bind, client, 'a', 'n0')
        assert began.wait(LIMIT_S)
        # Of a kube-scheduler that was started again.
        assert 'Another call is binding' in bind(client, 'a', 'n1')
        assert cluster.bound('n1') == []
        go_on.set()
        assert first.result() == ''
    wait_until(
        lambda: claims(daemons.store) == {'shop/a': ('n0', 'confirmed')}
    )


def test_instances_and_pods_see_each_other(cluster, daemons):
    [client] = daemons(kubernetes__shared_hosts=True)
    service = client.service
    for number in range(3):
        cluster.add(f'p{number}', cpu='3500m', fpgas=0)
    assert bind(client, 'p0', 'n0') == ''
    assert bind(client, 'p1', 'n0') == ''
    # Exactly what the node has.
    cluster.add('small', cpu='1m', fpgas=0)
    assert '1 free' in bind(client, 'p2', 'n0')
    assert cluster.bound('n0') == ['p0', 'p1']
    assert used(daemons.store, 'VCPU') == [7, 0]
    flavor = {'vcpus': 2, 'memory_mb': 1, 'root_gb': 0, 'flavorid': 'f'}
    assert service.select_hosts(flavor=flavor) == ['n1']
    asked = {'Pod': cluster.add('big', cpu='7', fpgas=0),
             'NodeNames': ['n0', 'n1']}  # fmt: skip
    _, answer = client.send('POST', '/extender/filter', asked)
    assert answer['NodeNames'] == []
    assert '7 VCPU requested, 1 free' in answer['FailedNodes']['n0']
    assert '7 VCPU requested, 6 free' in answer['FailedNodes']['n1']
    assert 'requested' in bind(client, 'big', 'n1')
    assert bind(client, 'small', 'n1') == ''
    assert not audit_findings(daemons.store)


def test_pods_that_use_nothing_counted_are_bound_without_the_book(
    cluster, daemons
):
    [client] = daemons(extender__api_timeout=1.0)
    cluster.add('plain', fpgas=0)
    cluster.add('wants')
    service = client.service
    with service.store.engine.begin() as conn:
        conn.exec_driver_sql('ALTER TABLE allocations RENAME TO hidden')
    assert bind(client, 'plain', 'n0') == ''
    assert bind(client, 'wants', 'n0')
    assert cluster.bound('n0') == ['plain']
    with service.store.engine.begin() as conn:
        conn.exec_driver_sql('ALTER TABLE hidden RENAME TO allocations')


def test_an_audit_compares_the_book_with_the_cluster(
    make_store, cluster, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(adapter, '_LASTING_S', 0.01)
    store = make_store()
    config = tmp_path / 'a.conf'
    database = store.engine.url.render_as_string(hide_password=False)
    config.write_text(
        f'[database]\nconnection = {database}\n'
        '[kubernetes]\nenabled = true\nshared_hosts = true\n'
        f'[extender]\napi_server = {cluster.url}\n'
    )

    def audit() -> list[str]:
        manage.main(['--config-file', str(config), 'audit'])
        return list(capsys.readouterr().out.splitlines()[:-1])

    watcher = Watcher(store)
    for name in ('a', 'b', 'c'):
        cluster.add(name)['spec']['nodeName'] = 'n0'
    watcher.sink.replace([pod(name, 'n0') for name in cluster.pods])
    watcher.write(*cluster.nodes.values())
    assert audit() == [
        'overcommitted: n0 CUSTOM_EXAMPLE_COM_FPGA: 3 are used, 2 may be'
    ]
    cluster.remove('c')
    store.write(lambda writer: pod_claims.release(writer, ['a']))
    two = PodClaim('b', 'shop/b', 'n1', 'n1', {CLASS: 2})
    store.write(lambda writer: pod_claims.confirm(writer, [two]))
    takes = f'1 {CLASS}, 1 MEMORY_MB, 1 VCPU of n0'
    # It may be bound every moment.
    next_pod = claim_on(
        load_snapshot(store), 0, consumer='next', kind='pod',
        amounts={'VCPU': 1},
    )  # fmt: skip
    write_claims(store, next_pod)
    assert [line for line in audit() if line.startswith('pod')] == [
        f'pod: n0 a: shop/a takes {takes}, and has claimed nothing',
        f'pod: n0 b: shop/b takes {takes}, and has claimed 2 {CLASS} of n1',
        f'pod: n0 c: shop/c takes nothing, and has claimed {takes}',
    ]
    away = f'http://127.0.0.1:{free_port()}'
    config.write_text(config.read_text().replace(cluster.url, away))
    assert audit()[-1].startswith('pod: : the pods of the cluster are not ')


def test_pods_share_an_aggregate_where_nothing_else_is_claimed(
    make_service, cluster, tmp_path
):
    """Without bind, managed_resources and shared_hosts."""
    path, port = tmp_path / 'kubeconfig', free_port()
    path.write_text(f"""
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
clusters: [{{name: a, cluster: {{server: '{cluster.url}'}}}}]
users: [{{name: a, user: {{}}}}]
""")
    cluster.nodes = {n: kube.node(n, {'cpu': '8'}) for n in ('n0', 'n1')}
    offers = {'id': 7, 'name': 'cad', 'hosts': ['n0', 'n1'],
              'resources': {CLASS: {'total': 2}}}  # fmt: skip
    service = make_service(
        inventory={'aggregates': [offers]},
        http__bind_port=port,
        kubernetes__enabled=True,
        kubernetes__kubeconfig=str(path),
    )
    for name in ('a', 'b'):
        cluster.add(name)['spec']['nodeName'] = 'n0'
    wait_until(lambda: len(claims(service.store)) == 2)
    assert used(service.store) == [2, 2]
    client = HttpClient(service, port)
    asked = {'Pod': cluster.add('c'), 'NodeNames': ['n0', 'n1']}

    def answer() -> Any:
        return client.send('POST', '/extender/filter', asked)[1]

    reason = f'free_resources: 1 {CLASS} requested, 2 of 2 {CLASS} of '
    wait_until(lambda: reason in answer()['FailedNodes'].get('n1', ''))
    cluster.remove('a')
    wait_until(lambda: answer()['NodeNames'] == ['n0', 'n1'])
    wait_until(lambda: used(service.store) == [1, 1])
    client.close()


@pytest.mark.parametrize('option', ['shared_hosts', 'bind'])
def test_pods_are_claimed_on_kept_hosts_alone(make_service, option, cluster):
    more = {'kubernetes__shared_hosts': True} if option != 'bind' else {}
    with pytest.raises(errors.ConfigurationError, match='keep_hosts'):
        make_service(
            kubernetes__enabled=True,
            kubernetes__keep_hosts=False,
            extender__api_server=cluster.url,
            **more,
        )
