"""What a configuration says in effect."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.conf import effective


@pytest.fixture
def parsed(tmp_path):
    """Give a function that parses the text of a file."""

    def parse(text='', name='a.conf'):
        path = tmp_path / name
        path.write_text(text)
        conf = adapters.new_config()
        return options.parse(conf, [f'--config-file={path}'])

    return parse


def option(conf, place):
    """Return an option by its place."""
    (found,) = [o for o in effective.options(conf) if o.place == place]
    return found


def test_options_come_with_their_source(parsed, tmp_path, monkeypatch):
    monkeypatch.setenv('OS_SCHEDULER__TOPIC', 'here')
    conf = parsed('[extender]\nthreads = 3\n')
    threads = option(conf, '[extender] threads')
    assert (threads.value, threads.source) == (3, f'{tmp_path}/a.conf')
    topic = option(conf, '[scheduler] topic')
    assert topic.value == 'here'
    assert topic.source == 'variable OS_SCHEDULER__TOPIC'
    assert option(conf, '[http] bind_port').source == 'default'


def test_secrets_are_hidden(parsed):
    conf = parsed('[database]\nconnection = mysql://a:hunter2@b/c\n')
    shown = option(conf, '[database] connection')
    assert shown.shown == effective.HIDDEN
    assert 'hunter2' not in str(effective.document(conf))
    # Whether it is set may be known.
    assert option(parsed(), '[database] connection').shown is None


def test_every_fault_is_named_with_its_file(parsed, tmp_path):
    conf = parsed('[extender]\nthreads = 0\nmax_nodes = many\n')
    first, second = effective.faults(conf)
    assert first.startswith(f'[extender] max_nodes ({tmp_path}/a.conf): ')
    assert second.startswith(f'[extender] threads ({tmp_path}/a.conf): ')
    assert effective.faults(parsed()) == []


@pytest.mark.parametrize('value', ['nan', 'inf', '-inf'])
def test_no_number_is_a_fault(parsed, value):
    conf = parsed(
        f'[DEFAULT]\nram_allocation_ratio = {value}\n'
        f'[filter_scheduler]\nram_weight_multiplier = {value}\n'
    )
    ratio, multiplier = effective.faults(conf)
    assert ratio.startswith('[DEFAULT] ram_allocation_ratio')
    assert multiplier.startswith('[filter_scheduler] ram_weight_multiplier')


def test_a_number_without_a_value_is_a_fault_but_where_none_has_a_meaning(
    parsed, tmp_path
):
    conf = parsed(
        '[database]\nlock_timeout =\npool_timeout =\n'
        '[scheduler]\nclaim_timeout =\ntopic =\nserver =\n'
    )
    assert effective.faults(conf) == [
        f'[database] lock_timeout ({tmp_path}/a.conf): it needs a value',
        f'[scheduler] topic ({tmp_path}/a.conf): it needs a value',
    ]


def test_a_number_that_nothing_can_hold_is_a_fault(parsed, tmp_path):
    conf = parsed(
        f'[history]\nkeep_bytes = {2**53}\nkeep_days = 1e10\n'
        f'[scheduler]\ndecisions_kept = {2**53 + 1}\n'
        '[filter_scheduler]\nram_weight_multiplier = -1e12\n'
    )
    days, kept = effective.faults(conf)
    assert days.startswith(f'[history] keep_days ({tmp_path}/a.conf): ')
    assert kept.startswith('[scheduler] decisions_kept ')


@pytest.mark.parametrize('value', ['', 'word', '2'])
def test_a_switch_of_the_command_line_is_a_fault_as_any_other(parsed, value):
    """The library would end the process, or the thread that reloads."""
    (fault,) = effective.faults(parsed(f'[DEFAULT]\ndebug = {value}\n'))
    assert fault.startswith('[DEFAULT] debug (')


def test_differences_are_named(parsed):
    before = parsed('[scheduler]\ntopic = a\nbatch_size = 2\n')
    after = parsed('[scheduler]\ntopic = b\nbatch_size = 3\n', 'b.conf')
    places = [o.place for o in effective.differences(before, after)]
    assert places == ['[scheduler] batch_size', '[scheduler] topic']
    assert effective.differences(before, before) == []


def test_options_that_need_a_restart_keep_their_values(parsed):
    before = parsed('[scheduler]\ntopic = a\nbatch_size = 2\n')
    after = parsed('[scheduler]\ntopic = b\nbatch_size = 3\n', 'b.conf')
    (waiting,) = effective.keep(after, before)
    assert (waiting.place, waiting.value) == ('[scheduler] topic', 'b')
    assert (after.scheduler.topic, after.scheduler.batch_size) == ('a', 3)
    assert effective.keep(after, before) == []


def test_what_libraries_registered_is_compared_as_well(parsed):
    before, after = parsed('[other]\nx = 1\n'), parsed('[other]\nx = 2\n', 'b')
    before.register_opt(cfg.IntOpt('x'), group='other')
    before.register_opt(cfg.IntOpt('y'), group='other')
    before.set_default('y', 4, group='other')
    effective.register_like(after, before)
    assert after.other.y == 4
    (found,) = effective.differences(before, after)
    assert (found.place, found.value) == ('[other] x', 2)


def test_fingerprints_differ_where_daemons_decide_differently(parsed):
    def fingerprint(text):
        return effective.fingerprint(parsed(text))

    plain = fingerprint('')
    assert len(plain) == 12
    assert fingerprint('[scheduler]\nserver = b\n[http]\nbind_port=1') == plain
    assert fingerprint('[filter_scheduler]\nhost_subset_size=2') != plain
    assert fingerprint('[filter_scheduler]\nhost_subset_size=1') == plain
    assert fingerprint('[DEFAULT]\ncpu_allocation_ratio=2') != plain


def test_what_a_reload_takes_is_said_in_the_sample():
    taken = {o.place for o in effective.options(adapters.new_config())
             if o.reloads}  # fmt: skip
    assert {
        '[DEFAULT] cpu_allocation_ratio',
        '[DEFAULT] debug',
        '[DEFAULT] default_log_levels',
        '[filter_scheduler] enabled_filters',
        '[filter_scheduler] ram_weight_multiplier',
        '[filter_scheduler] weight_classes',
        '[filter_scheduler] host_subset_size',
        '[extender] policy_file',
        '[database] lock_timeout',
        '[oslo_policy] policy_file',
        '[scheduler] image_metadata_prefilter',
        '[scheduler] batch_size',
    } <= taken
    assert (
        not {
            '[DEFAULT] transport_url',
            '[database] connection',
            '[scheduler] topic',
        }
        & taken
    )


def test_policy_files_and_plug_ins_are_parts_of_a_configuration(
    parsed, tmp_path
):
    path = tmp_path / 'policy.json'
    text = f'[extender]\npolicy_file = {path}\n'
    path.write_text('{}')
    before, own = effective.document(parsed(text)), parsed(text)
    first = effective.fingerprint(own)
    path.write_text('{ }')
    (changed,) = effective.between(before, effective.document(own))
    assert changed.place == '[files] extender.policy_file'
    assert len(changed.before) == 64
    assert effective.outdated(before, own) == [changed]
    assert effective.fingerprint(own) != first
    plugged = parsed('[scheduler]\nstages = pytest.Stage after=claim\n')
    assert effective.document(plugged)['packages'] == {
        'pytest': {'value': pytest.__version__, 'source': 'installed'}
    }


def test_a_document_is_loaded_without_its_secrets(parsed):
    text = '[database]\nconnection = sqlite:///a\n[http]\nroles = x, y\n'
    document, loaded = effective.document(parsed(text)), parsed()
    effective.load(document, loaded)
    assert loaded.http.roles == ['x', 'y']
    assert loaded.database.connection is None
    assert effective.between(document, effective.document(loaded)) == [
        ('[database] connection', '***', None)
    ]
