"""Options of the [placement] group: how the placement service is reached.

They are keystoneauth1's, as in every client of the service. They are
registered only where the service is used: the library is slow to import.
"""

from __future__ import annotations

import math
from typing import Any

from scheduler_service import errors

GROUP = 'placement'
_SERVICE_TYPE = 'placement'
# Ways to authenticate whose options the sample has; there are more.
_PLUGINS = 'password', 'v3applicationcredential', 'admin_token'
# The library has no defaults. A connection reset or a 503 is no reason to
# refuse a request.
_DEFAULTS = {'timeout': 10, 'connect_retries': 3, 'status_code_retries': 3}
_NUMBERS = (
    'timeout',
    'connect_retries',
    'connect_retry_delay',
    'status_code_retries',
    'status_code_retry_delay',
)


def options() -> list[Any]:
    """Return the options, for the sample file."""
    from keystoneauth1 import loading

    opts = [
        *loading.get_session_conf_options(),
        *loading.get_auth_common_conf_options(),
        *(
            opt
            for name in _PLUGINS
            for opt in loading.get_auth_plugin_conf_options(name)
        ),
        *loading.get_adapter_conf_options(),
    ]
    for opt in opts:
        opt.default = _DEFAULTS.get(opt.dest, opt.default)
    unique: dict[str, Any] = {}
    for opt in opts:
        unique.setdefault(opt.dest, opt)
    return list(unique.values())


def new_adapter(conf: Any) -> Any:
    """Return an adapter of keystoneauth1 for the placement service.

    :raises ConfigurationError: an option cannot be used
    """
    from keystoneauth1 import exceptions, loading

    try:
        loading.register_session_conf_options(conf, GROUP)
        loading.register_auth_conf_options(conf, GROUP)
        loading.register_adapter_conf_options(conf, GROUP)
        conf.set_default('service_type', _SERVICE_TYPE, GROUP)
        for name, value in _DEFAULTS.items():
            if conf[GROUP][name] is None:
                conf.set_default(name, value, GROUP)
        _check(conf[GROUP])
        auth = loading.load_auth_from_conf_options(conf, GROUP)
        session = loading.load_session_from_conf_options(
            conf, GROUP, auth=auth
        )
        return loading.load_adapter_from_conf_options(
            conf, GROUP, session=session, auth=auth
        )
    except exceptions.ClientException as fault:
        raise errors.ConfigurationError(f'[placement] {fault}') from None


def _check(group: Any) -> None:
    """Check numbers, for which the library has no bounds."""
    for name in _NUMBERS:
        value = group[name]
        if value is not None and not 0 <= value < math.inf:
            raise errors.ConfigurationError(
                f'[placement] {name}: expected a number from 0 up, got {value}'
            )
