"""Programs: the daemon and the commands of operators.

While a program imports its modules, an interrupt ends it at once: as an
exception it would print a traceback.
"""

import os
import signal
import sys

if (
    os.path.basename(sys.argv[0]).startswith('scheduler-')
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
