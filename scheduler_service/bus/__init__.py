"""The connection to the message bus: consuming, replying, reconnecting.

Importing the package registers oslo.service's threading backend as the
default, before oslo.messaging is imported, which would choose eventlet. A
process that has initialised a backend keeps its own.
"""

import os
import warnings

from oslo_service import backend

# Dependencies import eventlet where it is installed, though nothing uses it:
# at least it need not import a DNS library, which takes a tenth of the start.
os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)

with warnings.catch_warnings():
    # A dependency imports eventlet where it is installed, even if unused.
    warnings.filterwarnings('ignore', message='(?s).*[Ee]ventlet')
    import oslo_messaging  # noqa: F401
