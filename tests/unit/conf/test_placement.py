"""Options of [placement] that the library itself does not check."""

from __future__ import annotations

import pytest

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.conf import placement


@pytest.mark.parametrize(
    'line', ['timeout = nan', 'timeout = inf', 'timeout = -1',
             'connect_retry_delay = -1', 'connect_retries = -1'],
)  # fmt: skip
def test_what_is_no_time_and_no_number_of_retries_is_refused(tmp_path, line):
    path = tmp_path / 'a.conf'
    path.write_text(f'[placement]\nauth_type = none\n{line}\n')
    conf = options.new_config()
    options.parse(conf, [f'--config-file={path}'])
    name, _, _ = line.partition(' ')
    with pytest.raises(errors.ConfigurationError, match=name) as caught:
        placement.new_adapter(conf)
    assert str(caught.value).startswith('[placement] ')
