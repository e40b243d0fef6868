"""``python -m streampca`` is the ``streampca`` command."""

from .cli.main import main

main()
