"""Connections to extenders: slow ones, kept ones, TLS."""

import base64
import threading
from typing import Any

import pytest

from scheduler_service import errors
from tests.support import extenders
from tests.support.documents import CONTEXT
from tests.support.extenders import Reply, entry, pass_only
from tests.support.waiting import LIMIT_S, wait_until


def _data(path: Any) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize('ends', ['it answers', 'timeout'])
def test_other_requests_are_served_when_an_extender_hangs(serve_with, ends):
    go_on = threading.Event()

    def answer(verb: str, asked: Any) -> Reply:
        go_on.wait(LIMIT_S)
        return extenders.pass_all(verb, asked)

    more: dict[str, Any] = {'managedResources': [{'name': extenders.FPGA}]}
    if ends == 'timeout':
        more['httpTimeout'] = '1s'
    with extenders.extender(answer) as server:
        service = serve_with(entry(server, **more))
        service.client.call(
            CONTEXT, 'update_host_state', hosts=[
                {'host': 'compute-1',
                 'resources': {'CUSTOM_FPGA': {'total': 9}}}],
        )  # fmt: skip
        fpga = {'flavor': extenders.WITH_FPGA}
        wait_until(
            lambda: 'placements' in service.client.explain(CONTEXT, fpga)
        )
        results: list[str] = []

        def hang() -> None:
            try:
                service.select_hosts(flavor=extenders.WITH_FPGA)
                results.append('it answers')
            except errors.ExtenderFailed as error:
                results.append(error.facts['reason'])

        threads = [threading.Thread(target=hang) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.calls)
        for _ in range(5):
            service.select_hosts(flavor={'memory_mb': 1})
        if ends == 'it answers':
            # All of them wait still.
            assert results == []
            go_on.set()
        for thread in threads:
            thread.join()
        assert results == [ends] * 6
        go_on.set()


def test_connection_is_kept_when_an_extender_is_called_often(serve_with):
    with extenders.extender() as server:
        service = serve_with(entry(server))
        for _ in range(5):
            service.select_hosts()
        assert server.connections == 1


def test_extender_is_reached_when_both_have_certificates(serve_with, tmp_path):
    certs = extenders.certificates(tmp_path)
    context = certs.server_context(clients=True)
    with extenders.extender(pass_only('compute-1'), context) as server:
        tls = {
            'caFile': str(certs.ca), 'serverName': 'localhost',
            'certData': _data(certs.client[0]),
            'keyData': _data(certs.client[1]),
        }  # fmt: skip
        service = serve_with(entry(server, tlsConfig=tls))
        assert service.select_hosts() == ['compute-1']
        del tls['certData'], tls['keyData']
        with pytest.raises(errors.ExtenderFailed):
            serve_with(entry(server, tlsConfig=tls)).select_hosts()


def test_start_is_refused_when_tls_files_do_not_load(serve_with):
    told = {'urlPrefix': 'https://localhost/x', 'filterVerb': 'f',
            'tlsConfig': {'caFile': '/nowhere'}}  # fmt: skip
    with pytest.raises(errors.ConfigurationError, match='certificates or key'):
        serve_with(told)
