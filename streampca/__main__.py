"""``python -m streampca`` is the ``streampca`` command."""

import signal

from .signals import stopping_on_signals


def main() -> None:
    """Run the command line, with signals handled before it is loaded, which takes a tenth of a second."""
    try:
        with stopping_on_signals(owns_process=True):
            from .cli.main import main as run

            run()
    finally:
        # Python ends, and a signal ends it at once: functions called at exit would print that they were interrupted.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
