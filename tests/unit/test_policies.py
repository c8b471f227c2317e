"""Policy rules, and the verdicts that are kept of them."""

import itertools
import os

import pytest
from oslo_config import cfg

from scheduler_service import errors, policies
from tests.support.services import new_conf

OWNER = {'user_id': 'u', 'project_id': 'p', 'roles': ['member']}
RULE = 'release'
stamps = itertools.count(1_000_000_000)


@pytest.fixture
def file(tmp_path):
    return tmp_path / 'policy.yaml'


@pytest.fixture
def make(file):
    """Give a function that returns an enforcer of a policy file."""

    def made(text=None):
        if text is not None:
            write(file, text)
        return policies.Enforcer(new_conf(oslo_policy__policy_file=str(file)))

    return made


def write(file, text):
    """Write a file; its time of change differs from the one before."""
    file.write_text(text)
    moment = next(stamps)
    os.utime(file, (moment, moment))


def test_rules_refer_to_rules_that_exist(make):
    enforcer = make()
    assert enforcer.faults() == []
    assert enforcer.unknown_rules() == []
    assert {*policies.method_rules()} < {
        rule.name for rule in policies.list_rules()
    }


@pytest.mark.parametrize(
    ('target', 'allowed'),
    [
        ({'project_id': 'p'}, True),
        ({'project_id': 'q'}, False),
        ({'project_id': None}, False),
        ({'project_id': ''}, False),
        ({}, False),
    ],
)
def test_an_owner_is_of_the_same_project(make, target, allowed):
    enforcer = make()
    # The second verdict is a kept one.
    for _ in range(2):
        assert enforcer.allows(RULE, target, OWNER) is allowed


@pytest.mark.parametrize(
    'text', [None, '"release": "project_id:%(project_id)s and not user_id:x"']
)
def test_nobody_owns_what_has_no_project(make, text):
    enforcer = make(text)
    for caller in (
        {'roles': []},
        {'project_id': None, 'roles': []},
        {'project_id': '', 'roles': []},
        {'project_id': 'None', 'roles': []},
    ):
        for target in ({}, {'project_id': None}):
            assert not enforcer.allows(RULE, target, caller), caller


@pytest.mark.parametrize('roles', [['admin'], ['x', 'ADMIN'], ['service']])
def test_roles_are_compared_without_case(make, roles):
    caller = {'roles': roles}
    assert make().allows(RULE, {'project_id': 'p'}, caller)


def test_is_admin_has_to_be_true(make):
    enforcer = make()
    assert enforcer.allows('ping', {}, {'roles': [], 'is_admin': True})
    assert not enforcer.allows('ping', {}, {'roles': [], 'is_admin': False})
    assert not enforcer.allows('ping', {}, {'roles': []})


