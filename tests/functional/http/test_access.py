"""Who may use HTTP: tokens and client certificates."""

import ssl
import subprocess
from base64 import b64encode

import pytest

from scheduler_service import errors
from scheduler_service.http import access
from tests.support import extenders
from tests.support.http_client import HttpClient
from tests.support.services import reconfigure
from tests.support.waiting import LIMIT_S


def test_token_is_needed_when_one_is_set(serve_http, tmp_path):
    (tmp_path / 'token').write_text('s3cret\n')
    http = serve_http(http__token_file=str(tmp_path / 'token'))
    assert http.send('GET', '/healthcheck')[0] == 200
    basic = b64encode(b'anybody:s3cret').decode()
    wrong = b64encode(b's3cret:no').decode()
    for given in (None, 'Bearer no', 'Basic s3cret', 'Bearer', 'Basic =',
                  f'Basic {wrong}', f'Bearer {basic}'):  # fmt: skip
        headers = {'Authorization': given} if given else {}
        assert http.send('GET', '/metrics', **headers)[0] == 401
    origin = {'Origin': 'http://page.example'}
    for given, of_page in (('Bearer s3cret', 200), (f'Basic {basic}', 403)):
        good = {'Authorization': given}
        assert http.send('GET', '/metrics', **good)[0] == 200
        assert http.send('GET', '/metrics', **good, **origin)[0] == of_page


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


@pytest.mark.parametrize(
    ('host', 'expected'),
    [
        ('127.0.0.1', True), ('127.9.9.9', True), ('::1', True),
        ('localhost', True), ('127.example.org', False),
        ('localhost.example.org', False), ('::1:5', False),
        ('10.0.0.1', False), ('', False),
    ],
)  # fmt: skip
def test_only_addresses_of_this_machine_need_no_token(host, expected):
    assert access.is_loopback(host) is expected


def test_a_web_page_is_refused_where_anybody_is_admitted(serve_http, tmp_path):
    """A browser sends what a page wants, to our address as to any other."""
    page = {'Origin': 'http://page.example', 'Content-Type': 'text/plain'}
    http = serve_http()
    body = b'{"request": {}}'
    status, told = http.send('POST', '/v1/explain', body, **page)
    assert (status, told['error']['name']) == (403, 'Forbidden')
    assert http.send('POST', '/v1/explain', body)[0] == 200
    (tmp_path / 'token').write_text('s3cret\n')
    guarded = serve_http(http__token_file=str(tmp_path / 'token'))
    assert guarded.send('POST', '/v1/explain', body, **page)[0] == 401
    page['Authorization'] = 'Bearer s3cret'
    assert guarded.send('POST', '/v1/explain', body, **page)[0] == 200


def test_a_certificate_is_no_leave_for_web_pages(serve_http, tmp_path):
    """A browser sends its certificate for any page that asks us."""
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__ca_file=str(certs.ca),
    )
    context = ssl.create_default_context(cafile=str(certs.ca))
    context.load_cert_chain(*certs.client)
    known = HttpClient(http.service, http.port, context=context)
    asked = 'POST', '/v1/explain', b'{"request": {}}'
    page = {'Origin': 'https://page.example', 'Content-Type': 'text/plain'}
    assert known.send(*asked, **page)[0] == 403
    assert known.send(*asked)[0] == 200
    known.close()


def test_a_key_without_certificate_is_refused(make_service, tmp_path):
    certs = extenders.certificates(tmp_path)
    with pytest.raises(errors.ConfigurationError, match='needs cert_file'):
        make_service(http__bind_port=1, http__key_file=str(certs.server[1]))


