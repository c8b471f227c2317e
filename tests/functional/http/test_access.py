"""Who may use HTTP: tokens and client certificates."""

from __future__ import annotations

import ssl

import pytest

from scheduler_service import errors
from tests.support import extenders
from tests.support.http_client import HttpClient


def test_token_is_needed_when_one_is_set(serve_http, tmp_path):
    (tmp_path / 'token').write_text('s3cret\n')
    http = serve_http(http__token_file=str(tmp_path / 'token'))
    assert http.send('GET', '/healthcheck')[0] == 200
    for given in (None, 'Bearer no', 'Basic s3cret', 'Bearer'):
        headers = {'Authorization': given} if given else {}
        assert http.send('GET', '/metrics', **headers)[0] == 401
    good = {'Authorization': 'Bearer s3cret'}
    assert http.send('GET', '/metrics', **good)[0] == 200


def test_client_certificate_is_enough_when_a_ca_is_set(serve_http, tmp_path):
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__ca_file=str(certs.ca),
    )
    context = ssl.create_default_context(cafile=str(certs.ca))
    stranger = HttpClient(http.service, http.port, context=context)
    assert stranger.send('GET', '/healthcheck')[0] == 200
    assert stranger.send('GET', '/metrics')[0] == 401
    stranger.close()
    context.load_cert_chain(*certs.client)
    known = HttpClient(http.service, http.port, context=context)
    assert known.send('GET', '/metrics')[0] == 200
    known.close()


def test_start_is_refused_when_a_public_address_is_unprotected(make_service):
    with pytest.raises(errors.ConfigurationError, match='token_file'):
        make_service(http__bind_port=1, http__bind_host='0.0.0.0')
