"""The bus: endpoints by version, the client, and the drivers under them.

The threading backend is asked for before anything imports oslo.messaging,
which would choose another one by itself; a process that has chosen keeps
its own.
"""

import warnings

from oslo_service import backend

backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)

with warnings.catch_warnings():
    # A dependency imports eventlet where it is installed, used or not.
    warnings.filterwarnings('ignore', message='(?s).*[Ee]ventlet')
    import oslo_messaging  # noqa: F401
