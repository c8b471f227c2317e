"""The message bus: endpoints, the client, and the drivers under them.

oslo.service's threading backend is registered as the default here, before
anything imports oslo.messaging, which would choose eventlet. A process that
has initialised a backend keeps its own.
"""

import warnings

from oslo_service import backend

backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)

with warnings.catch_warnings():
    # A dependency imports eventlet where it is installed, even if unused.
    warnings.filterwarnings('ignore', message='(?s).*[Ee]ventlet')
    import oslo_messaging  # noqa: F401
