"""Policies and configurations that name extenders."""

from __future__ import annotations

import json

import pytest

from scheduler_service.extenders import config


def test_older_policy_is_read_when_its_keys_differ_in_case():
    found = config.read(json.dumps({
        'Kind': 'x', 'kind': 'Policy', 'extenders': [{
            'URLPREFIX': 'http://a/', 'FilterVerb': 'f',
            'HttpTimeout': 30000000000, 'EnableHttps': True,
            'ignoreable': True,
            'TlsConfig': {'Insecure': True, 'ServerName': 'b'},
        }],
    }).replace('"Kind": "x", ', '').encode(), 'p')  # fmt: skip
    (made,) = found.extenders
    assert made.url('f') == 'http://a/f'
    assert (made.timeout, made.enable_https) == (30.0, True)
    assert made.tls.server_name == 'b'
    assert found.unknown == ('extenders[0].ignoreable',)


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('http://h:1/ext', 'http://h:1/ext'),
        ('https://user:pass@h/ext', 'https://h/ext'),
        ('https://user:p@ss@h:1/ext', 'https://h:1/ext'),
        ('https://user:p/ss?@h', 'https://h'),
        ('https://h/ext?token=secret', 'https://h/ext'),
    ],
)
def test_label_has_no_credentials_when_the_url_has_some(url, shown):
    label = config.Extender(url).label
    assert label == shown