def test_files_of_tls_that_do_not_load_are_named(make_service, tmp_path):
    certs = extenders.certificates(tmp_path)
    cert, key = map(str, certs.server)
    empty = tmp_path / 'empty.pem'
    empty.write_text('')
    locked = tmp_path / 'locked.pem'
    subprocess.run(
        ['openssl', 'pkey', '-in', key, '-aes128', '-passout', 'pass:word',
         '-out', str(locked)],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    for options, named in (
        ({'key_file': str(empty)}, f'key_file {empty}'),
        ({'key_file': str(locked)}, f'key_file {locked}'),
        ({'key_file': key, 'ca_file': str(empty)}, f'ca_file {empty}'),
    ):
        more = {f'http__{name}': value for name, value in options.items()}
        with pytest.raises(errors.ConfigurationError, match=named):
            make_service(http__bind_port=1, http__cert_file=cert, **more)


V1 = ('/v1/explain', '/v1/decisions', '/v1/decisions/req-1')


def statuses(http, **headers):
    """Return the status of each resource of /v1."""
    body = b'{"request": {}}'
    return [
        http.send('POST', V1[0], body, **headers)[0],
        *(http.send('GET', path, **headers)[0] for path in V1[1:]),
    ]


def test_v1_is_open_to_those_who_are_admitted_unless_roles_are_set(
    serve_http,
):
    assert 403 not in statuses(serve_http())


def test_v1_is_forbidden_when_the_roles_are_not_enough(serve_http, tmp_path):
    (tmp_path / 'policy.yaml').write_text('"list_decisions": "role:reader"')
    (tmp_path / 'token').write_text('s3cret\n')
    http = serve_http(
        http__token_file=str(tmp_path / 'token'),
        http__roles=['reader'],
        oslo_policy__policy_file=str(tmp_path / 'policy.yaml'),
    )
    assert statuses(http) == [401, 401, 401]
    token = {'Authorization': 'Bearer s3cret'}
    assert statuses(http, **token) == [403, 200, 403]


def test_a_rule_may_name_a_certificate(serve_http, tmp_path):
    certs = extenders.certificates(tmp_path)
    (tmp_path / 'policy.yaml').write_text('"explain": "user_id:client"')
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__ca_file=str(certs.ca),
        http__roles=['reader'],
        oslo_policy__policy_file=str(tmp_path / 'policy.yaml'),
    )
    context = ssl.create_default_context(cafile=str(certs.ca))
    context.load_cert_chain(*certs.client)
    known = HttpClient(http.service, http.port, context=context)
    assert statuses(known) == [200, 403, 403]
    known.close()


def test_names_of_other_machines_are_refused_without_credentials(serve_http):
    """A page's own name may resolve to this machine."""
    http = serve_http(http__allowed_hosts=['Scheduler.example'])
    for host, status in (
        ('localhost', 200), ('LocalHost:9393', 200), ('127.0.0.1:9393', 200),
        ('127.8.8.8', 200), ('[::1]:9393', 200), ('[::1]', 200),
        ('scheduler.example', 200), ('scheduler.example:80', 200),
        ('page.example', 403), ('page.example:9393', 403),
        ('127.0.0.1.page.example', 403), ('localhost.page.example', 403),
        ('', 403),
    ):  # fmt: skip
        found = http.send('GET', '/v1/decisions', Host=host)[0]
        assert found == status, host
        # Probes see nothing of requests.
        assert http.send('GET', '/readyz', Host=host)[0] == 200


def test_clients_with_credentials_may_use_any_name(serve_http, tmp_path):
    (tmp_path / 'token').write_text('s3cret\n')
    http = serve_http(http__token_file=str(tmp_path / 'token'))
    sent = {'Authorization': 'Bearer s3cret', 'Host': 'scheduler.example'}
    assert http.send('GET', '/v1/decisions', **sent)[0] == 200


def test_changed_names_are_used(serve_http):
    http = serve_http()
    named = {'Host': 'scheduler.example'}
    assert http.send('GET', '/metrics', **named)[0] == 403
    reconfigure(http.service, http__allowed_hosts=['scheduler.example'])
    assert http.send('GET', '/metrics', **named)[0] == 200