@pytest.mark.parametrize('order', [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_verdict_about_an_owner_is_not_one_about_others(make, order):
    enforcer = make()
    callers = [
        ({'project_id': 'p', 'roles': ['member']}, True),
        ({'project_id': 'q', 'roles': ['member']}, False),
        ({'project_id': None, 'roles': ['member']}, False),
    ]
    for number in order:
        caller, allowed = callers[number]
        assert enforcer.allows(RULE, {'project_id': 'p'}, caller) is allowed
        nobodys = {'project_id': None}
        assert not enforcer.allows(RULE, nobodys, caller)


def test_a_rule_on_users_tells_them_apart(make):
    enforcer = make('"release": "user_id:u or role:%(role)s"')
    assert enforcer.allows(RULE, {}, OWNER)
    assert not enforcer.allows(RULE, {}, {**OWNER, 'user_id': 'v'})
    assert enforcer.allows(RULE, {'role': 'member'}, {**OWNER, 'user_id': 'v'})


def test_a_rule_that_nobody_registered_allows_nothing(make):
    assert not make().allows('nonsense', {}, {'roles': ['admin']})


def test_rules_change_when_the_file_does(make, file, monkeypatch):
    monkeypatch.setattr(policies, '_RELOAD_S', 0.0)
    enforcer = make('"ping": "role:member"')
    assert enforcer.allows('ping', {}, OWNER)
    write(file, '"ping": "role:other"')
    assert not enforcer.allows('ping', {}, OWNER)
    write(file, '')
    assert not enforcer.allows('ping', {}, OWNER)
    assert enforcer.allows('ping', {}, {'roles': ['admin']})


def test_the_file_is_not_looked_at_for_every_verdict(make, file, monkeypatch):
    monkeypatch.setattr(policies, '_RELOAD_S', 3600.0)
    enforcer = make('"ping": "role:member"')
    assert enforcer.allows('ping', {}, OWNER)
    write(file, '"ping": "role:other"')
    assert enforcer.allows('ping', {}, OWNER)


def test_rules_stay_when_the_file_becomes_unreadable(
    make, file, monkeypatch, caplog
):
    monkeypatch.setattr(policies, '_RELOAD_S', 0.0)
    enforcer = make('"ping": "role:member"')
    write(file, '"ping": [')
    for _ in range(3):
        assert enforcer.allows('ping', {}, OWNER)
    assert 'The policy file cannot be read' in caplog.text
    write(file, '"ping": "rule:nothing"')
    assert not enforcer.allows('ping', {}, {'roles': ['admin']})
    assert 'it allows nothing' in caplog.text


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('"ping": [', 'cannot be read'),
        ('- ping', 'cannot be read'),
        ('"ping": "rule:nothing"', 'ping'),
        ('"ping": "rule:release"\n"release": "rule:ping"', 'ping'),
        ('"ping": "role:a or"', 'cannot be parsed'),
    ],
)
def test_a_file_is_refused_when_it_cannot_be_used(make, text, named):
    with pytest.raises(errors.ConfigurationError, match=named):
        make(text)


def test_names_that_nothing_asks_for_are_listed(make, caplog):
    enforcer = make('"pign": "@"\n"ours": "role:o"\n"ping": "rule:ours"')
    assert enforcer.unknown_rules() == ['pign']
    assert 'pign' in caplog.text


@pytest.fixture
def tool_conf(monkeypatch):
    """The options that oslo.policy's tools read, of this test alone."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    monkeypatch.setattr(policies.cfg, 'CONF', conf)
    return conf


def test_tools_check_the_file_that_the_daemon_reads(
    tool_conf, tmp_path, monkeypatch
):
    policy = tmp_path / 'rules.yaml'
    policy.write_text(f'{RULE}: "role:operator"\n')
    config = tmp_path / 'scheduler-service.conf'
    config.write_text(f'[oslo_policy]\npolicy_file = {policy}\n')
    monkeypatch.setattr(
        'sys.argv', ['oslopolicy-validator', f'--config-file={config}']
    )
    enforcer = policies.enforcer_of_tools()
    enforcer.load_rules()
    assert {*enforcer.file_rules} == {RULE}
    assert {rule.name for rule in policies.RULES} <= {*enforcer.rules}


def test_tools_find_a_file_beside_the_configuration(tool_conf, tmp_path):
    """They themselves would look for it in their working directory."""
    (tmp_path / 'rules.yaml').write_text(f'{RULE}: "role:operator"\n')
    config = tmp_path / 'scheduler-service.conf'
    config.write_text('[oslo_policy]\npolicy_file = rules.yaml\n')
    tool_conf(['--config-file', str(config)])
    policies.enforcer_of_tools()
    found = tool_conf.oslo_policy.policy_file
    assert found == str(tmp_path / 'rules.yaml')


def test_tools_keep_the_files_of_their_own_command_line(tool_conf, tmp_path):
    config = tmp_path / 'tool.conf'
    config.write_text('[oslo_policy]\npolicy_file = absent.yaml\n')
    tool_conf(['--config-file', str(config)])
    enforcer = policies.enforcer_of_tools()
    assert tool_conf.oslo_policy.policy_file == 'absent.yaml'
    assert {*enforcer.registered_rules} == {one.name for one in policies.RULES}
