"""``python -m rmsnorm_deploy``."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line takes care of it: no traceback meanwhile

    from rmsnorm_deploy.cli.app import main

    sys.exit(main())
