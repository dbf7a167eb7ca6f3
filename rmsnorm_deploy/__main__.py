"""``python -m rmsnorm_deploy``."""

import sys

from rmsnorm_deploy.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
