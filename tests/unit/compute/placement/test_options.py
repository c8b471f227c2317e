"""Options of [placement] that the library itself does not check."""

import pytest

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.compute.placement import options as placement


@pytest.mark.parametrize(
    'line', ['timeout = nan', 'timeout = inf', 'timeout = -1',
             'connect_retry_delay = -1', 'connect_retries = -1'],
)  # fmt: skip
def test_what_is_no_time_and_no_number_of_retries_is_refused(tmp_path, line):
    path = tmp_path / 'a.conf'
    path.write_text(f'[placement]\nauth_type = none\n{line}\n')
    conf = adapters.new_config()
    options.parse(conf, [f'--config-file={path}'])
    name, _, _ = line.partition(' ')
    with pytest.raises(errors.ConfigurationError, match=name) as caught:
        placement.new_adapter(conf)
    assert str(caught.value).startswith('[placement] ')


def test_calls_are_made_again_unless_an_option_says_otherwise(tmp_path):
    def retries(*lines: str) -> tuple[int, int]:
        path = tmp_path / 'a.conf'
        path.write_text('\n'.join(['[placement]', 'auth_type = none', *lines]))
        conf = adapters.new_config()
        options.parse(conf, [f'--config-file={path}'])
        adapter = placement.new_adapter(conf)
        return adapter.connect_retries, adapter.status_code_retries

    assert retries() == (3, 3)
    assert retries('connect_retries = 0', 'status_code_retries = 1') == (0, 1)
    defaults = {option.dest: option.default for option in placement.options()}
    assert defaults['connect_retries'] == defaults['status_code_retries'] == 3
