"""``scheduler-manage policy check``."""

from __future__ import annotations

import pytest

from scheduler_service.cmd import manage
from tests.support.commands import printed_json


@pytest.fixture
def check(tmp_path, capsys):
    """Give a function that checks a policy: (status, output, errors)."""

    def command(policy: str, *args: str) -> tuple[int, str, str]:
        (tmp_path / 'policy.yaml').write_text(policy)
        config = tmp_path / 'a.conf'
        config.write_text(
            f'[oslo_policy]\npolicy_file = {tmp_path}/policy.yaml\n'
        )
        status = manage.main(
            ['--config-file', str(config), 'policy', 'check', *args]
        )
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_the_table_shows_who_may_do_what(check):
    rows = printed_json(check('"ping": "@"', '-f', 'json'))
    by_rule = {row.pop('rule'): row for row in rows}
    assert by_rule['ping'] == dict.fromkeys(by_rule['ping'], True)
    assert by_rule['release'] == {
        'nobody': False,
        'other project': False,
        'owner': True,
        'service': True,
        'admin': True,
    }
    assert 'select_destinations:dry_run' in check('')[1]


def test_one_caller_is_shown_when_described(check):
    policy = '"release": "user_id:u", "ping": "role:watch"'
    given = ['--user', 'u', '--project', 'p', '--role', 'watch']
    for owner, allowed in (('p', True), ('q', False)):
        rows = printed_json(
            check(f'{{{policy}}}', *given, '--owner', owner, '-f', 'json')
        )
        verdicts = {row['rule']: row['allowed'] for row in rows}
        assert verdicts['release']
        assert verdicts['ping']
        assert verdicts['confirm'] is allowed


@pytest.mark.parametrize(
    ('policy', 'named'),
    [
        ('"pign": "@"', 'pign'),
        ('"ping": [', 'cannot be read'),
        ('"ping": "rule:nothing"', 'ping'),
        ('"ping": "role:a or"', 'cannot be parsed'),
    ],
)
def test_the_status_is_1_when_the_file_is_wrong(check, policy, named, caplog):
    status, _, errors = check(policy)
    assert status == 1
    assert named in errors + caplog.text


def test_all_errors_are_named_and_unknown_rules_as_well(check, caplog):
    status, out, err = check(
        '"ping": "role:x and"\n"release": "role:"\n"pong": "@"\n'
        '"confirm": "(role:a"\n'
    )
    assert (status, out) == (1, '')
    for name in ('ping', 'confirm'):
        assert f"{name}: '" in err
    assert 'pong: there is no such rule' in err + caplog.text
